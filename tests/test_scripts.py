"""scripts/train, scripts/test and .ci/run, in a clone whose tools only record their calls."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("bash", "cat", "chmod", "cmp", "cp", "dirname", "env", "mkdir", "tail", "tee")
TOOLS = ("sparring", "ruff", "mypy", "lint-imports", "pytest")

# It makes an environment of tools like itself; pip fails where FAIL_PIP says so.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    --version) echo "Python 3.11.7" ;;
    "-c "*) exit "${OLD_PYTHON:-0}" ;;
    "-m pip --version") ;;
    "-m venv .venv")
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        for tool in %s; do
            printf '#!/usr/bin/env bash\\necho "%%s $*" >>ran\\n' "$tool" >".venv/bin/$tool"
            chmod +x ".venv/bin/$tool"
        done ;;
    "-m pip "*)
        shift
        echo "$*" >>ran
        echo "Collecting something"
        exit "${FAIL_PIP:-0}" ;;
esac
"""


@pytest.fixture
def clone(tmp_path) -> Path:
    """A clone with the scripts in it, and beside it a ``bin`` with a Python of that kind."""
    root = tmp_path / "clone"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / ".ci", root / ".ci")
    shutil.copy(ROOT / "pyproject.toml", root)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name))
    python = programs / "python3"
    python.write_text(FAKE_PYTHON % " ".join(TOOLS))
    python.chmod(0o755)
    return root


def run(clone: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call a script from another directory; nothing of this process's environment is passed on."""
    return subprocess.run(
        [str(clone / script), *arguments],
        cwd=clone.parent,
        env={"PATH": str(clone.parent / "bin"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def ran(clone: Path) -> list[str]:
    """The calls of the tools since the last time."""
    lines = (clone / "ran").read_text().splitlines()
    (clone / "ran").unlink()
    return lines


def test_train_installs_once_and_trains_kuhn_poker_by_default(clone):
    first = run(clone, "scripts/train")
    assert first.returncode == 0, first.stderr
    assert ran(clone) == [
        "pip install torch==2.13.0",
        "pip install -e .[serve,watch]",
        "sparring train kuhn",
    ]
    assert "creating .venv" in first.stderr
    assert "installing" in first.stderr
    again = run(clone, "scripts/train", "tictactoe", "--learning.steps", "2")
    assert again.returncode == 0
    assert ran(clone) == ["sparring train tictactoe --learning.steps 2"]
    assert "installing" not in again.stderr


def test_test_runs_every_check_and_hands_its_arguments_to_pytest(clone):
    assert run(clone, "scripts/test", "-k", "buffers").returncode == 0
    assert ran(clone) == [
        "pip install torch==2.13.0",
        "pip install -e .[dev]",
        "ruff check .",
        "ruff format --check .",
        "mypy ",
        "lint-imports ",
        "pytest -n 3 --no-loadscope-reorder -k buffers",
    ]


def test_ci_runs_the_test_command(clone):
    assert run(clone, ".ci/run", CI="true").returncode == 0
    assert ran(clone)[-1] == "pytest -n 3 --no-loadscope-reorder"


def test_a_check_that_fails_ends_the_test_command(clone):
    run(clone, "scripts/test")
    ran(clone)
    (clone / ".venv" / "bin" / "mypy").write_text("#!/usr/bin/env bash\nexit 3\n")
    assert run(clone, "scripts/test").returncode == 3
    assert ran(clone) == ["ruff check .", "ruff format --check ."]


def test_the_scripts_install_again_when_the_project_or_the_torch_requirement_changes(clone):
    run(clone, "scripts/train")
    ran(clone)
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# a new dependency\n")
    run(clone, "scripts/train")
    assert "pip install -e .[serve,watch]" in ran(clone)
    run(clone, "scripts/train", TORCH_SPEC="torch --no-deps")
    assert ran(clone)[0] == "pip install torch --no-deps"


def test_a_failed_installation_shows_pips_words_and_is_tried_again(clone):
    failed = run(clone, "scripts/train", FAIL_PIP="1")
    assert failed.returncode == 1
    assert "Collecting something" in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("error: pip install failed.")
    assert ran(clone) == ["pip install torch==2.13.0"]
    assert run(clone, "scripts/train").returncode == 0
    assert ran(clone)[-1] == "sparring train kuhn"


@pytest.mark.parametrize("script", ["scripts/train", "scripts/test"])
def test_without_a_python_new_enough_there_is_one_line(clone, script):
    too_old = run(clone, script, OLD_PYTHON="1")
    assert too_old.returncode == 1
    (line,) = too_old.stderr.splitlines()
    assert line.startswith("error: no Python 3.11 or newer found")
    assert not (clone / ".venv").exists()


def test_the_scripts_are_executable_and_name_no_host():
    of_pictures = "http://www.w3.org/2000/svg"  # names a kind of XML; nothing is fetched from there
    for name in ("scripts/train", "scripts/test", "scripts/draw-packages", "scripts/write-llms", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK)
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        assert "://" not in path.read_text().replace(of_pictures, "")


def test_the_files_and_tests_that_scripts_name_exist():
    packages = runpy.run_path(str(ROOT / "scripts" / "test-mutants"))["PACKAGES"]
    patterns = [(f"src/sparring/{name}", "") for files, _ in packages.values() for name in files.split()]
    patterns += [(f"tests/test_{name}", ".py") for _, tests in packages.values() for name in tests.split()]
    named = re.findall(r"tests/\w+\.py", (ROOT / "scripts" / "test-oldest").read_text())
    patterns += [(name, "") for name in named]
    assert named
    assert [pattern for pattern, ending in patterns if not list(ROOT.glob(f"{pattern}{ending}"))] == []
