"""Training does not fail silently: a batch's learnable share is measured, and a warning says if it is 0."""

import io
import math

import pytest
from rich.console import Console

from game_runs import configure, metrics_of, run
from program_files import write_program
from program_runs import SMALL
from sparring.config import load_config
from sparring.core import TrainingRecord
from sparring.run.metrics import answer_figures
from sparring.run.single_process import train
from sparring.view.findings.warnings import WarningLog, warnings_of


def record(role, advantage, logprobs, *, reason="stop", policy="default"):
    tokens = list(range(len(logprobs)))
    return TrainingRecord(
        role_id=role,
        rollout_id="r",
        prompt_token_ids=[1],
        completion_token_ids=tokens,
        logprobs=logprobs,
        reward=0.0,
        advantage=advantage,
        meta={"finish_reason": reason},
        policy=policy,
    )


def test_figures_of_answers_cover_all_answers_and_those_of_each_role():
    half = math.log(0.5)
    figures = answer_figures(
        [
            record("Solver", 0.0, [half] * 4, reason="length"),
            record("Solver", 1.0, [half] * 2),
            record("Judge", 1e-12, [0.0] * 6, reason="length"),
        ]
    )
    assert figures == {
        "answers/zero_advantage_share": 2 / 3,
        "answers/cut_share": 2 / 3,
        "answers/tokens": 4,
        "answers/entropy_estimate": pytest.approx(math.log(2) / 2),
        "answers/zero_advantage_share/Judge": 1,
        "answers/cut_share/Judge": 1,
        "answers/tokens/Judge": 6,
        "answers/entropy_estimate/Judge": 0,
        "answers/zero_advantage_share/Solver": 0.5,
        "answers/cut_share/Solver": 0.5,
        "answers/tokens/Solver": 3,
        "answers/entropy_estimate/Solver": pytest.approx(math.log(2)),
        "answers/advantage_share/Judge": pytest.approx(0, abs=1e-9),
        "answers/advantage_share/Solver": pytest.approx(1),
    }
    assert answer_figures([]) == {}


def test_a_role_has_its_share_of_the_advantages_of_all_tokens():
    records = [
        record("Solver", -0.5, [0.0] * 4),
        record("Solver", 1.0, [0.0]),
        record("Chooser", 0.25, [0.0] * 4),
        record("Judge", 9.0, [0.0] * 9, policy="judge"),
    ]
    figures = answer_figures(records, judged=["judge"])
    share = {name.rpartition("/")[2]: one for name, one in figures.items() if "advantage_share/" in name}
    assert share["Solver"] == 3 / 4
    assert share["Chooser"] == 1 / 4
    assert "answers/advantage_share/Solver" not in answer_figures(records[:2])


def test_random_legal_answers_are_counted_apart():
    half = math.log(0.5)
    drawn, explored = record("Solver", 1.0, [half] * 2), record("Solver", 0.0, [-9.0] * 8, reason="length")
    explored.meta["explored"] = True
    drawn.meta["explored"] = False
    figures = answer_figures([drawn, explored, drawn])
    assert figures["answers/explored_share"] == pytest.approx(1 / 3)
    assert figures["answers/zero_advantage_share"] == pytest.approx(1 / 3)
    assert figures["answers/cut_share"] == 0
    assert figures["answers/tokens"] == 2
    assert figures["answers/entropy_estimate"] == pytest.approx(math.log(2))
    assert "answers/explored_share" not in answer_figures([drawn])
    assert figures.keys() - answer_figures([explored]).keys() == {
        f"answers/{name}{role}"
        for name in ("cut_share", "tokens", "entropy_estimate")
        for role in ("", "/Solver")
    }


def test_rewards_of_0_are_not_advantages_of_0_where_a_policy_has_a_critic():
    judged, plain = record("A", 0.0, [0.0], policy="judged"), record("B", 0.0, [0.0])
    figures = answer_figures([judged, judged, judged, plain], {"judged"})
    assert figures["answers/zero_advantage_share"] == 0.25
    assert figures["answers/zero_advantage_share/B"] == 1
    assert "answers/zero_advantage_share/A" not in figures
    assert [str(one).partition(",")[0] for one in warnings_of(figures)] == ["every advantage of B is 0"]
    assert "answers/zero_advantage_share" not in answer_figures([judged], {"judged"})


def test_a_run_with_a_critic_does_not_warn_of_rewards_of_0(model, tmp_path):
    # Every game is a draw, and the critic's values are not 0 after the first update.
    draws = '[{type = "win_draw_loss", win = 0.0, loss = 0.0}]'
    changes = {"learning__critic": "{}", "learning__steps": "2", "evaluation__every": "0"}
    config = configure(model, rewards__final=draws, **changes)
    assert "every advantage" not in run(config, tmp_path / "run")
    assert not any("answers/zero_advantage_share" in line for line in metrics_of(tmp_path / "run"))


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"answers/zero_advantage_share": 1.0, "learner/grad_norm": 0.0}, "every advantage is 0"),
        ({"answers/zero_advantage_share/Judge": 1.0}, "every advantage of Judge is 0"),
        ({"learner/grad_norm": 0.0}, "the gradient is 0"),
        ({"learner/hider/grad_norm": 0.0}, "the gradient of hider is 0"),
        ({"answers/cut_share/Solver": 0.75}, "75% of the answers of Solver are cut at the token limit"),
        (
            {"answers/endless_reasoning_share/Solver": 0.75, "answers/cut_share/Solver": 0.25},
            "75% of the answers of Solver are thoughts without an end, which say nothing",
        ),
        ({"program/equal_group_share": 0.5}, "50% of the groups have equal rewards"),
        (
            {"accounts/started": 4, "accounts/raised NameError": 3},
            "75% of the games ended because the game raised an error on a move, mostly NameError",
        ),
        ({"program/rewarded_without_step/Judge": 3.0}, "Judge gets rewards but has no step"),
    ],
)
def test_a_warning_is_printed_once_with_advice(metrics, words):
    log = WarningLog()
    (warning,) = log.new(metrics)
    assert warning.text.startswith(words)
    assert warning.advice
    assert log.new(metrics) == []


@pytest.mark.parametrize(
    ("cut", "going_on", "words"),
    [
        (0.9, 0.0, "raise inference.max_tokens (and the role's max_tokens), or ask for shorter answers"),
        (0.9, 0.4, "raise inference.max_tokens (and the role's max_tokens), or ask for shorter answers"),
        (
            0.9,
            0.6,
            "most begin with a legal move and go on, because the model does not end its turn",
        ),
        (
            1.0,
            0.0,
            "raise inference.max_tokens (and the role's max_tokens), or ask for shorter answers; if",
        ),
    ],
)
def test_advice_on_cut_answers_looks_at_why_they_were_cut(cut, going_on, words):
    metrics = {"answers/cut_share/player_0": cut, "answers/cut_share/player_1": 0.1}
    metrics["answers/going_on_share/player_0"] = going_on
    (warning,) = warnings_of(metrics)
    assert warning.advice.startswith(words)
    assert ("stop, a text that ends answers, in [[envs]]" in warning.advice) == (going_on > 0.45 or cut == 1)


def test_answers_that_go_on_after_a_legal_move_are_a_figure_of_the_update():
    going_on = record("Solver", 1.0, [0.0], reason="length")
    going_on.meta["goes_on"] = True
    figures = answer_figures([going_on, record("Solver", 1.0, [0.0]), record("Judge", 1.0, [0.0])])
    assert figures["answers/going_on_share"] == pytest.approx(1 / 3)
    assert figures["answers/going_on_share/Solver"] == 0.5
    assert "answers/going_on_share/Judge" not in figures


def test_a_warning_that_all_advantages_are_0_is_not_repeated_for_one_role():
    share = "answers/zero_advantage_share"
    log = WarningLog()
    assert len(log.new({share: 1.0, f"{share}/Judge": 1.0, f"{share}/Solver": 1.0})) == 1
    assert log.new({share: 0.5, f"{share}/Judge": 1.0, f"{share}/Solver": 0.0}) == []


def test_an_update_that_learned_gives_no_warning():
    learned = {
        "answers/zero_advantage_share": 0.9,
        "answers/zero_advantage_share/Solver": 0.9,
        "answers/cut_share/Solver": 0.5,
        "program/equal_group_share": 0.49,
        "learner/grad_norm": 1e-6,
    }
    assert warnings_of(learned) == []


def test_games_have_figures_of_their_answers_by_seat(model, tmp_path):
    said = run(configure(model, learning__steps="2"), tmp_path / "run")
    last = metrics_of(tmp_path / "run")[-1]
    for name in ("zero_advantage_share", "cut_share", "tokens", "entropy_estimate"):
        of_seats = [value for key, value in last.items() if key.startswith(f"answers/{name}/player_")]
        assert min(of_seats) - 1e-9 <= last[f"answers/{name}"] <= max(of_seats) + 1e-9
    assert 0 < last["answers/entropy_estimate"] <= math.log(400)  # the tiny model has fewer tokens
    assert 1 <= last["answers/tokens"] <= 4
    assert "no advantage " in said


def program_run(model, tmp_path, changes):
    file = write_program(tmp_path)
    source = file.read_text()
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    file.write_text(source)
    (tmp_path / "program.toml").write_text(f'[program]\ntype = "python"\npath = "{file}:HideAndSeek"\n')
    said = io.StringIO()
    config = load_config(str(tmp_path / "program.toml"), SMALL | {"model.name": str(model)})
    train(config, tmp_path / "run", Console(file=said, width=200))
    return said.getvalue(), metrics_of(tmp_path / "run")


def test_a_program_without_a_signal_warns_once(model, tmp_path):
    said, metrics = program_run(model, tmp_path, {"sign * sum(ord(letter)": "0 * sum(ord(letter)"})
    assert [line["answers/zero_advantage_share"] for line in metrics] == [1.0] * 4
    assert [line["program/equal_group_share"] for line in metrics] == [1.0] * 4
    assert said.count("every advantage is 0") == 1
    assert "warning after update 1: every advantage is 0" in said


def test_a_role_with_rewards_but_no_step_is_reported(model, tmp_path):
    text, waits = "text = rollout.steps[-1].completion_text", "state.child_results += await"
    changes = {
        text: f"{text} if rollout.steps else 'a'",
        waits: f"state.trajectory.pop()\n        {waits}",
    }
    said, metrics = program_run(model, tmp_path, changes)
    assert metrics[0]["program/rewarded_without_step/Hider"] == 4
    assert said.count("Hider gets rewards but has no step") == 1


def test_the_duration_of_every_evaluation_is_in_the_metrics(model, tmp_path):
    said = run(configure(model, learning__steps="3", evaluation__every="2"), tmp_path / "run")
    evaluated = ["time/evaluation_seconds" in line for line in metrics_of(tmp_path / "run")]
    assert evaluated == [True, True, True]  # before the first update, after the second, after the last
    assert "update    3: " in said
