"""Tree values, compared with the exact values of small random games."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.learn.game_tree import HistoryGame, HistoryStep, Policy
from sparring.learn.tree_values import StateValue, TreeValues

Chance = list[tuple[int, "Node"]]
"""Outcomes with their weights, of which the sum is 4."""
History = tuple[tuple[int, bytes, bytes], ...]


def key(name: object) -> bytes:
    return str(name).encode().ljust(16)


@dataclass
class Node:
    """An end with rewards, a chance node, or a decision: the seat, what it is asked, and what follows."""

    rewards: tuple[float, ...] = ()
    chance: Chance = field(default_factory=list)
    seat: int = 0
    asked: bytes = b""
    after: dict[bytes, "Node"] = field(default_factory=dict)


@dataclass
class SmallGame:
    """A random game in which chance is hidden, or seen by all if every history has a prompt of its own."""

    seed: int
    seats: int = 2
    perfect: bool = False
    explore: float = 0.0
    least: float = 0.3
    policy: dict[bytes, dict[bytes, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.root = self._node(5, ())

    def _node(self, depth: int, history: tuple[object, ...]) -> Node:
        draw = self.draw
        if depth == 0 or (depth < 3 and draw.random() < 0.2):
            return Node(rewards=tuple(draw.choice([-1.0, 0.0, 1.0, 2.0]) for _ in range(self.seats)))
        if depth in (5, 2) or (depth == 3 and draw.random() < 0.3):
            first = draw.choice([1, 2])
            weights = [first, 4 - first]
            return Node(chance=[(w, self._node(depth - 1, (*history, n))) for n, w in enumerate(weights)])
        seat = (4 - depth + self.seed) % self.seats
        label = history if self.perfect else draw.randrange(2)
        asked = key((seat, depth, label))
        answers = [key(0), key(1)]
        if asked not in self.policy:
            first = draw.uniform(self.least, 1 - self.least)
            self.policy[asked] = dict(zip(answers, (first, 1 - first), strict=True))
        after = {answer: self._node(depth - 1, (*history, answer)) for answer in answers}
        return Node(seat=seat, asked=asked, after=after)

    def drawn_from(self, asked: bytes) -> dict[bytes, float]:
        pi = self.policy[asked]
        return {answer: (1 - self.explore) * p + self.explore / len(pi) for answer, p in pi.items()}

    def game(self, draw: random.Random) -> HistoryGame:
        node, decisions = self.root, list[HistoryStep]()
        while not node.rewards:
            if node.chance:
                weights = [weight for weight, _ in node.chance]
                node = draw.choices([one for _, one in node.chance], weights)[0]
            else:
                chances = self.drawn_from(node.asked)
                drawn = draw.choices(list(chances), list(chances.values()))[0]
                decisions.append(HistoryStep(f"seat {node.seat}", node.asked, drawn, chances[drawn]))
                node = node.after[drawn]
        return HistoryGame("small", decisions, self.rewards(node))

    def rewards(self, node: Node) -> dict[str, float]:
        return {f"seat {seat}": reward for seat, reward in enumerate(node.rewards)}

    def games(self, draw: random.Random, number: int) -> list[HistoryGame]:
        return [self.game(draw) for _ in range(number)]

    def all_games(self) -> list[HistoryGame]:
        """512 games in which chance and answers have their shares, the answers half each, as if certain."""

        def play(node: Node, decisions: tuple[HistoryStep, ...], copies: int) -> Iterator[HistoryGame]:
            if node.rewards:
                yield from [HistoryGame("small", decisions, self.rewards(node))] * copies
            for weight, one in node.chance:
                yield from play(one, decisions, copies * weight // 4)
            for drawn, one in node.after.items():
                yield from play(
                    one, (*decisions, HistoryStep(f"seat {node.seat}", node.asked, drawn, 1.0)), copies // 2
                )

        return list(play(self.root, (), 4**3 * 2**3))

    def exact(self, number: int) -> dict[bytes, dict[bytes, float]]:
        """The sum over histories of G x_own(h) (Q(h,a) - V(h)), by what was asked and the answer."""
        shares, sums = defaultdict[History, float](float), dict[History, np.ndarray]()
        wanted = dict[History, tuple[Node, float]]()

        def value(node: Node, history: History, chance: float, reaches: np.ndarray) -> np.ndarray:
            """Return the expected rewards, and add up those of the histories, weighted by chance."""
            if node.rewards:
                return np.array(node.rewards)
            if node.chance:
                parts = [
                    weight / 4 * value(one, history, chance * weight / 4, reaches)
                    for weight, one in node.chance
                ]
                return np.sum(parts, axis=0)
            here, mean = (*history, (node.seat, node.asked, b"")), np.zeros(self.seats)
            wanted[here] = (node, reaches[node.seat])
            for drawn, pi in self.policy[node.asked].items():
                own = reaches * pi
                own[node.seat] = reaches[node.seat] * self.drawn_from(node.asked)[drawn]
                then = (*history, (node.seat, node.asked, drawn))
                q = value(node.after[drawn], then, chance, own)
                sums[then] = sums.get(then, np.zeros(self.seats)) + chance * q
                mean += pi * q
            shares[here] += chance
            sums[here] = sums.get(here, np.zeros(self.seats)) + chance * mean
            return mean

        value(self.root, (), 1.0, np.ones(self.seats))
        total = {asked: dict.fromkeys(answers, 0.0) for asked, answers in self.policy.items()}
        for here, (node, reach) in wanted.items():
            for drawn in node.after:
                gain = sums[*here[:-1], (node.seat, node.asked, drawn)] - sums[here]
                total[node.asked][drawn] += number * reach * float(gain[node.seat])
        return total


def numerators(values: dict[bytes, StateValue]) -> dict[bytes, dict[bytes, float]]:
    """The sums over histories of w(h) (Q(h,a) - V(h))."""
    return {
        asked: {
            answer: advantage * one.weight * (one.games + 0.5) / one.games
            for answer, advantage in one.advantages.items()
        }
        for asked, one in values.items()
    }


def fixed(values: TreeValues, noise: float, seed: int) -> dict[str, torch.Tensor]:
    """A state in which frequencies no longer change, and baselines are wrong by some noise."""
    state = values.state()
    draw = np.random.default_rng(seed)
    state["values"] = state["values"] + torch.from_numpy(draw.normal(0, noise, state["values"].shape))
    return state | {"counts": state["counts"] * 1e9}


def knowing_all(game: SmallGame) -> TreeValues:
    values = TreeValues()
    values.add(game.all_games(), game.policy)
    return values


CASES = [
    SmallGame(1),
    SmallGame(2, seats=3),
    SmallGame(3, explore=0.5, least=0.1),
    SmallGame(4, seats=3, explore=0.5, least=0.1),
]


def assert_unbiased(game: SmallGame, batches: int, number: int) -> None:
    values, draw = knowing_all(game), random.Random(game.seed)
    state, exact = fixed(values, 0.5, game.seed), game.exact(number)
    found = np.zeros((batches, len(exact), 2))
    places = {asked: place for place, asked in enumerate(exact)}
    for batch in range(batches):
        values.load_state(state)
        for asked, answers in numerators(values.add(game.games(draw, number), game.policy)).items():
            found[batch, places[asked]] = list(answers.values())
    expected = np.array([list(answers.values()) for answers in exact.values()])
    error = (found.mean(axis=0) - expected) / (found.std(axis=0) / math.sqrt(batches) + 1e-9)
    assert np.abs(error).max() < 4.5
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("game", CASES[1:3])
def test_the_mean_over_batches_is_exact_whatever_the_baselines_and_the_exploration(game):
    assert_unbiased(game, 600, 6)


@pytest.mark.slow
@pytest.mark.parametrize("game", CASES)
def test_the_mean_over_ten_thousand_batches_is_exact(game):
    assert_unbiased(game, 10_000, 6)


@pytest.mark.parametrize("seats", [2, 3])
def test_with_exact_baselines_the_values_are_exact(seats):
    game = SmallGame(7, seats, perfect=True, explore=0.5, least=0.1)
    values, exact = knowing_all(game), game.exact(1)
    values.load_state(fixed(values, 0.0, 0))
    met = values.add(game.games(random.Random(0), 40), game.policy)
    assert len(met) > 5
    for asked, one in met.items():
        # All of a state's advantages have one factor: how often it is met.
        assert one.known == pytest.approx(1)
        given, wanted = np.array(list(one.advantages.values())), np.array(list(exact[asked].values()))
        scaled = given * (one.games + 0.5) / one.games
        assert scaled * np.abs(wanted).max() == pytest.approx(wanted * np.abs(scaled).max())


def played(*answers: tuple[int, str, str, float], rewards: tuple[float, ...] = (1.0, -1.0)) -> HistoryGame:
    decisions = [HistoryStep(str(seat), key(asked), key(drawn), p) for seat, asked, drawn, p in answers]
    return HistoryGame("hand-made", decisions, {str(seat): reward for seat, reward in enumerate(rewards)})


def policy_of(**prompts: dict[str, float]) -> Policy:
    return {key(asked): {key(answer): p for answer, p in one.items()} for asked, one in prompts.items()}


def known_values(games: list[HistoryGame], policy: Policy) -> tuple[TreeValues, dict[bytes, StateValue]]:
    """The values of games that an earlier batch had, too."""
    values = TreeValues()
    values.add(games, policy)
    return values, values.add(games, policy)


OPENING = policy_of(open={"a": 0.5, "b": 0.5})


def advantages_at(values: dict[bytes, StateValue], asked: str) -> list[float]:
    return list(values[key(asked)].advantages.values())


def test_a_history_that_one_game_meets_for_the_first_time_says_nothing():
    found = TreeValues().add([played((0, "open", "a", 0.5))], OPENING)
    assert advantages_at(found, "open") == [0, 0]
    assert found[key("open")].known == 0


def test_an_answer_that_was_not_given_is_worth_what_was_remembered_of_it():
    values = TreeValues()
    values.add([played((0, "open", "a", 0.5)), played((0, "open", "b", 0.5), rewards=(-1.0, 1.0))], OPENING)
    found = values.add([played((0, "open", "a", 0.5))], OPENING)
    # Q is 1 and -1, one game asked, and so the factor is 1 / (1 + 1/2).
    assert advantages_at(found, "open") == pytest.approx([2 / 3, -2 / 3])
    assert found[key("open")].known == 1


def test_what_differs_from_memory_is_divided_by_the_chance_of_its_being_given():
    values = TreeValues()
    values.add([played((0, "open", "a", 0.5)), played((0, "open", "b", 0.5), rewards=(-1.0, 1.0))], OPENING)
    found = values.add([played((0, "open", "a", 0.5), rewards=(0.0, 0.0))], OPENING)
    # After a, a win and a draw are equally frequent; a draw was not known before.
    q = 1 + (0.5 - 1) / 0.5
    assert advantages_at(found, "open") == pytest.approx([(q + 1) / 3, -(q + 1) / 3])


@pytest.mark.parametrize("unknown", [0, 1, 20])
def test_only_games_of_known_histories_count_in_a_states_advantages(unknown):
    policy = policy_of(reply={"a": 0.5, "b": 0.5})
    known = [
        played((1, "talk", "hello", 0.5), (0, "reply", answer, 0.5), rewards=(reward, -reward))
        for answer, reward in (("a", 1.0), ("b", -1.0))
    ]
    values, _ = known_values(known, policy)
    fresh = [
        played((1, "talk", f"new {n}", 0.25), (0, "reply", answer, 0.5), rewards=(reward, -reward))
        for n in range(unknown)
        for answer, reward in (("a", -5.0), ("b", 5.0))
    ]
    one = values.add([*known, *fresh], policy)[key("reply")]
    assert list(one.advantages.values()) == pytest.approx([2 / 2.5, -2 / 2.5])
    assert one.games == 2 + 2 * unknown
    assert (one.known == pytest.approx(1)) == (not unknown)
    assert one.known > 0


def test_every_seat_is_judged_by_its_own_reward():
    policy = policy_of(open={"a": 0.5, "b": 0.5}, left={"a": 0.5, "b": 0.5})
    rewards = {"aa": (3.0, 0.0), "ab": (1.0, 1.0), "ba": (0.0, 0.0), "bb": (0.0, 0.0)}
    games = [
        played((0, "open", one, 1.0), (1, "left", two, 1.0), rewards=rewards[one + two])
        for one in "ab"
        for two in "ab"
    ]
    _, found = known_values(games, policy)
    assert advantages_at(found, "open") == pytest.approx([4 / 4.5, -4 / 4.5])
    # After b both answers are worth 0; both histories have the same weight.
    assert advantages_at(found, "left") == pytest.approx([-0.25 * 4 / 4.5, 0.25 * 4 / 4.5])


def test_an_answer_that_is_not_legal_is_no_part_of_the_policy():
    games = [
        played((0, "open", "a", 0.4)),
        played((0, "open", "b", 0.4), rewards=(-1.0, 1.0)),
        played((0, "open", "nonsense", 0.2), rewards=(-50.0, 50.0)),
    ]
    values, found = known_values(games, OPENING)
    assert advantages_at(found, "open") == pytest.approx([3 / 3.5, -3 / 3.5])
    again = values.add(games[2:], OPENING)
    assert advantages_at(again, "open") == pytest.approx([1 / 1.5, -1 / 1.5])


def test_what_is_met_only_through_an_answer_that_is_not_legal_has_values():
    policy = policy_of(open={"a": 1.0}, again={"a": 0.5, "b": 0.5})
    games = [
        played((0, "open", "nonsense", 0.3), (1, "again", answer, 0.5), rewards=rewards)
        for answer, rewards in (("a", (0.0, 2.0)), ("b", (0.0, -2.0)))
    ]
    _, found = known_values(games, policy)
    assert advantages_at(found, "again") == pytest.approx([2 * 2 / 2.5, -2 * 2 / 2.5])
    assert advantages_at(found, "open") == [0.0]


def test_a_decision_without_legal_answers_enters_like_chance():
    policy = policy_of(move={"a": 0.5, "b": 0.5})
    games = [
        played((1, "talk", text, 0.01), (0, "move", move, 0.5), rewards=(reward, -reward))
        for text in ("hello", "bye")
        for move, reward in (("a", 1.0), ("b", -1.0))
    ]
    _, found = known_values(games, policy)
    assert found.keys() == {key("move")}
    assert advantages_at(found, "move") == pytest.approx([4 / 4.5, -4 / 4.5])


@pytest.mark.parametrize("changing", [False, True])
def test_how_games_went_on_is_forgotten_if_others_may_change(changing):
    a, b = ((0, "open", answer, 0.5) for answer in "ab")
    won, lost = ((1.0, -1.0), (-1.0, 1.0))
    games = {rewards: [played(a, rewards=rewards), played(b, rewards=(0.0, 0.0))] for rewards in (won, lost)}
    values = TreeValues()
    for rewards in [won] * 30 + [lost] * 10:
        found = values.add([one._replace(changing=changing) for one in games[rewards]], OPENING)
    gain = advantages_at(found, "open")[0] * 2.5 / 2
    assert (gain < -0.35) == changing


def test_games_of_different_names_have_nothing_in_common():
    values = TreeValues()
    values.add([played((0, "open", "a", 0.5))], OPENING)
    found = values.add([played((0, "open", "a", 0.5))._replace(name="another")], OPENING)
    assert found[key("open")].known == 0


def test_no_games_have_no_values():
    assert TreeValues().add([], OPENING) == {}


def test_games_without_legal_answers_have_no_values():
    assert TreeValues().add([played((0, "open", "a", 0.5))], {}) == {}


@given(seed=st.integers(0, 50), seats=st.integers(1, 3), number=st.integers(1, 30))
def test_a_policy_gains_nothing_by_itself_and_the_order_of_games_does_not_matter(seed, seats, number):
    game, draw = SmallGame(seed, seats), random.Random(seed)
    values, others = TreeValues(), TreeValues()
    for _ in range(3):
        games = game.games(draw, number)
        found = values.add(games, game.policy)
        shuffled = others.add(draw.sample(games, len(games)), game.policy)
        assert found.keys() == shuffled.keys() == {one.asked for played in games for one in played.decisions}
        for asked, one in found.items():
            assert sum(game.policy[asked][a] * gain for a, gain in one.advantages.items()) == pytest.approx(0)
            assert list(shuffled[asked].advantages.values()) == pytest.approx(list(one.advantages.values()))
            assert 0 <= one.known <= 1 + 1e-9
            assert one.games == sum(d.asked == asked for played in games for d in played.decisions)


@given(seed=st.integers(0, 50), most=st.sampled_from([3, 20, 1000]))
def test_a_state_that_is_read_back_gives_the_same_values(seed, most):
    game, draw = SmallGame(seed), random.Random(seed)
    values, others = TreeValues(most), TreeValues(most)
    for _ in range(4):
        games = game.games(draw, 8)
        assert others.add(games, game.policy) == values.add(games, game.policy)
        assert len(values) <= most
        others = TreeValues(most)
        others.load_state(values.state())


def test_an_empty_state_is_that_of_the_beginning():
    values = TreeValues()
    assert values.state() == {}
    values.add([played((0, "open", "a", 0.5))], OPENING)
    values.load_state({})
    assert len(values) == 0
    assert values.add([played((0, "open", "a", 0.5))], OPENING)[key("open")].known == 0


def test_the_histories_that_were_met_last_are_remembered():
    policy = policy_of(**{f"deal {n}": {"a": 0.5, "b": 0.5} for n in range(10)})
    games = [played((0, f"deal {n}", "a", 0.5)) for n in range(10)]
    values = TreeValues(most=10)
    for game in games:
        values.add([game], policy)
        assert len(values) <= 10
    # A root and three rows for each of three games.
    assert values.add([games[7]], policy)[key("deal 7")].known == 1
    assert values.add([games[6]], policy)[key("deal 6")].known == 0
