"""Every parameter that clients may send is honoured, or refused with its name; none is ignored silently."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import completion_create_params as chat_params

from live_server import ASK, TOKEN, engine_over, running
from openai_http import httpx2
from sparring.engine.server import create_app
from sparring.engine.server_requests import (
    MESSAGE_NEUTRAL,
    NEUTRAL,
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_IN_MESSAGES,
    ChatRequest,
    CompletionRequest,
)
from tiny_models import tiny_policy

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FIELDS = {CHAT: set(ChatRequest.model_fields), TEXT: set(CompletionRequest.model_fields)}
PLAIN = {
    CHAT: {"model": "tiny", "messages": ASK, "seed": 1, "max_tokens": 6},
    TEXT: {"model": "tiny", "prompt": "rules", "seed": 1, "max_tokens": 6},
}
OF_OPENAI = {
    CHAT: {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"},
    TEXT: {*text_params.CompletionCreateParamsBase.__annotations__, "stream"},
}
OF_VLLM = """
    best_of use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids ignore_eos min_tokens
    include_stop_str_in_output skip_special_tokens truncate_prompt_tokens spaces_between_special_tokens
    prompt_logprobs allowed_token_ids bad_words echo documents add_generation_prompt continue_final_message
    add_special_tokens chat_template chat_template_kwargs mm_processor_kwargs structured_outputs guided_json
    guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern structural_tag
    priority request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt
    kv_transfer_params vllm_xargs prompt_embeds include_reasoning thinking_token_budget media_io_kwargs
    return_prompt_text repetition_detection
"""
OF_SGLANG = """
    regex ebnf json_schema stop_regex no_stop_trim lora_path session_params separate_reasoning
    stream_reasoning return_hidden_states custom_logit_processor custom_params rid sampling_seed
    return_routed_experts bootstrap_host data_parallel_rank extra_key return_cached_tokens_details
"""
OF_FURTHER_SERVERS = """
    typical_p mirostat mirostat_tau dynatemp_range xtc_probability grammar n_predict cache_prompt samplers
    dry_multiplier adapter_id best_of_n num_beams do_sample max_new_tokens enable_thinking thinking reasoning
    safe_prompt random_seed transforms provider top_a no_repeat_ngram_size tfs_z
"""
OF_OTHERS = {*OF_VLLM.split(), *OF_SGLANG.split(), *OF_FURTHER_SERVERS.split()}
VALUES: list[Any] = ["x", 3.5, -7, 0, True, False, [1], ["x"], {"a": 1}, [], {}, "", 1, None]
SOME = ["x", 3.5, True, [1], {"a": 1}]
"""Values of every kind, and some of which at most one changes nothing, whatever the parameter is."""


class Server:
    """A running server, asked over one connection."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def ask(self, path: str, **changes: Any) -> httpx2.Response:
        body = {name: value for name, value in {**PLAIN[path], **changes}.items() if value != "left out"}
        return self.http.post(path, json=body)

    def ids(self, path: str) -> list[int]:
        """The token ids of the plain answer."""
        return choices(self.ask(path, return_token_ids=True))[0]["token_ids"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = engine_over(tiny_policy())
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        running(create_app(engine, token=TOKEN), engine) as live,
        httpx2.Client(base_url=live.url, headers=headers, verify=False) as http,
    ):
        yield Server(http)


def choices(response: httpx2.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def text(response: httpx2.Response) -> str:
    first = choices(response)[0]
    return first["text"] if "text" in first else first["message"]["content"]


def tokens(response: httpx2.Response) -> int:
    return response.json()["usage"]["completion_tokens"]


Applies = Callable[[Server, str], bool]


def greedy(**changes: Any) -> Applies:
    """A shape that leaves only the most likely token."""
    return lambda s, path: (
        text(s.ask(path, **changes)) == text(s.ask(path, temperature=0)) != text(s.ask(path))
    )


def after_a_thought(server: Server, **changes: Any) -> str:
    """What is said in an answer to a prompt that begins a thought."""
    begun = [{"role": "text", "content": "Rules <think>"}]
    return text(server.ask(CHAT, messages=begun, max_tokens=30, ignore_eos=True, **changes))


END = {str(tiny_policy().tokenizer.eos_token_id): 100}
"""A bias with which the first token ends an answer."""
APPLIES: dict[str, Applies] = {
    "model": lambda s, path: s.ask(path, model="huge").status_code == 404,
    "messages": lambda s, path: text(s.ask(path, messages=ASK * 2)) != text(s.ask(path)),
    "prompt": lambda s, path: text(s.ask(path, prompt="Rules")) != text(s.ask(path)),
    "temperature": greedy(temperature=0),
    "top_p": greedy(top_p=1e-6),
    "top_k": greedy(top_k=1),
    "min_p": greedy(min_p=1),
    "repetition_penalty": lambda s, path: text(s.ask(path, repetition_penalty=9)) != text(s.ask(path)),
    "logit_bias": lambda s, path: text(s.ask(path, logit_bias={"65": 100})) != text(s.ask(path)),
    "stop_token_ids": lambda s, path: (
        choices(s.ask(path, stop_token_ids=s.ids(path)[2:3], return_token_ids=True))[0]["token_ids"]
        == s.ids(path)[:3]
    ),
    "ignore_eos": lambda s, path: (
        tokens(s.ask(path, logit_bias=END)) == 1 and tokens(s.ask(path, logit_bias=END, ignore_eos=True)) == 6
    ),
    "stop": lambda s, path: (
        text(s.ask(path, stop=text(s.ask(path))[1:4])) == text(s.ask(path))[:1] != text(s.ask(path))
    ),
    "n": lambda s, path: len(choices(s.ask(path, n=3))) == 3,
    "seed": lambda s, path: text(s.ask(path, seed=2)) != text(s.ask(path)),
    "stream": lambda s, path: s.ask(path, stream=True).text.startswith("data: {"),
    "stream_options": lambda s, path: (
        '"total_tokens"' in s.ask(path, stream=True, stream_options={"include_usage": True}).text
    ),
    "return_token_ids": lambda s, path: len(choices(s.ask(path, return_token_ids=True))[0]["token_ids"]) == 6,
    "max_tokens": lambda s, path: tokens(s.ask(path, max_tokens=2)) == 2,
    "max_completion_tokens": lambda s, path: (
        tokens(s.ask(path, max_tokens="left out", max_completion_tokens=2)) == 2
    ),
    "logprobs": lambda s, path: choices(s.ask(path, logprobs=True))[0]["logprobs"] is not None,
    "top_logprobs": lambda s, path: (
        s.ask(path, logprobs=True, top_logprobs=4).text.count('"token":') == 5 * 6
    ),
    "thinking_token_budget": lambda s, path: (
        after_a_thought(s, thinking_token_budget=2) != "" == after_a_thought(s)
    ),
    "echo": lambda s, path: text(s.ask(path, echo=True)) == "rules" + text(s.ask(path)),
}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in FIELDS for name in sorted(FIELDS[path])])
def test_a_parameter_that_is_accepted_applies(server, path, name):
    assert APPLIES[name](server, path)


@pytest.mark.parametrize("path", FIELDS)
def test_every_other_parameter_is_refused_by_name_unless_its_value_changes_nothing(server, path):
    """Those of OpenAI's types, those that other servers document, and those of this server's table."""
    expected = text(server.ask(path))
    names = (OF_OPENAI[path] | OF_OTHERS | set(NEUTRAL)) - FIELDS[path] - WITHOUT_EFFECT
    assert len(names) > 90
    for name in sorted(names):
        refused = 0
        for value in SOME:
            response = server.ask(path, **{name: value})
            if response.status_code == 200:
                assert value in NEUTRAL[name]
                assert text(response) == expected
            else:
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, name)
                assert error["message"].startswith(f"{name}: ")
                refused += 1
        assert refused >= len(SOME) - 1
        for value in NEUTRAL.get(name, ()):
            assert text(server.ask(path, **{name: value})) == expected


@pytest.mark.parametrize("path", FIELDS)
def test_parameters_without_effect_are_accepted_whatever_their_value_is(server, path):
    expected = text(server.ask(path))
    for value in VALUES:
        assert text(server.ask(path, **dict.fromkeys(WITHOUT_EFFECT, value))) == expected


@pytest.mark.parametrize("path", FIELDS)
def test_a_null_is_as_good_as_nothing_whatever_the_parameter_is(server, path):
    required = {"model", "messages", "prompt"}
    names = (FIELDS[path] | OF_OPENAI[path] | OF_OTHERS | set(NEUTRAL) | {"extra_headers"}) - required
    plain = {name: value for name, value in PLAIN[path].items() if name in required}
    expected = text(server.ask(path, temperature=0))
    assert text(server.ask(path, **{**dict.fromkeys(names), **PLAIN[path], "temperature": 0})) == expected
    bare = server.http.post(path, json={**plain, **dict.fromkeys(names)})
    assert bare.status_code == 200
    for name in required & plain.keys():
        refused = server.ask(path, **{name: None})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", FIELDS)
def test_the_defaults_of_other_servers_change_nothing(server, path):
    """A client that sends all its fields sends those of OpenAI's, vLLM's and SGLang's requests."""
    defaults = {
        **{"best_of": 1, "n": 1, "logit_bias": {}, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        **{"stop": [], "stream": False, "stop_token_ids": [], "min_tokens": 0, "length_penalty": 1.0},
        **{"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        **{"skip_special_tokens": True, "spaces_between_special_tokens": True, "use_beam_search": False},
        **{"include_stop_str_in_output": False, "bad_words": [], "no_stop_trim": False, "priority": 0},
        **{"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True, "echo": False},
    }
    of_chats = {
        **{"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "logprobs": False},
        **{"top_logprobs": 0, "response_format": {"type": "text"}, "store": False, "modalities": ["text"]},
        **{"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False},
    }
    sent = defaults | (of_chats if path == CHAT else {"suffix": ""})
    for all_tokens in (-1, 0):
        assert text(server.ask(path, **{**sent, "top_k": all_tokens})) == text(server.ask(path))


@pytest.mark.parametrize("path", FIELDS)
def test_the_best_of_as_many_answers_as_are_wanted_are_all_of_them(server, path):
    assert choices(server.ask(path, n=2, best_of=2)) == choices(server.ask(path, n=2))
    for asked in ({"n": 2, "best_of": 3}, {"best_of": 2}, {"n": 2, "best_of": "2"}):
        assert server.ask(path, **asked).json()["error"]["param"] == "best_of"


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_value_of_a_parameter_is_refused_with_its_name(server, path):
    for name in sorted(FIELDS[path] - {"model"}):
        refused = 0
        for value in [*VALUES, -(10**400), 1e308, [[["x"]]]]:
            response = server.http.post(path, content=json.dumps({**PLAIN[path], name: value}), headers=JSON)
            if response.status_code != 200:
                error = response.json()["error"]
                assert response.status_code == 400, (name, value, error)
                assert (error["param"] or "").split(".")[0].split("[")[0] in (name, "prompt", "messages"), (
                    error
                )
                assert "\n" not in error["message"]
                refused += 1
        assert refused > 2


JSON = {"Content-Type": "application/json"}


def misspelled(name: str) -> set[str]:
    camel = re.sub("_(.)", lambda found: found[1].upper(), name)
    half = len(name) // 2
    swapped = name[: half - 1] + name[half] + name[half - 1] + name[half + 1 :]
    shorter = {name[:-1], name[:half] + name[half + 1 :]}
    return {name + name[-1], *shorter, swapped, camel, name.upper()} - {name, ""}


@pytest.mark.parametrize("path", FIELDS)
def test_a_misspelled_parameter_is_refused_and_the_right_name_is_suggested(server, path):
    suggested = set()
    for name in sorted(FIELDS[path]):
        for wrong in sorted(misspelled(name) - FIELDS[path]):
            response = server.ask(path, **{wrong: 1})
            assert (response.status_code, response.json()["error"]["param"]) == (400, wrong)
            if f"Did you mean {name}?" in response.json()["error"]["message"]:
                suggested.add(name)
    short = {"n"}
    assert suggested >= FIELDS[path] - short


# Messages

OTHER_FIELDS = (
    "reasoning_content reasoning reasoning_details prefix weight tool_call id images partial thinking"
)
HONOURED = {"role", "content", "token_ids"}
MESSAGE_FIELDS = {
    *ChatCompletionAssistantMessageParam.__annotations__,
    *ChatCompletionUserMessageParam.__annotations__,
    *ChatCompletionSystemMessageParam.__annotations__,
    *ChatCompletionDeveloperMessageParam.__annotations__,
    *ChatCompletionToolMessageParam.__annotations__,
    *OTHER_FIELDS.split(),
    *MESSAGE_NEUTRAL,
} - HONOURED
IN_VAIN = MESSAGE_FIELDS & WITHOUT_EFFECT_IN_MESSAGES
assert {"reasoning", "reasoning_content"} == IN_VAIN


def ask_with(server: Server, **fields: Any) -> httpx2.Response:
    said = {"role": "assistant", "content": "a", **fields}
    return server.ask(CHAT, messages=[*ASK, said, *ASK])


def test_thoughts_that_a_client_sends_back_change_nothing(server):
    thoughts = dict.fromkeys(IN_VAIN, "I plan to win.")
    assert text(ask_with(server, **thoughts)) == text(ask_with(server))


@pytest.mark.parametrize("name", sorted(MESSAGE_FIELDS - IN_VAIN))
def test_a_field_of_a_message_is_refused_by_name_unless_its_value_changes_nothing(server, name):
    expected = text(ask_with(server))
    for value in VALUES:
        response = ask_with(server, **{name: value})
        if response.status_code == 200:
            assert value is None or value in MESSAGE_NEUTRAL[name]
            assert text(response) == expected
        else:
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, f"messages.1.{name}")
    assert ask_with(server, **{name: "x"}).status_code == 400


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "tool_calls", "this server has no tools"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "role", "has no tools"),
        ({"role": "function", "content": "x", "name": "f"}, "role", "has no tools"),
        ({"role": "nobody", "content": "x"}, "role", "'system', 'developer', 'user'"),
        ({"role": ["user"], "content": "x"}, "role", "'system', 'developer', 'user'"),
        ({"role": "assistant", "content": None}, "content", "None is not a text"),
        ({"role": "user", "content": 5}, "content", "5 is not a text"),
        ({"role": "assistant"}, "content", "required"),
        ({"content": "x"}, "role", "required"),
        ({"role": "user", "content": ["x"]}, "content.0", "object"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text", "required"),
        ({"role": "user", "content": [{"type": "image_url", "text": "x"}]}, "content.0.type", "'text'"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}]},
            "content.0.colour",
            "know",
        ),
        ({"role": "user", "content": "x", "token_ids": [1]}, "token_ids", "was not drawn"),
        ({"role": "assistant", "content": "x", "token_ids": [True]}, "token_ids.0", "integer"),
        ({"role": "assistant", "content": "x", "token_ids": "1"}, "token_ids", "list"),
        ({"role": "assistant", "content": "x", "token_ids": [-1]}, "token_ids.0", "greater than or equal"),
        ({"role": "assistant", "content": "x", "token_ids": [10**6]}, "token_ids", "not one of the 259"),
    ],
)
def test_the_error_for_a_message_says_what_is_wrong_and_where(server, message, param, words):
    response = server.ask(CHAT, messages=[*ASK, message])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, f"messages.1.{param}")
    assert error["message"].startswith(f"messages.1.{param}: ")
    assert words in error["message"]


def test_fields_that_change_nothing_are_accepted_in_messages_and_in_their_parts(server):
    expected = text(server.ask(CHAT))
    cached = {name: {"type": "ephemeral"} for name in WITHOUT_EFFECT_IN_MESSAGES}
    for fields in ({"annotations": []}, cached, {"unknown": None}):
        part = {"type": "text", "text": "rules", **fields}
        assert text(server.ask(CHAT, messages=[{"role": "user", "content": [part]}])) == expected
        assert text(server.ask(CHAT, messages=[{"role": "user", "content": "rules", **fields}])) == expected
    refused = server.ask(
        CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "x", "annotations": [1]}]}]
    )
    assert refused.json()["error"]["param"] == "messages.0.content.0.annotations"


def test_a_message_that_is_no_object_is_refused(server):
    response = server.ask(CHAT, messages=[*ASK, "x"])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages.1")


# The page


def test_the_page_has_every_parameter_that_is_accepted_and_no_other():
    page = (Path(__file__).parents[1] / "docs" / "howto-serve.md").read_text()
    table = page.partition("| parameter | meaning |")[2].partition("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == (FIELDS[CHAT] | FIELDS[TEXT]) - {"model", "messages"}
