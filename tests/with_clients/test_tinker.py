"""Tinker's SDK and tinker-cookbook, unchanged, against ``sparring serve --training``."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from job_commands import Server
from sparring.finetune.tinker.store import Store
from sparring.finetune.tinker.training_model import lora_of
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import roomy_model

COOKBOOK_MODEL = Path("Qwen/Qwen3-8B-Base")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "nine", "red", "birds"]


@pytest.fixture
def server_of(tmp_path):
    """Start ``sparring serve --training`` over a model."""
    servers = []

    def start(model):
        more = ("--dtype", "float32", "--training", str(tmp_path / "training"))
        servers.append(Server(tmp_path / "jobs", *more, model=model))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def url_of(server):
    return f"http://127.0.0.1:{server.port}/v1"


def test_tinker(server_of, run_in):
    found = run_in("tinker", "tinker", url_of(server_of(roomy_model())), roomy_model())
    assert found["ranks"] == [2, 5]
    assert all(losses == sorted(losses, reverse=True) for losses in found["losses"])
    assert found["custom"] < found["losses"][0][-1]
    assert found["resumed"] == pytest.approx([found["custom"]] * 2, rel=1e-5)
    assert found["drawn"] == [4, 4]
    assert found["likeliest"] == [[4, 2], [4, 2]]
    scored = found["scored"]
    assert scored["trained"] == pytest.approx(scored["named"], rel=1e-5)
    assert scored["trained"] > scored["base"] + 1
    assert "stable_reinforce" in found["refused"]
    assert found["checkpoints"] == ["weights/state", "sampler_weights/named"]
    assert found["runs"] == 4
    assert found["weights"] == 2


def test_ten_steps_of_the_cookbook_s_sl_loop_are_those_of_plain_torch(
    server_of, run_in, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(roomy_model(), COOKBOOK_MODEL)
    generator, data = random.Random(0), Path("HuggingFaceH4/no_robots")
    data.mkdir(parents=True)
    with (data / "train.jsonl").open("w") as file:
        for _ in range(48):
            asked, answer = (" ".join(generator.choices(WORDS, k=6)) for _ in range(2))
            told = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": told}) + "\n")
    server = server_of(COOKBOOK_MODEL)
    found = run_in("tinker", "cookbook", url_of(server))
    server.kill()
    record = Store(tmp_path / "training").model(found["model"]).record()
    policy = PolicyModel(str(COOKBOOK_MODEL), LoraSettings(1))
    policy.add_policy("own", lora_of(record), record.seed)
    config = LoraConfig(
        r=record.rank, lora_alpha=record.alpha, target_modules=record.layers, task_type="CAUSAL_LM"
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(COOKBOOK_MODEL), config)
    set_peft_model_state_dict(model, policy.adapter_state("own"))
    adam = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], betas=(0.9, 0.95), eps=1e-8, weight_decay=0
    )
    assert len(found["rows"]) == 10
    for batch, row in zip(found["sent"], found["rows"], strict=True):
        adam.zero_grad()
        losses, weights = [], 0.0
        for one in batch:
            logprobs = model(torch.tensor([one["tokens"]])).logits[0].log_softmax(-1)
            own = logprobs[range(len(one["tokens"])), torch.tensor(one["targets"])]
            losses.append(-(torch.tensor(one["weights"]) * own).sum())
            weights += sum(one["weights"])
        loss = sum(losses)
        loss.backward()
        adam.param_groups[0]["lr"] = row["learning_rate"]
        adam.step()
        assert row["train_mean_nll"] == pytest.approx(float(loss.detach()) / weights, abs=1e-4)
