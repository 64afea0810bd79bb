import asyncio
import itertools
import random

import pytest

from evaluation_client import TabularClient, first_move, legal_moves, nonsense, uniform
from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    EpisodeError,
    InputError,
    MockInferenceClient,
    TransientError,
)
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.evaluation import MatchResult, play_match

RANDOM = AgentSpec("script", "random")
COUNTS = ("games", "wins", "draws", "losses", "valid_wins", "truncated", "moves", "invalid_moves")


async def play(client, env_id="kuhn_poker", num_players=2, **options) -> MatchResult:
    rules = {name: options.pop(name) for name in ("calls", "max_turns", "error_allowance") if name in options}
    episode = GameEpisode(env_id, num_players, get_template("fewshot-chat"), **rules)
    settings = {"model": "hero", "opponent": RANDOM, "games": 40, "seed": 7, **options}
    return await play_match(Arena(client), episode, **settings)


def sometimes_nonsense(observation: str) -> dict[str, float]:
    return {**{move: 0.8 * chance for move, chance in uniform(observation).items()}, "dance": 0.2}


def bold(observation: str) -> dict[str, float]:
    return {legal_moves(observation)[-1]: 1.0}


async def test_counts_add_up_over_outcomes_and_seats():
    client = TabularClient(uniform, {"hero": sometimes_nonsense})
    result = await play(client, "tic_tac_toe", opponent=AgentSpec("model", "villain"), games=100)
    assert result.games == result.scheduled_games == result.requested_games == 100
    assert result.wins + result.draws + result.losses == 100
    assert result.draws > 0
    assert 0 < result.invalid["model"] <= result.losses
    assert result.valid_games == 100 - result.invalid["model"]
    # Against a sound opponent only a lost game can end by an invalid move, so that wins are all valid.
    assert result.valid_wins == result.wins
    assert result.win_rate_valid.mid == result.wins / result.valid_games
    assert result.invalid_moves == result.invalid["model"] < result.moves
    assert result.invalid_move_rate.mid == result.invalid_moves / result.moves
    assert [result.by_seat[seat].games for seat in (0, 1)] == [50, 50]
    for name in COUNTS:
        assert sum(getattr(seat, name) for seat in result.by_seat.values()) == getattr(result, name)
    lost = sum(seat.invalid["model"] for seat in result.by_seat.values())
    assert lost == result.invalid["model"]


async def test_the_answers_of_models_end_at_stop_texts():
    client = MockInferenceClient(lambda messages, seed: "check\nor bet, I am not sure")
    options = {"opponent": AgentSpec("model", "villain"), "games": 10}
    assert (await play(client, **options)).invalid["model"] > 0
    result = await play(client, **options, calls=CallSettings(stop=("\n",)))
    assert result.invalid_moves == result.invalid["opponent"] == 0


async def test_games_of_a_round_swap_the_seats_of_one_deal():
    client = TabularClient(first_move)
    await play(client, opponent=AgentSpec("model", "villain"), games=60, concurrency=1)
    # Two moves a game, both check; the last message ends with the card.
    turns = [(model, messages[-1]["content"][-2]) for model, messages in client.calls]
    games = [turns[start : start + 2] for start in range(0, len(turns), 2)]
    assert len(games) == 60
    for first, second in zip(games[::2], games[1::2], strict=True):
        assert [model for model, _ in first] == ["hero", "villain"]
        assert [model for model, _ in second] == ["villain", "hero"]
        assert [card for _, card in first] == [card for _, card in second]
    assert len({tuple(card for _, card in game) for game in games}) == 6


@pytest.mark.parametrize("concurrency", [1, 3, 256])
async def test_the_seed_decides_the_result_whatever_runs_at_once(concurrency):
    async def result(seed: int, order: int, concurrency: int) -> dict:
        client = TabularClient(sometimes_nonsense, order=order)
        return (await play(client, "tic_tac_toe", seed=seed, concurrency=concurrency)).to_dict()

    expected = await result(seed=7, order=0, concurrency=16)
    assert await result(seed=7, order=concurrency, concurrency=concurrency) == expected
    assert await result(seed=8, order=0, concurrency=16) != expected


async def test_concurrency_bounds_the_games_in_flight():
    client = TabularClient(uniform)
    await play(client, opponent=AgentSpec("model", "villain"), concurrency=5)
    assert client.max_in_flight == 5


async def test_games_are_rounded_up_so_that_seats_balance():
    result = await play(TabularClient(uniform), "kuhn_poker(players=3)", 3, games=10)
    assert (result.requested_games, result.scheduled_games, result.games) == (10, 12, 12)
    assert {seat: counts.games for seat, counts in result.by_seat.items()} == {0: 4, 1: 4, 2: 4}


async def test_a_model_that_has_some_seats_plays_every_game_in_one_of_them():
    client = TabularClient(uniform, {"hero": first_move})
    result = await play(client, "kuhn_poker(players=3)", 3, model=["a", "b", "c"], seats=[0, 2], games=9)
    assert {seat: counts.games for seat, counts in result.by_seat.items()} == {0: 5, 2: 5}
    assert result.model == "a, c"


async def test_an_invalid_move_of_the_model_loses_and_is_counted_apart():
    result = await play(TabularClient(nonsense), games=20)
    assert result.losses == result.invalid["model"] == result.moves == result.invalid_moves == 20
    assert result.invalid["opponent"] == 0
    assert result.invalid_move_rate.mid == result.invalid_game_rate.mid == 1
    assert result.mean_reward.mid == -2
    assert result.win_rate_valid == (0, 0, 1)


async def test_an_invalid_move_of_the_opponent_is_a_win_but_not_a_valid_win():
    client = TabularClient(uniform, {"villain": nonsense})
    result = await play(client, opponent=AgentSpec("model", "villain"), games=20)
    assert result.wins == result.invalid["opponent"] == 20
    assert result.invalid["model"] == result.valid_wins == result.valid_games == result.invalid_moves == 0


async def test_an_allowed_invalid_move_counts_as_a_move_and_ends_nothing():
    asked_before = set()

    def wrong_at_first(observation: str) -> dict[str, float]:
        if observation in asked_before:
            asked_before.remove(observation)
            return first_move(observation)
        asked_before.add(observation)
        return nonsense(observation)

    result = await play(TabularClient(wrong_at_first), error_allowance=1, concurrency=1)
    assert result.invalid["model"] == 0
    assert result.invalid_moves * 2 == result.moves > 0


async def test_a_game_at_its_turn_limit_is_a_truncated_draw():
    result = await play(TabularClient(uniform), "tic_tac_toe", games=8, max_turns=3)
    assert result.draws == result.truncated == 8


async def test_a_game_for_one_player_is_won_when_solved():
    result = await play(TabularClient(uniform), "catch", 1, opponent=None, games=60)
    assert result.opponent == ""
    assert result.draws == 0
    assert 0 < result.wins < 60
    assert result.mean_reward.mid == (result.wins - result.losses) / 60


class FailingClient(TabularClient):
    """Fails if ``fails`` is true of the last message."""

    def __init__(self, fails, error):
        super().__init__(uniform)
        self.fails = fails
        self.error = error

    async def complete(self, messages, *args, **kwargs):
        if self.fails(messages[-1]["content"]):
            raise self.error
        return await super().complete(messages, *args, **kwargs)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EpisodeError("the cat sat on the cable"), "the cat sat on the cable"),
        (RuntimeError("boom"), "the client failed: RuntimeError('boom')"),
    ],
)
async def test_failed_games_are_stated_and_in_no_other_count(error, reason):
    result = await play(FailingClient(lambda text: text.endswith("card: J."), error), games=60)
    ((found, count),) = result.failure_reasons.items()
    assert found.split(" in test_")[0] == reason
    assert count == result.failed > 0
    assert result.games > 0
    assert result.games + result.failed == result.scheduled_games == 60
    assert result.wins + result.draws + result.losses == result.games
    assert result.win_rate.mid == result.wins / result.games


async def test_a_retried_game_is_the_game_it_would_have_been():
    draw = random.Random(0)
    flaky = FailingClient(lambda text: draw.random() < 0.3, TransientError("a hiccup"))
    retried = await play(flaky, retries=30)
    assert retried == await play(TabularClient(uniform))


def once(call: int):
    """True for the call of this number, from 1, alone."""
    calls = itertools.count(1)
    return lambda text: next(calls) == call


@pytest.mark.parametrize(("retries", "failed"), [(0, 1), (1, 0)])
async def test_a_failure_counts_once_there_are_no_retries_left(retries, failed):
    result = await play(FailingClient(once(4), TransientError("a hiccup")), retries=retries)
    assert (result.failed, result.games) == (failed, 40 - failed)


async def test_a_game_that_would_fail_again_is_not_played_again():
    result = await play(FailingClient(once(4), EpisodeError("an odd prompt")), retries=5)
    assert (result.failed, result.games) == (1, 39)


async def test_progress_is_reported_after_every_game():
    seen = []
    await play(TabularClient(uniform), games=6, on_game=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("games", {"games": 0}),
        ("concurrency", {"concurrency": 0}),
        ("opponent", {"opponent": None}),
        ("opponent", {"opponent": AgentSpec("script", "grandmaster")}),
        ("opponent", {"env_id": "catch", "num_players": 1}),
        ("env.id", {"env_id": "kuhn_pokr"}),
        ("env.num_players", {"num_players": 3}),
    ],
)
async def test_wrong_input_ends_the_match_at_once(field, options):
    with pytest.raises(InputError) as raised:
        await play(TabularClient(uniform), **options)
    assert raised.value.field == field


async def test_wrong_input_that_shows_in_a_game_abandons_all_games():
    client = FailingClient(once(10), InputError("model", "is unknown", "Name one"))
    with pytest.raises(InputError, match="is unknown"):
        await play(client, concurrency=2)
    assert len(client.calls) <= 10
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("concurrency", [1, 40])
async def test_finished_games_are_passed_with_their_indices_at_any_concurrency(concurrency):
    rollouts = {}
    result = await play(
        TabularClient(uniform), games=10, concurrency=concurrency, on_rollout=rollouts.__setitem__
    )
    assert sorted(rollouts) == list(range(10))
    for index, rollout in rollouts.items():
        assert rollout.id == f"match-{index:05d}"
        assert rollout.artifact.agents[index % 2].model == "hero"
        reward = rollout.extras["final_rewards"][index % 2]
        assert (result.outcomes[index] == "w") == (reward > 0)
        assert all(turn["text"] for turn in rollout.extras["turns"])


async def test_an_opponent_may_be_another_model_in_each_seat():
    invalid = {}
    result = await play(
        TabularClient(bold, {"zero": nonsense}),
        opponent=[AgentSpec("model", "zero"), AgentSpec("model", "one")],
        games=4,
        on_rollout=lambda index, rollout: invalid.update({index: rollout.extras["invalid_pid"]}),
    )
    assert invalid == {0: None, 1: 0, 2: None, 3: 0}, "zero is met in seat 0 only"
    assert result.opponent == "zero, one"
