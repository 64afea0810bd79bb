"""The exact contents of what a server sends: answers, chunks, models, errors."""

import json
import string
import time
from typing import Any

import pytest
from fastapi import FastAPI
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from live_server import ASK, TOKEN, Live, answer_of, engine_over, running
from openai_http import httpx2
from sparring.core import ModelResponse
from sparring.core.chat_tokens import ChatTokens
from sparring.engine.answer_stream import TokenTexts
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.server import create_app
from sparring.engine.server_answers import ChatCompletion, TextCompletion
from sparring.engine.server_http import MAX_BODY_BYTES
from sparring.engine.server_requests import ChatRequest, CompletionRequest
from sparring.learn.policy import TRAINED
from tiny_models import CONTEXT_LENGTH, STOP, tiny_policy

POLICY = tiny_policy()
CHAT = "/v1/chat/completions"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def ask(live: Live, **options: Any) -> httpx2.Response:
    return live.post(CHAT, json={"model": "tiny", "messages": ASK, **options})


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream, without their head, which must be the same in each."""
    *events, end = response.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(*head_of(chunk), chunk.pop("object")) for chunk in chunks}) == 1
    return chunks


def head_of(body: dict[str, Any]) -> tuple[str, int, str]:
    return body.pop("id"), body.pop("created"), body.pop("model")


def error(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# Answers


@pytest.mark.parametrize("name", ["tiny", "default"])
def test_an_answer_has_these_fields(live, name):
    expected = answer_of(engine_over(POLICY), 0, temperature=0, max_tokens=3)
    before = int(time.time())
    body = ask(live, model=name, temperature=0, max_tokens=3).json()
    completion, created, model = head_of(body)
    assert completion.startswith("chatcmpl-")
    assert before <= created <= time.time()
    assert model == name
    message = {"role": "assistant", "content": expected.text}
    assert body == {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "length", "logprobs": None}],
        "usage": {
            "prompt_tokens": len(expected.prompt_token_ids),
            "completion_tokens": 3,
            "total_tokens": len(expected.prompt_token_ids) + 3,
        },
    }


@pytest.mark.parametrize("likeliest", [0, 3])
def test_a_log_probability_has_these_fields(live, likeliest):
    asked = {"seed": 1, "top_logprobs": likeliest, "logprobs": True, "return_token_ids": True}
    choice = ask(live, **asked).json()["choices"][0]
    assert set(choice["logprobs"]) == {"content", "refusal"}
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    parts = [token for token in content if "\N{REPLACEMENT CHARACTER}" in token["token"]]
    assert 0 < len(parts) < len(content)  # some tokens are a part of a character
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    for token_id, token in zip(choice["token_ids"], content, strict=True):
        name = POLICY.tokenizer.convert_ids_to_tokens(token_id)
        special = name in POLICY.tokenizer.all_special_tokens
        spelled = list(name.encode()) if special else [letters[letter] for letter in name]
        text = POLICY.tokenizer.decode([token_id])
        top = token["top_logprobs"]
        assert token == {"token": text, "logprob": token["logprob"], "bytes": spelled, "top_logprobs": top}
        assert len(top) == likeliest
        assert all(set(one) == {"token", "logprob", "bytes"} for one in top)


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}]
)
def test_chunks_without_a_request_for_usage_do_not_have_it(live, options):
    first, *chunks = events_of(ask(live, temperature=0, max_tokens=3, stream=True, **options))
    role = {"role": "assistant", "content": ""}
    assert first == {"choices": [{"index": 0, "delta": role, "finish_reason": None}]}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        reason = "length" if chunk is chunks[-1] else None
        delta = {"content": choice["delta"]["content"]}
        assert chunk == {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}


def test_chunks_with_a_request_for_usage_have_it_in_the_last_one(live):
    options = {"include_usage": True}
    *chunks, last = events_of(ask(live, temperature=0, max_tokens=3, stream=True, stream_options=options))
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    usage = ask(live, temperature=0, max_tokens=3).json()["usage"]
    assert last == {"choices": [], "usage": usage}


def test_a_stream_is_server_sent_events_of_a_version_that_no_cache_may_keep(live):
    response = ask(live, seed=1, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-sparring-policy-version"] == "7"
    assert response.headers["cache-control"] == "no-cache"
    assert events_of(response)


@pytest.mark.parametrize(("reason", "text"), [("length", "abc"), ("stop", "ab")])
def test_several_tokens_that_arrive_together_are_all_sent_and_a_stop_token_has_no_text(reason, text):
    request = ChatRequest(model="tiny", messages=ASK, logprobs=True, return_token_ids=True)
    completion = ChatCompletion(request, TokenTexts(POLICY.tokenizer))
    ids = POLICY.tokens.encode("abc")
    part = ModelResponse(text, [], [1], ids, [-0.25, -0.5, -1.0], 7, reason)
    _, *pieces = [chunk["choices"][0] for chunk in completion.chunks(0, part)]
    assert "".join(piece["delta"]["content"] for piece in pieces) == text
    assert [token for piece in pieces for token in piece["token_ids"]] == ids
    logprobs = [token["logprob"] for piece in pieces for token in piece["logprobs"]["content"]]
    assert logprobs == part.completion_logprobs
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [reason]


def test_the_usage_of_a_stream_counts_tokens_and_not_parts():
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chat = ChatRequest(model="tiny", messages=ASK, n=2, **options)
    text = CompletionRequest(model="tiny", prompt=["ab", "cd"], **options)
    for completion, prompts in (
        (ChatCompletion(chat, TokenTexts(POLICY.tokenizer)), 3),
        (TextCompletion(text, TokenTexts(POLICY.tokenizer)), 6),
    ):
        ids = POLICY.tokens.encode("abcde")
        for index in (0, 1):
            several = ModelResponse("", [], [1, 2, 3], ids[:3], [-0.5] * 3, 7, "")
            list(completion.chunks(index, several))
            list(
                completion.chunks(
                    index, ModelResponse("abcde", [], [1, 2, 3], ids[3:], [-0.5] * 2, 7, "length")
                )
            )
        (last,) = completion.usage_chunk()
        usage = {"prompt_tokens": prompts, "completion_tokens": 10, "total_tokens": prompts + 10}
        assert last["usage"] == usage


# Information about the server


def test_a_model_has_these_fields():
    engine = engine_over(POLICY)
    before = int(time.time())
    app = create_app(engine, token=None)
    after = int(time.time())
    with running(app, engine) as live:
        model = live.get("/v1/models/tiny").json()
        assert live.get("/v1/models").json() == {"object": "list", "data": [model]}
    assert before <= model.pop("created") <= after
    assert model == {
        "id": "tiny",
        "object": "model",
        "owned_by": "sparring",
        "max_model_len": CONTEXT_LENGTH,
    }


def test_a_model_that_was_made_at_another_time_than_the_servers_start_says_so():
    engine = engine_over(POLICY)
    app = create_app(engine, token=None, aliases={"also": "tiny"}, made={"tiny": 1_234_567_890}.get)
    with running(app, engine) as live:
        made = {one["id"]: one["created"] for one in live.get("/v1/models").json()["data"]}
    assert made["tiny"] == 1_234_567_890 < made["also"]


def test_the_version_and_the_health_are_objects(live):
    for path in ("/adapters/version", "/v1/adapters/version"):
        assert live.get(path, headers=AUTHORIZED).json() == {"version": 7}
    for path in ("/health", "/ping"):
        assert live.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
def test_there_are_no_pages_for_browsers(live, path):
    response = live.get(path, headers=AUTHORIZED)
    assert response.status_code == 404
    assert response.json() == error(f"GET {path}: Not Found. The API is below /v1", "invalid_request_error")


@pytest.mark.parametrize("slashes", ["{}/", "/{}", "{}//"])
def test_a_slash_too_many_in_an_address_changes_nothing(live, slashes):
    """Neither a redirection: not every client follows one, and behind a proxy it leads elsewhere."""
    for path in ("/v1/models", "/v1/models/tiny", "/health"):
        given = live.get(slashes.format(path), headers=AUTHORIZED)
        assert (given.status_code, given.json()) == (200, live.get(path, headers=AUTHORIZED).json())
    path = slashes.format("/v1/chat/completions")
    body = {"model": "tiny", "messages": ASK, "max_tokens": 1}
    assert live.post(path, json=body).status_code == 200
    assert live.post(path, json=body, headers={}).status_code == 401


def test_an_address_without_v1_is_told_so(live):
    response = live.post("/chat/completions", json={})
    assert response.json()["error"]["message"] == "POST /chat/completions: Not Found. The API is below /v1"
    assert live.post("/v1/responses", json={}).json()["error"]["message"] == "POST /v1/responses: Not Found"


# Adapters


class TrainedAdapter:
    """Serves the trained adapter as version 8 under any name."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.asked: list[tuple[str, str, bool]] = []

    async def publish(self, name: str, path: str, *, replace: bool) -> int:
        self.asked.append((name, path, replace))
        self.engine.publish(name, TRAINED, 8)
        return 8

    def withdraw(self, name: str) -> None:
        self.engine.withdraw(name)


def test_clients_load_and_unload_adapters_where_the_server_has_them():
    engine = engine_over(POLICY)
    adapters = TrainedAdapter(engine)
    with running(create_app(engine, token=TOKEN, adapters=adapters), engine) as live:
        asked = {"lora_name": "mine", "lora_path": "step-1"}
        for options in ({}, {"load_inplace": True}):
            loaded = live.post("/v1/load_lora_adapter", json=asked | options)
            assert (loaded.status_code, loaded.headers["x-sparring-policy-version"]) == (200, "8")
            assert loaded.text == "Success: LoRA adapter 'mine' added successfully."
        assert adapters.asked == [("mine", "step-1", False), ("mine", "step-1", True)]
        assert ask(live, model="mine").headers["x-sparring-policy-version"] == "8"
        unloaded = live.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
        assert unloaded.status_code == 200
        assert unloaded.text == "Success: LoRA adapter 'mine' removed successfully."
        again = live.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
        assert again.status_code == 404
        missing = "The model `mine` does not exist. This server has: tiny"
        assert again.json() == error(missing, "invalid_request_error", "model", "model_not_found")


# Errors


def test_the_error_for_an_unknown_model_names_it_and_those_there_are(live):
    response = ask(live, model="huge")
    assert response.status_code == 404
    message = "The model `huge` does not exist. This server has: tiny"
    assert response.json() == error(message, "invalid_request_error", "model", "model_not_found")


@pytest.mark.parametrize(
    ("messages", "given"),
    [
        ([{"role": "user", "content": "x" * 9000}] * 2, "2 messages have 18000 characters"),
        ([{"role": "user", "content": "x"}] * (CONTEXT_LENGTH + 1), "prompt has 257 messages"),
    ],
)
def test_the_error_for_messages_that_cannot_fit_has_their_size(live, messages, given):
    response = ask(live, messages=messages)
    assert response.status_code == 400
    message = (
        f"This model's maximum context length is {CONTEXT_LENGTH} tokens. However, your {given}, which is "
        "more than fits. Please reduce the length."
    )
    expected = error(message, "invalid_request_error", "messages", "context_length_exceeded")
    assert response.json() == expected


def test_an_answer_may_end_with_the_contexts_last_token_but_not_after_it(live):
    def answer(tokens: int, **options: Any) -> httpx2.Response:
        return ask(live, messages=[{"role": "text", "content": "x" * tokens}], **options)

    for limit in ({}, {"max_tokens": 1}):
        fits = answer(CONTEXT_LENGTH - 1, **limit)
        assert fits.json()["usage"]["total_tokens"] == CONTEXT_LENGTH
    for tokens, limit, total in (
        (CONTEXT_LENGTH, {}, CONTEXT_LENGTH + 1),
        (CONTEXT_LENGTH - 1, {"max_tokens": 2}, CONTEXT_LENGTH + 1),
    ):
        refused = answer(tokens, **limit)
        assert refused.status_code == 400
        message = (
            f"This model's maximum context length is {CONTEXT_LENGTH} tokens. However, you requested "
            f"{total} tokens ({tokens} in the messages, {total - tokens} in the completion). Please reduce "
            "the length of the messages or completion."
        )
        expected = error(message, "invalid_request_error", "messages", "context_length_exceeded")
        assert refused.json() == expected


@pytest.mark.parametrize(
    ("asked", "message", "code"),
    [
        (
            {"min_tokens": 5},
            "min_tokens: this server cannot do that (got 5). Leave it out",
            "unsupported_value",
        ),
        (
            {"temprature": 0},
            "temprature: this server does not know this parameter. Did you mean temperature?",
            "unknown_parameter",
        ),
        ({"top_logprobs": 1}, "top_logprobs: needs logprobs. Set it to true", None),
    ],
)
def test_the_error_for_a_parameter_gives_its_name_and_the_reason(live, asked, message, code):
    response = ask(live, **asked)
    assert response.status_code == 400
    assert response.json() == error(message, "invalid_request_error", next(iter(asked)), code)


def test_the_error_for_a_missing_token_says_which_one_and_how_to_send_it(live):
    response = live.get("/v1/models")
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    message = "The bearer token is missing or wrong. Send the server's SPARRING_API_KEY"
    assert response.json() == error(message, "invalid_request_error", code="invalid_api_key")


@pytest.mark.parametrize("stream", [False, True])
def test_the_error_of_a_full_queue_gives_the_reason_and_when_to_try_again(stream):
    engine = engine_over(POLICY, max_queue=1)
    with running(create_app(engine, token=TOKEN), engine) as live:
        response = ask(live, n=2, stream=stream)
        assert ask(live, stream=stream).status_code == 200  # the server continues
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    message = "1 requests are in progress; raise inference.max_queue"
    assert response.json() == error(message, "server_error")


def test_a_fault_of_the_server_is_a_server_error_with_the_exceptions_name():
    policy = tiny_policy()
    engine = engine_over(policy)
    with running(create_app(engine, token=TOKEN), engine) as live:
        policy.render = None
        response = ask(live)
    assert response.status_code == 500
    assert response.json() == error("TypeError: 'NoneType' object is not callable", "server_error")


@pytest.mark.parametrize(("fused", "status"), [(True, 200), (False, 400)])
def test_characters_that_the_tokenizer_does_not_know_count_as_it_encodes_them(fused, status):
    """If they are one token together, any number of them fits; if each is one, the context limits them."""
    letters = {letter: number for number, letter in enumerate(["<unk>", *string.ascii_letters])}
    backend = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>", fuse_unk=fused))
    policy = tiny_policy()
    policy.tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token=STOP)
    policy.tokens = ChatTokens(policy.tokenizer, "tiny")
    engine = engine_over(policy)
    with running(create_app(engine, token=TOKEN), engine) as live:
        content = "é" * CONTEXT_LENGTH * 100
        response = ask(live, messages=[{"role": "text", "content": content}], max_tokens=1)
    assert response.status_code == status
    if fused:
        assert response.json()["usage"]["prompt_tokens"] == 1
    else:
        assert f"your 1 messages have {len(content)} characters" in response.json()["error"]["message"]


# The connection: messages between the web server and the application


async def messages_from(
    app: FastAPI, scope: dict[str, Any], *received: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return what the application sends if it receives these messages, all of which it must ask for."""
    coming, sent = list(received), []

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert not coming
    return sent


def post_of(**headers: str) -> dict[str, Any]:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": fields}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_client_leaves_ends_with_status_499(stream):
    app = create_app(engine_over(POLICY), token=None)
    body = json.dumps({"model": "tiny", "messages": ASK, "max_tokens": 200, "stream": stream}).encode()
    asking, leaving = {"type": "http.request", "body": body}, {"type": "http.disconnect"}
    sent = await messages_from(app, post_of(content_type="application/json"), asking, leaving)
    assert sent[0]["status"] == 499


async def test_a_body_whose_length_is_known_to_be_too_large_is_rejected_before_it_is_read():
    app = create_app(engine_over(POLICY), token=None)
    sent = await messages_from(app, post_of(content_length=str(MAX_BODY_BYTES + 1)))
    assert sent[0]["status"] == 413


async def test_a_web_server_is_told_that_the_application_has_started_and_stopped():
    app = create_app(engine_over(POLICY), token=TOKEN)
    starting, stopping = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
    sent = await messages_from(app, {"type": "lifespan"}, starting, stopping)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
