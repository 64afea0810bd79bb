"""The iterations of policy-space response oracles, with responses and payoffs that are known."""

from functools import partial
from itertools import product

import pytest
from open_spiel.python.algorithms import projected_replicator_dynamics

from sparring.config.population import PsroSettings
from sparring.core import SparringError
from sparring.evaluation.psro import Response, find_equilibrium, read_state
from sparring.evaluation.tournament import TournamentResult
from sparring.population import PayoffTable
from sparring.population.rankings import rank
from tournaments import few_resamples  # noqa: F401 - a fixture

MOVES = ("rock", "paper", "scissors")


@pytest.fixture
def few_steps(monkeypatch):
    """Let ``prd`` make 30 steps."""
    few = partial(projected_replicator_dynamics.projected_replicator_dynamics, prd_iterations=30)
    monkeypatch.setattr(projected_replicator_dynamics, "projected_replicator_dynamics", few)


class RockPaperScissors:
    """The first member says rock; a best response is the move that earns most against the mixture. Who say
    different things get ``shared`` more, both of them."""

    def __init__(self) -> None:
        self.moves = {"member-000": "rock"}
        self.games = 3
        self.stops_before = 99
        self.shared = 0.0

    def earns(self, mine: str, other: str) -> int:
        return (MOVES.index(mine) - MOVES.index(other) + 1) % 3 - 1

    def respond(self, number, mixture):
        if number == self.stops_before:
            return None

        def worth(move):
            return sum(weight * self.earns(move, self.moves[name]) for name, weight in mixture.items())

        self.moves[f"member-{number:03d}"] = max(MOVES, key=worth)
        return Response(10, 100)

    def play(self, members):
        table, played = PayoffTable(), []
        pairs = [(one, other) for one in members for other in members if one != other or self.shared]
        for first, second in pairs:
            reward = self.earns(self.moves[first], self.moves[second])
            both = self.shared * (self.moves[first] != self.moves[second])
            for _ in range(self.games):
                played.append(((first, second), (both + reward, both - reward)))
                table.add(len(played), *played[-1])
        return TournamentResult(table, rank(table, members, played), {"the engine died": 2})

    def measure(self, mixture):
        worths = [
            sum(weight * self.earns(move, self.moves[name]) for name, weight in mixture.items())
            for move in MOVES
        ]
        return 2 * max(worths), True

    def solve(self, directory, iterations=3, seen=None):
        return find_equilibrium(
            "rps",
            PsroSettings(iterations=iterations),
            directory,
            seats=2,
            respond=self.respond,
            play=self.play,
            measure=self.measure,
            on_state=(seen if seen is not None else []).append,
        )


def test_best_responses_reach_the_equilibrium(tmp_path):
    game, seen = RockPaperScissors(), []
    found = game.solve(tmp_path, seen=seen)
    assert [*game.moves.values()][:3] == ["rock", "paper", "scissors"]
    assert found.iterations[1].gain.mid == 2
    assert found.iterations[2].mixture == pytest.approx(dict.fromkeys(found.members[:3], 1 / 3), abs=1e-3)
    assert found.iterations[2].nash_conv == pytest.approx(0, abs=1e-3)
    assert [len(state.iterations) for state in seen] == [1, 2, 3, 4]
    assert [one.payoff_games for one in found.iterations] == [0, 6, 18, 36]
    assert read_state(tmp_path) == found


@pytest.mark.parametrize(("shared", "solver"), [(0.0, "nash"), (0.5, "prd")])
def test_the_default_solver_follows_from_what_two_seats_earn_together(shared, solver, tmp_path, few_steps):
    game = RockPaperScissors()
    game.shared, game.games = shared, 4
    assert game.solve(tmp_path, iterations=1).solver == solver


class OddOneOut:
    """Three say A or B; who says it alone gets 2 from the others. The first member says A."""

    def respond(self, number, mixture):
        return Response(1, 1)

    def play(self, members):
        table = PayoffTable()
        for number, seating in enumerate(product(members, repeat=3)):
            said = [int(one[-1]) % 2 for one in seating]
            rewards = [0.0] * 3
            if 0 < sum(said) < 3:
                rewards = [2.0 if said.count(one) == 1 else -1.0 for one in said]
            for game in range(4):
                table.add(4 * number + game, seating, rewards, deal=game)
        return TournamentResult(table, rank(table, members, []), {})

    def measure(self, mixture):
        return None, True


def test_three_seats_draw_from_one_mixture(tmp_path, few_steps):
    game, settings = OddOneOut(), PsroSettings(iterations=2)
    calls = {name: getattr(game, name) for name in ("respond", "play", "measure")}
    found = find_equilibrium("odd", settings, tmp_path, seats=3, on_state=lambda state: None, **calls)
    assert found.solver == "prd"
    _, second, third = found.iterations
    assert second.gain.mid == 6, "in each seat, B gets 2 from two who say A"
    assert second.mixture == {"member-000": 0.5, "member-001": 0.5}
    assert third.gain.mid == pytest.approx(0)
    assert [one.payoff_games for one in found.iterations] == [0, 4 * 8, 4 * 27]
    assert found.payoffs[0][1][1] == 2
    assert found.payoffs[0][0][1] == found.payoffs[0][1][0] == -1
    assert found.matrix.mean_MM.tolist() == [[0, 2, 0], [2, 0, 2], [0, 2, 0]]
    assert read_state(tmp_path) == found


def test_what_was_interrupted_goes_on_and_ends_as_one_left_alone(tmp_path):
    game = RockPaperScissors()
    game.stops_before = 2
    assert game.solve(tmp_path / "here") is None
    assert len(read_state(tmp_path / "here").iterations) == 2
    game.stops_before = 99
    assert game.solve(tmp_path / "here") == RockPaperScissors().solve(tmp_path / "there")


def test_a_pair_without_enough_games_is_an_error_with_the_reason(tmp_path):
    game = RockPaperScissors()
    game.games = 1
    with pytest.raises(SparringError, match="did not finish four games: the engine died"):
        game.solve(tmp_path)
