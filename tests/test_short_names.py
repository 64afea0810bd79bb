"""The names of environments for a reader have few of their options."""

import pytest

from sparring.core.env_id import env_name, with_options, with_short_names
from sparring.view.chart_list import chart_sections
from sparring.view.metrics import Series
from sparring.view.run_view import RunView

LONG = "Say a word. " * 20


def shown(*ids, text="{}"):
    return [with_short_names(text.format(env_name(one)), ids) for one in ids]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([{}], ["Maze"]),
        ([{"rules": LONG, "size": 5}], ["Maze"]),
        ([{"rules": LONG, "size": 5}, {"rules": LONG, "size": 6}], ["Maze(size=5)", "Maze(size=6)"]),
        ([{"size": 5}, {}], ["Maze(size=5)", "Maze"]),
        (
            [{"words": "/home/me/data/small.txt"}, {"words": "/home/me/data/large.txt"}],
            ["Maze(words=small.txt)", "Maze(words=large.txt)"],
        ),
        (
            [{"make": "/home/me/a.py:easy"}, {"make": "/home/me/b.py:hard"}],
            ["Maze(make=easy)", "Maze(make=hard)"],
        ),
        (
            [{"rules": f"{LONG}a"}, {"rules": "none"}],
            ["Maze(rules=Say a word. Say a...)", "Maze(rules=none)"],
        ),
    ],
)
def test_a_short_name_has_only_the_options_that_tell_environments_apart(options, names):
    ids = [with_options("/home/me/maze.py:Maze", one) for one in options]
    assert shown(*ids) == names
    assert shown(*ids, text="won in {} against random") == [f"won in {one} against random" for one in names]
    other = with_options("kuhn_poker", {"size": 9})
    assert shown(*ids, other) == [*names, "kuhn_poker"]


def test_names_that_would_become_the_same_stay_whole():
    ids = [with_options("maze.py:Maze", {"rules": LONG + end}) for end in "ab"]
    assert shown(*ids) == [env_name(one) for one in ids]


def test_a_view_of_a_run_shows_short_names_and_the_run_keeps_whole_ones():
    tables = [{"id": "/me/maze.py:Maze", "options": {"rules": LONG, "size": size}} for size in (5, 6)]
    whole = [env_name(with_options(one["id"], one["options"])) for one in tables]
    series = {f"collection-{name}/Reward (pid=0)": Series([1], [0.5]) for name in whole}
    run = RunView("run", config={"envs": tables}, series=series)
    names = [line.name for charts in chart_sections(run).values() for one in charts for line in one.lines]
    assert names == ["Maze(size=5): seat 0", "Maze(size=6): seat 0"]
    assert run.plays() == sorted(whole)
