"""``sparring export``: an adapter, alone or merged into its base model, or payoffs, for other programs."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from safetensors import SafetensorError

from sparring.commands.export_card import model_card, public_name
from sparring.commands.model_source import find_model
from sparring.commands.push import check_push, push
from sparring.config import Config
from sparring.config.loading import load_config
from sparring.core import InputError, SparringError
from sparring.core.adapter_config import read_adapter_config
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from sparring.core.errors import NOT_JSON
from sparring.core.files import put_in_place, umask, users_scratch_for
from sparring.core.manifest import check_if_sealed
from sparring.evaluation.tournament_files import write_payoffs
from sparring.learn.adapter_weights import read_shapes, read_weights
from sparring.population import PayoffTable
from sparring.run.programs import build_program, seats_of_program
from sparring.run.progress_views import print_line, working
from sparring.run.run_directory import CHECKPOINT_PREFIX, RunDirectory
from sparring.run.run_names import find_checkpoint, find_run, split_checkpoint

if TYPE_CHECKING:
    from sparring.learn.gguf.writing import GgufKind


def export(
    run_or_adapter: str,
    out: Path,
    *,
    merge: bool,
    policy: str | None,
    console: Console,
    gguf: "GgufKind | None" = None,
    push_to: str | None = None,
) -> None:
    """Write an adapter in PEFT's format to a new directory, or with ``merge`` a whole Hugging Face model.

    A merged model has float32 weights, because bfloat16 would round away a part of what was learned. With
    ``gguf``, the adapter or the model is a GGUF file of that type instead. Beside the files stands a model
    card. Nothing names a directory of this machine. With ``push_to``, all of it is then uploaded.

    Raises:
        InputError: there is no such adapter, it does not fit its base model, or ``out`` cannot be made.
        SparringError: ``out`` cannot be written, or not be uploaded.
    """
    check_new(out)
    token = None if push_to is None else check_push(push_to)
    if gguf == "q8_0" and not merge:
        raise InputError("--gguf", "q8_0 is for whole models", "Write f16, or add --merge")
    source = find_model(run_or_adapter)
    if source.adapter is None:
        raise InputError("RUN", f"{run_or_adapter} is a model without an adapter", "Name a run.")
    adapter = _of_policy(source.adapter, policy)
    check_if_sealed(adapter, (ADAPTER_FILE, ADAPTER_CONFIG))
    config = read_adapter_config(adapter)
    read_shapes(adapter)
    base, title = source.model.name, out.resolve().name
    file = None if gguf is None else f"{title}.gguf"
    with written(out) as scratch:
        if merge:
            _write_merged(base, adapter, scratch, console, title, gguf)
        elif gguf is not None:
            _write_adapter_gguf(base, adapter, config, scratch / f"{title}.gguf", gguf, console)
        else:
            config["base_model_name_or_path"] = public_name(base)
            (scratch / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1))
            shutil.copyfile(adapter / ADAPTER_FILE, scratch / ADAPTER_FILE)
        origin = "" if source.config is None else _origin(source.config, adapter)
        card = model_card(base, title, config["r"], merged=merge, origin=origin, gguf=file)
        (scratch / "README.md").write_text(card)
    print_line(console, f"wrote {out}, from {adapter}")
    if push_to is not None and token is not None:
        with working(console, f"uploading to {push_to}"):
            address = push(out, push_to, token)
        print_line(console, f"uploaded to {address} (private, unless it was there already)")


def export_payoffs(name: str, out: Path) -> None:
    """Write what the members of a run's pool earned, up to a checkpoint, as JSON and CSV."""
    check_new(out)
    run_name, checkpoint = split_checkpoint(name)
    run = RunDirectory.open(find_run(run_name))
    place = find_checkpoint(run, checkpoint, name)
    table, members = _payoffs_of(place, name)
    config = load_config(str(run.config_file), {})
    about = {
        "run": run.path.resolve().name,
        "update": int(place.name.rpartition("-")[2]),
        "env_ids": [env.name for env in config.envs],
    }
    program = build_program(config)
    if program is not None:
        about["roles"] = list(seats_of_program(program))
    with written(out) as scratch:
        write_payoffs(scratch, about, table, members)


def check_new(out: Path) -> None:
    """Raise an InputError if there is something at ``out``."""
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a new directory.")


@contextmanager
def written(out: Path) -> Iterator[Path]:
    """Provide a directory that becomes ``out`` when all of it is written."""
    try:
        scratch = users_scratch_for(out)
    except OSError as error:
        raise InputError("OUT", f"{out} cannot be made ({error.strerror})", "Name another place.") from error
    try:
        yield scratch
        # transformers writes weights that only their owner may read
        for file in filter(Path.is_file, scratch.iterdir()):
            file.chmod(0o666 & ~umask())
        put_in_place(scratch, out)
    except (OSError, SafetensorError) as error:
        raise SparringError(f"{out} cannot be written ({error})") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _of_policy(checkpoint: Path, policy: str | None) -> Path:
    """Return the directory of one policy's adapter."""
    found = {config.parent.name: config.parent for config in sorted(checkpoint.glob(f"*/{ADAPTER_CONFIG}"))}
    if not found:
        if policy is not None:
            raise InputError("--policy", f"{checkpoint} has only one policy", "Leave it out")
        return checkpoint
    if policy is None and len(found) > 1:
        raise InputError("--policy", "this run trained several policies", f"Name one: {', '.join(found)}")
    if policy is not None and policy not in found:
        raise InputError("--policy", f"there is no policy {policy!r}", f"There are: {', '.join(found)}")
    return found[policy or next(iter(found))]


def _origin(config: Config, adapter: Path) -> str:
    """Return a sentence on what a run trained an adapter on, and for how long."""
    played = ", ".join(f"`{env.id}`" for env in config.envs) or "a program of its own"
    steps = next((part for part in adapter.parts[::-1] if part.startswith(CHECKPOINT_PREFIX)), None)
    if steps is None:
        return f"It learned by playing {played}."
    updates = int(steps.removeprefix(CHECKPOINT_PREFIX))
    return f"It learned by playing {played}, {updates} updates of {config.collection.games_per_step} games."


def _write_adapter_gguf(
    base: str, adapter: Path, config: Mapping[str, Any], file: Path, kind: "GgufKind", console: Console
) -> None:
    with working(console, "importing torch"):
        from transformers import AutoConfig

        from sparring.learn.gguf.writing import write_adapter_gguf
        from sparring.learn.model_files import resolve_model
    name = resolve_model(base, partial(print_line, console))
    own = AutoConfig.from_pretrained(name, trust_remote_code=False).to_dict()
    write_adapter_gguf(read_weights(adapter), config, own, file, kind)


def _write_merged(
    base: str, adapter: Path, directory: Path, console: Console, title: str, gguf: "GgufKind | None"
) -> None:
    with working(console, "importing torch"):
        import torch

        from sparring.learn.model_files import resolve_model
        from sparring.learn.policy import LoraSettings, PolicyModel
    with working(console, f"loading {base}"):
        name = resolve_model(base, partial(print_line, console))
        policy = PolicyModel(name, LoraSettings.read(adapter), dtype=torch.float32)
        policy.load_adapter_state(read_weights(adapter))
        merged = policy.model.merge_and_unload(safe_merge=True)
        if gguf is not None:
            from sparring.learn.gguf.writing import write_model

            write_model(merged, policy.tokenizer, directory / f"{title}.gguf", gguf, title)
            return
        merged.save_pretrained(directory)
        policy.tokenizer.save_pretrained(directory)


def _payoffs_of(checkpoint: Path, name: str) -> tuple[PayoffTable, list[str]]:
    """Return the payoffs in a checkpoint, and its members in the order in which they joined the pool."""
    file = checkpoint / "state.json"
    if not file.is_file():
        problem = "only the adapter of this checkpoint was kept"
        raise InputError(name, problem, "Name another checkpoint, or none for the last")
    try:
        pool: dict[str, Any] = json.loads(file.read_text()).get("source", {}).get("pool", {})
        table = PayoffTable()
        if "played" in pool:
            table.load_state_dict(pool["played"])
        played = {*table.members()}
        members = [one["uid"] for one in pool.get("models", []) if one["uid"] in played]
    except (OSError, KeyError, TypeError, AttributeError, *NOT_JSON) as error:
        raise InputError(str(file), "is damaged", "Name another checkpoint") from error
    if not members:
        problem = "no member of a pool has played up to this checkpoint"
        raise InputError(name, problem, "Name a later one, of a run that plays games")
    return table, members
