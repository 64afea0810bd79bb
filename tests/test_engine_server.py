"""The server as a client sees it: over HTTP, through the ``openai`` package."""

import asyncio
import contextlib
import json
import threading

import openai
import pytest

from live_server import ASK, TOKEN, answer_of, engine_over, pieces_of_work_in_threads, running
from openai_http import httpx2
from sparring.core import derive_seed
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.openai_client import OpenAIClient
from sparring.engine.server import create_app
from sparring.engine.server_http import MAX_BODY_BYTES
from tiny_models import CONTEXT_LENGTH, tiny_policy

POLICY = tiny_policy()


@pytest.fixture(scope="module")
def own() -> EmbeddedEngine:
    """The same engine without a server."""
    return engine_over(tiny_policy())


def forget(*engines: EmbeddedEngine) -> None:
    """Values computed in different batches may differ in the last digit, so forget them."""
    for engine in engines:
        engine.forget_contexts()


async def seed_that_ends_by(engine: EmbeddedEngine, reason: str, max_tokens: int) -> int:
    asked = (engine.complete(ASK, model="tiny", max_tokens=max_tokens, seed=seed) for seed in range(20))
    return [response.finish_reason for response in await asyncio.gather(*asked)].index(reason)


# Answers


def test_an_answer_has_the_engines_text_tokens_log_probabilities_and_version(live, own):
    forget(live.engine, own)
    expected = answer_of(own, 3, temperature=0.7, max_tokens=12)
    raw = live.client().chat.completions.with_raw_response.create(
        model="tiny",
        messages=ASK,
        temperature=0.7,
        max_tokens=12,
        seed=3,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    answer = raw.parse()
    choice = answer.choices[0]
    assert raw.headers["x-sparring-policy-version"] == "7"
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.prompt_token_ids == expected.prompt_token_ids
    assert choice.token_ids == expected.completion_token_ids
    assert [token.logprob for token in choice.logprobs.content] == expected.completion_logprobs
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(expected.completion_token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert all(token.top_logprobs == [] for token in choice.logprobs.content)


def test_the_likeliest_token_is_returned_if_it_is_the_sampled_one(live):
    answer = live.client().chat.completions.create(
        model="tiny", messages=ASK, temperature=0, max_tokens=5, logprobs=True, top_logprobs=1
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for token in content:
        (top,) = token.top_logprobs
        assert (top.token, top.logprob, top.bytes) == (token.token, token.logprob, token.bytes)


def test_the_stop_token_is_among_the_tokens_but_not_in_the_text(live, own):
    seed = asyncio.run(seed_that_ends_by(own, "stop", 100))
    answer = live.client().chat.completions.create(
        model="tiny", messages=ASK, max_tokens=100, seed=seed, logprobs=True
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.logprobs.content[-1].token == "<|im_end|>"
    assert "<|im_end|>" not in choice.message.content
    assert answer.usage.completion_tokens == len(choice.logprobs.content)


@pytest.mark.parametrize(
    "limit",
    [{"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}],
    ids=["older name", "newer name", "the newer counts"],
)
def test_an_answer_ends_at_the_limit(live, own, limit):
    seed = asyncio.run(seed_that_ends_by(own, "length", 16))
    answer = live.client().chat.completions.create(model="tiny", messages=ASK, seed=seed, **limit)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")
    answer = live.client().chat.completions.create(model="tiny", messages=ASK, seed=seed)
    assert answer.usage.completion_tokens == 16


def test_several_choices_differ_and_are_repeatable(live, own):
    def ask() -> list[str]:
        answer = live.client().chat.completions.create(model="tiny", messages=ASK, seed=5, n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    texts = ask()
    assert texts == ask()
    seeds = [5, derive_seed(5, "choice", 1), derive_seed(5, "choice", 2)]
    assert texts == [answer_of(own, seed).text for seed in seeds]
    assert len(set(texts)) == 3


def test_content_may_be_a_list_of_parts_and_developer_messages_are_system_messages(live):
    def ask(messages: list) -> list[int]:
        answer = live.client().chat.completions.create(
            model="tiny", messages=messages, seed=1, extra_body={"return_token_ids": True}
        )
        return answer.prompt_token_ids

    parts = [{"type": "text", "text": "ru"}, {"type": "text", "text": "les"}]
    assert ask([{"role": "user", "content": parts}]) == ask(ASK)
    rules = {"content": "be brief"}
    assert ask([{"role": "developer", **rules}, *ASK]) == ask([{"role": "system", **rules}, *ASK])


async def test_our_own_client_gets_the_engines_answer(live, own):
    forget(live.engine, own)
    expected = await own.complete(ASK, model="tiny", seed=9)
    client = OpenAIClient(api_key=TOKEN, model="default", base_url=f"{live.url}/v1")
    assert await client.complete(ASK, max_tokens=16, seed=9) == expected
    assert await client.get_policy_version() == 7
    await client.close()


async def test_an_earlier_answer_comes_back_with_its_token_ids_and_is_not_tokenised_again(live):
    client = OpenAIClient(api_key=TOKEN, model="default", base_url=f"{live.url}/v1")
    first = await client.complete(ASK, max_tokens=16, seed=9)
    talk = [*ASK, *first.completion, {"role": "user", "content": "Go on."}]
    second = await client.complete(talk, max_tokens=4, seed=9)
    begun = first.prompt_token_ids + first.completion_token_ids
    assert second.prompt_token_ids[: len(begun)] == begun
    await client.close()


# Information about the server


def test_models_are_listed_and_found(live):
    models = live.client().models.list().data
    assert [model.id for model in models] == ["tiny", "default"]
    assert models[0].max_model_len == CONTEXT_LENGTH
    assert [live.client().models.retrieve(name) for name in ("tiny", "default")] == models
    with pytest.raises(openai.NotFoundError):
        live.client().models.retrieve("huge")


# Rejected requests


@pytest.mark.parametrize("token", ["wrong", "the-token!", "the", "THE-TOKEN"])
def test_a_wrong_token_is_rejected(live, token):
    with pytest.raises(openai.AuthenticationError) as refusal:
        live.client(token).chat.completions.create(model="tiny", messages=ASK)
    assert refusal.value.code == "invalid_api_key"


@pytest.mark.parametrize("headers", [{}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}])
@pytest.mark.parametrize("path", ["/v1/models", "/adapters/version", "/v1/chat/completions", "/nothing"])
def test_requests_without_the_bearer_token_are_rejected_without_any_details(live, path, headers):
    assert live.get(path, headers=headers).status_code == 401
    # Not even the error in the body is reported.
    assert live.post(path, headers=headers, content=b"{").status_code == 401


def test_a_server_without_a_token_answers_everybody():
    engine = engine_over(POLICY)
    with running(create_app(engine, token=None), engine) as live:
        assert live.get("/v1/models").status_code == 200


def test_messages_that_cannot_fit_are_rejected_before_they_are_rendered():
    policy = tiny_policy()
    engine = engine_over(policy)
    with running(create_app(engine, token=TOKEN), engine) as live:
        render, policy.render = policy.render, None  # rendering now fails

        def status(content: str, messages: int = 1, ids: int = 0) -> tuple[int, str | None]:
            asked: list[dict[str, object]] = [{"role": "user", "content": content}] * messages
            if ids:
                asked.append({"role": "assistant", "content": "", "token_ids": [1] * ids})
            body = {"model": "tiny", "messages": asked}
            response = live.post("/v1/chat/completions", json=body)
            return response.status_code, response.json()["error"]["code"]

        most = CONTEXT_LENGTH * len("<|endoftext|>")  # the longest token
        assert status("x" * (most + 1)) == (400, "context_length_exceeded")
        assert status("x" * 2_000_000) == (400, "context_length_exceeded")
        assert status("x" * (most // 2)) == (500, None)
        assert status(" " * 2_000_000) == (400, "context_length_exceeded")
        assert status("", CONTEXT_LENGTH + 1) == (400, "context_length_exceeded")
        assert status("", CONTEXT_LENGTH) == (500, None)
        assert status("", ids=CONTEXT_LENGTH + 1) == (400, "context_length_exceeded")
        assert status("", ids=CONTEXT_LENGTH) == (500, None)
        policy.render = render
        assert status("x" * (most // 2)) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_other_requests_are_answered_while_a_long_prompt_is_tokenised(monkeypatch, stream):
    monkeypatch.setattr("sparring.engine.server_questions.LONG_PROMPT", 100)
    policy, answers = tiny_policy(), []
    engine = engine_over(policy)

    def ask(content: str) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "stream": stream}
        answers.append((len(content), live.post("/v1/chat/completions", json=body).status_code))

    with running(create_app(engine, token=TOKEN), engine) as live:
        pieces = pieces_of_work_in_threads(live, lambda: ask("x" * 101), lambda: ask("x" * 100))
    assert pieces == 1
    assert answers == [(100, 200), (101, 200)]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_rejected(live, chunked):
    content = b" " * (MAX_BODY_BYTES + 1)
    response = live.post("/v1/chat/completions", content=iter([content]) if chunked else content)
    assert response.status_code == 413
    assert "more than 4,194,304 bytes" in response.json()["error"]["message"]
    fits = live.post("/v1/chat/completions", content=b" " * MAX_BODY_BYTES)
    assert fits.status_code == 400


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"{}", 400),
        ("/v1/nothing", b"{}", 404),
        ("/v1/models", b"{}", 405),
        ("/v1/load_lora_adapter", b"{}", 404),
    ],
)
def test_every_error_has_the_shape_that_clients_expect(live, path, content, status):
    response = live.post(path, content=content)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_chat_with_a_model_without_a_chat_template_is_an_error():
    policy = tiny_policy()
    policy.tokenizer.chat_template = None
    engine = engine_over(policy)
    with (
        running(create_app(engine, token=TOKEN), engine) as live,
        pytest.raises(openai.BadRequestError, match="no chat template"),
    ):
        live.client().chat.completions.create(model="tiny", messages=ASK)


def test_messages_that_a_chat_template_rejects_are_the_clients_error():
    policy = tiny_policy()
    policy.tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    engine = engine_over(policy)
    with (
        running(create_app(engine, token=TOKEN), engine) as live,
        pytest.raises(openai.BadRequestError, match="System role not supported") as refusal,
    ):
        live.client().chat.completions.create(model="tiny", messages=ASK)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}], "max_tokens": 4}, "messages"),
        ({"model": "\ud800"}, "model"),
    ],
)
def test_half_a_surrogate_pair_is_the_clients_error(live, asked, param):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    body = json.dumps({"model": "tiny", "messages": ASK, **asked})  # escaped as six ASCII characters
    response = live.post("/v1/chat/completions", headers=headers, content=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


# Simultaneous requests


class SentRequests(httpx2.AsyncHTTPTransport):
    """Counts the requests that are sent completely and calls ``when_all`` once there are ``count``."""

    def __init__(self, count: int, when_all) -> None:
        super().__init__(limits=httpx2.Limits(max_connections=None), verify=False)
        self.missing = count
        self.when_all = when_all

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions = {**request.extensions, "trace": self._trace}
        return await super().handle_async_request(request)

    async def _trace(self, event: str, info: dict) -> None:
        if event == "http11.send_request_body.complete":
            self.missing -= 1
            if self.missing == 0:
                self.when_all()


async def test_requests_that_arrive_during_a_forward_pass_are_computed_together():
    """The server's loop is blocked, as by a long forward pass, until all requests are in their sockets."""
    count, tokens = 16, 16
    policy = tiny_policy()
    engine = engine_over(policy)
    prompts = [[{"role": "user", "content": f"rules, number {index}"}] for index in range(count)]
    alone = engine_over(POLICY)
    expected = [
        await alone.complete(prompt, model="tiny", seed=index) for index, prompt in enumerate(prompts)
    ]
    with running(create_app(engine, token=TOKEN), engine) as live:
        released = threading.Event()
        live.loop.call_soon_threadsafe(released.wait)
        async with live.async_client(SentRequests(count, released.set)) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="tiny", messages=prompt, seed=index, extra_body={"return_token_ids": True}
                    )
                    for index, prompt in enumerate(prompts)
                )
            )
    assert [answer.choices[0].token_ids for answer in answers] == [r.completion_token_ids for r in expected]
    assert alone.stats.forward_passes > 10 * tokens
    assert engine.stats.forward_passes <= tokens + 4
    assert engine.stats.generated_tokens == alone.stats.generated_tokens


async def test_a_temperature_near_0_counts_as_0_and_does_not_affect_other_answers():
    engine, alone = engine_over(tiny_policy()), engine_over(POLICY)
    expected = [await alone.complete(ASK, t, model="tiny", seed=1) for t in (0.0, 1.0)]
    with running(create_app(engine, token=TOKEN), engine) as live:
        released = threading.Event()
        live.loop.call_soon_threadsafe(released.wait)
        async with live.async_client(SentRequests(2, released.set)) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model="tiny", messages=ASK, temperature=t, seed=1)
                    for t in (1e-308, 1.0)
                )
            )
    assert [answer.choices[0].message.content for answer in answers] == [one.text for one in expected]


async def test_an_answer_whose_client_has_left_is_not_finished():
    length = 200
    seed = await seed_that_ends_by(engine_over(POLICY), "length", length)
    engine = engine_over(tiny_policy(), max_queue=1)
    with running(create_app(engine, token=TOKEN), engine) as live:
        sent, closed = asyncio.Event(), threading.Event()
        live.loop.call_soon_threadsafe(closed.wait)
        async with live.async_client(SentRequests(1, sent.set)) as client:
            asking = client.chat.completions.create(model="tiny", messages=ASK, seed=seed, max_tokens=length)
            impatient = asyncio.create_task(asking)
            await sent.wait()
            impatient.cancel()
            await asyncio.wait([impatient])
            closed.set()
            # The queue holds one request, so another is accepted only when the first has ended.
            answer = None
            while answer is None:
                with contextlib.suppress(openai.InternalServerError):
                    answer = await client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1)
    assert engine.stats.requests == 2
    assert engine.stats.generated_tokens < length
