"""The live view of a cluster's run: the activity of each actor, idle shares, and the age of records."""

import pytest
from textual.geometry import Size

from selfplay.read.run_view import RunView
from selfplay.read.series import Series
from selfplay.watch.actor_tables import MAX_ROWS, actors_panel
from selfplay.watch.panels import speed_panel, time_panel, work_panel
from selfplay.watch.terminal_interface import TerminalInterface
from watch_screens import look, words_on

ENGINE = {"tok_s": 4812.3, "running": 118, "queued": 14, "idle_share": 0.04}
ACTORS = {
    "Learner": {"step": 41, "state": "learning", "seconds": 3.2},
    "Engine-0": ENGINE,
    "Buffer": {"steps": 900, "games": 380},
    "Collector-0": {"in_flight": 256, "evaluating": 16},
}


class Still:
    """A source whose view the test sets."""

    def __init__(self, **fields) -> None:
        self.view = RunView("run", **fields)

    def read(self) -> RunView:
        return self.view


def lines_of(panel, *, width=76, **fields) -> list[list[str]]:
    content = panel(RunView("run", **fields), Size(width, 20))
    assert all(line.cell_length <= width for line in content.split("\n"))
    return [line.plain.split() for line in content.split("\n")]


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_first_screen_shows_the_activity_of_every_actor(size, light):
    app = TerminalInterface(Still(actors=ACTORS), light=light)
    async with app.run_test(size=size) as pilot:
        await look(app, pilot)
        text = words_on(app)
        assert text.index("Actors") < text.index("Speed")
        for expected in (
            "4,812",
            "96%",
            "update 41, learning for 3.2 s",
            "900 answers, 380 games",
            "256 in flight, 16 evaluating",
        ):
            assert expected in text


async def test_actors_come_and_go_and_a_run_directory_has_none():
    source = Still()
    app = TerminalInterface(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        assert "Actors" not in words_on(app)
        source.view = RunView("run", actors=ACTORS)
        await look(app, pilot)
        assert "Engine-0" in words_on(app)
        source.view = RunView("run")
        await look(app, pilot)
        assert "Actors" not in words_on(app)


def test_engines_are_rows_of_numbers_and_several_are_summed_up():
    rows = lines_of(actors_panel, actors={"Engine-0": ENGINE})
    assert rows[0] == ["tokens/s", "running", "queued", "busy"]
    assert rows[1][:5] == ["Engine-0", "4,812", "118", "14", "96%"]
    slow = {"tok_s": 1000, "running": 2, "queued": 0, "idle_share": 0.54}
    rows = lines_of(actors_panel, actors={"Engine-10": slow, "Engine-2": ENGINE})
    assert rows[1][:6] == ["2", "engines", "5,812", "120", "14", "71%"]
    assert [row[0] for row in rows[2:]] == ["Engine-2", "Engine-10"]


def test_silent_actors_are_marked_and_unknown_fields_are_shown():
    silent = {"silent_seconds": 44}
    load = {"checkpoints": 12, "mode": "mirror", "odd": float("nan"), "on": True}
    actors = {"Engine-0": ENGINE | silent, "Learner": {"state": "waiting"} | silent, "ModelPool": load}
    rows = [" ".join(row) for row in lines_of(actors_panel, actors=actors)]
    assert rows[1].endswith("96% silent for 44 s")
    assert rows[2] == "Learner waiting silent for 44 s"
    assert rows[3] == "ModelPool checkpoints 12, mode mirror, odd nan, on True"
    assert lines_of(actors_panel, actors={"Engine-0": {"tok_s": None}})[1] == ["Engine-0"]


@pytest.mark.parametrize("width", [76, 196])
def test_a_large_cluster_is_abbreviated(width):
    actors = {f"Engine-{number}": ENGINE for number in range(40)} | {f"C-{n}": {} for n in range(20)}
    text = actors_panel(RunView("run", actors=actors), Size(width, 20)).plain
    assert text.count("Engine-") == MAX_ROWS
    assert f"and {40 - MAX_ROWS} more" in text
    assert f"and {20 - MAX_ROWS} more" in text
    assert text.count("\n") + 1 <= 2 * MAX_ROWS + 4


def test_engines_are_not_shown_twice():
    latest = {"inference/Engine-0/tok_s": 5.0, "inference/Engine-0/running": 1.0}
    assert lines_of(speed_panel, latest=latest)[0][:2] == ["Engine-0", "5"]
    assert lines_of(speed_panel, latest=latest, actors={"Engine-0": ENGINE}) == [[]]


def test_idle_shares_and_ages_of_records_are_shown():
    latest = {"overlap/learner_idle_share": 0.25, "overlap/engine_idle_share": 0.04}
    assert [row[:3] for row in lines_of(time_panel, latest=latest)] == [
        ["learner", "idle", "25%"],
        ["engines", "idle", "4.0%"],
    ]
    shares = {0: 0.5, 1: 0.2, 2: 0.1, 4: 0.1, 12: 0.1}
    series = {f"overlap/staleness_{age}": Series([7.0], [share]) for age, share in shares.items()}
    series["overlap/staleness_3"] = Series([5.0, 6.0], [0.5, 0.5])  # none in the last step
    rows = lines_of(work_panel, series=series)
    assert [row[:4] for row in rows] == [
        ["0", "versions", "old", "50%"],
        ["1", "version", "old", "20%"],
        ["2", "versions", "old", "10%"],
        ["4+", "versions", "old", "20%"],
    ]
    assert len(rows[0][4]) > len(rows[1][4]) > len(rows[2][4]) > 0
