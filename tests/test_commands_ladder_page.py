"""What a ladder's cells come to: standings after equal games and minutes, the table, the page."""

import io

import pytest
from rich.console import Console

from ladders import FILE, played_at_once, write_ladder
from report_pages import HOSTILE, Page, figures_of
from sparring.commands.ladder.ladder import run_ladder
from sparring.commands.ladder.page import ladder_html, standings_table
from sparring.commands.ladder.results import PAGE, CellResult, LadderResult, Point
from sparring.commands.ladder.standings import limits_of, standings_of
from sparring.evaluation import aggregates
from sparring.view.watch.text import table_text

UNIFORM = 11 / 12


def cell(recipe, seed, points, game="kuhn", **fields):
    """A complete cell with points of games, seconds and a value."""
    found = [Point(value, games, seconds) for games, seconds, value in points]
    return CellResult(
        game=game,
        recipe=recipe,
        seed=seed,
        command="sparring train",
        points=found,
        smaller_is_better=True,
        **fields,
    )


def ladder(*cells, scales=None):
    return LadderResult(measure="NashConv", scales=scales or {"kuhn": 0.5}, cells=list(cells))


def test_entries_are_compared_after_games_that_all_have_and_minutes_of_the_fastest():
    result = ladder(
        cell("quick", 0, [(0, 0.0, 1.0), (100, 10.0, 0.4), (200, 20.0, 0.2)]),
        cell("quick", 1, [(0, 0.0, 1.0), (100, 15.0, 0.4), (200, 30.0, 0.2)]),
        cell("slow", 0, [(0, 0.0, 1.0), (150, 29.0, 0.3), (300, 60.0, 0.1)]),
        cell("slow", 1, [(0, 0.0, 1.0), (150, 31.0, 0.3), (300, 62.0, 0.1)]),
    )
    assert (limits_of(result)["kuhn"].games, limits_of(result)["kuhn"].seconds) == (200, 30.0)
    quick, slow = standings_of(result)
    assert (quick.entry, slow.entry) == ("quick", "slow")
    assert (quick.after_games.mid, slow.after_games.mid) == pytest.approx((0.4, 0.6)), "divided by 0.5"
    assert (quick.after_minutes.mid, slow.after_minutes.mid) == pytest.approx((0.4, (0.6 + 2.0) / 2))
    assert (quick.rank, slow.rank) == ((1, 1, 1), (2, 2, 2))
    assert (quick.games, quick.seconds) == (400, 50.0)


def test_an_entry_that_lacks_a_game_has_no_score_and_comes_last():
    result = ladder(
        cell("whole", 0, [(10, 1.0, 0.4)]),
        cell("whole", 0, [(10, 1.0, 0.4)], game="leduc"),
        cell("half", 0, [(10, 1.0, 0.1)]),
        CellResult(game="leduc", recipe="half", seed=0, command="", problem="it failed"),
        scales={"kuhn": 1.0, "leduc": 1.0},
    )
    whole, half = standings_of(result)
    assert (whole.entry, whole.done, half.done, half.cells) == ("whole", 2, 1, 2)
    assert (half.after_games, half.after_minutes, half.rank) == (None, None, None)


def test_an_evaluation_after_more_games_than_all_have_is_not_compared():
    late = cell("late", 0, [(100, 1.0, 0.1), (200, 2.0, 0.0)])
    ours, other = standings_of(ladder(cell("ours", 0, [(0, 0.0, 1.0), (10, 5.0, 0.4)]), late))
    assert (ours.entry, ours.after_games.mid) == ("ours", 0.8)
    assert (other.entry, other.after_games, other.rank) == ("late", None, None)


def test_what_others_made_counts_without_games_and_minutes():
    policies = CellResult(
        game="kuhn", recipe="cfr", seed=0, command="", points=[Point(0.05)], smaller_is_better=True
    )
    first, second = standings_of(ladder(cell("ours", 0, [(0, 0.0, 1.0), (10, 5.0, 0.4)]), policies))
    assert (first.entry, first.after_games.mid, first.after_minutes) == ("cfr", 0.1, None)
    assert second.after_minutes.mid == 0.8


def test_of_other_measures_more_may_be_better():
    cells = [cell(name, 0, [(10, 1.0, value)]) for name, value in (("worse", 0.2), ("better", 0.7))]
    for one in cells:
        one.smaller_is_better = False
    result = LadderResult(measure="win rate against optimal", scales={"kuhn": 1.0}, cells=cells)
    assert [one.entry for one in standings_of(result)] == ["better", "worse"]
    assert standings_of(result)[0].rank == (1, 1, 1)


def test_entries_whose_intervals_overlap_that_of_the_best_are_tied_and_none_is_called_best():
    ends = {"first": (0.10, 0.12), "second": (0.11, 0.13), "third": (0.2, 0.3)}
    runs = [cell(name, seed, [(10, 1.0, end[seed])]) for name, end in ends.items() for seed in (0, 1)]
    result = ladder(*runs)
    standings = standings_of(result)
    text = " ".join(Page(ladder_html("a", result, standings)).text)
    assert "Best after equal games 2 entries not told apart" in " ".join(text.split())
    table = standings_table(result, standings)
    assert [row[1].badge for row in table.groups[0][2]] == ["tied", "tied", ""]
    for one in result.cells[2:4]:
        one.points[0].value += 1
    (first, *others) = standings_table(result, standings_of(result)).groups[0][2]
    assert (first[0], [row[1].badge for row in (first, *others)]) == ("first", ["", "", ""])


def test_entries_that_were_run_once_are_not_told_apart():
    result = ladder(cell("first", 0, [(10, 1.0, 0.1)]), cell("second", 0, [(10, 1.0, 0.4)]))
    table = standings_table(result, standings_of(result))
    assert [(row[1].text, row[1].note, row[1].badge) for row in table.groups[0][2]] == [
        ("0.200", "", "tied"), ("0.800", "", "tied")
    ]  # fmt: skip
    assert any("run once" in note for note in table.notes)


def test_win_rates_are_in_percent_on_an_axis_of_all_shares():
    cells = [cell("one", seed, [(10, 1.0, 0.5 + seed / 10)], is_share=True) for seed in (0, 1)]
    result = LadderResult(measure="win rate against optimal", scales={"kuhn": 1.0}, cells=cells)
    standings = standings_of(result)
    (row,) = standings_table(result, standings).groups[0][2]
    assert (row[1].text, row[1].note) == ("55.0%", "50.0 to 60.0")
    html = ladder_html("a", result, standings)
    assert "<span>0%</span><span>50%</span><span>100%</span>" in html
    assert "0.55" not in " ".join(Page(html).text)
    assert figures_of(html)[0]["layout"]["yaxis"]["tickformat"] == ".2~%"


@pytest.mark.parametrize(
    ("values", "measure", "ends"),
    [((0.13, 0.41), "NashConv", ("0", "1")), ((-0.13, 0.41), "mean reward against random", ("-0.2", "0.5"))],
)
def test_the_axis_of_bars_ends_at_round_numbers_and_is_the_same_for_all(values, measure, ends):
    cells = [cell(name, 0, [(10, 1.0, value)]) for name, value in zip(("one", "two"), values, strict=True)]
    scale = 0.5 if measure == "NashConv" else 1.0
    result = LadderResult(measure=measure, scales={"kuhn": scale}, cells=cells)
    html = ladder_html("a", result, standings_of(result))
    low, high = ends
    assert html.count(f"<span>{low}</span><span>{high}</span>") == 2
    assert ("1 is uniform play" in html) == (measure == "NashConv")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("ladder") / "out"


@pytest.fixture(scope="module")
def played(out):
    play = played_at_once(
        lambda name, seed: {0: 1.1, 2: 0.6 + seed / 10, 4: 0.3 if "magnet" in name else 0.2}
    )
    two = FILE.replace("[games.kuhn]\n", '[games.kuhn]\n[games.nim]\nenvs.0.id = "nim(pile_sizes=1;3)"\n')
    opponents = '[opponents.mirror]\n[opponents.past]\npopulation.sample_mode = "historical"\n'
    with pytest.MonkeyPatch.context() as patch:  # every cell that ends changes all intervals
        patch.setattr(aggregates, "RESAMPLES", 100)
        return run_ladder(write_ladder(out.parent, two + opponents), out, jobs=1, play=play)


def test_the_table_fits_a_terminal_and_says_what_its_numbers_are(played):
    text = io.StringIO()
    Console(file=text, width=80).print(table_text(standings_table(played, standings_of(played))))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["Equal", "games", "Equal", "minutes", "Rank", "Time"]
    assert lines[1].startswith("neurd, mirror ")
    assert lines[1].rstrip().endswith("1 min 36 s")
    said = " ".join(" ".join(lines).split())
    assert "so that 1 is uniform play and 0 an equilibrium: less is better." in said
    assert "kuhn: after 40 games, or 24 s of playing and learning." in said


def test_the_page_has_curves_of_every_game_and_the_command_and_hash_of_every_cell(out, played):
    html = (out / PAGE).read_text()
    text = " ".join(Page(html).text)
    titles = ("kuhn by games", "kuhn by seconds", "nim by games", "nim by seconds")
    assert all(title in text for title in titles)
    assert [len(one["layout"]) > 0 for one in figures_of(html)] == [True] * 4
    first = figures_of(html)[0]["traces"]
    assert {one["name"] for one in first if "name" in one} == {
        "magnet, mirror", "magnet, past", "neurd, mirror", "neurd, past"
    }  # fmt: skip
    assert all(one.command in text and one.sha256 in text for one in played.cells)
    assert f"uniform play {UNIFORM:.3f}" in text
    assert played.processor in text


def test_what_is_written_on_the_page_is_text_only():
    result = ladder(CellResult(game="kuhn", recipe="a", seed=0, command=HOSTILE, problem=HOSTILE))
    result.processor = HOSTILE
    page = Page(ladder_html(HOSTILE, result, standings_of(result)))
    assert not [one for one, _ in page.elements if one == "img"]
    assert HOSTILE in "".join(page.text)
