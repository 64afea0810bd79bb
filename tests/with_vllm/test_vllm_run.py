"""A run, in one process and on Ray, whose answers come from vLLM, which one setting selects."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = [
    "--learning.steps=2",
    "--collection.games_per_step=16",
    "--evaluation.every=0",
    "--evaluation.games=4",
    "--evaluation.nash_conv=false",
    "--lora.rank=8",
    "--model.threads=1",
]
SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]


@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_the_quickstart_with_vllm(tmp_path: Path, runtime: str) -> None:
    command = [
        *SPARRING,
        "train",
        "quickstart",
        f"--run.runtime={runtime}",
        "--inference.engine=vllm",
        *SMALL,
    ]
    done = subprocess.run(
        [*command, f"--run.directory={tmp_path}", "--name=run"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["learner/mismatch"] < 0.1
        assert line["accounts/failed"] == 0
    last = lines[-1]
    assert last["accounts/started"] == last["accounts/finished"] == 32
    assert last["accounts/steps sampled"] == last["learner/samples_seen"]
