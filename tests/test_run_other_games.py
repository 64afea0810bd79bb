"""A run learns one game and is evaluated in others, with other templates and against other opponents."""

import json
from pathlib import Path

import pytest

from game_runs import configure, metrics_of, run
from sparring.cli.main import main
from sparring.commands.list_runs import headline
from sparring.config import load_config
from sparring.core import InputError
from sparring.evaluation.figures import read_figures
from sparring.run.checks import check_config, notes_on
from sparring.view.source import RunDirectorySource
from sparring.view.watch.panels import evaluation_panel, run_panel
from watched_runs import text_of

WATCHED = """[
    {id = "leduc_poker", opponents = ["random", "base"], games = 6},
    {id = "kuhn_poker", template = "qwen3-zs", opponents = ["optimal"], nash_conv = true},
    {id = "tic_tac_toe"},
]"""
APART = "kuhn_poker for 2, qwen3-zs"
MATCHES = {
    ("leduc_poker", "random", 6),
    ("leduc_poker", "base", 6),
    (APART, "optimal", 4),
    ("tic_tac_toe", "random", 4),
}


@pytest.fixture(scope="module")
def watched(model, tmp_path_factory):
    """A run of two updates that learns Kuhn poker, and what it printed."""
    path = tmp_path_factory.mktemp("runs") / "held-out"
    config = configure(
        model,
        learning__steps="2",
        evaluation__every="1",
        evaluation__envs=WATCHED,
        evaluation__nash_conv="false",
        evaluation__games_alongside="8",
        run__keep_best="win rate against random in leduc_poker",
    )
    return config, path, " ".join(run(config, path).split())


def results(path: Path, step: int) -> list[dict]:
    found = [json.loads(one.read_text()) for one in (path / "evaluation").glob(f"step-{step:06d}-*.json")]
    return sorted(found, key=lambda one: (one["env_id"], one["kind"]))


@pytest.mark.parametrize("step", [0, 1, 2])
def test_every_evaluation_measures_the_games_that_are_watched_and_no_other(watched, step):
    found = results(watched[1], step)
    matches = {(one["env_id"], one["opponent"], one["games"]) for one in found if one["kind"] == "match"}
    assert matches == MATCHES
    assert [one["env_id"] for one in found if one["kind"] == "nash_conv"] == [APART]


def test_only_the_game_of_training_is_learned(watched):
    metrics = metrics_of(watched[1])
    collected = {name.split("/")[0] for line in metrics for name in line if name.startswith("collection-")}
    assert collected == {"collection-kuhn_poker"}
    alongside = {name.split("/")[0] for line in metrics for name in line if name.startswith("evaluation-")}
    assert alongside == {"evaluation-leduc_poker", "evaluation-tic_tac_toe", f"evaluation-{APART}"}
    logged = (watched[1] / "rollouts" / "step-000001.jsonl").read_text().splitlines()
    assert {json.loads(line)["rollout"]["episode_type"] for line in logged} <= {
        "kuhn_poker",
        "leduc_poker",
        "tic_tac_toe",
    }


def test_the_watched_games_are_printed_reported_and_shown(watched):
    _, path, said = watched
    for label in ("leduc_poker", APART, "tic_tac_toe"):
        assert f"in {label}" in said
    page = (path / "report.html").read_text()
    assert "plays <b>kuhn_poker</b>, evaluated in <b>leduc_poker, kuhn_poker, tic_tac_toe</b>" in page
    assert all(label in page for label in ("leduc_poker against base", f"{APART} against optimal"))
    view = RunDirectorySource(path).read()
    shown = text_of(evaluation_panel(view))
    assert all(label in shown for label in ("leduc_poker", "tic_tac_toe"))
    assert "leduc_poker, kuhn_poker, tic_tac_toe" in " ".join(text_of(run_panel(view), 100).split())


def test_the_best_adapter_and_the_headline_may_be_of_a_watched_game(watched):
    config, path, _ = watched
    figures = headline(config, read_figures(path / "evaluation", 2))
    assert str(figures[0].name) == "win rate against random in leduc_poker"
    assert [one.name for one in (path / "best").iterdir()]


def test_eval_plays_a_watched_game_as_the_run_did(watched, monkeypatch, capsys):
    monkeypatch.chdir(watched[1].parent)
    assert main(["eval", str(watched[1]), "--env", "kuhn_poker", "--games", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template"] == "fewshot-chat"
    config = load_config(str(watched[1] / "config.toml"), {})
    assert config.label(config.evaluated[1]) == APART


def test_eval_takes_the_template_of_a_game_that_was_only_watched(watched, tmp_path, capsys):
    text = (watched[1] / "config.toml").read_text()
    changed = text.replace('id = "tic_tac_toe"', 'id = "tic_tac_toe"\ntemplate = "qwen3-zs"', 1)
    before = 'template = "fewshot-chat"'
    place = changed.index('template = "qwen3-zs"\n', changed.index("tic_tac_toe")) + 1
    changed = changed[:place] + changed[place:].replace(before, "", 1)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("checkpoints", "format"):
        if (watched[1] / name).exists():
            (copy / name).symlink_to(watched[1] / name)
    (copy / "config.toml").write_text(changed)
    assert main(["eval", str(copy), "--env", "tic_tac_toe", "--games", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template"] == "qwen3-zs"


def test_without_games_of_their_own_evaluations_play_those_of_training(model):
    envs = '[{id = "kuhn_poker", max_turns = 7}, {id = "kuhn_poker", template = "qwen3-zs", weight = 2.0}]'
    config = configure(model, envs=envs)
    assert [game.key for game in config.evaluated] == [env.key for env in config.envs]
    assert config.evaluated[0].max_turns == 7
    assert [config.label(game) for game in config.evaluated] == ["kuhn_poker for 2, fewshot-chat", APART]


def test_the_dry_run_names_what_is_watched(model):
    found = check_config(configure(model, evaluation__envs=WATCHED, evaluation__nash_conv="false"))
    assert "evaluations in leduc_poker, 2 players, template fewshot-chat" in found
    assert "evaluations in kuhn_poker, 2 players, template qwen3-zs" in found
    assert f"opponents in {APART}: optimal" in found
    assert f"NashConv of {APART}" in found
    assert "opponents in tic_tac_toe: random" in found


def test_a_watched_game_that_lists_no_moves_is_evaluated_against_base_with_a_note(model):
    watched = {"evaluation.envs": '[{id = "DontSayIt-v0-train"}]', "evaluation.opponents": None}
    config = load_config("quickstart", watched)
    assert any("DontSayIt-v0-train does not list its legal moves" in note for note in notes_on(config))


def test_seats_have_the_policies_of_training(model):
    sides = '[{id = "kuhn_poker", policies = ["one", "two"]}]'
    config = configure(model, envs=sides, evaluation__envs='[{id = "kuhn_poker", template = "qwen3-zs"}]')
    assert [game.seats for game in config.evaluated] == [("one", "two")]
    with pytest.raises(InputError, match=r"^evaluation\.envs\.0\.policies: who plays the 2 seats of leduc"):
        configure(model, envs=sides, evaluation__envs='[{id = "leduc_poker"}]')
    named = '[{id = "leduc_poker", policies = ["two", "one"]}]'
    assert configure(model, envs=sides, evaluation__envs=named).evaluated[0].seats == ("two", "one")


def test_a_game_of_ones_own_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "games.toml").write_text(
        '[[envs]]\nid = "kuhn_poker"\n[[evaluation.envs]]\nid = "my_game.py:Mine"\n'
    )
    (game,) = load_config(str(tmp_path / "games.toml"), {}).evaluated
    assert (game.id, game.name) == (str(tmp_path / "my_game.py:Mine"), "Mine")


TWICE = '[{id = "leduc_poker"}, {id = "leduc_poker", opponents = ["base"]}]'


@pytest.mark.parametrize(
    ("preset", "games", "others", "problem"),
    [
        ("quickstart", TWICE, {}, r"^evaluation\.envs: two entries are called leduc_poker"),
        ("quickstart", '[{id = "lduc_poker"}]', {}, r"^evaluation\.envs\.0\.id: .* Did you mean leduc"),
        (
            "quickstart",
            '[{id = "hearts"}]',
            {},
            r"^evaluation\.envs\.0\.num_players: hearts does not support 2",
        ),
        ("quickstart", '[{id = "kuhn_poker", template = "x"}]', {}, r"^evaluation\.envs\.0\.template: "),
        (
            "quickstart",
            '[{id = "kuhn_poker", weight = 1.0}]',
            {},
            r"^evaluation\.envs\.0\.weight: there is no",
        ),
        (
            "quickstart",
            '[{id = "kuhn_poker", games = 1}]',
            {},
            r"^evaluation\.envs\.0\.games: must be at least 2",
        ),
        (
            "quickstart",
            '[{id = "leduc_poker", opponents = ["x"]}]',
            {},
            r"^evaluation\.envs\.0\.opponents\.0: there is no opponent 'x'",
        ),
        (
            "quickstart",
            '[{id = "kuhn_poker", policies = ["a", "b"]}]',
            {},
            r"^evaluation\.envs\.0\.policies: there is no policy a",
        ),
        (
            "quickstart",
            '[{id = "kuhn_poker", policies = ["a"]}]',
            {},
            r"^evaluation\.envs\.0\.policies: must name a policy for each of the 2 seats",
        ),
        (
            "quickstart",
            '[{id = "TicTacToe-v0-train"}]',
            {"evaluation.nash_conv": "true"},
            r"^evaluation\.nash_conv: TicTacToe-v0-train is not an OpenSpiel game",
        ),
        (
            "quickstart",
            '[{id = "leduc_poker", opponents = []}]',
            {"evaluation.patience": "1", "evaluation.every": "1"},
            r"^evaluation\.patience: there are no matches",
        ),
        ("proposer-solver", '[{id = "kuhn_poker"}]', {}, r"^evaluation\.envs: is for games"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_line(preset, games, others, problem):
    with pytest.raises(InputError, match=problem):
        check_config(load_config(preset, {"evaluation.envs": games, **others}))
