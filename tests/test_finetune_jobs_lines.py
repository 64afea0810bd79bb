"""The lines of training files: OpenAI's two forms, and what is wrong with other lines."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.finetune.jobs.schema import read_conversations, read_preferences
from sparring.learn.fine_tuning.examples import WrongLine

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
contents = text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), min_size=1)
answers = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": contents}, optional={"weight": st.sampled_from([0, 1, None])}
)
questions = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user"]), "content": contents}
)
ends = st.fixed_dictionaries({"role": st.just("assistant"), "content": contents})
talks = st.builds(
    lambda question, middle, end: {"messages": [question, *middle, end]},
    questions,
    st.lists(questions | answers, max_size=5),
    ends,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
)
USER = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}
NO = {"role": "assistant", "content": "no"}


def as_file(*lines: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_a_mark_of_byte_order_is_no_part_of_a_file():
    file = as_file({"messages": [USER, YES]})
    assert read_conversations(b"\xef\xbb\xbf" + file) == read_conversations(file)


@given(st.lists(talks, min_size=1, max_size=4))
def test_every_conversation_of_the_documented_form_is_read_as_it_is(lines):
    found = read_conversations(as_file(*lines))
    assert [one.line for one in found] == list(range(1, len(lines) + 1))
    for conversation, line in zip(found, lines, strict=True):
        messages = line["messages"]
        assert [one["content"] for one in conversation.messages] == [
            plain(one["content"]) for one in messages
        ]
        roles = ["system" if one["role"] == "developer" else one["role"] for one in messages]
        assert [one["role"] for one in conversation.messages] == roles
        assert list(conversation.trained) == [
            index
            for index, one in enumerate(messages)
            if one["role"] == "assistant" and one.get("weight", 1) != 0
        ]


@given(st.lists(questions, min_size=1, max_size=3), contents, contents)
def test_every_preference_of_the_documented_form_is_read_as_it_is(messages, good, bad):
    line = {
        "input": {"messages": messages, "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": good}],
        "non_preferred_output": [{"role": "assistant", "content": bad}],
    }
    (found,) = read_preferences(as_file(line))
    assert [one["content"] for one in found.messages] == [plain(one["content"]) for one in messages]
    assert (found.preferred["content"], found.rejected["content"]) == (plain(good), plain(bad))


@given(st.binary(max_size=60) | st.lists(anything, max_size=3).map(lambda lines: as_file(*lines)))
def test_anything_else_is_refused_with_the_number_of_a_line(content):
    for read in (read_conversations, read_preferences):
        with pytest.raises(WrongLine) as caught:
            read(content)
        assert 1 <= caught.value.line <= content.count(b"\n") + 1
        assert caught.value.problem


@given(st.integers(0, 5), anything)
def test_the_line_that_is_wrong_is_named(before, value):
    content = as_file(*[{"messages": [USER, YES]}] * before, {"messages": [USER, YES], "other": value})
    with pytest.raises(WrongLine, match=f"^line {before + 1}: other: Extra inputs are not permitted$"):
        read_conversations(content)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [USER]}, "the last message must be the assistant's"),
        ({"messages": [YES]}, "a message must come before the assistant's first"),
        ({"messages": [USER, YES | {"weight": 0}]}, "every message of the assistant has weight 0"),
        ({"messages": [USER, YES | {"weight": 0.5}]}, "messages.1.weight: Input should be 0 or 1"),
        ({"messages": [USER | {"weight": 1}, YES]}, "messages.0: only messages of the assistant have"),
        ({"messages": [USER | {"name": "Ann"}, YES]}, "messages.0.name: Extra inputs are not permitted"),
        ({"messages": [{"role": "tool", "content": "x"}, YES]}, "messages.0.role: Input should be"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages.1.content: Field required"),
        ({"messages": [USER, YES | {"tool_calls": []}]}, "messages.1.tool_calls: Extra inputs"),
        ({"messages": [USER, YES], "tools": [{"type": "function"}]}, "tools: List should have at most 0"),
        ({"messages": [USER, {"role": "text", "content": "x"}, YES]}, "messages.1: a message of role text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, YES]}, "messages.0.content"),
        ([USER, YES], "Input should be an object"),
        ("text", "Input should be an object"),
    ],
    ids=str,
)
def test_a_wrong_conversation_is_refused_with_the_reason(line, problem):
    with pytest.raises(WrongLine) as caught:
        read_conversations(as_file({"messages": [USER, YES]}, line))
    assert caught.value.line == 2
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"preferred_output": []}, "preferred_output: List should have at least 1 item"),
        ({"preferred_output": [YES, NO]}, "preferred_output: List should have at most 1 item"),
        ({"non_preferred_output": [USER]}, "non_preferred_output.0.role: Input should be 'assistant'"),
        ({"non_preferred_output": [NO | {"weight": 1}]}, "non_preferred_output.0.weight: Extra inputs"),
        ({"input": {"messages": [USER, YES]}}, "input.messages must end before the assistant's message"),
        ({"input": {"messages": [USER, YES | {"weight": 1}, USER]}}, "weight is a field of supervised"),
        ({"input": {"messages": []}}, "input.messages: List should have at least 1 item"),
        ({"messages": [USER, YES]}, "messages: Extra inputs are not permitted"),
    ],
    ids=str,
)
def test_a_wrong_preference_is_refused_with_the_reason(changes, problem):
    good = {"input": {"messages": [USER]}, "preferred_output": [YES], "non_preferred_output": [NO]}
    with pytest.raises(WrongLine) as caught:
        read_preferences(as_file(good, good | changes))
    assert caught.value.line == 2
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", 1, "it is empty"),
        (as_file({"messages": [USER, YES]}) + b"\n\n", 2, "it is empty"),
        (b"{", 1, "Invalid JSON"),
        (b"[" * 100_000, 1, "Invalid JSON"),
        (b'{"messages": "\xff"}', 1, "Invalid JSON"),
    ],
    ids=["nothing", "an empty line", "cut", "deep", "not UTF-8"],
)
def test_what_is_not_json_lines_is_refused(content, line, problem):
    with pytest.raises(WrongLine) as caught:
        read_conversations(content)
    assert caught.value.line == line
    assert caught.value.problem.startswith(problem)


def test_a_whole_prompt_of_a_base_model_may_precede_an_answer():
    (found,) = read_conversations(as_file({"messages": [{"role": "text", "content": "Once"}, YES]}))
    assert found.messages[0] == {"role": "text", "content": "Once"}


def test_the_examples_of_the_page_are_read():
    page = Path(__file__).parents[1] / "docs" / "howto-fine-tuning-jobs.md"
    conversation, preference = re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(read_conversations(conversation.encode())) == 1
    assert len(read_preferences(preference.encode())) == 1
