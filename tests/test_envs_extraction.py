"""Extraction of an action from an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.envs.templates import TEMPLATES, extract_boxed, get_template

plain = st.text(st.characters(blacklist_characters="\\{}", blacklist_categories=("Cs",)), max_size=40)
balanced = st.recursive(plain, lambda inner: st.tuples(plain, st.just("{"), inner, st.just("}")).map("".join))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4}", "4"),
        (r"so \boxed{[4]}.", "[4]"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{a{b}c}", "a{b}c"),
        ("\\boxed{\n [3]\n}", "[3]"),
        (r"\boxed{\text{4}}", "4"),
        (r"\boxed{\text{\mathrm{4}}}", "4"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"\boxed {4}", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"{ \boxed{5}", "5"),
        (r"} \boxed{5}", "5"),
        (r"\boxed{\text{a} or \text{b}}", r"\text{a} or \text{b}"),
        (r"\boxed{a\}b}", r"a\}b"),
        ("[4]", None),
        (r"\boxed{4", None),
        ("", None),
    ],
)
def test_the_content_of_the_last_closed_box_is_found(text, content):
    assert extract_boxed(text) == content


@given(plain, balanced, plain)
def test_any_balanced_content_survives_boxing(before, content, after):
    assert extract_boxed(f"{before}\\boxed{{{content}}}{after}") == content.strip()


@given(st.text())
def test_extraction_never_fails(text):
    for name in TEMPLATES:
        action, well_formed = get_template(name).extract(text)
        assert isinstance(action, str)
        assert isinstance(well_formed, bool)


def test_many_unclosed_boxes_take_linear_time():
    assert extract_boxed("\\boxed{" * 100_000) is None


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.from_regex(r"[a-z0-9]{1,8}( [a-z0-9]{1,8}){0,3}", fullmatch=True),
)
def test_the_requested_answer_of_a_template_is_well_formed(name, move):
    template = get_template(name)
    for action in (move, f"[{move}]"):
        assert template.extract(template.answer(action)) == (action, True)


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        ("bet", True),
        (" bet\n", True),
        ("[4]", True),
        ("[col 4]", True),
        ("", False),
        ("bet\nbecause", False),
        ("I play [4]", False),
        ("[4] [5]", False),
        ("[4", False),
        ("I hold the king and so it is right to bet now", False),
    ],
)
def test_the_few_shot_template_wants_the_bare_move(text, well_formed):
    assert get_template("fewshot-chat").extract(text) == (text.strip(), well_formed)
