"""``/inference/v1/generate``: token ids in, token ids and log-probabilities out."""

import pytest

from tiny_models import CONTEXT_LENGTH

IDS = [3, 1, 4, 1, 5]
SAMPLING = {"temperature": 0.7, "max_tokens": 12, "seed": 3}


def ask(live, sampling=SAMPLING, **changes):
    return live.post(
        "/inference/v1/generate",
        json={"model": "default", "token_ids": IDS, "sampling_params": sampling} | changes,
    )


def test_ids_and_log_probabilities_are_those_of_text_completions(live):
    asked = {"model": "tiny", "prompt": IDS, "logprobs": 0, "return_token_ids": True, **SAMPLING}
    (expected,) = live.post("/v1/completions", json=asked).json()["choices"]
    answer = ask(live, SAMPLING | {"logprobs": 1, "skip_special_tokens": False, "stop_token_ids": []}).json()
    (choice,) = answer["choices"]
    assert answer["request_id"]
    assert choice["token_ids"] == expected["token_ids"]
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    logprobs = [one["logprob"] for one in content]
    assert logprobs == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-5)
    assert choice["finish_reason"] == expected["finish_reason"]
    drawn = len(choice["token_ids"])
    assert answer["usage"]["completion_tokens"] == drawn
    assert answer["usage"]["prompt_tokens"] == len(IDS)


def test_the_likeliest_tokens_of_each_place_are_given_if_they_are_asked_for(live):
    choice = ask(live, {"temperature": 0, "max_tokens": 4, "logprobs": 3}).json()["choices"][0]
    for token, one in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        assert [top["token"] for top in one["top_logprobs"]] == [
            f"token_id:{token}"
        ]  # as drawn: it is certain


def test_an_answer_ends_with_a_stop_token(live):
    whole = ask(live).json()["choices"][0]
    end = whole["token_ids"][4]
    live.engine.reset_stats()
    cut = ask(live, SAMPLING | {"stop_token_ids": [end]}).json()["choices"][0]
    place = whole["token_ids"].index(end)
    assert cut["token_ids"] == whole["token_ids"][: place + 1]
    assert len(cut["logprobs"]["content"]) == place + 1
    assert cut["finish_reason"] == "stop"
    assert live.engine.stats.generated_tokens == place + 1  # no more are drawn


def test_several_answers_are_numbered(live):
    choices = ask(live, SAMPLING | {"n": 3}).json()["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2]
    assert len({tuple(one["token_ids"]) for one in choices}) == 3


REFUSED = {
    "no ids": {"token_ids": []},
    "a text": {"token_ids": "rules"},
    "ids less than 0": {"token_ids": [-1]},
    "ids that the model does not have": {"token_ids": [10**6]},
    "more than the context": {"token_ids": [1] * (CONTEXT_LENGTH + 1)},
    "another model": {"model": "nobody"},
    "pictures": {"features": {"mm_hashes": {}}},
    "a stream": {"stream": True},
    "no sampling_params": {"sampling_params": None},
    "an unknown way of sampling": {"sampling_params": {"temprature": 0}},
    "a penalty": {"sampling_params": {"presence_penalty": 1.5}},
    "more log-probabilities": {"sampling_params": {"logprobs": 21}},
    "a stop token that the model does not have": {"sampling_params": {"stop_token_ids": [10**6]}},
    "a flag of another route": {"sampling_params": {"echo": True}},
    "no tokens": {"sampling_params": {"max_tokens": 0}},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_the_route_cannot_do_is_refused_in_one_line(live, changes):
    answer = ask(live, **changes)
    assert answer.status_code in (400, 404, 422)
    message = answer.json()["error"]["message"]
    assert message
    assert "\n" not in message
