"""A model's text that is printed to a terminal or by Rich neither controls the terminal nor crashes."""

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from hostile_text import ACTS_ON_A_TERMINAL, hostile_text
from sparring.cli import main as command_line
from sparring.commands.tables import results_table
from sparring.core import InputError, Rollout, VerboseLogger
from sparring.core.confidence_intervals import wilson_interval
from sparring.core.text import file_part, one_line, own_file_part, printable, speech
from sparring.evaluation.results import MeasureResult
from sparring.population.standings import Standing
from sparring.run.progress import RunProgress, print_ending, print_stopped
from sparring.run.progress_views import print_line
from sparring.view.cards import card_of
from sparring.view.charts import Chart, Line
from sparring.view.episodes import LoggedEpisode
from sparring.view.population import Population
from sparring.view.run_view import RunView
from sparring.view.watch import panels
from sparring.view.watch.header import header
from sparring.view.watch.plot import draw_chart
from sparring.view.watch.text import card_text, table_text
from sparring.view.watch.widgets import ChartWidget
from watched_runs import text_of


def terminal() -> Console:
    """Return a console that keeps a terminal's input, without styles, so every escape comes from the text."""
    return Console(file=io.StringIO(), force_terminal=False, width=80, legacy_windows=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def assert_shown(text: str) -> None:
    """Assert that the text does not control a terminal and can be encoded for one."""
    assert not ACTS_ON_A_TERMINAL.search(text), ascii(text)
    text.encode()


@given(text=hostile_text())
def test_printable_text_does_not_act_on_a_terminal_and_keeps_its_length_and_letters(text):
    shown = printable(text, keep="\n")
    assert_shown(shown)
    assert len(shown) == len(text)
    assert all(new in (old, "·") for new, old in zip(shown, text, strict=True))
    assert "\n" not in printable(text, keep="")


@pytest.mark.parametrize("text", ["Grüße, 日本語 🧑‍🚀", "[4] plays\n\tnext", "{'a': \"b\"}", "العربية"])
def test_ordinary_text_is_printed_unchanged(text):
    assert printable(text) == text


@given(text=hostile_text())
def test_one_line_is_one_line(text):
    assert len(one_line(text).splitlines()) <= 1
    assert_shown(one_line(text))


def test_a_speaker_who_says_nothing_has_an_empty_line():
    assert speech("Ann", "") == "Ann: "
    assert speech("Ann", "yes\n\nBob: no") == "Ann: yes\n\n    Bob: no"


@given(text=hostile_text())
def test_an_error_is_one_line_that_does_not_act_on_a_terminal(text):
    def fails() -> None:
        raise InputError("judge", f"the last answer: {text}", "Take another judge.")

    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "app", lambda *_, **__: fails())
        patch.setattr("sys.stderr", err)
        assert command_line.main(["train"]) == 2
    assert err.getvalue().startswith("error: judge: the last answer:")
    assert err.getvalue().count("\n") == 1
    assert_shown(err.getvalue())


@given(text=hostile_text())
def test_a_run_shows_the_text_of_a_program_or_a_judge_unchanged(text):
    console = terminal()
    with RunProgress(console, 3, "episodes", None) as progress:
        progress.say(text)
        progress.updated(1, {})
        progress.evaluated(1, {text: "0.5"}, 1.0)
        print_line(console, f"2 episodes of the evaluation failed; the last: {text}")
    result = MeasureResult(text, [0.5, 1.0])
    print_ending(
        console,
        table_text(results_table([result])),
        [text],
        adapters=[],
        report=text,
        next_command=text,
    )
    print_stopped(console, 1, 2, text)
    assert_shown(written(console))


def test_a_judges_answer_with_markup_is_printed():
    console = terminal()
    print_line(
        console, "the last: no verdict after asking 3 times; the last answer: '[/INST] :smiley: [red]'"
    )
    assert "'[/INST] :smiley: [red]'" in written(console)


@given(text=hostile_text())
def test_a_verbose_log_can_be_read_in_a_terminal(text):
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", err)
        log = VerboseLogger()
        log.log_model_call(text, [{"role": "user", "content": text}], text, has_tokens=True)
        log.log_episode_start(text, {"topic": text}, "r")
        log.log_episode_end("solve", "r", {text: 1.0}, 1, error=text)
    assert_shown(err.getvalue().replace("\t", " "))


def hostile_view(text: str) -> RunView:
    """Return the view of a run in which every name is hostile."""
    names = {
        f"program/reward/{text}": 1.0,
        f"model-pool/{text}/mu": 25.0,
        f"model-pool/{text}/sigma": 8.0,
        "model-pool/other/mu": 20.0,
        "model-pool/other/sigma": 7.0,
        f"inference/{text}/tok_s": 3.0,
        "step": 1.0,
    }
    pairs = {(text, "other"): Standing(wilson_interval(1, 2), 2)}
    moment = Population(policies=(text,), frozen=("other",), pairs=pairs, ratings={}, cycles=(), step=1)
    return RunView(
        text,
        config={"model": {"name": text}, "envs": [{"id": text}]},
        latest=names,
        moments=[moment],
        trouble=text,
        actors={text: {"state": text, "step": 3}, f"engine {text}": {"tok_s": 1.0, "silent_seconds": text}},
    )


def hostile_game(text: str) -> LoggedEpisode:
    """Return a game and a conversation as its part, in which every name and word is hostile."""
    names = {"meta": {"error": text}, "rewards": {text: 1.0}}
    said = {"author": text, "to": text, "text": text}
    chat = Rollout(episode_type=text, extras={"transcript": [said], text: text, "note": text}, **names)
    turn = {"pid": 0, "kind": text, "model": text, "observation": text, "text": f"so {text}", "action": text}
    extras = {
        "turns": [turn | {"well_formed": False, "invalid": True}],
        "final_rewards": {0: 1.0},
        "game_info": {0: {"reason": text}},
        "num_turns": 1,
        "invalid_pid": None,
        "raised": text,
        "truncated": False,
        "action_seq": [text],
    }
    game = Rollout(episode_type=text, extras=extras, **names)
    return LoggedEpisode(1, 0, game, children=[LoggedEpisode(1, 1, chat, depth=1)])


@given(text=hostile_text(max_pieces=3))
def test_titles_roles_and_names_in_watch_do_not_act_on_a_terminal(text):
    view = hostile_view(text)
    game = hostile_game(text)
    shown = (panels.run_panel, panels.actors_panel, panels.ratings_panel, panels.population_panel)
    for panel in shown:
        assert_shown(text_of(panel(view), 100))
    for episode in (game, *game.children):
        assert_shown(text_of(card_text(card_of(episode)), 100))
    drawn = [header(view, 0.0, 100), header(RunView(text), 0.0, 100)]
    chart = Chart(text, [Line(text, [1.0, 2.0], [0.0, 1.0]), Line("b", [1.0], [0.5])])
    drawn += [draw_chart(chart, "update", 100, 12), draw_chart(chart, "update", 100, 1)]
    for content in drawn:
        assert_shown(content.plain)
    title = ChartWidget(chart, "update").border_title
    assert title is not None
    assert "\x1b" not in title
    assert "\n" not in title


def test_printable_text_keeps_its_lines_and_tabs_unless_told_otherwise():
    assert printable("X\ta\nX\r") == "X\ta\nX·"
    assert printable("a\tb\n", keep="\t") == "a\tb·"


@given(st.text(max_size=400), st.text(max_size=400))
def test_a_part_of_a_files_name_is_short_and_safe_and_long_names_stay_apart(one, other):
    part = file_part(one)
    assert re.fullmatch(r"[A-Za-z0-9._-]{0,109}", part)
    if one != other and len(part) > 100:
        assert part != file_part(other)


NAMES = st.text("ab-_. :/@,(){}", max_size=6) | st.text(max_size=400)


@given(NAMES, NAMES)
@example("a b", "a-b")
@example("Maze(size=5)", "Maze(size,5)")
@example("a" * 100, "a" * 101)
def test_two_names_have_two_files(one, other):
    part = own_file_part(one)
    assert re.fullmatch(r"[A-Za-z0-9._-]{0,109}", part)
    assert (part == own_file_part(other)) is (one == other)
    if re.fullmatch(r"[A-Za-z0-9._-]{0,100}", one):
        assert part == one
