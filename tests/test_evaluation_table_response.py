"""Best responses in tables: near the exact one, the same whatever the order, and never worse than the policy
for want of games."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.config.play import GameSettings
from sparring.core import AgentSpec, Arena, Messages, MockInferenceClient, PlaySpec, SparringError
from sparring.core.errors import DamagedState
from sparring.core.play import GameTurn
from sparring.envs.game_episode import build_episode
from sparring.envs.openspiel_game import load_game
from sparring.envs.templates import get_template
from sparring.evaluation.best_response import Gains, measure_gains
from sparring.evaluation.match import Play, SeatedGame, play_of_game
from sparring.evaluation.nash_conv import nash_conv_of_table, prompt_of, states_of
from sparring.evaluation.played_gains import GameAsPlayed
from sparring.evaluation.table_response import TableResponse, TableResponses
from sparring.evaluation.venues import GameVenue

SEED = 5


def ignored(done: int, total: int) -> None:
    pass


def play_with(responses: TableResponses, env: GameSettings) -> Play:
    def silent(*_: object) -> str:
        raise AssertionError("nobody asks a model")

    return play_of_game(Arena(MockInferenceClient(silent)), build_episode(env, stand_in=responses))


async def respond(env_id: str, games: int, measured: int, seats: int = 2, name: str = "random") -> Gains:
    env = GameSettings(id=env_id, num_players=seats)
    policy = [AgentSpec("script", name)] * seats
    responses = TableResponses(seats, SEED)
    play = play_with(responses, env)
    await responses.learn(play, env.name, policy, games, ignored)
    assert not responses.failures
    response = [replace(agent, stand_in=True) for agent in policy]
    found, _ = await measure_gains(play, GameVenue(env), policy, response, measured, SEED, ignored)
    return found


@pytest.mark.parametrize(
    ("env_id", "seats"),
    [
        ("kuhn_poker", 2),
        pytest.param("kuhn_poker(players=3)", 3, marks=pytest.mark.slow),
        pytest.param("liars_dice(numdice=1,dice_sides=3)", 2, marks=pytest.mark.slow),
        pytest.param("clobber(rows=2,columns=4)", 2, marks=pytest.mark.slow),
    ],
)
def test_a_response_to_random_play_gains_nearly_what_the_exact_one_does(env_id: str, seats: int) -> None:
    exact = nash_conv_of_table(env_id)
    found = asyncio.run(respond(env_id, 1000 if seats == 2 else 4000, 1000 * seats, seats))
    assert 0.85 * exact < found.total.high
    assert found.total.low < exact
    assert found.found


def test_nobody_gains_against_an_equilibrium() -> None:
    found = asyncio.run(respond("kuhn_poker", 512, 600, name="optimal"))
    assert found.total.low < 0.01
    assert found.total.high > -0.1


@pytest.mark.parametrize("env_id", ["kuhn_poker", "liars_dice(numdice=1,dice_sides=3)", "tiny_hanabi"])
@pytest.mark.parametrize("legal", [0.0, 0.05])
def test_a_response_learns_where_the_policy_hardly_ever_makes_a_move(env_id: str, legal: float) -> None:
    env, policy = GameSettings(id=env_id, num_players=2), [AgentSpec("model", "any")] * 2
    template, drawn = get_template(env.template), random.Random(SEED)

    def answer(messages: Messages, *_: object) -> str:
        moves = by_prompt[str(messages)]
        return template.answer(drawn.choice(moves)) if drawn.random() < legal else "I do not know"

    states = states_of(env_id)
    by_prompt = {str(prompt_of(env_id, template, one)): one.legal_actions for one in states}
    chosen = {one.info_state: (dict.fromkeys(one.actions, 1 / len(one.actions)), legal) for one in states}
    exact = sum(GameAsPlayed(load_game(env_id), chosen).gains())

    async def gains() -> Gains:
        responses = TableResponses(2, SEED)
        play = play_of_game(Arena(MockInferenceClient(answer)), build_episode(env, stand_in=responses))
        await responses.learn(play, env.name, policy, 1200, ignored)
        response = [replace(agent, stand_in=True) for agent in policy]
        return (await measure_gains(play, GameVenue(env), policy, response, 800, SEED, ignored))[0]

    found = asyncio.run(gains())
    assert 0.85 * exact <= found.total.high
    assert found.total.low <= exact + 1e-9


def test_a_response_without_games_plays_as_the_policy() -> None:
    found = asyncio.run(respond("kuhn_poker", 0, 100))
    assert found.total == (0.0, 0.0, 0.0)


def test_the_order_in_which_games_end_changes_nothing() -> None:
    env = GameSettings(id="kuhn_poker", num_players=2)

    async def learned(slow: int) -> TableResponses:
        responses = TableResponses(2, SEED)
        inner, waiting = play_with(responses, env), 0

        async def play(rollout_id: str, spec: PlaySpec) -> SeatedGame | str:
            nonlocal waiting
            waiting += 1
            for _ in range(waiting * slow % 7):
                await asyncio.sleep(0)
            return await inner(rollout_id, spec)

        policy = [AgentSpec("script", "random")] * 2
        await responses.learn(play, env.name, policy, 530, ignored)
        return responses

    first, second = asyncio.run(learned(0)), asyncio.run(learned(3))
    assert [one.table for one in first.seats] == [one.table for one in second.seats]
    assert first.seats[0].table.games == 530


def test_games_that_fail_are_counted_and_a_round_of_them_ends_the_learning() -> None:
    env, policy = GameSettings(id="kuhn_poker", num_players=2), [AgentSpec("script", "random")] * 2

    async def learned(every: int) -> TableResponses:
        responses, begun = TableResponses(2, SEED), 0
        inner = play_with(responses, env)

        async def fails(rollout_id: str, spec: PlaySpec) -> SeatedGame | str:
            nonlocal begun
            begun += 1
            return await inner(rollout_id, spec) if begun % every else "the game broke"

        await responses.learn(fails, env.name, policy, 30, ignored)
        return responses

    found = asyncio.run(learned(3))
    assert (found.games, found.ended, found.failures) == (40, 60, {"the game broke": 20})
    with pytest.raises(SparringError, match="no game of a round could be finished: 30 x the game broke"):
        asyncio.run(learned(1))


def test_a_response_that_has_learned_more_than_is_asked_for_learns_no_more() -> None:
    env, policy = GameSettings(id="kuhn_poker", num_players=2), [AgentSpec("script", "random")] * 2
    responses = TableResponses(2, SEED)
    for games in (40, 10):
        asyncio.run(responses.learn(play_with(responses, env), env.name, policy, games, ignored))
    assert responses.games == 80


def test_a_saved_table_goes_on_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    env = GameSettings(id="kuhn_poker", num_players=2)
    policy = [AgentSpec("script", "random")] * 2

    async def learned(games: list[int]) -> TableResponse:
        responses = TableResponses(2, SEED)
        for number in games:
            await responses.learn(
                play_with(responses, env), env.name, policy, number, lambda done, all_: None
            )
            responses.seats[0].save(tmp_path / "table.json")
            responses.seats[0] = TableResponse(0, SEED)
            responses.seats[0].load(tmp_path / "table.json")
        return responses.seats[0]

    assert asyncio.run(learned([512, 1024])).table == asyncio.run(learned([1024])).table
    text = (tmp_path / "table.json").read_text()
    (tmp_path / "table.json").write_text(text.replace('"games"', '"gamez"', 1))
    with pytest.raises(DamagedState, match="damaged"):
        TableResponse(0, SEED).load(tmp_path / "table.json")


def test_a_view_with_other_moves_than_before_is_left_to_the_policy() -> None:
    response = TableResponse(0, SEED, explores=True)
    spec = PlaySpec("a walk", 1, (AgentSpec("script", "random", stand_in=True),), SEED)
    for _ in range(8):
        move = response.move(spec, "a hill", ["left", "right"], 0) or "right"
        turn: GameTurn = {
            **{"pid": 0, "kind": "script", "model": "random", "observation": "a hill", "text": move},
            **{"action": move, "well_formed": True, "invalid": False},
        }
        response.learn([turn], float(move == "left"))
    response.explores = False
    assert response.move(spec, "a hill", ["left", "right"], 0) == "left"
    assert response.move(spec, "a hill", ["up", "down"], 0) is None
    assert response.move(spec, "a valley", ["left", "right"], 0) is None
