"""Answers stay in later prompts with the token ids with which they were drawn."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import HOSTILE_PIECES, hostile_text
from sparring.core import (
    Arena,
    InferenceClient,
    InputError,
    Messages,
    ModelResponse,
    MultiTurnEpisode,
    Role,
    Rubric,
)
from sparring.core.chat_tokens import ChatTokens
from sparring.core.messages import as_text, remembered, said
from tokenizer_families import FAMILIES, GEMMA, TURN_ENDS, control_ids, tokenizer_of

SMOLLM2, *OTHERS = "ChatML whose end of text is no end of turn", "Qwen 3", "Llama 3", "Gemma", "Phi"
CONVERSATIONS = 300
"""Random conversations for each of the five templates."""


def tokens_of(family: str) -> ChatTokens:
    tokenizer = tokenizer_of(family)
    return ChatTokens(tokenizer, family, [tokenizer.convert_tokens_to_ids(TURN_ENDS[family])])


def hostile_talk(rng: random.Random) -> str:
    text = " ".join(rng.choices(HOSTILE_PIECES, k=rng.randint(1, 6)))
    return text.encode(errors="ignore").decode()  # without unpaired surrogates, which no tokenizer accepts


@pytest.mark.parametrize("family", [SMOLLM2, *OTHERS])
def test_a_prompt_begins_with_the_last_prompt_and_the_answer_as_it_was_drawn(family):
    tokens, rng = tokens_of(family), random.Random(family)
    written = control_ids(tokens.tokenizer)
    size, end = len(tokens.tokenizer), tokens.tokenizer.convert_tokens_to_ids(TURN_ENDS[family])
    asked = said("user", "x")
    harmless = tokens.render([asked, said("assistant", "x", [end]), asked])[len(tokens.render([asked])) + 1 :]
    for _ in range(CONVERSATIONS):
        messages: Messages = [said("user", hostile_talk(rng))]
        for _ in range(rng.randint(1, 4)):
            prompt = tokens.render(messages)
            ended = rng.random() < 0.8
            drawn = [rng.randrange(size) for _ in range(rng.randint(0, 20))]  # control tokens among them
            drawn = [one for one in drawn if one not in tokens.stop_token_ids] + [end] * ended
            messages.append(said("assistant", tokens.decode(drawn), drawn))
            messages.append(said("user", hostile_talk(rng)))
            longer = tokens.render(messages)
            assert longer[: len(prompt) + len(drawn)] == prompt + drawn
            joint = longer[len(prompt) + len(drawn) :]
            controls = [one for one in joint if one in written]
            assert controls == [end] * (not ended) + [one for one in harmless if one in written]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_in_the_templates_own_tokens_gives_the_templates_own_prompt(family):
    tokens = tokens_of(family)
    end = tokens.tokenizer.convert_tokens_to_ids(TURN_ENDS[family])
    talk = [
        said("user", "Is it so?"),
        said("assistant", "Indeed.", [7, 8, end]),
        said("user", "x"),
        said("assistant", "y"),
    ]
    with_ids = tokens.render([*talk, said("user", "Is it so?")])
    text = [*as_text(talk), said("user", "Is it so?")]
    after = tokens.render(text)
    length = len(with_ids) - with_ids.index(end, len(tokens.render(talk[:1])))
    assert with_ids[-length:] == after[-length:]


def test_an_answer_that_was_cut_gets_the_end_that_the_template_writes():
    tokens = tokens_of("Llama 3")
    end = tokens.stop_token_ids[0]
    asked = said("user", "Is it so?")
    cut = tokens.render([asked, said("assistant", "Ind", [40, 41]), asked])
    ended = tokens.render([asked, said("assistant", "Ind", [40, 41, end]), asked])
    assert cut == ended


MOVES_THE_RULES = (
    "{% set rules = messages[0].content if messages[0].role == 'system' else '' %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<start_of_turn>user\n' + (rules if loop.last else '') + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<start_of_turn>model\n' + m.content }}{% endif %}"
    "{% if m.role != 'system' %}{{ '<end_of_turn>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
COUNTS_TURNS = GEMMA.replace("'<start_of_turn>' + role", "'<start_of_turn>' + role + loop.index|string")


@pytest.mark.parametrize("template", [MOVES_THE_RULES, COUNTS_TURNS, "{{ messages[-1].content }}"])
def test_a_template_that_cannot_be_continued_is_rendered_again_and_says_so(template):
    tokenizer = FAMILIES["Gemma"]()
    tokenizer.chat_template = template
    tokens = ChatTokens(tokenizer, "odd")
    talk = [said("user", "a"), said("assistant", "b", [7, 8]), said("user", "c")]
    assert tokens.render(talk) == tokens.render(as_text(talk))
    (note,) = tokens.notes()
    assert "odd cannot be continued after an answer" in note
    assert tokens_of("Gemma").notes() == []


def test_messages_after_an_answer_that_the_template_rejects_are_bad_input():
    tokens = tokens_of("Gemma")
    with pytest.raises(InputError, match="is not a role"):
        tokens.render([said("user", "a"), said("assistant", "b", [7]), said("<eos>", "c")])


# Roles that forget

TALK = [
    said("system", "Be brief."),
    said("user", "one"),
    said("assistant", "<think>a</think>\n\nfirst", [1]),
    said("user", "two"),
    said("assistant", "second <summary>so far</summary>", [2]),
    said("user", "three"),
    said("assistant", "<think>cut", [3]),
    said("user", "four"),
]


def test_a_role_keeps_its_answers_or_drops_its_reasoning_or_goes_on_from_its_summary():
    assert remembered(TALK, "keep", 2) is TALK
    assert remembered(TALK, "drop_reasoning", 2) == [
        *TALK[:2],
        said("assistant", "first"),
        *TALK[3:6],
        said("assistant", ""),
        TALK[7],
    ]
    summary = said("assistant", "<summary>so far</summary>")
    assert remembered(TALK, "summary", 2) == [*TALK[:2], summary, *TALK[5:]]
    assert remembered(TALK[:4], "summary", 2) == TALK[:4]


@given(st.lists(hostile_text(), max_size=6), st.sampled_from(["keep", "drop_reasoning", "summary"]))
def test_the_beginning_and_the_latest_words_of_others_are_never_changed(texts, history):
    talk = [said("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    prompt = remembered(talk, history, 1)
    assert prompt[:1] == talk[:1]
    if len(talk) % 2:
        assert prompt[-1] == talk[-1]


class Drawing(InferenceClient):
    """Answers with a text and ids, and keeps its prompts."""

    def __init__(self):
        self.asked: list[Messages] = []

    async def complete(self, messages, *args, **options):
        self.asked.append(messages)
        number = len(self.asked)
        return ModelResponse(
            f"<think>{number}</think>n", [said("assistant", f"<think>{number}</think>n", [number])]
        )


class Interview(MultiTurnEpisode):
    episode_type = "talk"
    rubric = Rubric([lambda rollout, arena: {"one": 0.0}])

    def get_initial_prompt(self, arena, artifact, state):
        return "Begin."

    def get_initial_actor(self, artifact, state):
        return "one"

    async def env_response(self, state, arena, artifact):
        return "Go on."


@pytest.mark.parametrize("history", ["keep", "drop_reasoning"])
async def test_an_episode_asks_with_the_ids_that_were_drawn_and_records_text(history):
    client = Drawing()
    arena = Arena(client)
    arena.add_role(Role("one", history=history))
    result = await Interview(max_turns=3).generate(arena, None)
    answers = [one for one in client.asked[-1] if one["role"] == "assistant"]
    kept = [said("assistant", "n", [one], f"<think>{one}</think>n") for one in (1, 2)]
    assert answers == (kept if history == "keep" else [said("assistant", "n")] * 2)
    assert all(
        "token_ids" not in one for step in result.rollout.steps for one in step.prompt + step.completion
    )
