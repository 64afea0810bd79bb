"""A trainer that needs text and rewards only uses the same loop and the same source, and loads no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from program_files import write_program

SETTINGS = """
[learning]
steps = 3
[learning.algorithm]
regulariser = "none"
[evaluation]
every = 1
[run]
save_every = 1
"""


def train(directory: Path, program: str) -> tuple[str, dict]:
    """Train a program; return what was printed, and the state of the last checkpoint."""
    config, run = directory / "api.toml", directory / "run"
    config.write_text(SETTINGS + program)
    script = Path(__file__).with_name("text_and_rewards.py")
    done = subprocess.run(
        [sys.executable, script, config, run], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((run / "checkpoints" / "step-000003" / "state.json").read_text())
    return " ".join(done.stdout.split()), state


def test_a_program_trains_models_that_give_only_text_without_torch(tmp_path):
    path = write_program(tmp_path)
    said, state = train(tmp_path, f'[program]\ntype = "python"\npath = "{path}:HideAndSeek"\n')
    assert "36 started = 36 finished + 0 failed" in said
    assert "torch is loaded: False" in said
    (earned, text), (lost, _) = state["best"]["hider"], state["best"]["seeker"]
    assert earned > 0 > lost
    assert text.endswith(" + 3")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow  # test_programs_proposer_solver does it without a run
def test_questions_that_are_proposed_in_training_are_stored_and_asked_again(tmp_path):
    program = '[program]\ntype = "proposer_solver"\nbatch_size = 4\nevaluation_proposals = 4\n'
    _, state = train(tmp_path, program)
    stored = state["run"]["source"]["arena"]["stores"]["questions"]
    proposed = [text for text in json.dumps(stored).split('"') if text.endswith(" + 3")]
    assert proposed
