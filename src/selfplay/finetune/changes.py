"""Changes of a run's parameters: listed, and refused unless the user accepts them."""

from typing import Any

import msgspec

from selfplay.core import InputError
from selfplay.core.files import write_file
from selfplay.finetune.hyper_params import HyperParameters
from selfplay.finetune.metadata import metadata
from selfplay.finetune.run_files import RunFiles

HARMLESS = ("rl.num_iterations", "rl.num_test_", "text_rl.test_", "text_rl.save_", "text_rl.transcript_")
"""Parameters whose change leaves what was sampled and learned so far as it is."""


def check_parameters(files: RunFiles, params: HyperParameters, *, accept: bool) -> list[str]:
    """Compare the parameters with those of the run, write them down, and return what changed, a line each.

    Raises:
        InputError: parameters that change results differ, and ``accept`` is false.
        OSError: they cannot be written.
    """
    now = params.model_dump()
    changed = _differences(_read(files), now) if files.params.exists() else []
    refused = [one for one in changed if not one.startswith(HARMLESS)]
    if refused and not accept:
        raise InputError(
            "configuration",
            f"{files.root} was begun with other parameters: {'; '.join(refused)}",
            "Restore them, or resume with --accept-changes",
        )
    if changed or not files.params.exists():
        write_file(files.params, msgspec.json.format(msgspec.json.encode(now), indent=4) + b"\n")
        write_file(files.metadata, msgspec.json.encode(metadata()) + b"\n")
    return [f"changed since the run began: {one}" for one in changed]


def _read(files: RunFiles) -> dict[str, Any]:
    try:
        return msgspec.json.decode(files.params.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(str(files.params), f"is damaged: {error}", "Restore the file") from None


def _differences(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """Return ``name: old -> new`` for all leaves that differ. A parameter that is new is not a change."""
    found = []
    for name in sorted(before):
        place = f"{path}{name}"
        if name not in now:
            found.append(f"{place}: {before[name]!r} -> nothing")
        elif isinstance(before[name], dict) and isinstance(now[name], dict):
            found += _differences(before[name], now[name], f"{place}.")
        elif before[name] != now[name]:
            found.append(f"{place}: {before[name]!r} -> {now[name]!r}")
    return found
