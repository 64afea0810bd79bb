import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.config import load_config
from sparring.core import InputError
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import ALL_LINEAR, AVERAGE, BASE, TRAINED, LoraSettings, PolicyModel
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import build_plan
from tiny_models import ARCHITECTURES, STOP, perturb_adapter, text_prompt, tiny_model, tiny_policy

PROMPT, COMPLETION = [1, 2, 3], [4, 5, 6]
PLAN = build_plan([PROMPT], [COMPLETION])


def logprobs(policy: PolicyModel, name: str) -> list[float]:
    with torch.no_grad(), policy.adapter(name):
        return plan_logprobs(policy, PLAN).tolist()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_those_of_the_plain_model(architecture, tied):
    policy = tiny_policy(architecture, tied=tied)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model(architecture, tied))
    tokens_T = torch.tensor(PROMPT + COMPLETION)
    plan = build_plan([tokens_T.tolist()], [[1]])
    attend = RunAttention(plan, torch.float32, policy.device)
    with torch.no_grad(), policy.adapter(BASE):
        logits_TV = policy.logits(policy.hidden_states(tokens_T, torch.arange(6), attend))
        expected_TV = plain(input_ids=tokens_T[None]).logits[0]
    torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loading_a_model_gives_no_warnings(architecture):
    directory = str(tiny_model(architecture))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = PolicyModel(directory, LoraSettings(4, 8.0))
        policy.load_adapter_state(policy.adapter_state(), AVERAGE)
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapted_weights_lie_by_inputs_in_float32_and_have_their_values(dtype):
    policy = tiny_policy(dtype=dtype)
    plain = dict(AutoModelForCausalLM.from_pretrained(policy.model_name, dtype=dtype).named_parameters())
    adapted = [name for name, _ in policy.model.named_parameters() if name.endswith(".base_layer.weight")]
    assert len(adapted) == 2 * len(ALL_LINEAR)
    for name in adapted:
        weight_OI = policy.model.get_parameter(name)
        assert weight_OI.t().is_contiguous() == (dtype == torch.float32)
        own = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert torch.equal(weight_OI, plain[own])


def test_a_new_adapter_changes_nothing_until_it_is_trained():
    policy = tiny_policy(perturbed=False)
    assert logprobs(policy, TRAINED) == logprobs(policy, BASE)


def test_adapter_weights_are_float32_on_a_bfloat16_base():
    policy = tiny_policy(dtype=torch.bfloat16)
    policy.load_adapter_state(policy.adapter_state(), "frozen")
    assert policy.dtype == torch.bfloat16
    for name in (TRAINED, "frozen"):
        parameters = policy.adapter_parameters(name)
        assert len(parameters) == 2 * 2 * len(ALL_LINEAR)
        assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert all(torch.isfinite(torch.tensor(logprobs(policy, TRAINED))))


def test_adapters_and_the_base_model_do_not_leak_into_each_other():
    policy = tiny_policy()
    alone = {TRAINED: logprobs(policy, TRAINED), BASE: logprobs(policy, BASE)}
    policy.load_adapter_state(policy.adapter_state(), "frozen")
    perturb_adapter(policy, "frozen", seed=3)
    alone["frozen"] = logprobs(policy, "frozen")
    for name in (TRAINED, "frozen", BASE, "frozen", TRAINED, BASE, TRAINED):
        assert logprobs(policy, name) == alone[name]
    assert len({tuple(values) for values in alone.values()}) == 3


@pytest.mark.parametrize("active", [TRAINED, "one", "two", BASE])
def test_a_dropped_adapter_is_gone_and_the_others_are_unchanged(active):
    policy = tiny_policy()
    for seed, name in enumerate(("one", "two")):
        perturb_adapter(policy, name, seed=10 + seed)
    expected = {name: logprobs(policy, name) for name in (TRAINED, "two", BASE)}
    logprobs(policy, active)
    policy.drop_adapter("one")
    assert policy.adapter_parameters("one") == []
    assert {name: logprobs(policy, name) for name in expected} == expected


def test_an_adapter_of_another_shape_or_model_is_rejected():
    policy = tiny_policy(rank=4)
    with pytest.raises(InputError, match="do not fit"):
        policy.load_adapter_state(tiny_policy(rank=2).adapter_state())
    incomplete = policy.adapter_state()
    incomplete.popitem()
    with pytest.raises(InputError, match="do not fit"):
        policy.load_adapter_state(incomplete, "frozen")
    assert policy.adapter_parameters("frozen") == []


@pytest.mark.parametrize("modules", [["nonesuch"], ["q_proj", "embed_tokens"], ["q_proj", "lm_head"]])
def test_target_modules_that_are_not_linear_layers_are_rejected(modules):
    with pytest.raises(InputError, match=r"lora\.target_modules") as caught:
        PolicyModel(str(tiny_model("llama", tied=False)), LoraSettings(4, 8.0, modules))
    assert "\n" not in str(caught.value)


def test_chats_are_rendered_by_the_template_and_text_is_used_verbatim():
    policy = tiny_policy()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model("llama"))
    chat = [{"role": "system", "content": "rules"}, {"role": "user", "content": "move?"}]
    expected = f"<|im_start|>system\nrules{STOP}\n<|im_start|>user\nmove?{STOP}\n<|im_start|>assistant\n"
    assert tokenizer.decode(policy.render(chat)) == expected
    assert tokenizer.decode(policy.render(text_prompt("just this"))) == "just this"


def test_an_encoded_answer_ends_with_the_stop_token():
    policy = tiny_policy()
    ids = policy.encode_answer(text_prompt("rules"), "bet")
    assert policy.tokenizer.decode(ids) == f"bet{STOP}"
    assert ids[-1] == policy.stop_token_ids[0]


def test_a_chat_with_a_model_without_a_chat_template_is_rejected():
    policy = tiny_policy()
    policy.tokenizer.chat_template = None
    with pytest.raises(InputError, match="chat template"):
        policy.render([{"role": "user", "content": "move?"}])
    assert policy.render(text_prompt("ab"))


REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role\\nnot supported') }}{% endif %}"
    "{{ messages[0]['content'] }}"
)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (REFUSES_SYSTEM, r"rejects them \(System role\)"),
        ("{{ messages[0].nothing.at_all }}", r"rejects them \('dict object' has no attribute 'nothing'\)"),
    ],
)
def test_messages_that_a_chat_template_rejects_are_an_error_of_one_line(template, said):
    policy = tiny_policy()
    policy.tokenizer.chat_template = template
    with pytest.raises(InputError, match=said) as caught:
        policy.render([{"role": "system", "content": "be brief"}])
    assert caught.value.field == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("role", ["text", "user"])
def test_half_a_surrogate_pair_is_not_text(role):
    with pytest.raises(
        InputError, match=r"^messages: they contain '\\ud800', which is an unpaired surrogate"
    ):
        tiny_policy().render([{"role": role, "content": "a\ud800"}])


def test_lora_dropout_is_rejected_because_samples_share_tokens():
    with pytest.raises(InputError, match=r"lora\.dropout.*share tokens"):
        load_config("quickstart", {"lora.dropout": "0.1"})
