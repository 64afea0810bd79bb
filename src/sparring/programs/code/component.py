"""The sandbox as a file: CPython and ``guest.py`` as a WebAssembly component without imports, compiled.

componentize-py links CPython, starts it, imports the guest, and keeps its memory as it then is; wasmtime
compiles that for this processor. Each takes about fifteen seconds of a core, once: the files stay in the
user's cache, under a name that changes with the guest, the versions of both libraries and the kind of
processor.
"""

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from sparring.core import InputError
from sparring.core.errors import check_installed
from sparring.core.files import cache_directory, write_file
from sparring.core.locks import lock

EXTRA, PACKAGES = "code", ("componentize_py", "wasmtime")
WORKER = Path(__file__).with_name("worker.py")
GUEST = Path(__file__).with_name("guest.py")
WORLD = """package sparring:code;

world sandbox {
  export run: func(source: string, call: string, arguments: option<string>, room: u32)
    -> tuple<string, string, string>;
  export same: func(first: string, second: string, as-json: bool) -> bool;
}
"""
"""What of the guest can be called. The component has no other interface and no imports."""
MOST_SECONDS = 900.0
"""After this, making the component is given up: fifty times what it takes."""
_BUILD = "import componentize_py; componentize_py.script()"
_WORK = f"import runpy; runpy.run_path({str(WORKER)!r}, run_name='__main__')"
_LINKED, _COMPILED = "sandbox.wasm", "sandbox.cwasm"


def check_sandbox(field: str) -> None:
    """Raise an InputError if a package that the sandbox needs is missing; ``field`` is who needs it."""
    check_installed(field, EXTRA, *PACKAGES)


def compiled_component(say: Callable[[str], None], unusable: os.stat_result | None = None) -> Path:
    """Return the compiled component in the user's cache; it is made if it is not there.

    Args:
        say: is told when it is made for the first time.
        unusable: a compiled file that could not be loaded, which is replaced if it is still there.

    Raises:
        InputError: a package is missing, the cache cannot be written, or the component cannot be made.
    """
    check_sandbox("sandbox")
    directory = cache_directory() / f"sandbox-{_key()}"
    compiled = directory / _COMPILED
    if _is_usable(compiled, unusable):
        return compiled  # the cache may be one that only its owner can write
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (directory / ".lock").open("w") as file:
            lock(file.fileno(), wait=True)
            if not (directory / _LINKED).exists():
                say("making the sandbox for programs (about half a minute, once)")
                write_file(directory / _LINKED, _linked())
            if not _is_usable(compiled, unusable):
                write_file(compiled, _compiled(directory / _LINKED))
    except OSError as error:
        fix = "Free space or set SPARRING_CACHE to a writable directory"
        problem = f"{directory} cannot be written ({error.strerror or error})"
        raise InputError("sandbox", problem, fix) from error
    return compiled


def _is_usable(compiled: Path, unusable: os.stat_result | None) -> bool:
    return compiled.exists() and (unusable is None or not os.path.samestat(compiled.stat(), unusable))


def _key() -> str:
    made_of = [GUEST.read_text(encoding="utf-8"), WORKER.read_text(encoding="utf-8"), WORLD]
    made_of.append(platform.machine())
    made_of += [version(package.replace("_", "-")) for package in PACKAGES]
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]


def _linked() -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "world.wit").write_text(WORLD)
        (place / "guest.py").write_bytes(GUEST.read_bytes())
        words = ["-q", "-d", "world.wit", "-w", "sandbox", "componentize", "guest"]
        words += ["--stub-wasi", "-p", ".", "-o", _LINKED]
        _made(_python_with("componentize_py", _BUILD, *words), place)
        return (place / _LINKED).read_bytes()


def _compiled(linked: Path) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / _COMPILED
        _made(worker_command(linked, target), Path(scratch))
        return target.read_bytes()


def _made(command: list[str], place: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=bare_environment(),
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        problem = f"the sandbox could not be made in {MOST_SECONDS:g} s"
        raise InputError("sandbox", problem, "Try again when the machine is less busy") from error
    if done.returncode:
        problem = f"the sandbox cannot be made ({last_line(done.stderr.strip() or done.stdout)})"
        raise InputError("sandbox", problem, f"Run: pip install --force-reinstall 'sparring[{EXTRA}]'")


def worker_command(*files: Path) -> list[str]:
    """Return the command that runs ``worker.py``."""
    return _python_with("wasmtime", _WORK, *map(str, files))


def _python_with(package: str, code: str, *words: str) -> list[str]:
    """Return the command of a Python with nothing of this one's but a package, wherever this one found it."""
    found = importlib.util.find_spec(package)
    place = Path(found.origin).parents[1] if found and found.origin else Path()
    code = f"import sys; sys.path.append(sys.argv.pop(1)); {code}"
    return [sys.executable, "-I", "-c", code, str(place), *words]


def last_line(said: str) -> str:
    """Return the last line of what a process said."""
    return (said.strip() or "no message").splitlines()[-1].strip()


def bare_environment() -> dict[str, str]:
    """Return the environment of processes that need none: what loading and temporary files depend on."""
    kept = ("LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
