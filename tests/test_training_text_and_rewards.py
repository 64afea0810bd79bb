"""A trainer that needs text and rewards only uses the same loop and the same source, and loads no torch."""

import json
import subprocess
import sys
from pathlib import Path

from program_files import write_program

SETTINGS = """
[program]
type = "python"
path = "{program}:HideAndSeek"
[learning]
steps = 3
[learning.algorithm]
regulariser = "none"
[evaluation]
every = 1
[run]
save_every = 1
"""


def test_a_program_trains_models_that_give_only_text_without_torch(tmp_path):
    config = tmp_path / "api.toml"
    config.write_text(SETTINGS.format(program=write_program(tmp_path)))
    script = Path(__file__).with_name("text_and_rewards.py")
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, script, config, run], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "36 started = 36 finished + 0 failed" in " ".join(done.stdout.split())
    assert "torch is loaded: False" in done.stdout
    best = json.loads((run / "checkpoints" / "step-000003" / "state.json").read_text())
    assert best["hider"][0] > 0 > best["seeker"][0]
    assert best["hider"][1].isdigit()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert (run / "report.html").exists()
