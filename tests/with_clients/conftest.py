"""These tests need the environments of scripts/test-clients, one for each client. Without them, nothing is
collected.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for the models made for tests
from job_commands import TOKEN, Server
from tiny_models import roomy_model

CLIENTS = Path(os.environ.get("CLIENTS", Path(__file__).parents[2] / ".venv-clients"))
LIMIT_SECONDS = 300

if not CLIENTS.exists():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """``sparring serve`` over a tiny model in 32 bits, as a process."""
    server = Server(tmp_path_factory.mktemp("jobs"), "--dtype", "float32", model=roomy_model())
    yield server
    server.kill()


@pytest.fixture
def told(server, run_in):
    """Return what a client's script prints last, run in the client's environment."""

    def ask(environment, script, *arguments):
        return run_in(environment, script, f"http://127.0.0.1:{server.port}/v1", "default", *arguments)

    return ask


@pytest.fixture
def run_in(tmp_path):
    """Return what a script prints last, run in an environment of its own."""

    def ask(environment, script, *arguments):
        python = CLIENTS / environment / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{environment} is not installed: run scripts/test-clients")
        keys = dict.fromkeys(("OPENAI_API_KEY", "SPARRING_API_KEY"), TOKEN)
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "TOKENIZERS_PARALLELISM": "false"}
        ended = subprocess.run(
            [python, Path(__file__).parent / f"ask_{script}.py", *map(str, arguments)],
            env=os.environ | keys | offline,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        found = json.loads(ended.stdout.splitlines()[-1])
        print(f"{environment}: {found['version']}")
        return found

    return ask
