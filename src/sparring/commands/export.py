"""``sparring export``: a trained adapter as files for other programs, alone or merged into its base model."""

import json
import shutil
from pathlib import Path

from rich.console import Console
from safetensors import SafetensorError

from sparring.commands.export_card import model_card, public_name
from sparring.commands.model_source import find_model
from sparring.core import InputError, SparringError
from sparring.core.adapter_config import read_adapter_config
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from sparring.core.files import put_in_place, umask, users_scratch_for
from sparring.core.manifest import check_if_sealed
from sparring.learn.adapter_weights import read_shapes
from sparring.run.progress_views import print_line, working

CARD = "README.md"


def export(run_or_adapter: str, out: Path, *, merge: bool, policy: str | None, console: Console) -> None:
    """Write an adapter in PEFT's format to a new directory, or with ``merge`` a whole Hugging Face model.

    A merged model has float32 weights, because bfloat16 would round away a part of what was learned. Its
    tokenizer, chat template and generation settings are those of the base model. Beside the files stands a
    model card. Nothing names a directory of this machine.

    Args:
        run_or_adapter: a run, with or without a checkpoint, or an adapter directory.
        out: the directory to write, which must not exist.
        merge: add the adapter to the weights of its base model.
        policy: the policy of a run that trained several.
        console: shows what is being done.

    Raises:
        InputError: there is no such adapter, it does not fit its base model, or ``out`` cannot be made.
        SparringError: ``out`` cannot be written.
    """
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a new directory.")
    source = find_model(run_or_adapter)
    if source.adapter is None:
        raise InputError("RUN", f"{run_or_adapter} is a model without an adapter", "Name a run.")
    adapter = _of_policy(source.adapter, policy)
    check_if_sealed(adapter, (ADAPTER_FILE, ADAPTER_CONFIG))
    config = read_adapter_config(adapter)
    read_shapes(adapter)
    try:
        scratch = users_scratch_for(out)
    except OSError as error:
        raise InputError("OUT", f"{out} cannot be made ({error.strerror})", "Name another place.") from error
    try:
        base = source.model.name
        if merge:
            with working(console, "importing torch"):
                from sparring.commands.export_merged import write_merged
            with working(console, f"loading {base}"):
                write_merged(base, adapter, scratch, console)
        else:
            config["base_model_name_or_path"] = public_name(base)
            (scratch / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1))
            shutil.copyfile(adapter / ADAPTER_FILE, scratch / ADAPTER_FILE)
        (scratch / CARD).write_text(model_card(base, out.resolve().name, config["r"], merged=merge))
        for file in scratch.iterdir():  # transformers writes weights that only their owner may read
            file.chmod(0o666 & ~umask())
        put_in_place(scratch, out)
    except (OSError, SafetensorError) as error:
        raise SparringError(f"{out} cannot be written ({error})") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print_line(console, f"wrote {out}, from {adapter}")


def _of_policy(checkpoint: Path, policy: str | None) -> Path:
    """Return the directory of one policy's adapter.

    Raises:
        InputError: the checkpoint has several and none is named, or none of this name.
    """
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
