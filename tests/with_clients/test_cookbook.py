"""tinker-cookbook's loop of reinforcement learning against ``sparring serve --training``."""

import json
import shutil
from pathlib import Path

import pytest

from job_commands import Server
from tiny_models import roomy_model

CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: train.jsonl}
---
"""


@pytest.mark.parametrize("loss", ["importance_sampling", "cispo"])
def test_steps_of_the_cookbook_s_rl_loop(run_in, tmp_path, monkeypatch, loss):
    monkeypatch.chdir(tmp_path)
    model, data = Path("Qwen/Qwen3-8B-Base"), Path("openai/gsm8k")
    shutil.copytree(roomy_model(), model)
    data.mkdir(parents=True)
    (data / "README.md").write_text(CARD)
    rows = [{"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(8)]
    (data / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    server = Server(
        tmp_path / "jobs", "--dtype", "float32", "--training", str(tmp_path / "training"), model=model
    )
    try:
        found = run_in("tinker", "rl_loop", f"http://127.0.0.1:{server.port}/v1", loss)
    finally:
        server.kill()
    assert [row["progress/batch"] for row in found["rows"]] == [0, 1, 2]
    assert found["sent"]
    assert all(count % 4 == 0 for count in found["sent"])
