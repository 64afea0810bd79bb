"""Tournaments of runs of a program, whose roles are the seats, and best responses to them."""

import json
from pathlib import Path

import pytest

from game_runs import configure as configure_game
from game_runs import run as run_game
from program_runs import SMALL, adapter, configure, logged, run
from sparring.cli.main import main
from sparring.commands.answered import AgentQuery
from sparring.commands.exploit import Budget, exploit
from sparring.commands.psro import psro
from sparring.commands.psro_page import psro_table
from sparring.commands.tournament import tournament
from sparring.config import load_config
from sparring.core import InputError
from tournaments import few_resamples  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory) -> Path:
    """A run of a program with two roles and a policy for each."""
    path = tmp_path_factory.mktemp("programs") / "hiding"
    run(configure(model, path.parent, learning__steps="2", learning__learning_rate="0.1"), path)
    return path


@pytest.fixture(scope="module")
def debated(model, tmp_path_factory) -> Path:
    """A run of a debate, whose sides share a policy."""
    path = tmp_path_factory.mktemp("debates") / "debate"
    changes = {
        "model.name": str(model),
        "program.num_rounds": "1",
        "program.max_tokens": "4",
        "program.batch_size": "4",
        "program.evaluation_debates": "2",
        "learning.steps": "1",
        "learning.algorithm.kl_weight": "0",
    }
    run(load_config("debate", SMALL | changes), path)
    return path


def lines_of(out):
    return [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]


def test_checkpoints_of_a_program_meet_in_both_roles_on_the_same_requests(trained, tmp_path):
    found = tournament([f"{trained}@all", "base"], None, tmp_path / "out", games=8)
    assert found.failures == {}
    assert found.rankings.matrix.members == ("hiding@0", "hiding@2", "base")
    lines = lines_of(tmp_path / "out")
    assert len(lines) == 3 * 8
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        if first["game"] + 1 == second["game"] and first["game"] % 2 == 0:
            assert first["players"] == second["players"][::-1]
    files = sorted((tmp_path / "out" / "games").iterdir())
    seated, asked = [], []
    for file in files[:2]:
        rollout = json.loads(file.read_text())["rollout"]
        seated.append({role: agent["model"] for role, agent in rollout["agents"].items()})
        asked.append(rollout["artifact"])
    assert seated == [
        {"Hider": "hiding@0/hider", "Seeker": "hiding@2/seeker"},
        {"Hider": "hiding@2/hider", "Seeker": "hiding@0/seeker"},
    ]
    assert asked[0] == asked[1]
    again = tournament([f"{trained}@all", "base"], None, tmp_path / "again", games=8)
    assert again.table.rows() == found.table.rows()


def test_the_command_continues_a_tournament_of_programs(trained, tmp_path, capsys):
    words = ["tournament", str(trained), "base", "--out", str(tmp_path / "out"), "--games"]
    assert main([*words, "4"]) == 0
    before = (tmp_path / "out" / "games.jsonl").read_bytes()
    assert main([*words, "8"]) == 0
    assert (tmp_path / "out" / "games.jsonl").read_bytes().startswith(before)
    assert len(lines_of(tmp_path / "out")) == 8
    assert "Mean reward as Hider Seeker 1 " in " ".join(capsys.readouterr().out.split())
    assert "<h2>By role</h2>" in (tmp_path / "out" / "tournament.html").read_text()


@pytest.mark.parametrize(
    ("member", "options", "problem"),
    [
        ("random", {}, "random plays games, not programs"),
        (
            "base",
            {"players": 3},
            "players: is for games, but a program is played. Leave it out, or name a game",
        ),
        ("base", {"nash_conv": True}, "nash_conv: is for games"),
    ],
)
def test_what_is_for_games_is_refused(trained, tmp_path, member, options, problem):
    with pytest.raises(InputError, match=problem):
        tournament([str(trained), member], None, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_runs_of_different_programs_and_of_games_do_not_meet(model, trained, tmp_path):
    run(configure(model, tmp_path, "Measured", learning__steps="1"), tmp_path / "other")
    with pytest.raises(InputError, match="has another program, or other roles, than"):
        tournament([str(trained), str(tmp_path / "other")], None, tmp_path / "out")
    run_game(configure_game(model, learning__steps="1"), tmp_path / "game")
    with pytest.raises(InputError, match="game plays games, not a program"):
        tournament([str(trained), str(tmp_path / "game")], None, tmp_path / "out")


# Best responses


def seats_of(path):
    """Return who sat in the roles that were not trained."""
    return {(role, agent.model) for one in logged(path) for role, agent in one.agents.items()}


def test_a_programs_policies_are_answered_in_each_role(trained, tmp_path, capsys):
    out = tmp_path / "answer"
    words = ["exploit", str(trained), "--updates", "2", "--games", "7", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "Hider" in said
    assert "a lower bound" in " ".join(said.split())
    result = json.loads((out / "exploitability.json").read_text())
    assert [(one["seat"], one["games"]) for one in result["seats"]] == [("Hider", 4), ("Seeker", 4)]
    assert (result["rounds"], result["updates"], result["failures"]) == (4, 2, {})
    assert result["exact"] is None
    assert seats_of(out) == {("Hider", "policy-hider"), ("Seeker", "policy-seeker")}
    for policy in ("hider", "seeker"):
        start = trained / "checkpoints" / "step-000002" / policy / "adapter_model.safetensors"
        assert (out / "given" / f"policy-{policy}" / start.name).read_bytes() == start.read_bytes()
        changed = adapter(out, 2, policy)
        assert any((changed[name] != value).any() for name, value in adapter(out, 0, policy).items())
    assert main(words) == 0, "it is only measured again"
    assert json.loads((out / "exploitability.json").read_text())["seats"] == result["seats"]


@pytest.mark.slow  # policies of roles are answered above, one of both seats in test_commands_exploit
def test_a_debates_policy_is_answered_on_either_side(debated, tmp_path, capsys):
    capsys.readouterr()
    found = exploit(AgentQuery(str(debated)), tmp_path / "answer", Budget(updates=1, games=4))
    assert [(one.seat, one.games) for one in found.seats] == [("Aff", 2), ("Neg", 2)]
    assert found.total.mid == pytest.approx(sum(one.gain.mid for one in found.seats))
    assert {model for _, model in seats_of(tmp_path / "answer")} == {"policy"}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--players", "2"],
            "error: --players: is for games, but a program is played. Leave it out, or name a game",
        ),
        (["--games-per-step", "8"], "error: --games-per-step: is for games"),
    ],
)
def test_what_is_for_best_responses_in_games_is_refused(trained, tmp_path, capsys, options, line):
    assert main(["exploit", str(trained), "--out", str(tmp_path / "out"), *options]) == 2
    assert capsys.readouterr().err.startswith(line)


@pytest.mark.slow  # test_commands_psro_programs has one by default
def test_psro_finds_mixtures_of_a_programs_policies(model, trained, tmp_path, capsys):
    changes = {"learning__steps": "1", "psro__payoff_games": "4", "psro__iterations": "2"}
    config = configure(model, tmp_path, psro__solver="uniform", **changes)
    path = tmp_path / "psro"
    capsys.readouterr()
    found = psro(config, path)
    assert capsys.readouterr().out == ""
    assert found.games == [[4] * 3] * 3, "where rewards may have any sum, a member meets itself too"
    assert [one.updates for one in found.iterations] == [0, 1, 1]
    met = seats_of(path / "member-002")
    own = {("Hider", "member-001-hider"), ("Seeker", "member-001-seeker")}
    assert met <= own | {("Hider", "base"), ("Seeker", "base")}
    assert met & own
    mixture = json.loads((path / "mixture.json").read_text())
    assert [one.get("adapter") for one in mixture["members"]] == [
        None,
        "member-001/checkpoints/step-000001",
        "member-002/checkpoints/step-000001",
    ]
    assert psro(config, path) == found, "nothing is left to be done"
    assert "NashConv" not in psro_table(found).heads
    capsys.readouterr()
    assert main(["exploit", str(path), "--out", str(tmp_path / "answer")]) == 2
    assert "names none. Name an environment; a mixture in a program plays only in" in capsys.readouterr().err
    words = ["tournament", str(path), str(path / "member-001"), "--games", "8"]
    assert main([*words, "--out", str(tmp_path / "met")]) == 0, "a mixture may come before the run"
    assert "failed" not in capsys.readouterr().out
    agents = {
        agent["model"]
        for file in (tmp_path / "met" / "games").iterdir()
        for agent in json.loads(file.read_text())["rollout"]["agents"].values()
    }
    assert agents & {"base", "psro/member-001-hider", "psro/member-002-hider"}


def test_psro_of_policies_begins_with_an_adapter_for_each(model, trained, tmp_path):
    start = {"start__hider": str(trained)}
    with pytest.raises(InputError, match=r"start: PSRO begins .* but seeker has none"):
        psro(configure(model, tmp_path, **start), tmp_path / "both")
    stopped = psro(  # in the same directory: what was refused has not begun
        configure(model, tmp_path, **start, start__seeker=str(trained)),
        tmp_path / "both",
        train=lambda config, directory: False,
    )
    assert stopped is None
    for policy in ("hider", "seeker"):
        kept = (tmp_path / "both" / "member-000" / policy / "adapter_model.safetensors").read_bytes()
        last = trained / "checkpoints" / "step-000002" / policy / "adapter_model.safetensors"
        assert kept == last.read_bytes()
