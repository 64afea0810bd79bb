"""Whatever a model repeats until its limit, what reads its text takes no longer than for other text."""

import time

import pytest

from sparring.core import answers
from sparring.core.messages import remembered
from sparring.core.reasoning import split
from sparring.envs.templates import TEMPLATES, extract_boxed
from sparring.programs.code.reasoning import KINDS
from sparring.programs.code.tasks import program_in
from sparring.programs.expressions import Expressions
from sparring.programs.judge import parse_verdict
from sparring.programs.points import read_points
from sparring.programs.proofs.answers import SCALES, read_decision
from sparring.programs.questions import Arithmetic, OpenQuestions

LENGTH, SECONDS = 60_000, 2.0
DOMAINS = {
    **{kind: domain() for kind, domain in KINDS.items()},
    "arithmetic": Arithmetic(),
    "words": OpenQuestions([{"question": "a", "ground_truth": "4"}]),
    "expressions": Expressions(2),
}
READERS = {
    "a box": extract_boxed,
    "a program": program_in,
    "an answer": answers.stated_answer,
    "a last number": answers.last_number,
    "a number": answers.stated_number,
    "an equal text": lambda text: answers.same_answer(text, text[:-1]),
    "an equal formula": lambda text: answers.same_formula(text, text[:-1]),
    "points": lambda text: read_points(text, 7),
    "a verdict": lambda text: parse_verdict(text, ("Aff", "Neg")),
    "a decision": lambda text: read_decision(text, SCALES["out_of_10"]),
    "a summary": lambda text: remembered([{"role": "assistant", "content": text}], "summary", 0),
    "a thought": split,
    **{f"a move, {name}": template.extract for name, template in TEMPLATES.items()},
    **{f"a question, {name}": domain.parse_question for name, domain in DOMAINS.items()},
    **{f"an answer, {name}": domain.parse_answer for name, domain in DOMAINS.items()},
    **{
        f"an equal answer, {name}": lambda text, one=one: one.same(text, text[:-1])
        for name, one in DOMAINS.items()
    },
}
REPEATED = [
    *('{"', '{"winner":', "{ ", "winner", "winner: a, score "),
    *(
        "`",
        "~",
        "```",
        "```python\n",
        "f(",
        "f(1) == ",
        ") == ",
        "(",
        ")",
        "[",
        "{",
        "}",
        "<",
        " ",
        "\t",
        "\n",
    ),
    *(
        "\\boxed{",
        "\\text{",
        "\\frac{",
        "\\left",
        "\\(",
        "$",
        "=",
        "1",
        "1,",
        "1.",
        "1/",
        "-",
        "%",
        "* ",
        "> ",
    ),
    *("the answer is: ", "answer is", "####", "<answer>", "</answer>", "<think>", "</think>", "<summary>"),
    *(
        "Question:",
        "Question: a\nAnswer: ",
        "Input: ",
        "ADD(",
        "ADD(1, ",
        "Score: ",
        "decision",
        "Decision: 1",
    ),
    *("'", '"', "a", "é", "\ud83d"),
]
ENDS = ["", "x", "}" * LENGTH, "</summary>"]


@pytest.mark.parametrize("reader", READERS)
def test_what_reads_a_models_text_is_not_slow_on_any(reader):
    slow = []
    for one in REPEATED:
        for end in ENDS:
            text = one * (LENGTH // len(one)) + end
            begin = time.perf_counter()
            READERS[reader](text)
            if time.perf_counter() - begin > SECONDS:
                slow.append((one, end[:1]))
    assert slow == []
