"""What OpenAIClient makes of what APIs reply, well or ill: a table of replies by a real server on loopback.

The bodies are those that the named services document or send, with made-up ids, and those of an attacker.
"""

import asyncio
import gzip
import time
import tracemalloc
import zlib
from dataclasses import dataclass
from email.utils import formatdate

import pytest

from openai_clients import KEY, LIMIT, QUESTION, ask, client_of, failure
from replying_server import Reply, completion, error, http, serving, with_tokens
from sparring.core import ContextError, EpisodeError, InputError, TransientError
from sparring.core.reasoning import Reasoning
from sparring.engine.api_replies import read_error
from sparring.engine.openai_client import OpenAIClient


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "SPARRING_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def packed(content: bytes, encoding: str = "gzip", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} Said\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def with_content(content: object, finish_reason: str = "stop", **message: object) -> dict:
    answer = completion()
    answer["choices"][0] |= {"finish_reason": finish_reason}
    answer["choices"][0]["message"] |= {"content": content, **message}
    return answer


def with_logprobs(logprobs: object) -> dict:
    answer = with_tokens([1], [52], [-0.5])
    answer["choices"][0]["logprobs"] = logprobs
    return answer


def endless(status: int):
    """Send bytes as fast as they are taken."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Said\r\ncontent-length: 99999999999\r\n\r\n".encode())
        while True:
            writer.write(b"[" * 2**20)
            await writer.drain()

    return send


# Answers.

TEXTS = {
    "text": (completion("It is 4."), "It is 4."),
    "parts": (with_content([{"type": "text", "text": "It is "}, {"type": "text", "text": "4."}]), "It is 4."),
    "parts with thoughts, as Mistral's": (
        with_content(
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "2 and 2"}]},
                {"type": "text", "text": "4"},
            ]
        ),
        "4",
    ),
    "parts of unknown kinds": (with_content([{"type": "image_url", "image_url": {}}, {"odd": 1}]), ""),
    "no parts": (with_content([]), ""),
    "nothing": (with_content(None), ""),
    "no content": (completion(choices=[{"message": {"role": "assistant"}}]), ""),
    "a refusal": (with_content(None, refusal="I cannot do that."), "I cannot do that."),
    "a refusal as a part": (with_content([{"type": "refusal", "refusal": "No."}]), "No."),
    "only reasoning": (with_content(None, "length", reasoning="2 and 2", reasoning_content="2 and 2"), ""),
    "what a filter took": (with_content(None, "content_filter"), ""),
    "what Gemini's filter took": (completion(choices=[{"finish_reason": "content_filter", "index": 0}]), ""),
    "log-probabilities as a list": (with_logprobs([]), "4"),
    "log-probabilities in the older form": (with_logprobs({"tokens": ["4"], "token_logprobs": [0]}), "4"),
    "log-probabilities without numbers": (with_logprobs({"content": [{"logprob": None}]}), "4"),
    "calls of tools that were not offered": (with_content(None, "tool_calls", tool_calls=[{"id": "1"}]), ""),
    "a pair of surrogates": (http('{"choices":[{"message":{"content":"\\ud83d\\ude00"}}]}'), "😀"),
    "packed": (packed(gzip.compress(b'{"choices":[{"message":{"content":"4"}}]}')), "4"),
    "packed by zlib": (packed(zlib.compress(b'{"choices":[{"message":{"content":"4"}}]}'), "deflate"), "4"),
}


@pytest.mark.parametrize(("answer", "text"), TEXTS.values(), ids=TEXTS)
async def test_what_a_model_says_is_read_once_and_not_paid_for_again(answer, text):
    reply = answer if isinstance(answer, bytes) else http(answer)
    async with serving(reply) as server:
        client = client_of(server)
        response = await asyncio.wait_for(client.complete(QUESTION), LIMIT)
        await client.close()
    assert response.text == text
    (message,) = response.completion
    assert (message["role"], message["content"]) == ("assistant", text)
    assert len(server.lines) == 1


THOUGHTS = {
    "DeepSeek's": with_content("4", reasoning_content="2 and 2"),
    "OpenRouter's": with_content("4", reasoning="2 and 2"),
    "Mistral's": TEXTS["parts with thoughts, as Mistral's"][0],
    "tags in the text": completion("<think>2 and 2</think>\n\n4"),
    "a tag that the template began": completion("2 and 2\n</think>4"),
}


@pytest.mark.parametrize("answer", THOUGHTS.values(), ids=THOUGHTS)
async def test_what_a_model_thinks_is_told_apart_from_what_it_says(answer):
    async with serving(http(answer)) as server:
        response = await client_of(server).complete(QUESTION)
    assert (response.text, response.reasoning) == ("4", Reasoning("2 and 2"))
    (step,) = [response.to_step("A", QUESTION)]
    assert (step.completion_text, step.reasoning) == ("4", "2 and 2")


OWN = ("<plan>", "</plan>")


@pytest.mark.parametrize(
    ("reasoning", "said", "thought"),
    [
        (OWN, "4", Reasoning("2 and 2")),
        ("none", "<plan>2 and 2</plan>\n4", None),
        ("auto", "<plan>2 and 2</plan>\n4", None),
    ],
)
async def test_what_a_model_thinks_may_have_tags_of_ones_own(reasoning, said, thought):
    async with serving(http(completion("<plan>2 and 2</plan>\n4"))) as server:
        response = await ask(client_of(server), reasoning=reasoning)
    assert (response.text, response.reasoning) == (said, thought)


@pytest.mark.parametrize(("reasoning", "sent"), [("auto", 7), ("none", None)])
async def test_a_budget_of_thoughts_is_the_servers_where_it_knows_their_tags(reasoning, sent):
    async with serving(http(completion("4"))) as server:
        await ask(client_of(server), max_reasoning=7, reasoning=reasoning)
        assert server.bodies[0].get("thinking_token_budget") == sent
        with pytest.raises(InputError, match="does not know thoughts that begin with <plan>") as caught:
            await ask(client_of(server), max_reasoning=7, reasoning=OWN)
    assert caught.value.field == "max_reasoning"
    assert len(server.bodies) == 1, "it was refused before it was sent"


async def test_an_answer_that_ran_out_of_tokens_while_it_reasoned_is_cut_off():
    async with serving(http(with_content(None, "length", reasoning="2 and 2"))) as server:
        response = await client_of(server).complete(QUESTION)
    assert response.finish_reason == "length"
    assert response.reasoning == Reasoning("2 and 2", ended=False)


# Errors.


@dataclass(frozen=True)
class Lasting:
    """A reply that ends the call at its first try, in an error of a kind and with words."""

    reply: Reply
    kind: type[Exception]
    said: str
    requests: int = 1


def refusal(status: int, message: str, **fields: object) -> bytes:
    return http(error(message, **fields), status)


def in_a_choice(error: dict) -> bytes:
    """An answer that its server gave up, as OpenRouter says it."""
    answer = with_content("2 and 2", "error")
    answer["choices"][0]["error"] = error
    return http(answer)


QUOTA = "You exceeded your current quota, please check your plan and billing details."
ENDS_THE_COMMAND = {
    "OpenAI, no credit": (
        refusal(429, QUOTA, type="insufficient_quota", code="insufficient_quota"),
        "429, You exceeded your current quota",
    ),
    "OpenAI, a spent limit": (refusal(400, "Limit", code="billing_hard_limit_reached"), "400, Limit"),
    "OpenAI, no bill paid": (refusal(429, "Not active", code="billing_not_active"), "429, Not active"),
    "Moonshot, no credit": (refusal(429, QUOTA, type="exceeded_current_quota_error"), "429, You exceeded"),
    "DashScope, arrears": (http({"code": "Arrearage", "message": "denied"}, 400), "400, denied"),
    "DeepSeek, no credit": (refusal(402, "Insufficient", code="invalid_request_error"), "402, Insufficient"),
    "OpenRouter, no credit": (http({"error": {"code": 402, "message": "No"}}, 402), "402, No"),
    "OpenRouter, in a good answer": (http({"error": {"code": 402, "message": "No"}}), "402, No"),
    "a region": (refusal(403, "Not in your country", code="unsupported_country"), "403, Not in your country"),
    "a project without the model": (refusal(403, "no access to m", code="model_not_found"), "403, no access"),
    "OpenAI, no such model": (refusal(404, "`m` does not exist", code="model_not_found"), "404, `m` does"),
    "OpenRouter, no such model": (
        http({"error": {"code": 400, "message": "m is not a valid model ID"}}, 400),
        "400, m is not a valid model ID",
    ),
    "Mistral, no such model": (
        http({"type": "invalid_model", "message": "Invalid: m"}, 400),
        "400, Invalid: m",
    ),
    "vLLM, no such model": (http({"object": "error", "message": "no m", "code": 404}, 404), "404, no m"),
    "a gateway without the model": (refusal(503, "no channel", code="model_not_found"), "503, no channel"),
    "a parameter": (
        refusal(400, "'stop' is not supported", param="stop", code="unsupported_parameter"),
        "400, 'stop' is not supported",
    ),
    "a method": (http("", 405), "405, no reason given"),
    "HTML": (http("<html><body>Not here</body></html>", 404), "404, <html><body>Not here"),
    "OpenRouter, in a choice": (
        in_a_choice({"code": 402, "message": "Insufficient credits"}),
        "402, Insufficient credits",
    ),
    "Anthropic, no credit": (
        refusal(400, "Your credit balance is too low", type="invalid_request_error"),
        "400, Your credit balance is too low",
    ),
    "LiteLLM, a spent budget": (
        refusal(400, "Budget has been exceeded!", type="budget_exceeded", code="400"),
        "400, Budget has been exceeded!",
    ),
    "xAI, no credit": (
        http({"code": "exhausted", "error": "Your team reached its monthly spending limit"}, 429),
        "429, Your team reached its monthly spending limit",
    ),
    "Zhipu, no credit": (refusal(429, "Insufficient balance", code="1113"), "429, Insufficient balance"),
    "MiniMax, in a good answer": (
        http({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
        "500, {'choices': None, 'base_resp': {'status_code': 1008, 'status_msg': 'insufficient balance'}}",
    ),
    "Gemini, a region": (
        http([{"error": {"code": 400, "message": "User location is not supported for the API use."}}], 400),
        "400, User location is not supported",
    ),
    "Groq, terms": (refusal(400, "terms", code="model_terms_required"), "400, terms"),
    "LiteLLM, no such model": (refusal(400, "Unknown m", param="model", code="400"), "400, Unknown m"),
    "DeepSeek, no such model": (refusal(400, "Model Not Exist"), "400, Model Not Exist"),
    "Bedrock, no such model": (
        http({"message": "The provided model identifier is invalid."}, 400),
        "400, The provided model identifier is invalid",
    ),
    "Groq, a model of the past": (refusal(400, "gone", code="model_decommissioned"), "400, gone"),
    "Together, no such model": (refusal(400, "not here", code="model_not_available"), "400, not here"),
    "Azure, a model that does not chat": (
        refusal(400, "does not work", code="OperationNotSupported"),
        "400, does not work",
    ),
    "OpenAI, too many stop strings": (
        refusal(400, "Invalid 'stop': array too long", param="stop", code="array_above_max_length"),
        "400, Invalid 'stop': array too long",
    ),
    "a page of a proxy": (
        http("<!DOCTYPE html><html><head><title>\nJust a  moment\n</title></head>", 403),
        "403, the page 'Just a moment'",
    ),
    "a list": (http([{"error": {"code": 403, "message": "denied", "status": "X"}}], 403), "403, denied"),
    "an account without the context": (
        refusal(402, "This model's maximum context length is 8 tokens."),
        "402, This model's maximum context length is 8 tokens",
    ),
    "no such thing": (refusal(404, "There is no such thing."), "404, There is no such thing"),
    "an account that is gone": (refusal(401, "Closed", code="account_deactivated"), "401, Closed"),
}
"""No call of this client can succeed."""


@pytest.mark.parametrize(("reply", "said"), ENDS_THE_COMMAND.values(), ids=ENDS_THE_COMMAND)
async def test_an_error_that_no_call_can_escape_ends_the_command_at_once_with_the_servers_words(reply, said):
    async with serving(reply, http(completion())) as server:
        line = await failure(client_of(server), InputError)
    assert line.startswith(f"127.0.0.1:{server.port}, model small: {said}")
    assert len(server.lines) == 1


ENDS_THE_CALL = {
    "OpenAI, too long": Lasting(
        refusal(400, "Too many tokens", code="context_length_exceeded"), ContextError, "Too many tokens"
    ),
    "vLLM, too long": Lasting(
        refusal(
            400,
            "'max_tokens' or 'max_completion_tokens' is too large: 9. This model's maximum context "
            "length is 8",
        ),
        ContextError,
        "maximum context length",
    ),
    "an aggregator": Lasting(
        http(
            {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "roles odd"}}},
            400,
        ),
        EpisodeError,
        "400, Provider returned error: roles odd",
    ),
    "an aggregator, too long": Lasting(
        http({"error": {"message": "No", "metadata": {"raw": "maximum context length"}}}, 400),
        ContextError,
        "400, No: maximum context length",
    ),
    "Azure, a filter": Lasting(refusal(400, "filtered", code="content_filter"), EpisodeError, "filtered"),
    "OpenAI, a policy": Lasting(
        refusal(403, "violates the policy", code="content_policy_violation"), EpisodeError, "violates"
    ),
    "OpenRouter, moderation": Lasting(
        http({"error": {"code": 403, "message": "Your input was flagged"}}, 403), EpisodeError, "flagged"
    ),
    "a request larger than a minute's limit": Lasting(
        refusal(413, "Request too large", code="rate_limit_exceeded"), EpisodeError, "too large"
    ),
    "FastAPI": Lasting(
        http(
            {"detail": [{"loc": ["body", "messages", 0], "msg": "odd", "input": "insufficient credit"}]}, 422
        ),
        EpisodeError,
        "422, body.messages.0: odd",
    ),
    "a problem by RFC 9457": Lasting(http({"title": "Bad", "status": 400}, 400), EpisodeError, "400, Bad"),
    "Cloudflare": Lasting(
        http({"errors": [{"message": "AiError: odd", "code": 5006}], "success": False}, 400),
        EpisodeError,
        "400, AiError: odd",
    ),
    "content is a number": Lasting(http(with_content(4)), EpisodeError, "cannot be read"),
    "content is an object": Lasting(http(with_content({"text": "4"})), EpisodeError, "cannot be read"),
    "content is a list of texts": Lasting(http(with_content(["4"])), EpisodeError, "cannot be read"),
    "content is a list of numbers": Lasting(http(with_content([4])), EpisodeError, "cannot be read"),
    "choices is a text": Lasting(http({"choices": "none"}), EpisodeError, "cannot be read"),
    "a choice is null": Lasting(http({"choices": [None]}), EpisodeError, "cannot be read"),
    "no message": Lasting(http({"choices": [{"text": "4"}]}), EpisodeError, "cannot be read"),
    "ids that are not numbers": Lasting(http(with_tokens([1], ["x"], [0])), EpisodeError, "cannot be read"),
    "a list": Lasting(http([completion()]), EpisodeError, "cannot be read"),
    "deep brackets": Lasting(http("[" * 10**6), EpisodeError, "cannot be read"),
    "deep brackets in a field": Lasting(
        http('{"odd":' + "[" * 10**5 + "]" * 10**5 + "}"), EpisodeError, "cannot be read"
    ),
    "a huge number": Lasting(
        http('{"choices":[],"prompt_token_ids":[' + "9" * 10**5 + "]}"), EpisodeError, "cannot be read"
    ),
    "an endless body": Lasting(endless(200), EpisodeError, "more than 32 MiB"),
    "a bomb": Lasting(packed(gzip.compress(bytes(2**28), 1)), EpisodeError, "more than 32 MiB"),
    "a damaged packet": Lasting(packed(b"no gzip"), EpisodeError, "cannot be unpacked"),
    "another packing": Lasting(packed(b"x", "br"), EpisodeError, "was not asked for"),
    "an endless error": Lasting(endless(400), EpisodeError, "400, [[[["),
    "a bomb as an error": Lasting(
        packed(gzip.compress(b"a" * 2**28, 1), status=400), EpisodeError, "400, aaa"
    ),
    "a deep error": Lasting(http('{"error":' + "[" * 10**4 + "]" * 10**4 + "}", 400), EpisodeError, "400, "),
    **{
        f"{status}, too long": Lasting(refusal(status, said), ContextError, f"{status}, {said}")
        for status, said in ((413, "context_length_exceeded."), (422, "exceed_context_size_error."))
    },
    **{
        f"{status}, for any reason": Lasting(refusal(status, "Odd."), EpisodeError, f"{status}, Odd.")
        for status in (400, 413, 422)
    },
    "a circle": Lasting(http("", 307, location="/v1/chat/completions"), EpisodeError, "redirected", 6),
}
"""Asking again would not help, and would be paid for again."""


@pytest.mark.parametrize("case", ENDS_THE_CALL.values(), ids=ENDS_THE_CALL)
async def test_an_error_of_these_messages_or_an_answer_of_another_kind_is_not_asked_for_again(case):
    async with serving(case.reply) as server:
        tracemalloc.start()
        with pytest.raises(case.kind) as caught:
            await ask(client_of(server, api_key=KEY))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert type(caught.value) is case.kind
    line = str(caught.value)
    assert line.startswith(f"127.0.0.1:{server.port}, model small: ")
    assert case.said in line
    assert KEY not in line
    assert line.isprintable()
    assert peak < 150 * 2**20
    assert len(server.lines) == case.requests


TOO_LONG = [
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000",
    "The prompt is too long: 131073, model maximum context length: 131071",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Input tokens exceed the configured limit of 272000 tokens.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 10485760",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "the request exceeds the available context size, try increasing it",
    "Trying to keep the first 5000 tokens when context the overflows, with context length of only 4096",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 and 200",
    "litellm.ContextWindowExceededError: OpenAIException - no",
    "Input is too long for requested model.",
]


@pytest.mark.parametrize("words", TOO_LONG)
@pytest.mark.parametrize("body", [error, lambda words: {"error": words}, lambda words: {"message": words}])
async def test_a_prompt_that_is_too_long_is_known_by_the_words_of_many_servers(words, body):
    async with serving(http(body(words), 400)) as server:
        assert f"400, {words}" in await failure(client_of(server), ContextError)
    assert len(server.lines) == 1


REJECTED_KEYS = {
    "Gemini": http([{"error": {"code": 400, "message": f"API key not valid: {KEY}"}}], 400),
    "Gemini, old": http([{"error": {"code": 400, "message": "API key expired. Renew it."}}], 400),
    "xAI": http({"code": "invalid argument", "error": f"Incorrect API key provided: {KEY}"}, 400),
    "a gateway, in a good answer": http({"success": False, "message": f"no {KEY}", "code": 401}),
}


@pytest.mark.parametrize("reply", REJECTED_KEYS.values(), ids=REJECTED_KEYS)
async def test_a_rejected_key_is_known_also_where_the_status_does_not_say_so(reply):
    async with serving(reply) as server:
        line = await failure(client_of(server, api_key=KEY), InputError)
    assert line.startswith(f"api_key: was rejected by 127.0.0.1:{server.port} (40")
    assert KEY not in line
    assert len(server.lines) == 1


def test_an_error_that_is_nested_too_deeply_to_be_read_is_an_error_all_the_same():
    """Newer versions of Python read such JSON, but recurse no deeper than older ones."""
    body: object = "x"
    for _ in range(10**4):
        body = {"message": body}
    read = read_error(400, body, {}, KEY)
    assert (read.words, read.meaning) == ("an error that is nested too deeply", "request")


# How long to wait.

WAITS = {
    "seconds": ({"retry_after": "20"}, 20),
    "parts of a second": ({"retry_after": "1.5"}, 1.5),
    "milliseconds": ({"retry_after_ms": "1500"}, 1.5),
    "the longer of both": ({"retry_after_ms": "1500", "retry_after": "3"}, 3),
    "a date": ({"retry_after": lambda: formatdate(time.time() + 20, usegmt=True)}, 20),
    "a date in the old form": ({"retry_after": lambda: time.asctime(time.gmtime(time.time() + 20))}, 20),
    "a date that has passed": ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    "no number": ({"retry_after": "soon", "retry_after_ms": "nan"}, 0),
    "less than nothing": ({"retry_after": "-5"}, 0),
}


@pytest.mark.parametrize(("headers", "seconds"), WAITS.values(), ids=WAITS)
async def test_the_next_try_waits_for_as_long_as_the_server_asks(headers, seconds, pauses):
    sent = {name: value() if callable(value) else value for name, value in headers.items()}
    async with serving(http(error("wait"), 429, **sent), http(completion())) as server:
        await client_of(server, backoff=0.5).complete(QUESTION)
    assert len(pauses) == 1
    earlier = 10 if "date" in str(headers) or callable(headers.get("retry_after")) else 0
    assert max(0, seconds - earlier) <= pauses[0] <= seconds + 0.5


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("You exceeded your current quota.\nPlease retry in 34.07s.", 34.07),
        ("Requests have exceeded the token rate limit. Please retry after 6 seconds.", 6),
        ("No deployments available for selected model, Try again in 5 seconds.", 5),
        ("Please try again in 7m12s", 0),
        ("Try again in . s", 0),
    ],
)
async def test_a_wait_that_only_the_words_ask_for_counts(words, seconds, pauses):
    async with serving(http(error(words), 429), http(completion())) as server:
        await client_of(server, backoff=0.5).complete(QUESTION)
    assert len(pauses) == 1
    assert seconds <= pauses[0] <= seconds + 0.5


@pytest.mark.parametrize(
    "headers",
    [
        {"retry_after": "9" * 400},
        {"retry_after": "inf"},
        {"retry_after": "1e300"},
        {"retry_after_ms": "9" * 400},
        {"retry_after": "Fri, 31 Dec 9999 23:59:59 GMT"},
    ],
)
async def test_a_wait_beyond_the_limit_ends_the_call_in_one_line(headers, pauses):
    async with serving(http(error("later"), 429, **headers)) as server:
        line = await failure(client_of(server), TransientError)
    assert "429, later (it asks to wait " in line
    assert pauses == []


# Fields that not every API takes.

NEWER = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
REFUSALS = {
    "max_tokens": (refusal(400, NEWER, param="max_tokens", code="unsupported_parameter"), "max_tokens"),
    "temperature": (
        refusal(400, "'temperature' is not supported", param="temperature", code="unsupported_parameter"),
        "temperature",
    ),
    "seed": (http({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}, 422), "seed"),
    "logprobs": (refusal(403, "You are not allowed to request logprobs from this model"), "logprobs"),
    "return_token_ids": (refusal(400, "Unrecognized argument: return_token_ids"), "return_token_ids"),
}


@pytest.mark.parametrize(("reply", "field"), REFUSALS.values(), ids=REFUSALS)
async def test_a_field_that_an_api_rejects_is_given_up_once_and_for_all(reply, field):
    async with serving(reply, http(completion())) as server:
        client = client_of(server, retries=0)
        for _ in range(2):
            assert (await client.complete(QUESTION, 1.0, 7, seed=3)).text == "4"
        await client.complete(QUESTION, 1.0, 7, seed=3, model="another")
        await client.close()
    # Both fields for tokens are of no use without the other.
    for one in ("logprobs", "return_token_ids") if field in ("logprobs", "return_token_ids") else (field,):
        assert [one in body for body in server.bodies] == [True, False, False, True]
    newer = [body.get("max_completion_tokens") for body in server.bodies]
    assert newer == ([None, 7, 7, None] if field == "max_tokens" else [None] * 4)


async def test_several_fields_are_given_up_one_after_the_other():
    replies = [reply for reply, _ in REFUSALS.values()]
    async with serving(*replies[:4], http(completion())) as server:
        assert (await client_of(server).complete(QUESTION, 1.0, 7, seed=3)).text == "4"
    assert set(server.bodies[-1]) == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (REFUSALS["temperature"][0], {"temperature": 0.2}),
        (
            refusal(400, "'stop' is not supported", param="stop", code="unsupported_parameter"),
            {"stop": ("a",)},
        ),
        (
            refusal(400, "max_tokens is too large: this model has at most 5", param="max_tokens"),
            {"max_tokens": 7},
        ),
    ],
    ids=["temperature", "stop", "max_tokens"],
)
async def test_a_field_that_changes_answers_is_not_given_up(reply, asked):
    async with serving(reply, http(completion())) as server:
        with pytest.raises((InputError, EpisodeError), match="model small: 400, "):
            await client_of(server).complete(QUESTION, **asked)
    assert len(server.lines) == 1


# Keys and models.


async def test_a_403_says_what_the_server_says_without_a_piece_of_the_key(monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", KEY)
    for piece in (KEY, KEY[:8], KEY[3:15], KEY[-7:]):
        async with serving(refusal(403, f"The key {piece} may not use this model")) as server:
            line = await failure(client_of(server), InputError)
        assert "may not use this model" in line
        assert "is not set" not in line
        assert piece not in line


async def test_a_hosted_api_is_never_asked_for_a_model_that_nobody_named():
    for url in ("https://openrouter.ai/api/v1/", "https://api.openai.com/v1"):
        client = OpenAIClient(KEY, base_url=url)
        for model in (None, "default"):
            with pytest.raises(InputError, match=r"^model: is 'default', and .* has no model of that name"):
                await client.complete(QUESTION, model=model)
    assert OpenAIClient(KEY).model == "openai/gpt-4o-mini"


async def test_another_address_is_asked_for_its_default_model():
    async with serving(http(completion())) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        await OpenAIClient(base_url=url).complete(QUESTION)
        await OpenAIClient(base_url=url).complete(QUESTION, model="default")
    assert [body["model"] for body in server.bodies] == ["default", "default"]
