"""Other people's clients against ``sparring serve``; each runs a script of its own in its environment."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny_models import roomy_model

ASKED = [{"role": "user", "content": "rules"}]
CONTEXT = "what is"
CHOICES = [" it", " no idea", " 4"]


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(roomy_model())


@pytest.fixture(scope="session")
def logprobs():
    """Return transformers' log-probabilities of all ids but the first, each given those before."""
    model = AutoModelForCausalLM.from_pretrained(roomy_model(), dtype=torch.float32)

    @torch.no_grad()
    def score(ids):
        scores = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return scores[range(len(ids) - 1), ids[1:]].tolist()

    return score


@pytest.fixture
def expected(server):
    """The answer that every client asks for, as plain JSON."""
    answer = server.client.chat.completions.create(
        model="default",
        messages=ASKED,
        temperature=0.7,
        max_tokens=12,
        seed=3,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    return answer.choices[0]


def until(text, end):
    return text.partition(end)[0]


@pytest.mark.parametrize("environment", ["openai-oldest", "openai-newest"])
def test_openai(environment, told, expected, tokenizer, logprobs):
    found = told(environment, "openai")
    text = expected.message.content
    assert found["text"] == found["streamed"] == text
    assert found["request_id"]
    assert found["usage"] > 12
    assert set(found["alternatives"]) == {2}
    assert found["echo"] == "rules"
    assert found["logprobs"][0] is None
    scores = logprobs(tokenizer("rules").input_ids)
    assert found["logprobs"][1:] == pytest.approx(scores[-len(found["logprobs"]) + 1 :], abs=1e-4)
    assert found["stopped"] == until(text, text[3])
    assert found["default"] == "default"
    assert "default" in found["models"]
    assert found["unknown model"] == "NotFoundError"
    assert found["unknown field"] == found["tools"] == "BadRequestError"


def test_litellm(told, expected):
    found = told("litellm", "litellm")
    text = expected.message.content
    assert found["text"] == found["hosted"] == found["streamed"] == text
    assert found["stopped"] == until(text, text[3])
    assert isinstance(found["shaped"], str)
    assert all(one is None or one <= 0 for one in found["logprobs"])
    assert len(found["logprobs"]) > 1
    assert found["unknown model"] == "NotFoundError"
    assert found["too long"] == "ContextWindowExceededError"


def test_langchain(told, expected):
    found = told("langchain", "langchain")
    text = expected.message.content
    assert [found["text"], found["streamed"], *found["batch"]] == [text] * 4
    assert found["stopped"] == until(text, text[3])
    assert found["logprobs"] == 12
    assert isinstance(found["completion"], str)


def test_inspect(told, expected, tokenizer, logprobs):
    texts = [CONTEXT + choice for choice in CHOICES]
    found = told("inspect", "inspect", json.dumps(texts))
    text = expected.message.content
    assert found["status"] == ["success"] * 3
    assert found["text"] == text
    assert found["stopped"] == until(text, text[3])
    assert set(found["alternatives"]) == {2}
    for whole, likelihoods in zip(texts, found["likelihoods"], strict=True):
        assert likelihoods[:-1] == pytest.approx(logprobs(tokenizer(whole).input_ids), abs=1e-4)


TASK = """
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: {kind}
"""


def test_the_language_model_evaluation_harness(told, tokenizer, logprobs, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"context": CONTEXT, "choices": CHOICES, "label": 0}]))
    (tasks / "choices.yaml").write_text(
        TASK.format(data=data, kind="multiple_choice")
        + 'task: choices\ndoc_to_text: "{{context}}"\ndoc_to_choice: "{{choices}}"\n'
        'doc_to_target: label\ntarget_delimiter: ""\nmetric_list:\n  - metric: acc\n'
    )
    (tasks / "words.yaml").write_text(
        TASK.format(data=data, kind="generate_until")
        + 'task: words\ndoc_to_text: "{{context}}"\ndoc_to_target: "it"\n'
        'generation_kwargs:\n  until: ["e"]\n  max_gen_toks: 12\n  temperature: 0.0\n  do_sample: false\n'
        "metric_list:\n  - metric: exact_match\n"
    )
    found = told("lm-eval", "lm_eval", roomy_model(), tasks)
    begin = tokenizer(CONTEXT).input_ids
    for way in ("ids", "texts"):
        (answers,) = found[way]
        likelihoods = [one[0] for one in answers]
        wanted = []
        for choice in CHOICES:
            whole = tokenizer(CONTEXT + choice).input_ids
            assert whole[: len(begin)] == begin
            wanted.append(sum(logprobs(whole)[len(begin) - 1 :]))
        assert likelihoods == pytest.approx(wanted, abs=1e-4)
    for way in ("completions", "chat"):
        ((answer,),) = found[way]
        assert "e" not in answer


def test_verifiers_client_for_training(told, expected, tokenizer):
    found = told("verifiers", "verifiers", roomy_model())
    tokens = found["tokens"]
    assert tokens["prompt_ids"] == tokenizer.apply_chat_template(
        ASKED, add_generation_prompt=True, return_dict=False
    )
    assert tokens["completion_ids"] == expected.token_ids
    drawn = [one.logprob for one in expected.logprobs.content]
    assert tokens["completion_logprobs"] == pytest.approx(drawn, abs=1e-4)
    assert found["finish_reason"] == "length"
