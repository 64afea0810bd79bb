"""Errors: one line each, whole in another process."""

import pickle

import pytest

from sparring.core import InputError
from sparring.core.errors import first_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("\n  Torch is out of memory...\nSee the manual.", "Torch is out of memory"),
        (".part is missing", ".part is missing"),
        ("Error in r:\n    Expected int.\nMore", "Error in r: Expected int"),
        ("Error in r:", "Error in r:"),
        ("", "OSError"),
        (" \n ", "OSError"),
    ],
)
def test_the_first_line_of_an_error_names_at_least_its_type(message, line):
    assert first_line(OSError(message)) == line


def test_an_input_error_keeps_its_parts_in_another_process():
    error = InputError("env.id", "there is no game 'chess'", "Choose kuhn_poker")
    received = pickle.loads(pickle.dumps(error))
    assert (received.field, received.problem, received.fix) == (error.field, error.problem, error.fix)
    assert str(received) == "env.id: there is no game 'chess'. Choose kuhn_poker"
