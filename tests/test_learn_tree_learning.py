"""Learners whose values are those of the tree of games."""

import random
from dataclasses import replace

import pytest
import torch

from magnet_records import answer_logprobs
from sparring.collection import StepBuffer, records_from_steps
from sparring.core import InputError, SparringError, Step, TrainingRecord, Trajectory
from sparring.learn.action_values import key_of
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.learner import Learner
from sparring.learn.policy import TRAINED
from sparring.learn.recorded_games import RecordedGames
from sparring.learn.tree_values import TreeValues
from sparring.learn.trie import bytes_of
from sparring.run.learners import learn
from sparring.view.findings.warnings import warnings_of
from tiny_models import algorithm_of, constant, make_record, tiny_policy
from tree_records import BET, MOVES, PASS, move, played, tree_games

KINDS = [(AllActions, {"gradient": "neurd"}), (Magnet, {"eta": 1.0})]


def learner_of(kind: type[BaseAlgo], values: str = "tree", minibatches: int = 1, **options) -> Learner:
    settings = constant(3e-3, momentum=0.8, minibatches=minibatches)
    return Learner(tiny_policy(), algorithm_of(kind, values=values, **options), settings)


def weights(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.policy.adapter_parameters()]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "second" not in name}


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_learner_that_is_read_back_goes_on_as_if_nothing_had_happened(kind, options):
    learner, other = learner_of(kind, **options), learner_of(kind, **options)
    for seed in range(2):
        learner.update(tree_games(seed, 6))
    other.load_tensors(learner.tensors(), learner.version, learner.samples_seen)
    metrics = learner.update(tree_games(2, 6))
    assert without_times(other.update(tree_games(2, 6))) == without_times(metrics)
    assert equal(weights(learner), weights(other))
    assert metrics["tree_share"] > 0.5


def test_a_failed_update_leaves_the_tree_as_it_was():
    settings = constant(3e-3, max_mismatch=20.0)
    learner = Learner(tiny_policy(), algorithm_of(AllActions, values="tree"), settings)
    learner.update(tree_games(0, 6))
    before = learner.tensors()
    impossible = [replace(record, logprobs=[-50.0] * len(record.logprobs)) for record in tree_games(1, 6)]
    with pytest.raises(SparringError, match="engine and learner disagree"):
        learner.update(impossible)
    after = learner.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_histories_that_were_never_met_have_the_values_of_returns(kind, options):
    by_tree, by_returns = learner_of(kind, **options), learner_of(kind, "returns", **options)
    for learner in (by_tree, by_returns):
        learner.update(tree_games(0, 6))
    assert equal(weights(by_tree), weights(by_returns))
    for learner in (by_tree, by_returns):
        learner.update(tree_games(1, 6))
    assert not equal(weights(by_tree), weights(by_returns))


def test_games_with_rewards_on_the_way_have_the_values_of_returns():
    def games(seed: int) -> list[TrainingRecord]:
        return [
            replace(
                move(f"{seed}-{game}", place, [1, 2, place], drawn, 1.0), role_id="one", reward=0.5 * place
            )
            for game, drawn in enumerate(MOVES)
            for place in range(2)
        ]

    by_tree, by_returns = learner_of(AllActions), learner_of(AllActions, "returns")
    for seed in range(2):
        assert by_tree.update(games(seed))["tree_share"] == 0
        by_returns.update(games(seed))
    assert equal(weights(by_tree), weights(by_returns))


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize(
    ("values", "stake", "warns"), [("tree", 1.0, False), ("tree", 0.0, True), ("returns", 1.0, True)]
)
def test_advantages_of_0_are_warned_of_unless_the_tree_finds_other_values(values, stake, warns, minibatches):
    learner = learner_of(AllActions, values, minibatches, memory=0.0)
    said = []
    for seed in range(2):
        games = [replace(one, advantage=0.0, reward=stake * one.reward) for one in tree_games(seed, 6)]
        figures = learn(
            {"default": learner}, {"default": games}, lambda _, some: learner.update(some)
        ).figures
        said = [one.text for one in warnings_of(figures)]
    assert said == ["every advantage is 0, so the rewards teach nothing"] * warns


@pytest.mark.parametrize("minibatches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_learner_learns_what_a_better_reply_would_have_earned(minibatches):
    # A bet of seat 1 is good after a pass and bad after a bet, whatever the card, which decides most.
    policy_of = {BET[1]: -1.0, PASS[1]: 1.0}

    def games(seed: int) -> list[TrainingRecord]:
        records = tree_games(seed, 8)
        gain = {}
        for record in records:
            if record.place == 1 and record.completion_token_ids == BET:
                gain[record.rollout_id] = policy_of[record.prompt_token_ids[2]]
        changed = []
        for record in records:
            sign = 1.0 if record.place == 1 else -1.0
            reward = record.reward + 2 * sign * gain.get(record.rollout_id, 0.0)
            changed.append(replace(record, reward=reward, advantage=reward))
        return changed

    learner = learner_of(AllActions, minibatches=minibatches, gradient="neurd", alpha=0.2)

    def preference(after: list[int]) -> float:
        logprobs = answer_logprobs(learner.policy, TRAINED, [9, 8, after[1]], MOVES).detach()
        return float(logprobs[0] - logprobs[1])

    before = {after[1]: preference(after) for after in MOVES}
    for seed in range(25):
        learner.update(games(seed))
    assert preference(PASS) - before[PASS[1]] > preference(BET) - before[BET[1]] + 0.5


@pytest.mark.parametrize("others", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_first_move_that_wins_at_once_is_learned(others):
    # If seat 0 bets, it has won; if it passes, seat 1 moves and wins.
    draw = random.Random(0)

    def games(batch: int) -> list[TrainingRecord]:
        records = list[TrainingRecord]()
        for number in range(8):
            name, first = f"{batch}-{number}", MOVES[number % 2]
            won = 1.0 if first == BET else -1.0
            records.append(move(name, 0, [1, 2, 3], first, won))
            if first == PASS:
                records.append(move(name, 1, [9, 8, 7], draw.choice(MOVES), -won))
        return [replace(record, meta={"others": others}) for record in records]

    learner = learner_of(AllActions, gradient="neurd", alpha=0.2)

    def preference() -> float:
        logprobs = answer_logprobs(learner.policy, TRAINED, [1, 2, 3], MOVES).detach()
        return float(logprobs[0] - logprobs[1])

    before = preference()
    for batch in range(25):
        learner.update(games(batch))
    assert preference() > before + 1


@pytest.mark.parametrize("others", [False, True])
def test_how_others_play_is_forgotten_if_several_seats_are_the_learners(others):
    # Seats 0 and 2 are the learner's. Seat 1 is another policy's, which first lets a bet win, and later not.
    def games(batch: int) -> list[TrainingRecord]:
        draw, records = random.Random(batch), list[TrainingRecord]()
        for number in range(16):
            name, first, last = f"{batch}-{number}", draw.choice(MOVES), draw.choice(MOVES)
            won = 1.0 if (first == BET) == (batch < 30) else -1.0
            third = move(name, 2, [9, 8, first[1]], last, -won)
            records += [move(name, 0, [1, 2, 3], first, won), replace(third, role_id="player_2")]
        return [replace(record, meta={"others": others}) for record in records]

    values = TreeValues()
    for batch in range(38):
        recorded = RecordedGames(games(batch))
        (opening,) = {one.decisions[0].asked for one in recorded.games}
        legal = {key_of(bytes_of(answer)): 0.5 for answer in MOVES}
        policy = {one.asked: legal for game in recorded.games for one in game.decisions}
        found = values.add(recorded.games, policy)
    assert (found[opening].advantages[key_of(bytes_of(BET))] < -0.3) == others


def test_the_state_of_a_learner_by_the_tree_is_not_that_of_one_by_returns():
    learner, other = learner_of(AllActions), learner_of(AllActions, "returns")
    learner.update(tree_games(0, 4))
    with pytest.raises(InputError, match="the saved state is of another algorithm"):
        other.load_tensors(learner.tensors(), 1, 8)


def test_a_game_has_its_answers_in_the_order_of_their_places():
    games = RecordedGames(reversed([*played("one", 0, BET, PASS), *played("two", 1, PASS, BET)])).games
    assert [[one.seat for one in game.decisions] for game in games] == [["player_0", "player_1"]] * 2
    assert [game.rewards for game in games] == [
        {"player_0": 2.0, "player_1": -2.0},
        {"player_0": -2.0, "player_1": 2.0},
    ]
    assert all(one.chance == pytest.approx(0.5) for game in games for one in game.decisions)


def trajectories(game: str, *, with_places: bool) -> list[Trajectory]:
    """The trajectories of both seats of a game in which seat 0 moves first and third."""
    own: dict[int, list[Step]] = {0: [], 1: []}
    for place in range(3):
        record = move(game, place, [1, 2, place], MOVES[place % 2], 1.0)
        ids = {"prompt_token_ids": record.prompt_token_ids, "completion_token_ids": MOVES[place % 2]}
        step = Step(f"player_{place % 2}", [], [], completion_logprobs=record.logprobs, **ids)
        own[place % 2].append(step)
    places = {0: [0, 2], 1: [1]} if with_places else {0: [], 1: []}
    return [
        Trajectory(pid, "small", 1.0, steps, rollout_id=game, role_id=f"player_{pid}", places=places[pid])
        for pid, steps in own.items()
    ]


@pytest.mark.parametrize("seats", [1, 2])
@pytest.mark.parametrize("with_places", [False, True])
def test_trajectories_of_ones_own_are_games_if_they_tell_the_order_of_their_steps(seats, with_places):
    buffer = StepBuffer(100)
    for game in ("one", "two"):
        for trajectory in trajectories(game, with_places=with_places)[:seats]:
            buffer.add_player_trajectory(trajectory, "small")
    games = RecordedGames(records_from_steps(buffer.get_batch(buffer.size()))).games
    seated = [["player_0", "player_1", "player_0"], ["player_0", "player_0"]][2 - seats :]
    known = with_places or seats == 1
    assert [[one.seat for one in game.decisions] for game in games] == (seated[:1] * 2 if known else [])


def test_an_answer_that_explored_was_drawn_from_both():
    (record,) = [replace(played("one", 0, BET, PASS)[0], meta={"explore": 0.2})]
    ((decision,),) = [game.decisions for game in RecordedGames([record]).games]
    assert decision.chance == pytest.approx(0.8 * 0.5 + 0.2 / 2)


@pytest.mark.parametrize("own", ["boldly", None, [0.2], True, 7, -0.2, float("nan")])
def test_what_a_program_notes_as_explore_is_no_share_of_random_answers(own):
    (record,) = [replace(played("one", 0, BET, PASS)[0], meta={"explore": own})]
    ((decision,),) = [game.decisions for game in RecordedGames([record]).games]
    assert decision.chance == pytest.approx(0.5)


def test_an_answer_that_is_not_legal_may_have_another_reward():
    wrong = replace(move("one", 0, [1, 2, 3], [8], -3.0), turn=0)
    right = replace(move("one", 1, [1, 2, 4], BET, 1.0), role_id="player_0", turn=1)
    (game,) = RecordedGames([wrong, right]).games
    assert game.rewards == {"player_0": 1.0}
    (alone,) = RecordedGames([wrong]).games
    assert alone.rewards == {"player_0": -3.0}


def test_answers_without_a_rollout_are_in_no_game():
    assert RecordedGames([replace(make_record([1], BET, alternatives=MOVES), rollout_id="")]).games == []
