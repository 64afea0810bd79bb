"""Changes of a run's parameters: listed, and refused unless the user accepts them."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from selfplay.config.finetune import DEFAULT_AGENT, AgentParameters
from selfplay.core import InputError
from selfplay.core.files import write_file
from selfplay.finetune.hyper_params import HyperParameters
from selfplay.finetune.metadata import metadata
from selfplay.finetune.run_files import RunFiles

HARMLESS = re.compile(
    r"rl\.num_(iterations|test_)|text_rl\.(test|save|transcript)_|(agents|roles)\..+\.test_temperature"
)
"""Begins the parameters whose change leaves what was sampled and learned so far as it is."""
OPEN = re.compile(r"(roles|agents\..+\.hyperparameters|program\.claims\.columns\.where)(\.|$)")
"""The tables whose fields users name. Elsewhere, a field that a run lacks is one of a later version."""


def check_parameters(
    files: RunFiles, params: HyperParameters, agents: Sequence[str], *, accept: bool
) -> list[str]:
    """Compare the parameters with those of the run, write them down, and return what changed, a line each.

    Args:
        files: the run.
        params: the parameters now.
        agents: the agents of the protocol, whose parameters are compared as they hold for each.
        accept: allow changes of results.

    Raises:
        InputError: parameters that change results differ, and ``accept`` is false.
        OSError: they cannot be written.
    """
    now = params.model_dump()
    before = _read(files) if files.params.exists() else now
    changed = _differences(_by_agent(before, agents), _by_agent(now, agents))
    refused = [one for one in changed if not HARMLESS.match(one)]
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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(str(files.params), f"is damaged: {error}", "Restore the file") from None


def _by_agent(params: dict[str, Any], agents: Sequence[str]) -> dict[str, Any]:
    """Return parameters with those of every agent in place of those that were given."""
    given = params.get("agents", {})
    default = given.get(DEFAULT_AGENT) or AgentParameters().model_dump()
    return {**params, "agents": {name: given.get(name) or default for name in agents}}


def _differences(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """Return ``name: old -> new`` for all leaves that differ."""
    found = []
    for name in sorted(before.keys() | now.keys() if OPEN.match(path) else before):
        place = f"{path}.{name}" if path else name
        if name not in before:
            found.append(f"{place}: nothing -> {now[name]!r}")
        elif name not in now:
            found.append(f"{place}: {before[name]!r} -> nothing")
        elif isinstance(before[name], dict) and isinstance(now[name], dict):
            found += _differences(before[name], now[name], place)
        elif before[name] != now[name]:
            found.append(f"{place}: {before[name]!r} -> {now[name]!r}")
    return found
