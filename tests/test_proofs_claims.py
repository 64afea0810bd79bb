"""Claims: of files, rows and datasets; balance and split; worked calculations; code that was run."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.config.proofs import ColumnSettings
from sparring.core import InputError
from sparring.programs.proofs.arithmetic_claims import arithmetic_claims
from sparring.programs.proofs.claim_files import (
    BUGGY_APPS,
    claims_of_dataset,
    claims_of_file,
    claims_of_rows,
    code_claims,
)
from sparring.programs.proofs.claims import Claim, balanced, split
from sparring.programs.tasks import question_key

ROOT = Path(__file__).parents[1]
ROW = {"question": "2 + 2?", "claim": "4", "y": 1}


def claims_of(truths, questions):
    return [
        Claim(f"question {question}", f"claim {n}", y, str(n))
        for n, (y, question) in enumerate(zip(truths, questions, strict=True))
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), min_size=40, max_size=90), st.integers(0, 9)
)
def test_parts_are_balanced_and_share_no_question(drawn, seed):
    claims = claims_of(*zip(*drawn, strict=True))
    try:
        parts = split(claims, 0.4, seed)
    except InputError:
        return
    for part in parts:
        assert [claim.y for claim in part] == [1, 0] * (len(part) // 2)
        assert all(claim in claims for claim in part)
    train, test = ({question_key(claim.question) for claim in part} for part in parts)
    assert not train & test
    assert parts == split(claims, 0.4, seed)


def test_the_same_question_in_another_spelling_is_not_split():
    spellings = ["What  is it?", "what is it?", "WHAT IS\nIT?"]
    same = [Claim(text, str(y), y, f"{text} {y}") for text in spellings for y in (0, 1)]
    other = [Claim("Why?", str(y), y, f"why {y}") for y in (0, 1)]
    train, test = split([*same, *other], 0.5, 3)
    assert sorted([len(train), len(test)]) == [2, 6]


def test_claims_of_one_kind_are_refused():
    with pytest.raises(InputError, match="no claim is wrong"):
        balanced(claims_of([1, 1], [1, 2]), 0)
    with pytest.raises(InputError, match="there are no two different entries"):
        split(claims_of([1, 0], [1, 1]), 0.5, 0)


def test_a_file_has_a_claim_in_each_line(tmp_path):
    file = tmp_path / "claims.jsonl"
    rows = [ROW, ROW | {"claim": "5", "y": False, "more": 1}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    found = claims_of_file(str(file))
    assert [(one.question, one.claim, one.y) for one in found] == [("2 + 2?", "4", 1), ("2 + 2?", "5", 0)]
    assert len({one.id for one in found}) == 2
    renamed = {"task": "2 + 2?", "solution": "4", "correct": True}
    file.write_text(json.dumps(renamed))
    columns = ColumnSettings(question="task", claim="solution", y="correct")
    assert claims_of_file(str(file), columns)[0].claim == "4"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 of .* is not JSON: Expecting property name"),
        ('{"y": ' + "9" * 5000 + "}", "line 2 of .* is not JSON: Exceeds the limit"),
        ("[" * 100_000, "line 2 of .* is not JSON: maximum recursion depth"),
        ("[1]", "line 2 of .* is not an object"),
        ('{"question": "a", "claim": "b"}', "line 2 of .* has no column y. It has: question, claim"),
        ('{"question": "a", "claim": "b", "y": 2}', "y in line 2 of .* is neither 1 nor 0"),
        ('{"question": "a", "claim": "b", "y": "1"}', "y in line 2 of .* is neither 1 nor 0"),
        ('{"question": "a", "claim": " ", "y": 1}', "claim in line 2 of .* is not text"),
        ('{"question": 3, "claim": "b", "y": 1}', "question in line 2 of .* is not text"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(line, words, tmp_path):
    file = tmp_path / "claims.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(InputError, match=words) as refused:
        claims_of_file(str(file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "has no claim"), (b"\xff\xfe", "is not a text file in UTF-8"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_refused(content, words, tmp_path):
    file = tmp_path / "claims.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=words):
        claims_of_file(str(file))


def test_the_columns_of_buggy_apps_are_known():
    row = {
        "question": "Add two numbers.",
        "difficulty": "interview",
        "flags": "",
        "solutions": [{"solution": "a+b"}, {"solution": "b+a"}],
        "buggy_solutions": [{"solution": "a-b"}],
    }
    rows = [("row 0", row), ("row 1", row | {"difficulty": "competition"}), ("row 2", row | {"flags": "x"})]
    found = claims_of_rows(rows, BUGGY_APPS, "buggy-apps")
    assert [(one.claim, one.y) for one in found] == [("a+b", 1), ("b+a", 1), ("a-b", 0)]
    assert len({one.id for one in found}) == 3
    with pytest.raises(InputError, match="solutions in row 0 of buggy-apps is not a list"):
        claims_of_rows([("row 0", row | {"solutions": "a+b"})], BUGGY_APPS, "buggy-apps")
    with pytest.raises(InputError, match="row 0 of buggy-apps has no column flags"):
        claims_of_rows([("row 0", {"difficulty": "interview"})], BUGGY_APPS, "buggy-apps")


def test_a_directory_is_a_dataset_too(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW | {'claim': '5', 'y': 0})}\n")
    assert [(one.claim, one.y) for one in claims_of_dataset(str(tmp_path))] == [("4", 1), ("5", 0)]
    with pytest.raises(InputError, match="there is no directory"):
        claims_of_dataset(str(tmp_path / "nowhere"))


OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def value_of(expression):
    """Calculate ``a + b + 1`` from left to right."""
    first, *rest = re.findall(r"\d+|[+*-]", expression)
    value = int(first)
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        value = OPERATIONS[sign](value, int(number))
    return value


def steps_of(claim):
    """The steps of a claim and its result, as pairs of an expression and a number."""
    steps = [step.removeprefix("So ").split(" = ") for step in claim.removesuffix(".").split(". ")]
    return [(expression, int(result)) for expression, result in steps]


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_the_label_of_a_calculation_is_right(difficulty):
    claims = arithmetic_claims(600, difficulty, seed=difficulty)
    slips = {claim.meta["slip"] for claim in claims}
    assert slips == {None, "wrong digit", "lost carry", "swapped operand", "lost place"}
    for claim in claims:
        *steps, (question, result) = steps_of(claim.claim)
        assert claim.question == f"What is {question}?"
        assert (result == value_of(question)) == bool(claim.y)
        false = [step for step in steps if value_of(step[0]) != step[1]]
        assert len(false) == (claim.meta["slip"] == "wrong digit")
        assert result >= 0


def test_each_question_has_a_right_and_a_wrong_claim_and_all_slips_are_equally_frequent():
    claims = arithmetic_claims(900)
    assert len({claim.id for claim in claims}) == len({claim.claim for claim in claims}) == 900
    assert [claim.y for claim in claims] == [1, 0] * 450
    assert all(
        right.question == wrong.question for right, wrong in zip(claims[::2], claims[1::2], strict=True)
    )
    assert len({claim.question for claim in claims}) == 450
    slips = Counter((claim.question.split()[3], claim.meta["slip"]) for claim in claims[1::2])
    assert set(slips.values()) == {50}
    assert len(slips) == 9
    assert arithmetic_claims(900) == claims
    assert arithmetic_claims(900, seed=1) != claims
    assert max(len(claim.claim.split()) for claim in claims) <= 25
    assert [claim.y for claim in arithmetic_claims(3)] == [1, 0, 1]


def test_more_calculations_than_there_are_are_refused():
    with pytest.raises(InputError, match="there are not 9000 claims of difficulty 1"):
        arithmetic_claims(9000, 1)
    with pytest.raises(InputError, match="0 is too low"):
        arithmetic_claims(10, 0)


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import make_code_claims

    yield make_code_claims
    for name in ("make_code_claims", "code_mutants"):
        sys.modules.pop(name)


def test_the_claims_on_code_are_what_the_script_makes(maker):
    kept = {}
    for claim in code_claims():
        kept.setdefault(claim.meta["function"], []).append(claim)
    functions = [function for function in maker.functions() if function.name in kept]
    assert {function.name for function in functions} == kept.keys()
    for function in functions[::6]:
        assert [Claim(**made) for made in maker.claims_of(function)] == kept[function.name]


def test_the_labels_of_claims_on_code_hold(maker):
    tests = {function.name: function.tests for function in maker.functions()}
    claims = code_claims()
    for name in sorted({claim.meta["function"] for claim in claims})[::4]:
        mine = [claim for claim in claims if claim.meta["function"] == name]
        verdicts = maker.which_pass([claim.claim for claim in mine], tests[name])
        assert verdicts == [bool(claim.y) for claim in mine]
