"""The one list of charts: what is worth plotting of games and of programs."""

from run_files import match
from sparring.evaluation.results import write_evaluation
from sparring.view.chart_list import chart_sections
from sparring.view.charts import WHOLE
from sparring.view.metrics import Series
from sparring.view.report.figures import figure_sections
from sparring.view.run_view import RunView
from sparring.view.watch.widgets import CURVES, RATES
from sparring.view.whole_run import load_run
from watched_runs import read_all, run_of


def charts_of(view: RunView) -> dict[str, list[str]]:
    """Return the names of the lines of every chart, by title."""
    sections = chart_sections(view)
    return {chart.title: [line.name for line in chart.lines] for made in sections.values() for chart in made}


def view_of(*names: str, values=(0.5, 0.25)) -> RunView:
    steps = [float(step) for step in range(1, len(values) + 1)]
    return RunView("run", series={name: Series(steps, list(values)) for name in names})


def test_games_have_charts_of_strength_rewards_learning_play_answers_and_speed(games_run):
    view = read_all(games_run)
    sections = chart_sections(view)
    assert list(sections) == ["Strength", "Population", "Rewards", "Learning", "Play", "Answers", "Speed"]
    charts = charts_of(view)
    assert charts["Win rate in evaluation matches"] == ["against optimal", "against random"]
    assert charts["Games with an invalid move"] == [
        "training",
        "against optimal",
        "against random",
    ]
    assert charts["Reward by seat"] == ["seat 0", "seat 1"]
    assert charts["Outcomes of training games"] == ["won", "drawn", "lost"]
    assert charts["Seconds per phase"] == ["evaluation", "learn", "play"]
    for title in (
        "NashConv",
        "Loss",
        "Learning rate",
        "Well-formed answers",
        "Game length",
        "Games per second",
    ):
        assert charts[title] == [""], "the title says it all"


def test_programs_have_a_line_for_each_role_and_policy(program_run):
    charts = charts_of(read_all(program_run))
    assert charts["Reward by role"] == ["Hider", "Seeker"]
    assert charts["Loss"] == ["hider", "seeker"]
    assert charts["Ratings of the policies"] == ["hider", "seeker"]
    assert "share_of_odd_letters, Hider" in charts["Metrics of hide"]
    assert "Episodes per second" in charts


def test_the_page_and_the_terminal_show_the_same_charts(games_run, program_run):
    for run in (games_run, program_run):
        whole, view = load_run(run), read_all(run)
        on_page = [figure.title for made in figure_sections(whole).values() for figure in made]
        found = chart_sections(view)
        in_terminal = [chart.title for section in CURVES + RATES for chart in found.pop(section, [])]
        assert found == {}, "every section has its page"
        drawn_otherwise = {"Ratings of the pool", "Who beats whom", "Ratings of the members"}
        assert set(on_page) - set(in_terminal) <= drawn_otherwise, "the terminal has views of these"
        assert set(in_terminal) <= set(on_page)


def test_several_environments_are_named_in_the_lines(tmp_path):
    names = [
        f"collection-{env}/{measure}" for env in "ab" for measure in ("Invalid Move Rate", "Reward (pid=0)")
    ]
    charts = charts_of(view_of(*names, *(f"collection-{env}/Game Length" for env in "ab")))
    assert charts == {
        "Reward by seat": ["a: seat 0", "b: seat 0"],
        "Games with an invalid move": ["training, a", "training, b"],
        "Game length": ["a", "b"],
    }


def test_draws_and_failures_have_charts_only_if_there_were_any(tmp_path):
    for draws, run in ((0, tmp_path / "without"), (2, tmp_path / "with")):
        run_of(run, step=1, **{"accounts/failed": 0, "accounts/retried": draws})
        write_evaluation(run / "evaluation", 1, "random", match(2, 5, draws=draws))
    charts = charts_of(read_all(tmp_path / "without"))
    assert list(charts) == ["Win rate in evaluation matches", "Games with an invalid move"]
    charts = charts_of(read_all(tmp_path / "with"))
    assert charts["Draw rate in evaluation matches"] == ["against random"]
    assert charts["Failed and retried games"] == ["retried"]


def test_a_match_whose_counts_do_not_add_up_is_left_out_and_told(tmp_path):
    run = run_of(tmp_path / "run", step=1)
    path = write_evaluation(run / "evaluation", 1, "random", match(2, 5))
    path.write_text(path.read_text().replace('"wins": 2', '"wins": 6'))
    view = read_all(run)
    assert view.figures == {}
    assert view.damaged_evaluations == [f"evaluation/{path.name}"]


def test_a_run_with_values_by_the_tree_shows_what_the_tree_knows_and_how_much_was_explored():
    view = view_of("learner/tree_share", "answers/explored_share/player_0", "answers/explored_share/player_1")
    (known,), (explored,) = chart_sections(view)["Learning"], chart_sections(view)["Answers"]
    assert (known.title, known.axis, known.bounds) == ("Values by the tree of games", "share", WHOLE)
    assert [line.name for line in explored.lines] == ["seat 0", "seat 1"]


def test_a_run_with_a_pace_shows_how_far_its_steps_went():
    (found,) = chart_sections(view_of("learner/progress"))["Learning"]
    assert (found.title, len(found.lines)) == ("Way to the targets", 1)


def test_idle_shares_and_ages_of_records_are_shares():
    names = ["overlap/learner_idle_share", *(f"overlap/staleness_{age}" for age in (10, 0, 2))]
    found = chart_sections(view_of(*names))
    (ages,), (idle,) = found["Learning"], found["Speed"]
    assert [line.name for line in ages.lines] == ["this version", "2 older", "10 older"]
    assert (idle.title, idle.axis, idle.bounds) == ("Idle share of the time", "share", WHOLE)
    assert "Learning" not in chart_sections(view_of("overlap/staleness_0")), (
        "without overlap there are no ages"
    )


def test_entropy_and_divergence_are_recognised_by_whole_words():
    names = ("legal_entropy", "entropy", "kl_to_base", "sparkle")
    charts = charts_of(view_of(*(f"learner/{name}" for name in names)))
    assert charts == {"Entropy": [""], "Entropy over legal answers": [""], "Divergence": ["kl to base"]}


def test_a_chart_shows_the_tokens_that_are_clipped_and_left_out():
    charts = charts_of(view_of("learner/clip_fraction", "learner/correction_masked"))
    assert charts == {"Clipped and left-out tokens": ["clip fraction", "correction masked"]}


def test_a_chart_shows_what_the_critic_explains():
    charts = charts_of(view_of("learner/value_loss", "learner/explained_variance", "learner/mean_value"))
    assert charts == {"Loss": ["value loss"], "Explained variance": [""], "Mean value": [""]}


def test_a_chart_shows_how_often_each_copy_was_drawn():
    drawn = {"ckpt-0": 30, "ckpt-10": 10, "ckpt-5": 20, "default": 30, "fixed-<i>": 10}
    view = RunView("run", latest={f"model-pool/{uid}/drawn": float(count) for uid, count in drawn.items()})
    ((chart,),) = chart_sections(view).values()
    assert [(line.name, line.steps, line.values) for line in chart.lines] == [
        ("", [0.0, 5.0, 10.0], [30.0, 20.0, 10.0])
    ]
    assert chart.caption.endswith("Of all draws, default 30.0%, fixed-<i> 10.0%.")


def test_the_draws_of_several_policies_copies_are_a_line_each():
    drawn = {"first-ckpt-0": 3.0, "first-ckpt-1": 1.0, "ckpt-ckpt-0": 2.0}
    view = RunView("run", latest={f"model-pool/{uid}/drawn": count for uid, count in drawn.items()})
    assert charts_of(view)["Draws of each copy"] == ["ckpt", "first"]
    drawn = {"ckpt-0": 3.0, "ckpt-2": 1.0, "attacker-ckpt-1": 2.0}
    league = RunView("run", latest={f"model-pool/{uid}/drawn": count for uid, count in drawn.items()})
    assert charts_of(league)["Draws of each copy"] == ["attacker", "default"]


def test_a_run_draws_members_of_its_pool(games_run):
    view = read_all(games_run)
    assert "Draws of each copy" in charts_of(view)
    assert sum(one.drawn for one in view.ratings()) == 24, "three updates of eight games"


COUNTS = {
    "league/default/games/self_play": Series([1.0, 2.0, 3.0], [6.0, 6.0, 12.0]),
    "league/default/games/pfsp": Series([2.0, 3.0], [2.0, 4.0]),
    "league/attacker/games/main": Series([1.0, 3.0], [2.0, 4.0]),
    "league/attacker/win_rate/default": Series([2.0], [0.25]),
}


def league_charts(series):
    found = chart_sections(RunView("run", series=series)).get("Population", [])
    return {one.title: {line.name: (line.steps, line.values) for line in one.lines} for one in found}


def test_shares_are_of_all_games_so_far():
    drawn = league_charts(COUNTS)
    assert drawn["Games of each player"] == {
        "attacker": ([1.0, 2.0, 3.0], [0.25, 0.2, 0.2]),
        "default": ([1.0, 2.0, 3.0], [0.75, 0.8, 0.8]),
    }
    assert drawn["Whom default met"] == {
        "prioritised copies": ([1.0, 2.0, 3.0], [0.0, 0.25, 0.25]),
        "main players (self-play)": ([1.0, 2.0, 3.0], [1.0, 0.75, 0.75]),
    }
    assert "Whom attacker met" not in drawn, "it met only main players"


def test_win_rates_are_named_by_both_players():
    assert league_charts(COUNTS)["Win rates between players"] == {"attacker against default": ([2.0], [0.25])}


def test_a_run_without_a_league_has_no_such_charts():
    assert league_charts({"learner/loss": Series([1.0], [1.0])}) == {}
