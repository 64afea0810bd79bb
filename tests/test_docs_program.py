"""docs/tutorial-conversation.md is true: its program fits a page and trains two adapters."""

import io
import json
import re
from pathlib import Path

from rich.console import Console

from doc_pages import DOCS, blocks, save_named_blocks
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config
from sparring.run.single_process import train
from sparring.view.chart_list import chart_sections
from sparring.view.whole_run import load_run
from tiny_models import tiny_model

PAGE = DOCS / "tutorial-conversation.md"
SMALL = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "learning.steps": "2",
}


def test_the_program_fits_a_page():
    program = next(block for block in blocks("python") if block.page == PAGE)
    assert len(program.text.splitlines()) < 60


def test_the_program_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_named_blocks(PAGE, tmp_path)
    source = (tmp_path / "negotiation.py").read_text()
    (metric,) = [block.text for block in blocks("python") if block.page == PAGE and "def deals" in block.text]
    program = source.replace("max_tokens=8", "max_tokens=4") + metric + "Negotiation.rubric = measured\n"
    (tmp_path / "negotiation.py").write_text(program)
    config = load_config("negotiation.toml", SMALL | {"model.name": str(tiny_model("llama"))})
    said = io.StringIO()
    train(config, tmp_path / "run", Console(file=said, width=100))
    for policy in ("seller", "buyer"):
        assert (tmp_path / "run/checkpoints/step-000002" / policy / "adapter_model.safetensors").exists()
    assert "deals" in said.getvalue()
    assert re.search(r"\b32 started = 32 finished \+ 0 failed", said.getvalue())
    rollout = RolloutLog(tmp_path / "run" / "rollouts").read(1)[0]
    assert [said["to"] for said in rollout.extras["transcript"][:2]] == ["Seller", "Buyer"]
    assert_the_metric_changes_nothing_else(tmp_path / "run", said.getvalue())


def assert_the_metric_changes_nothing_else(run: Path, said: str) -> None:
    """The line of the page that has a metric, followed through everything that reads a run."""
    rollouts = [rollout for _, rollout in RolloutLog(run / "rollouts")]
    assert {frozenset(rollout.rewards) for rollout in rollouts} == {frozenset(("Seller", "Buyer"))}
    assert all(rollout.metrics["deals/made"] in (0.0, 1.0) for rollout in rollouts)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all("program/metric/negotiation/deals/made" in line for line in lines)
    assert not [name for line in lines for name in line if name.endswith("/made") and "/metric/" not in name]
    assert "made" not in said.replace("made up", "")
    view = load_run(run)
    assert sorted(view.roles()) == ["Buyer", "Seller"]
    charts = {one.title: one for made in chart_sections(view).values() for one in made}
    assert sorted(line.name for line in charts["Reward by role"].lines) == ["Buyer", "Seller"]
    assert view.game is None or sorted(view.game.rollout.rewards) == ["Buyer", "Seller"]
    page = (run / "report.html").read_text()
    assert "Buyer" in page
    assert "made gets rewards" not in page
