"""A legal answer of a game that is longer than answers may be: runs and dry runs say so."""

import pytest

from game_runs import configure, run
from matrices import first_of
from sparring.config import load_config
from sparring.core import Messages
from sparring.core.chat_tokens import ChatTokens
from sparring.learn.model_fit import answer_tokens
from sparring.run.rehearsal import dry_run_of
from tokenizer_families import FAMILIES, tokenizer_of

WHOLE = "so no model can give it whole"
ANSWERS = ["[Bet]", "bet", "take 3 sticks", '{"a": 1}', "-1", "I raise to 100!"]
PROMPTS: list[Messages] = [
    [{"role": "user", "content": "Your move?"}],
    [{"role": "text", "content": "Your move:\n"}],
    [{"role": "text", "content": "Answer:"}],
]


def notes(model, **changes):
    fields = {key.replace("__", "."): value for key, value in changes.items()}
    _, found = dry_run_of(load_config("quickstart", {"model.name": str(model)} | fields))
    return [one for one in found if WHOLE in one]


def evaluated(limit):
    return f'[{{id = "leduc_poker", max_tokens = {limit}}}]'


LIMITS = {
    "inference.max_tokens": lambda limit: {"inference__max_tokens": str(limit)},
    "envs.0.max_tokens": lambda limit: {"envs__0__max_tokens": str(limit)},
    "evaluation.envs.0.max_tokens": lambda limit: {
        "envs__0__max_tokens": "6",
        "evaluation__envs": f'[{{id = "leduc_poker", max_tokens = {limit}}}]',
    },
}


@pytest.mark.parametrize("field", LIMITS)
def test_a_dry_run_names_the_longest_legal_answer_and_the_limit_that_it_needs(model, field):
    """In the tiny model, every byte is a token: "check" and "raise" have six with the end of the turn."""
    (note,) = notes(model, **LIMITS[field](5))
    assert f"has 6 tokens, the one that ends it included, {WHOLE}: {field} is 5; set at least 6" in note
    assert notes(model, **LIMITS[field](6)) == []


def test_a_run_says_it_once_as_its_dry_run_does(model, tmp_path):
    changes = {"inference__max_tokens": "5", "learning__steps": "2", "evaluation__every": "0"}
    said = " ".join(run(configure(model, **changes), tmp_path / "run").split())
    (note,) = notes(model, **changes)
    assert said.count(WHOLE) == 1
    assert note in said


def test_a_run_whose_legal_answers_fit_says_nothing(model, tmp_path):
    changes = {"inference__max_tokens": "6", "learning__steps": "1", "evaluation__every": "0"}
    assert WHOLE not in " ".join(run(configure(model, **changes), tmp_path / "run").split())


@pytest.mark.parametrize("family", first_of([*FAMILIES], 6))
def test_a_dry_run_counts_the_tokens_that_an_answer_has_at_least(family, tmp_path):
    tokenizer = tokenizer_of(family)
    tokenizer.save_pretrained(tmp_path)
    counted, tokens = answer_tokens(tmp_path, ANSWERS), ChatTokens(tokenizer, family)
    for prompt in PROMPTS:
        for answer in ANSWERS:
            assert 0 <= len(tokens.encode_answer(prompt, answer)) - counted[answer] <= 2
