"""Which model families are accepted, and that they are computed as transformers computes them."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from family_models import family_model
from matrices import first_of
from sparring.core import InputError
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import BASE, TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan

transformers_logging.disable_progress_bar()

# By default, one of each way to compute attention; the gradients of several are tested elsewhere.
TAKEN = ["Llama", "Mistral, window of 32", "DeepSeek-V3", "Gemma 2", "Gemma 3n", "gpt-oss", "Phi", "JetMoE"]
TAKEN += ["Qwen2, window of 32", "Qwen3", "Qwen3-MoE", "Mistral, no window", "Mistral, window of 4,096"]
TAKEN += ["Mixtral", "Gemma 1", "Gemma 3", "Gemma 4", "Phi-3", "OLMo 2", "SmolLM3", "Granite", "EXAONE 4"]
TAKEN += ["GLM 4", "Apertus", "Cohere", "Cohere 2", "AFMoE"]
TARGETS = {"JetMoE": ["kv_proj"]}
REFUSED = {
    "Doge": "its attention uses a mask of its own",
    "Llama 4": "scales queries by their index in the pass",
    "Qwen3-Next": r"log-probabilities over a packed tree .* 3 of its 4 layers are not attention",
    "LFM2": r"log-probabilities over a packed tree .* 2 of its 4 layers are not attention",
    "Falcon-H1": r"log-probabilities over a packed tree are 0\.\d+ nats",
    "Bamba": r"log-probabilities over a packed tree .* 2 of its 4 layers are not attention",
    "MiniMax": r"log-probabilities over a packed tree .* 2 of its 4 layers are not attention",
    "RecurrentGemma": r"log-probabilities over a packed tree .* 3 of its 4 layers are not attention",
    "GPT-Neo": "gpt_neo models have only their own attention",
    "StableLM": "its layers do not pass on the arguments of a forward pass",
}
PROMPT = list(range(40, 80))
ANSWERS = [[7, 8, 9], [7, 10, 11, 12], [13]]


def load(family: str, targets: list[str] | None = None, dtype: torch.dtype = torch.float32) -> PolicyModel:
    lora = LoraSettings(4, 8.0) if targets is None else LoraSettings(4, 8.0, targets)
    return PolicyModel(str(family_model(family)), lora, dtype=dtype)


def own_logprobs(family: str, prompt: list[int], answer: list[int]) -> list[float]:
    """Return the log-probabilities of the answer's tokens, computed by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(family_model(family), attn_implementation="eager")
    with torch.no_grad():
        logprobs_TV = torch.log_softmax(model(torch.tensor([prompt + answer])).logits[0].float(), dim=-1)
    return [float(logprobs_TV[len(prompt) + i - 1, token]) for i, token in enumerate(answer)]


@pytest.mark.parametrize("family", first_of(TAKEN, 8))
async def test_learner_and_engine_compute_what_transformers_computes_for_an_accepted_family(family):
    policy = load(family, TARGETS.get(family))
    plan = build_plan([PROMPT] * 3, ANSWERS)
    with torch.no_grad(), policy.adapter(BASE):
        learned = plan_logprobs(policy, plan)[torch.from_numpy(plan.prediction_S)].tolist()
    engine = EmbeddedEngine(policy)
    engine.publish("default", BASE, 0)
    played = [x for answer in ANSWERS for x in (engine.logprobs(PROMPT + answer))[-len(answer) :]]
    own = [x for answer in ANSWERS for x in own_logprobs(family, PROMPT, answer)]
    assert learned == pytest.approx(own, abs=2e-5)
    assert played == pytest.approx(own, abs=2e-5)


@pytest.mark.parametrize(("family", "why"), REFUSED.items())
def test_a_family_that_would_be_computed_differently_is_rejected_by_name_in_one_line(family, why):
    with pytest.raises(InputError, match=why) as caught:
        load(family)
    assert str(family_model(family)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "why", "fix"),
    [
        (
            {"model_type": "t5"},
            "transformers has no causal language model t5",
            "Use a model of another family",
        ),
        ({"max_position_embeddings": 0}, "has no max_position_embeddings", "Write its longest context"),
        ({"use_cache": None}, r"'use_cache': TypeError: .*expected bool, got NoneType", "Correct its config"),
        ({"vocab_size": "x"}, "'vocab_size'.*expected int, got str", "Correct its config"),
        ({"num_attention_heads": 0}, "cannot be loaded", "Correct its config"),
        ({"text_config": []}, "cannot be", ""),
        ({"auto_map": True}, "cannot be loaded", "Correct its config"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_config_is_said_with_what_to_do(config, why, fix, tmp_path):
    shutil.copytree(family_model("Llama"), tmp_path / "model")
    file = tmp_path / "model/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(InputError, match=why) as caught:
        PolicyModel(str(tmp_path / "model"), LoraSettings(4, 8.0))
    assert caught.value.fix.startswith(fix)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", first_of([torch.bfloat16, torch.float16]))
def test_rounding_neither_rejects_a_good_model_nor_hides_a_wrong_one(dtype):
    for family in ("Llama", "Qwen3-MoE", "DeepSeek-V3", "Gemma 2", "gpt-oss"):
        load(family, dtype=dtype)
    for family in ("LFM2", "Falcon-H1"):
        with pytest.raises(InputError, match="packed tree"):
            load(family, dtype=dtype)


def test_a_context_ends_where_rope_or_chunks_would_change_earlier_positions():
    assert load("Phi-3").context_length == load("Llama, dynamic rope").context_length == 4096
    for family, tokens in (("Phi-3, longrope", 2048), ("Llama 4, chunks of 16", 16)):
        policy = load(family)
        assert policy.context_length == tokens
        assert any(f"limited to {tokens} tokens" in note for note in policy.notes)


def test_layers_that_lora_leaves_out_are_named():
    assert load("Llama").notes == []
    (note,) = load("Mixtral").notes
    assert note == (
        "LoRA adapts self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj; it leaves out "
        "mlp.experts.down_proj, mlp.experts.gate_up_proj, mlp.gate (lora.target_modules)"
    )


@pytest.mark.parametrize("targets", [["q_proj", "nonesuch"], ["nonesuch"]])
def test_the_error_for_a_target_that_matches_nothing_names_the_linear_layers(targets):
    with pytest.raises(InputError, match=r"nonesuch: no such linear layer.*mlp\.fc1.*self_attn\.q_proj"):
        load("Phi", targets)


def test_targets_that_match_all_linear_layers_leave_nothing_out():
    assert load("Phi", ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]).notes == []
    assert load("Qwen3-MoE", ["q_proj", "gate_proj", "up_proj", "down_proj"]).notes != []


# In OPT and BioGPT a layer applies dropout itself, in Phi a module in it does; JetMoE cannot recompute.
RECOMPUTED = {"Phi": ["q_proj", "dense", "fc1", "fc2"], "OPT": ["q_proj", "fc1"], "BioGPT": ["q_proj", "fc1"]}


@pytest.mark.parametrize(("family", "targets"), [*RECOMPUTED.items(), *TARGETS.items()])
def test_recomputed_layers_apply_no_dropout(family, targets):
    policy = load(family, targets)
    for module in policy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    plan = build_plan([PROMPT] * 3, ANSWERS)
    parameters = policy.adapter_parameters()
    kept = plan_logprobs(policy, plan)
    limits = PassLimits(plan.num_tokens, KeptMemory(policy, TRAINED))
    limits.memory.limit = 0.0
    recomputed = plan_logprobs(policy, plan, limits=limits)
    torch.testing.assert_close(recomputed, kept)
    for again, once in zip(
        *(torch.autograd.grad(one.sum(), parameters) for one in (recomputed, kept)), strict=True
    ):
        torch.testing.assert_close(again, once)
