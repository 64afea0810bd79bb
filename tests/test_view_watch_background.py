"""Detecting a light terminal: by its own reply or, without one, by the environment."""

import os
import select

import pytest

from sparring.view.watch.themes import ask_background, is_light

WHITE, BLACK = b"rgb:ffff/ffff/ffff", b"rgb:0000/0000/0000"


def answering(answers: bytes) -> tuple[int, int]:
    """Return a terminal that has already replied: the program's end and the other end."""
    ours, theirs = os.openpty()
    os.write(ours, answers)
    return theirs, ours


@pytest.mark.parametrize(
    ("answer", "light"), [(WHITE, True), (BLACK, False), (b"rgb:fd/f6/e3", True), (b"rgb:0/2/3", False)]
)
def test_the_terminals_reply_decides_whether_it_is_light(answer, light):
    terminal, other = answering(b"\x1b]11;" + answer + b"\x1b\\\x1b[?62;22c\n")
    assert is_light({"COLORFGBG": "15;0" if light else "0;15"}, terminal) is light
    asked = b""
    while b"\x1b]11;?" not in asked and select.select([other], [], [], 30)[0]:
        asked += os.read(other, 1024)
    assert b"\x1b]11;?" in asked
    os.close(terminal)
    os.close(other)


@pytest.mark.parametrize(
    ("colours", "light"), [("0;15", True), ("0;default;7", True), ("15;0", False), ("", False), ("x", False)]
)
def test_without_a_reply_the_environment_decides(colours, light):
    terminal, other = answering(b"\x1b[?6c\n")
    assert is_light({"COLORFGBG": colours}, terminal) is light
    assert is_light({"COLORFGBG": colours}, None) is light
    os.close(terminal)
    os.close(other)


def test_a_file_that_is_not_a_terminal_is_not_queried(tmp_path):
    with (tmp_path / "file").open("w+") as file:
        assert ask_background(file.fileno()) is None
    ours, theirs = os.openpty()
    assert ask_background(theirs, seconds=0.0) is None, "silence is no answer"
    os.close(ours)
    os.close(theirs)
