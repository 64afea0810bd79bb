"""A base in four bits, against transformers, peft and bitsandbytes without our layers."""

import asyncio
import io
import json
import shutil
from importlib import util

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from rich.console import Console
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils import logging as transformers_logging

from engine_requests import PROMPTS, ask, assert_logprobs_are_the_learners
from kill_resume import differences, fingerprint
from sparring.config import load_config
from sparring.core import InputError
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.base_model import load_decoder
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import BASE, TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan
from sparring.run.checks import check_config
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import resume, train
from tiny_models import perturb_adapter, roomy_model, tiny_model

pytest.importorskip("bitsandbytes")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
transformers_logging.disable_progress_bar()

PROMPT = list(range(40, 70))
ANSWERS = [[7, 8, 9, 10], [7, 10, 11], [13]]
WEIGHTS = [0.7, -1.3, 0.4]


def quantised_policy(dtype: torch.dtype = torch.float32) -> PolicyModel:
    policy = PolicyModel(str(tiny_model("qwen3")), LoraSettings(4, 8.0), dtype=dtype, quantization="nf4")
    perturb_adapter(policy)
    return policy


def gradients_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters()) if p.grad is not None])


def plain_gradients(policy: PolicyModel) -> torch.Tensor:
    """Return the gradients of the weighted log-probabilities, one sequence at a time."""
    base = AutoModelForCausalLM.from_pretrained(
        tiny_model("qwen3"),
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    )
    lora = LoraConfig(r=4, lora_alpha=8.0, target_modules=policy.lora.target_modules, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora).train()  # in evaluation mode, a CPU may use other kernels
    set_peft_model_state_dict(model, policy.adapter_state())
    for answer, weight in zip(ANSWERS, WEIGHTS, strict=True):
        logits_TV = model(input_ids=torch.tensor([PROMPT + answer])).logits[0, len(PROMPT) - 1 : -1]
        logprobs_TV = torch.log_softmax(logits_TV.float(), dim=-1)
        (weight * logprobs_TV.gather(1, torch.tensor(answer)[:, None]).sum()).backward()
    return gradients_of(model)


def test_gradients_are_those_of_plain_peft_over_the_same_base():
    policy = quantised_policy()
    expected = plain_gradients(policy)
    plan = build_plan([PROMPT] * 3, ANSWERS)
    weight_S = torch.cat([torch.full((len(a),), w) for a, w in zip(ANSWERS, WEIGHTS, strict=True)])
    for max_tokens in (4096, 10):
        policy.model.zero_grad()
        limits = PassLimits(max_tokens, KeptMemory(policy, TRAINED))
        logprobs_C = plan_logprobs(policy, plan, limits=limits)
        (weight_S * logprobs_C[torch.from_numpy(plan.prediction_S)]).sum().backward()
        found = gradients_of(policy.model)
        assert found.shape == expected.shape
        assert float((found - expected).norm() / expected.norm()) < 1e-4


async def test_the_engine_and_the_learner_agree_about_several_adapters_and_the_base():
    policy = quantised_policy()
    perturb_adapter(policy, "frozen", seed=4)
    engine = EmbeddedEngine(policy, max_tokens=8)
    for name in (TRAINED, "frozen", BASE):
        engine.publish(name, name, 0)
    asked = [(name, text) for name in (TRAINED, "frozen", BASE) for text in PROMPTS]
    answers = await asyncio.gather(*(ask(engine, text, 1, model=name) for name, text in asked))
    for name in (TRAINED, "frozen", BASE):
        own = [answer for (of, _), answer in zip(asked, answers, strict=True) if of == name]
        assert_logprobs_are_the_learners(policy, own, name=name)


def test_a_linear_layer_takes_half_a_byte_a_weight_and_other_weights_keep_their_type():
    layers = load_decoder(str(tiny_model("qwen3")), torch.bfloat16, torch.device("cpu"), "nf4").model
    layer = layers.layers[0].mlp.up_proj
    assert layer.weight.nbytes == layer.in_features * layer.out_features / 2
    assert layers.embed_tokens.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_is_loaded_in_its_type(dtype):
    model = load_decoder(str(tiny_model("qwen3")), dtype, torch.device("cpu"))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_adapters_fit_the_base_without_quantisation():
    state = quantised_policy().adapter_state()
    whole = PolicyModel(str(tiny_model("qwen3")), LoraSettings(4, 8.0))
    whole.load_adapter_state(state)
    assert all(torch.equal(value, state[key]) for key, value in whole.adapter_state().items())


def test_a_run_trains_and_resumes(tmp_path):
    config = load_config(
        "quickstart",
        {
            "model.name": str(roomy_model()),
            "model.dtype": "float32",
            "model.quantization": "nf4",
            "model.threads": 1,
            "lora.rank": 2,
            "inference.max_tokens": 4,
            "collection.games_per_step": 4,
            "learning.steps": 2,
            "evaluation.games": 2,
            "evaluation.games_during": 2,
            "evaluation.opponents": ["random"],
            "evaluation.nash_conv": "false",
            "run.save_every": 1,
        },
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(config, whole, Console(file=io.StringIO()))
    shutil.copytree(whole, cut)
    directory = RunDirectory.open(cut)
    directory.report_file.unlink()
    shutil.rmtree(directory.checkpoint(2))
    resume(cut, Console(file=io.StringIO()))
    assert differences(fingerprint(whole), fingerprint(cut)) == []


def test_what_cannot_be_quantised_is_refused_in_one_line(tmp_path, monkeypatch):
    quantised = tmp_path / "model"
    shutil.copytree(tiny_model("qwen3"), quantised)
    settings = json.loads((quantised / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantised / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"^model.quantization: .* quantised already"):
        PolicyModel(str(quantised), LoraSettings(), quantization="nf4")
    nf4 = {"model.name": str(roomy_model()), "model.quantization": "nf4"}
    with pytest.raises(
        InputError,
        match=r"^inference\.engine: vllm needs model\.quantization = .none. .it would answer with another",
    ):
        load_config("quickstart", nf4 | {"run.runtime": "ray", "inference.engine": "vllm"})
    find_spec = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "bitsandbytes" else find_spec(name))
    with pytest.raises(InputError, match=r"^model.quantization: the package bitsandbytes is not installed"):
        check_config(load_config("quickstart", nf4))
