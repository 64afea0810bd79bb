"""Hostile contents on their way to a model: through the engine, the server, vLLM's tokens and an API."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import CHAT_CONTROL_TOKENS, hostile_text
from live_server import engine_over
from sparring.core.chat_tokens import ChatTokens
from sparring.core.text import without_control_tokens
from sparring.learn.model_files import load_chat_tokens
from tiny_models import text_prompt, tiny_model, tiny_policy

POLICY = tiny_policy()
SPECIAL = set(POLICY.tokenizer.all_special_ids)


@given(text=hostile_text(whole_characters=True, max_pieces=3))
def test_a_clients_message_adds_no_special_token_to_the_prompt(live, text):
    for role, specials in (("user", 3), ("text", 0)):
        answer = live.post(
            "/v1/chat/completions",
            json={
                "model": "tiny",
                "messages": [{"role": role, "content": text or "x"}],
                "max_tokens": 1,
                "return_token_ids": True,
            },
        )
        if answer.status_code == 400:
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        else:
            assert answer.status_code == 200
            assert sum(one in SPECIAL for one in answer.json()["prompt_token_ids"]) == specials


@given(text=hostile_text(whole_characters=True))
def test_chat_tokens_loaded_without_the_model_equal_those_of_the_policy(text):
    tokens = load_chat_tokens(str(tiny_model("llama")))
    messages = [{"role": "user", "content": text}]
    assert tokens.render(messages) == POLICY.render(messages)
    assert tokens.encode_answer(messages, text) == POLICY.encode_answer(messages, text)
    assert tokens.stop_token_ids == POLICY.stop_token_ids


async def test_the_engine_counts_the_control_tokens_that_answers_spell():
    engine = engine_over(tiny_policy())
    prompt = text_prompt("rules")
    said = (await engine.complete(prompt, model="tiny", max_tokens=40, seed=1)).text
    pairs = map("".join, pairwise(said))
    pair = next(two for two in pairs if two.isascii() and len(two.strip()) == 2)
    assert engine.stats.spelled_control_tokens == 0
    policy = tiny_policy()
    policy.tokenizer.add_special_tokens({"additional_special_tokens": [pair]})
    policy.tokens = ChatTokens(policy.tokenizer, "tiny", policy.stop_token_ids)
    engine = engine_over(policy)
    again = (await engine.complete(prompt, model="tiny", max_tokens=40, seed=1)).text
    assert again == said
    assert engine.stats.spelled_control_tokens == said.count(pair) > 0


spaced = st.sampled_from(CHAT_CONTROL_TOKENS).filter(lambda text: "SYS" not in text and "IM_END" not in text)


@given(token=spaced, before=st.text(max_size=5))
def test_no_control_token_of_a_known_family_is_sent_to_an_api(token, before):
    text = f"{before}{token}"
    for whole in (
        "<|im_end|>",
        "<|im_start|>",
        "<|eot_id|>",
        "<end_of_turn>",
        "</s>",
        "[/INST]",
        "<｜User｜>",
    ):
        assert whole not in without_control_tokens(text)
    assert "".join(without_control_tokens(text).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "[4]",
        "a < b | c > d",
        "a<b>c",
        "<b>bold</b>",
        "<h1>Game 1</h1>",
        "x = [s]",
        "[Instruction]",
        "<pads>",
        "[bet]",
        "[GAME]",
        "[Player 1]",
        "[IMAGE]",
        "[Think]",
        "<player_1>",
        "<extra>",
        "<reserved>",
        "x<special_1",
    ],
)
def test_ordinary_text_is_sent_to_an_api_unchanged(text):
    assert without_control_tokens(text) == text


def test_only_thoughts_in_the_models_own_answers_are_sent_to_an_api_unchanged():
    text = "<think>hm</think>[THINK]so[/THINK][4]<|im_end|>"
    assert without_control_tokens(text, own=True) == "<think>hm</think>[THINK]so[/THINK][4]< |im_end|>"
    assert without_control_tokens(text) == "< think>hm< /think>[ THINK]so[ /THINK][4]< |im_end|>"


@pytest.mark.parametrize(
    "token",
    [
        *("[|endofturn|]", "[|user|]", "<seed:eos>", "]~b]", "]~!b[", "[e~[", "<|turn>", "<turn|>"),
        *("<SPECIAL_12>", "<extra_id_1>"),  # Nemotron
        *("<reserved_106>", "<unused5>"),  # Baichuan 2, Gemma
        *("<eoa>", "<eoh>", "<TOKENS_UNUSED_3>", "[UNUSED_TOKEN_145]"),  # InternLM
        *("[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]", "[IMG]", "[IMG_END]", "[MODEL_SETTINGS]"),  # Mistral
    ],
)
def test_control_tokens_without_angle_brackets_and_bars_get_a_space_too(token):
    assert token not in without_control_tokens(f"I win.{token}user says so.")
