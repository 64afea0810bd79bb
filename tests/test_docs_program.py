"""docs/howto-write-a-program.md is true: its program fits a page and trains two adapters."""

import io
import re

from rich.console import Console

from selfplay.config import load_config
from selfplay.replay.rollout_log import RolloutLog
from selfplay.training.single_process import train
from test_docs import DOCS, blocks, save_named_blocks
from tiny_models import tiny_model

PAGE = DOCS / "howto-write-a-program.md"
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
    (tmp_path / "negotiation.py").write_text(source.replace("max_tokens=8", "max_tokens=4"))
    config = load_config("negotiation.toml", SMALL | {"model.name": str(tiny_model("llama"))})
    said = io.StringIO()
    train(config, tmp_path / "run", Console(file=said, width=100))
    for policy in ("seller", "buyer"):
        assert (tmp_path / "run/checkpoints/step-000002" / policy / "adapter_model.safetensors").exists()
    assert "deals" in said.getvalue()
    assert re.search(r"\b32 started = 32 finished \+ 0 failed", said.getvalue())
    rollout = RolloutLog(tmp_path / "run" / "rollouts").read(1)[0]
    assert [said["to"] for said in rollout.extras["transcript"][:2]] == ["Seller", "Buyer"]
