"""What ties vLLM's processes to the one that started them; it needs no vLLM."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, os, signal, sys, threading
from sparring.engine.vllm_process import own_processes, stay_with_owner

def engine():
    stay_with_owner()
    os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C, which a terminal sends to every process
    print("still here", flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    if "owned" in sys.argv:
        own_processes()
    stay_with_owner()  # the owner itself is tied to nobody
    child = multiprocessing.get_context("spawn").Process(target=engine)
    child.start()
    child.join()
    sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def test_an_engine_ignores_ctrl_c_and_ends_with_its_owner_even_after_a_kill(program):
    owner = subprocess.Popen([*program, "owned"], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "still here\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    rest, _ = owner.communicate(timeout=60)  # ends when the last process has closed its output
    assert rest == ""


def test_other_processes_are_left_as_they_are(program):
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "still here" not in done.stdout
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode == 0
