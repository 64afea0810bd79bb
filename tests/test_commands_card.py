"""The exploitability card: of an agent behind an API, of a program's role, its page and its calibration."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from paid_server import paid_server
from sparring.cli.main import Exit, main
from sparring.commands import best_response
from sparring.commands.calibrate import GAMES, counterfactual, make_table, mixed, training_of, uniform
from sparring.commands.card import calibrated_as
from sparring.commands.exploit import Budget
from sparring.commands.measuring import Measuring
from sparring.core import InputError
from sparring.core.confidence_intervals import Interval
from sparring.envs.openspiel_game import load_game
from sparring.evaluation import calibration
from sparring.evaluation.best_response import Exploited, SeatGain
from sparring.evaluation.calibration import Calibration, CalibrationCell, kind_of, shipped, summary_of
from sparring.evaluation.exploitability_card import Calibrated, ExploitabilityCard
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import nash_conv_of_table, states_of
from sparring.evaluation.results import NashConvResult
from sparring.run.checks import check_config

KUHN = "kuhn_poker"
NONE = Interval(0.0, 0.0, 0.0)
DEBATE = """
[program]
type = "debate"
topics = ["Zoos should be closed", "Museums should be free"]
num_rounds = 1
max_tokens = 2
batch_size = 2
debates_per_topic = 2
judge_by_score = true
evaluation_debates = 2
[lora]
rank = 2
[learning.algorithm]
regulariser = "none"
"""


@pytest.fixture
def card(playing, tmp_path, monkeypatch):
    """Write a card with a small budget; return the exit status."""
    monkeypatch.chdir(tmp_path)

    def write(agent, *options, updates=1, games=8, games_per_step=4, out="card"):
        words = ["--updates", updates, "--games", games, "--out", out, *options]
        if "--program" not in options:
            words += ["--env", KUHN, "--games-per-step", games_per_step]
        return main(["card", agent, *map(str, words)])

    return write


def written():
    return json.loads(Path("card/card.json").read_text())


def test_a_card_of_a_model_behind_an_api_stays_within_its_calls_and_pays_for_nothing_twice(card, capsys):
    with paid_server() as server:
        assert card(server.name, "--calls", "48", games=60) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "at most 48 calls; answers of at most 64 tokens, 3,072 in all" in said
        assert "The calls were used up" in said
        few = written()
        assert len(server.asked) == few["calls"] == 48
        assert 0 < few["rounds"] < few["planned_rounds"] == 30
        assert card(server.name, "--calls", "500", games=60) == 0
        whole = written()
        assert len(server.asked) == whole["calls"] < 500
        assert whole["rounds"] == 30
        capsys.readouterr()
        assert card(server.name, "--calls", "10", games=60) == Exit.BAD_INPUT
        said = capsys.readouterr().err
        assert f"--calls: is 10, but {whole['calls']} calls were made already. Give {whole['calls']}" in said
    page = Path("card/card.html").read_text()
    assert page.count("Calibration of this probe") == 1
    assert page.index("<th>Gain</th>") < page.index("<th>Policy</th>"), "a narrow screen shows the gains"
    assert "Content-Security-Policy" in page
    assert 1 <= page.count('<details class="game"') <= 6
    assert [page.count(f"<h3>The response in seat {seat}</h3>") for seat in range(2)] == [1, 1]
    asked = [(json.dumps(one["messages"]), one["seed"]) for one in server.asked]
    assert len({*asked}) == len(asked), "nothing is paid for twice"


def test_a_card_of_a_judge_says_what_a_debater_gains_that_learned_against_it(card, playing, capsys):
    Path("debate.toml").write_text(f'model = {{name = "{playing}", threads = 1}}\n{DEBATE}')
    assert card("base", "--program", "debate.toml", "--role", "judge", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["role"]) == ("exploitability_card", "judge")
    assert [one["seat"] for one in found["seats"]] == ["Aff", "Neg"]
    assert {one["name"] for one in found["measures"]} == {"unjudged", "won by Aff", "words a turn"}
    assert found["calibration"]["summary"] is None
    assert card("base", "--program", "debate.toml", "--role", "Nobody") == 2
    assert "the program has no role Nobody. It has: Aff, Neg" in capsys.readouterr().err
    assert card("a@http://127.0.0.1:1/v1", "--program", "debate.toml", "--role", "judge") == 2
    assert "scores no verdicts" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["card", "exploit"])
def test_a_command_whose_training_was_interrupted_says_by_its_status_that_there_is_no_result(
    command, playing, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(best_response, "train_to_the_end", lambda config, directory, console: False)
    Path("debate.toml").write_text(f'model = {{name = "{playing}", threads = 1}}\n{DEBATE}')
    words = [command, "base", "--program", "debate.toml", "--role", "judge", "--out", "out"]
    assert main(words) == Exit.INTERRUPTED


def cell(exact, found, game=KUHN, **others):
    fields = {"perfect_information": False, "states": 12, "players": 2, "unit": 4.0, "policy": "p"}
    budget = {"settled": True, "training_games": 40_960, "seconds": 1.0}
    spread = 0.05
    interval = (found - spread, found, found + spread)
    return CalibrationCell(game=game, exact=exact, found=interval, **(fields | budget | others))


def test_a_table_is_summed_up_by_ranks_recovery_and_what_cannot_be():
    cells = [cell(0.0, 0.0), cell(0.5, 0.45), cell(1.0, 0.7), cell(2.0, 1.9), cell(0.2, 0.3)]
    found = summary_of(cells)
    assert found.rank_correlation == pytest.approx(1.0)
    assert found.median_recovery == pytest.approx((0.9 + 0.95) / 2), "an exact gain of 0 has no share"
    assert (found.cells, found.games, found.above) == (5, 1, 1)
    assert summary_of(cells[:2]).rank_correlation is None
    assert msgspec.json.decode(Calibration(cells).to_bytes(), type=Calibration).cells == cells


def exploited(total=NONE, **others):
    return Exploited(
        **{"seats": [SeatGain("0", 20, NONE, NONE, total)], "total": total, "rounds": 20, "failures": {}},
        **{"planned_rounds": 20, "env_id": KUHN, "model": "m", "settled": False, "training_games": 1000},
        **{"minutes": 0.1, "exact": None} | others,
    )


@pytest.mark.parametrize(
    ("legal", "played", "share"), [(1.0, None, 0.8), (0.9, None, None), (0.9, [0.6, 1.0], 0.5)]
)
def test_a_share_is_of_what_can_be_gained_in_the_games(legal, played, share):
    exact = NashConvResult(
        env_id=KUHN,
        model="m",
        nash_conv=1.0,
        exploitability=[0.5, 0.5],
        values=[0.0, 0.0],
        best_response_values=[0.5, 0.5],
        legal_mass=legal,
        min_legal_mass=legal,
        policy={},
        observations={},
        played_gains=played,
    )
    found = exploited(Interval(0.7, 0.8, 0.9), exact=exact)
    assert ExploitabilityCard(found, [], [], Calibrated(None, None, "")).share_of_exact == share


@pytest.mark.parametrize(
    ("cells", "positions", "said"),
    [
        ([], 12, "the table of this package is empty"),
        ([cell(1.0, 0.9, players=3)], 12, "no game of the table has imperfect information, 2 players"),
        ([cell(1.0, 0.9)], None, "this one is a model"),
        ([cell(1.0, 0.9)], 12, "had 40,960 games or more"),
        ([cell(1.0, 0.9, training_games=500)], 12, ""),
    ],
)
def test_a_card_says_how_far_its_response_is_calibrated_on_games_of_its_kind(
    cells, positions, said, monkeypatch
):
    from sparring.commands import card as made

    monkeypatch.setattr(made, "shipped", lambda: Calibration(cells))
    found = calibrated_as(exploited(positions=positions), of_game=True)
    assert said in found.problem
    assert bool(said) == bool(found.problem)
    assert (found.summary is None) == found.problem.startswith("Not calibrated: ")


def test_the_shipped_table_can_be_read_and_kinds_of_games_are_told_apart(monkeypatch):
    def too_many(env_id):
        raise InputError("env.id", "has more than 50,000 information states", "Choose another")

    assert all(one.found[0] <= one.found[1] <= one.found[2] for one in shipped().cells)
    assert str(kind_of(KUHN)) == "imperfect information, 2 players, 1 to 100 information states"
    assert kind_of("nim(pile_sizes=1;3)").perfect_information
    monkeypatch.setattr(calibration, "states_of", too_many)
    assert kind_of("nim(pile_sizes=1;3)").size == len(calibration.SIZES)
    assert kind_of("TicTacToe-v0-train") is None


def test_policies_of_the_table_reach_from_random_to_near_an_equilibrium():
    def distance(policy):
        return nash_conv_of_table(
            KUHN, [[policy[one.info_state][action] for action in one.actions] for one in states_of(KUHN)]
        )

    near = counterfactual(KUHN, 256)
    distances = [distance(one) for one in (uniform(KUHN), mixed(uniform(KUHN), near, 0.5), near)]
    assert distances[0] == pytest.approx(nash_conv_of_table(KUHN))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.05


@pytest.mark.parametrize("env_id", GAMES)
def test_the_short_training_of_the_table_is_a_configuration_in_every_game(env_id):
    config = training_of(env_id)
    check_config(config)
    assert (config.envs[0].id, config.envs[0].num_players) == (env_id, load_game(env_id).num_players())
    assert config.learning.max_generation_len == config.inference.max_tokens


def test_a_table_that_is_stopped_goes_on_and_measures_no_cell_again(tmp_path):
    class Saying(Progress):
        def __init__(self, most):
            self.lines, self.most = [], most

        def say(self, line):
            self.lines += [line] if "cell" in line else []
            if len(self.lines) == self.most:
                raise KeyboardInterrupt

    budget, games, policies = Budget(1, 40, 40), (KUHN,), ("uniform", "cfr-4", "cfr-256")

    def made(directory, progress):
        return make_table(tmp_path / directory, budget, None, progress, games, policies)

    with pytest.raises(KeyboardInterrupt):
        made("table", Saying(2))
    progress = Saying(9)
    found = msgspec.json.decode(made("table", progress).read_bytes(), type=Calibration).cells
    assert progress.lines == ["kuhn_poker, cfr-4: cell 2 of 3", "kuhn_poker, cfr-256: cell 3 of 3"]
    assert found[0].exact == pytest.approx(nash_conv_of_table(KUHN))
    with pytest.raises(InputError, match="has cells of another budget"):
        make_table(tmp_path / "table", Budget(2, 40, 40), None, progress, games, policies)
    whole = msgspec.json.decode(made("whole", Progress()).read_bytes(), type=Calibration).cells
    assert [replace(one, seconds=0) for one in found] == [replace(one, seconds=0) for one in whole]


def test_a_card_that_was_stopped_goes_on_and_finds_the_same(card, tmp_path, monkeypatch, capsys):
    budget = {"games_per_step": 1200, "games": 40}
    assert card("random", **budget, out="whole") == 0

    async def stop(*asked, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Measuring, "gains", stop)  # killed after it has learned, before it looks
        assert card("random", **budget) == Exit.INTERRUPTED
    assert "interrupted: give this command again" in capsys.readouterr().out
    assert card("random", **budget) == 0
    whole, found = (json.loads(Path(one, "card.json").read_text()) for one in ("whole", "card"))
    assert {**found, "minutes": 0} == {**whole, "minutes": 0}
    assert found["curve"][-1][0] == found["training_games"] == 1200
    assert card("random", **budget) == 0
    assert {**written(), "minutes": 0} == {**whole, "minutes": 0}, "it goes on where it has ended, too"
    assert card("random", **budget | {"games_per_step": 2400}) == 0
    assert [games for games, *_ in written()["curve"]] == [300, 600, 900, 1800, 2400]


@pytest.mark.parametrize(("script", "exact"), [("always-first", 2.0), ("random", 11 / 12)])
def test_the_exact_value_beside_a_script_is_that_of_what_it_does(script, exact, card):
    assert card(script) == 0
    assert written()["exact"]["nash_conv"] == pytest.approx(exact)


@pytest.mark.parametrize("name", ["question.json", "learned.json", "seat-0.json", "seat-1.json"])
def test_a_changed_digit_of_what_a_card_goes_on_from_is_noticed(name, card, capsys):
    assert card("random") == 0
    file = Path("card", name)
    before, digit, after = re.split(r"(\d)(?=\D*\Z)", file.read_text())
    file.write_text(f"{before}{(int(digit) + 1) % 10}{after}")
    assert card("random") == Exit.BAD_INPUT
    assert f"{name}: is damaged" in capsys.readouterr().err


def test_a_card_of_another_agent_does_not_go_on_with_the_responses_to_the_first(card, capsys):
    assert card("random") == 0
    assert card("optimal") == 2
    assert "responses to another agent, game or seed" in capsys.readouterr().err
    assert card("random", "--start", "base", out="other") == 2
    assert "--start: is for responses that are models" in capsys.readouterr().err
