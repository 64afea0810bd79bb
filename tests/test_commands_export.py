"""``sparring export``: adapters and merged models, which plain PEFT and transformers load."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from huggingface_hub import ModelCard
from peft import PeftModel
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from file_limits import files_no_longer_than
from game_runs import configure, run
from program_runs import configure as configure_program
from sparring.cli.main import main
from sparring.commands.export import export
from sparring.commands.export_card import model_card, public_name
from sparring.commands.model_source import find_model
from sparring.core import InputError, SparringError
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import perturb_adapter, tiny_model

TEXT = "Legal moves: check, bet."


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """A finished run that keeps its best adapter."""
    path = tmp_path_factory.mktemp("trained") / "run"
    best = {"run__keep_best": "mass on legal moves", "evaluation__every": "1"}
    best["evaluation__nash_conv"] = "true"
    run(configure(model, learning__steps="2", learning__learning_rate="0.01", **best), path)
    return path


def logits(loaded, tokenizer) -> torch.Tensor:
    with torch.no_grad():
        return loaded.eval()(**tokenizer(TEXT, return_tensors="pt")).logits


def with_adapter(base, adapter) -> torch.Tensor:
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return logits(PeftModel.from_pretrained(loaded, adapter), AutoTokenizer.from_pretrained(base))


def exported(source, out, **options):
    settings = {"merge": True, "policy": None, **options}
    export(str(source), out, **settings, console=Console(quiet=True))
    return out


def test_a_merged_model_loads_by_itself_and_computes_what_base_and_adapter_do(model, trained, tmp_path):
    out = exported(trained, tmp_path / "out")
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    there = with_adapter(model, trained / "checkpoints" / "step-000002")
    assert loaded.dtype == torch.float32
    assert torch.allclose(logits(loaded, tokenizer), there, atol=1e-4)
    untrained = logits(AutoModelForCausalLM.from_pretrained(model), tokenizer)
    assert not torch.allclose(untrained, there, atol=1e-2), "or the test could not tell them apart"
    said = [{"role": "user", "content": "hello"}]
    own = AutoTokenizer.from_pretrained(model)
    assert tokenizer.apply_chat_template(said, tokenize=False) == own.apply_chat_template(
        said, tokenize=False
    )
    assert tokenizer.eos_token_id == own.eos_token_id
    files = {path.suffix for path in out.iterdir()}
    assert files <= {".json", ".safetensors", ".jinja", ".md"}
    assert "auto_map" not in json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_every_shape_of_adapter_is_merged(architecture, tied, tmp_path):
    base = str(tiny_model(architecture, tied))
    policy = PolicyModel(base, LoraSettings(3, 7.0, ["q_proj", "down_proj"]))
    perturb_adapter(policy)
    save_adapter(tmp_path / "adapter", policy, base)
    loaded = AutoModelForCausalLM.from_pretrained(exported(tmp_path / "adapter", tmp_path / "out"))
    there = with_adapter(base, tmp_path / "adapter")
    assert torch.allclose(logits(loaded, AutoTokenizer.from_pretrained(base)), there, atol=1e-4)


def test_without_merging_the_adapter_is_copied(trained, tmp_path):
    out = exported(f"{trained}@1", tmp_path / "adapters" / "mine", merge=False)
    saved = trained / "best" / "step-000001"
    saved = saved if saved.exists() else trained / "checkpoints" / "step-000001"
    names = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "adapter_model.safetensors").read_bytes() == (
        saved / "adapter_model.safetensors"
    ).read_bytes()


def test_the_checkpoint_can_be_chosen(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best = next(iter(sorted((trained / "best").iterdir(), reverse=True)))
    for name, place in (
        ("0", trained / "checkpoints" / "step-000000"),
        ("last", trained / "checkpoints" / "step-000002"),
        ("best", best),
    ):
        assert main(["export", str(trained), name, "--checkpoint", name]) == 0
        weights = load_file(tmp_path / name / "adapter_model.safetensors")
        wanted = load_file(place / "adapter_model.safetensors")
        assert all((weights[key] == wanted[key]).all() for key in wanted)


def test_a_policy_of_several_must_be_named(model, tmp_path):
    run(configure_program(model, tmp_path, learning__steps="1"), tmp_path / "run")
    with pytest.raises(
        InputError, match=r"--policy: this run trained several policies. Name one: hider, seeker"
    ):
        exported(tmp_path / "run", tmp_path / "out")
    with pytest.raises(InputError, match=r"--policy: there is no policy 'judge'. There are: hider, seeker"):
        exported(tmp_path / "run", tmp_path / "out", policy="judge")
    out = exported(tmp_path / "run", tmp_path / "out", policy="seeker")
    there = with_adapter(model, tmp_path / "run" / "checkpoints" / "step-000001" / "seeker")
    assert torch.allclose(
        logits(AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(model)),
        there,
        atol=1e-4,
    )


@pytest.mark.parametrize("merge", [True, False])
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(trained, tmp_path, merge):
    with files_no_longer_than(1000), pytest.raises(SparringError, match="out cannot be written") as caught:
        exported(trained, tmp_path / "out", merge=merge)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def adapter(tmp_path):
    """An adapter that names its base by a path of this machine."""
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0))
    perturb_adapter(policy)
    save_adapter(tmp_path / "trained", policy, str(tiny_model("llama")))
    return tmp_path / "trained"


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "adapter"])
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_what_is_exported_may_be_read_by_whom_the_user_lets_and_names_no_place(
    adapter, tmp_path, merge, mask
):
    before = os.umask(mask)
    try:
        out = exported(adapter, tmp_path / "out", merge=merge)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o666 & ~mask}
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~mask
    for path in out.iterdir():
        for place in (tiny_model("llama").parent, tmp_path, Path.home()):
            assert str(place).encode() not in path.read_bytes(), path.name


def card_of(out):
    return ModelCard.load(out / "README.md")


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "adapter"])
@pytest.mark.parametrize(
    ("base", "written", "hub"),
    [
        ("smollm2-135m", "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("google/gemma-3-270m-it", "google/gemma-3-270m-it", "google/gemma-3-270m-it"),
        ("/data/of/me/llama", "llama", None),
        ("./models/llama", "llama", None),
        ("~/models/llama", "llama", None),
        ("models/of/mine", "mine", None),
    ],
)
def test_the_model_card_names_the_base_model(base, written, hub, merge):
    assert public_name(base) == written
    card = ModelCard(model_card(base, "mine", 16, merged=merge))
    assert card.data.base_model == hub
    assert card.data.library_name == ("transformers" if merge else "peft")
    assert "sparring" in card.data.tags
    assert any(tag.endswith(f":{hub}") for tag in card.data.tags) == (hub is not None)
    assert "data" not in card.text
    assert "models/" not in card.text
    assert ("--max-lora-rank 16" in card.text) == (not merge)


def test_a_file_is_no_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "mine.gguf").touch()
    assert public_name("gemma/mine.gguf") == "mine.gguf"
    assert ModelCard(model_card("gemma/mine.gguf", "out", 16, merged=False)).data.base_model is None


def test_the_card_says_what_was_played_and_for_how_long(trained, tmp_path):
    out = exported(f"{trained}@1", tmp_path / "out", merge=False)
    assert "by playing `kuhn_poker`, 1 updates of " in card_of(out).text


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "adapter"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_gguf_files_are_written_beside_a_card(adapter, tmp_path, merge, kind):
    out = exported(adapter, tmp_path / "mine", merge=merge, gguf=kind)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "mine.gguf"]
    fields = GGUFReader(out / "mine.gguf").fields
    assert fields["general.type"].contents() == ("model" if merge else "adapter")
    card = card_of(out)
    assert card.data.library_name == "gguf"
    assert ("-m mine.gguf" if merge else "--lora mine.gguf") in card.text
    for path in out.iterdir():
        assert str(tiny_model("llama").parent).encode() not in path.read_bytes()


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "adapter"])
def test_the_code_of_the_card_loads_what_was_exported(adapter, tmp_path, merge, monkeypatch):
    out = exported(adapter, tmp_path / "out", merge=merge)
    monkeypatch.chdir(tmp_path)
    (tmp_path / tiny_model("llama").name).symlink_to(tiny_model("llama"))
    _, _, code = card_of(out).text.partition("```python\n")
    names = {}
    exec(code.partition("```")[0], names)
    there = with_adapter(tiny_model("llama"), adapter)
    assert torch.allclose(logits(names["model"], names["tokenizer"]), there, atol=1e-4)


def test_a_copied_adapter_is_read_again_where_its_base_is(adapter, tmp_path, monkeypatch):
    exported(adapter, tmp_path / "out", merge=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"base model 'llama-tied-0-8' is no directory here.*adapter_config"):
        find_model("out")
    (tmp_path / tiny_model("llama").name).symlink_to(tiny_model("llama"))
    assert find_model("out").model.name == tiny_model("llama").name


def test_a_copy_needs_no_torch(adapter, tmp_path):
    code = "import sys; from sparring.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "export", str(adapter), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
