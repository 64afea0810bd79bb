"""The example scripts as a user runs them, against a small server on this machine.

Each has a process of its own once. Where they reject what they are given they run in this one, which has
imported everything already.
"""

import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from live_server import TOKEN, engine_over, running
from sparring.engine.server import create_app
from tiny_models import tiny_policy

EXAMPLES = Path(__file__).parent.parent / "examples"
QUESTIONS = '[{"question": "What is 2+2?", "ground_truth": "4"}]'


def answer_to(messages: list[dict[str, str]]) -> str:
    """What the served model says: debaters, judge, proposers and solvers in one."""
    first, last = messages[0]["content"], messages[-1]["content"]
    if first.startswith("You judge debates"):
        return "Winner: Neg, score: 0.75"
    if first.startswith("A debate."):
        return "I speak [b]for[/b] it.\x1b[2J" if "Argue for the motion" in first else "I speak against it."
    if last == "Write an arithmetic question.":
        return "20 + 3"
    if last.startswith("Write a new question"):
        return "Question: How many days has a week?\nAnswer: 7"
    return "20 + 3 = 23" if last == "20 + 3" else "The answer is: 8\x1b[2J"


class Handler(BaseHTTPRequestHandler):
    """Chat completions without token ids, as most servers give them."""

    def do_GET(self) -> None:
        self.reply({"version": 0})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": answer_to(request["messages"])}
        self.reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def reply(self, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, no keys, and a terminal's width."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "SPARRING_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def run_example(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Run a script in this process; return its status."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(script: str, *arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return ended.value.code

    return run


def last_row(output: str) -> list[str]:
    rows = [line for line in output.splitlines() if line.startswith("│")]
    return [cell.strip() for cell in rows[-1].strip("│").split("│")]


def test_debate_prints_a_transcript_the_verdict_and_a_table_and_writes_the_log(
    tmp_path: Path, port: str
) -> None:
    options = ("--local", "--port", port, "--num-steps", "2", "--batch-size", "3", "--verbose")
    done = run_example("run_debate.py", "Cars are bad", "Homework [helps]", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("I speak [b]for[/b] it.") < done.stdout.index("I speak against it.")
    assert "\x1b" not in done.stdout
    assert "The judge: Neg wins, score 0.75" in done.stdout
    assert last_row(done.stdout) == ["2", "3", "0", "0", "0 of 3", "4.0"]
    log = (tmp_path / "debate_run.log").read_text()
    assert "Neg< I speak against it." in log
    assert "Homework [helps]" in log


def test_proposer_solver_prints_questions_and_pass_rates(tmp_path: Path, port: str) -> None:
    options = ("--local", "--port", port, "--batch-size", "2", "--solver-rollouts", "3", "--verbose")
    done = run_example("run_proposer_solver.py", *options)
    assert done.returncode == 0, done.stderr
    assert "20 + 3  (23)" in done.stdout
    # Both proposals are the same question: one earns 0 at pass rate 1, the copy -0.5, and they share the sum.
    assert "solved 3 of 3, reward -0.25" in done.stdout
    assert last_row(done.stdout) == ["1", "2", "0", "2", "1.00", "-0.25", "17"]
    assert "Solver< 20 + 3 = 23" in (tmp_path / "proposer_solver_run.log").read_text()


def test_proposer_solver_takes_questions_in_words(
    tmp_path: Path, port: str, run_here: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--local", "--port", port, "--questions", QUESTIONS, "--batch-size", "1")
    assert run_here("run_proposer_solver.py", *options) == 0
    printed = capsys.readouterr().out
    assert "How many days has a week?  (7)" in printed
    assert "solved 0 of 4" in printed
    assert "\x1b" not in printed
    assert not (tmp_path / "proposer_solver_run.log").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run_debate.py", "Cars are bad", "--local", "--port", "9"), "sparring serve"),
        (("run_proposer_solver.py", "--local", "--port", "9"), "sparring serve"),
        (("run_debate.py", "Cars are bad"), "OPENROUTER_API_KEY"),
        (("run_proposer_solver.py", "--questions", "[", "--local"), "--questions"),
        (("run_proposer_solver.py", "--questions", "[]", "--local"), "questions: "),
        (("run_proposer_solver.py", "--questions", '[{"question": "a"}]'), "ground_truth"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    arguments: tuple[str, ...],
    said: str,
    run_here: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert said in printed.err


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("another-token", "was rejected by 127.0.0.1:{port} (401)"),
        (None, "is not set, but 127.0.0.1:{port} requires a key (401)"),
    ],
)
@pytest.mark.parametrize("script", ["run_debate.py", "run_proposer_solver.py"])
def test_a_server_that_rejects_the_key_did_answer(
    script: str,
    key: str | None,
    problem: str,
    run_here: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if key is not None:
        monkeypatch.setenv("SPARRING_API_KEY", key)
    engine = engine_over(tiny_policy())
    topics = ("Cars are bad",) if script == "run_debate.py" else ()
    capsys.readouterr()
    with running(create_app(engine, token=TOKEN), engine) as live:
        assert run_here(script, *topics, "--local", "--port", str(live.port)) == 2
    said = problem.format(port=live.port)
    assert capsys.readouterr().err == f"SPARRING_API_KEY: {said}. Set it to a key that this server accepts\n"
