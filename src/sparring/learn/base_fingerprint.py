"""The fingerprint of a base model: the hashes of its files that decide what an adapter on it computes.

These are the weights and the tokenizer's files, byte by byte, and the configurations: those of the model, of
its answers (the tokens that end them) and of the tokenizer, which may have the chat template. What the
libraries note in these about themselves does not count.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sparring.core import InputError
from sparring.core.files import sha256_of
from sparring.core.manifest import Hashes, base_of, is_sealed
from sparring.learn.model_files import model_directory

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""The files of which transformers loads the first that is there, unless the configuration names another."""
CONFIGS = (CONFIG, "generation_config.json", "tokenizer_config.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_NOTES = ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash")
_KNOWN: dict[tuple[str, int, int, int], str] = {}
"""The hashes of large files by path, size, time and number, for this process."""


def fingerprint(model: str) -> Hashes:
    """Return the hashes of a base model's files by name, from a second for 2 GB on.

    Args:
        model: its name, as in :func:`sparring.learn.model_files.model_directory`.

    Returns:
        Nothing for a model without such files on this machine.
    """
    directory = model_directory(model)
    if directory is None or not (directory / CONFIG).is_file():
        return {}
    hashes = {}
    for name in [*_weight_files(directory), *TOKENIZER, *_templates(directory)]:
        if (directory / name).is_file():
            hashes[name] = _hash(directory / name)
    for name in CONFIGS:
        if (directory / name).is_file():
            hashes[name] = _hash_without_notes(directory / name)
    return hashes


def check_base(directory: Path, model: Hashes, what: str = "adapter") -> None:
    """Check that what is saved in a directory was trained on a base model with this fingerprint.

    A directory without a fingerprint, such as one of another program, passes, and a model without one.

    Raises:
        InputError: it was trained on another.
        DamagedState: the manifest is damaged.
    """
    trained_on = base_of(directory) if is_sealed(directory) else {}
    differing = differing_files(trained_on, model)
    if differing:
        raise InputError(
            what,
            f"{directory} was trained on another base model: its {differing[0]} was different",
            "Give the model that it was trained on",
        )


def differing_files(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the files in which two fingerprints differ; none if one is empty."""
    if not one or not other:
        return []
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _weight_files(directory: Path) -> list[str]:
    """Return the names of the files that transformers loads, which may stand beside others."""
    named = json.loads((directory / CONFIG).read_bytes()).get("transformers_weights")
    for name in WEIGHTS if named is None else (named,):
        if not (directory / name).is_file():
            continue
        if not name.endswith(".index.json"):
            return [name]
        parts = json.loads((directory / name).read_bytes()).get("weight_map", {})
        return [name, *sorted(set(parts.values()))]
    return []


def _templates(directory: Path) -> list[str]:
    """Return the names of the files of further chat templates."""
    folder = "additional_chat_templates"
    return sorted(f"{folder}/{file.name}" for file in (directory / folder).glob("*.jinja"))


def _hash_without_notes(path: Path) -> str:
    config = json.loads(path.read_bytes())
    kept = {key: value for key, value in config.items() if key not in _NOTES}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
    if key not in _KNOWN:
        _KNOWN[key] = sha256_of(path)
    return _KNOWN[key]
