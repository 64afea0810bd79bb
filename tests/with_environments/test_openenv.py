"""OpenEnv: our games asked over a server that plays no seat itself, sessions, and what goes wrong."""

import asyncio
import socket
import threading
from collections import Counter
from contextlib import contextmanager

import pytest
import uvicorn

from game_runs import configure, metrics_of, run
from sparring.core import AgentSpec, Arena, InputError, MockInferenceClient, PlaySpec, derive_seed
from sparring.core.env_id import with_options
from sparring.envs import openenv_server
from sparring.envs.catalog import make_game
from sparring.envs.game_episode import GameEpisode
from sparring.envs.openenv_server import GameAction, GameSession, openenv_app
from sparring.envs.templates import get_template
from tiny_models import roomy_model

RANDOM, POLICY = AgentSpec("script", "random"), AgentSpec("policy")


@pytest.fixture
def counts(monkeypatch):
    """How many sessions the server has opened and closed, and the most at once."""
    found: Counter[str] = Counter()

    class Counted(GameSession):
        def __init__(self, *args):
            super().__init__(*args)
            found["opened"] += 1
            found["most"] = max(found["most"], found["opened"] - found["closed"])

        def step(self, action, **kwargs):
            if action.message == "crash" or found["refused"]:
                found["refused"] -= found["refused"] > 0
                raise RuntimeError("out of order")
            return super().step(action)

        def close(self):
            found["closed"] += 1

    monkeypatch.setattr(openenv_server, "GameSession", Counted)
    return found


@contextmanager
def serving(env_id, max_open=64, token=""):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = openenv_app(env_id, 2, max_open=max_open, token=token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}" + (f"/{token}" if token else "")
        finally:
            server.should_exit = True
            thread.join()


def episode(url, **options):
    env_id = with_options(f"openenv:{url}", {"num_players": 2, "moves": "moves"} | options)
    return GameEpisode(env_id, 2, get_template("fewshot-chat"))


async def play(game, seed, agents=(RANDOM, RANDOM), arena=None):
    arena = arena or Arena(MockInferenceClient(lambda messages, seed: "crash"), retries=1)
    arena.add_episode("game", game)
    return (await arena.try_episode("game", PlaySpec(game.name, 2, agents, seed), {"seed": seed})).rollout


@pytest.mark.parametrize(
    "env_id", ["kuhn_poker", "tic_tac_toe", "leduc_poker", "TicTacToe-v0-train", "KuhnPoker-v0-train"]
)
async def test_games_over_a_server_are_those_that_are_played_here(env_id, counts):
    with serving(env_id) as url:
        game = episode(url)
        played = await asyncio.gather(*(play(game, seed) for seed in range(200)))
    for seed, rollout in enumerate(played):
        here = make_game(env_id, 2, derive_seed(seed, "game") % 2**31)
        for turn in rollout.extras["turns"]:
            assert turn["pid"] == here.current_pid
            assert turn["observation"] == here.observation(turn["pid"])
            assert here.apply(turn["action"])
        assert here.done
        assert rollout.extras["final_rewards"] == here.rewards()
    assert counts["most"] <= 16
    assert counts["closed"] == counts["opened"] < 200


async def test_while_a_server_thinks_about_a_move_all_other_games_go_on(counts, monkeypatch):
    """No move is answered before eight are on their way, so one that held the others back would wait."""
    asked, all_asked = [], asyncio.Event()
    step = GameSession.step

    async def think(self, action, timeout_s=None, **kwargs):
        asked.append(self)
        if len(asked) == 8:
            all_asked.set()
        await all_asked.wait()
        return step(self, action)

    monkeypatch.setattr(GameSession, "step_async", think)
    with serving("kuhn_poker") as url:
        played = await asyncio.gather(*(play(episode(url, time_limit=20.0), seed) for seed in range(8)))
    assert [rollout.error for rollout in played] == [None] * 8
    assert counts["closed"] == counts["opened"] == 8


async def test_a_server_that_refuses_sessions_or_is_gone_costs_a_game_and_no_run(counts):
    with serving("kuhn_poker", max_open=1, token="secret") as url:
        assert (await play(episode(url), 0)).error is None
        open_, refused = episode(url), episode(url, rules="again")
        first, second = await asyncio.gather(play(open_, 0), play(refused, 0))
        reasons = [one.error for one in (first, second) if one.error]
        assert all("CAPACITY_REACHED" in one or "the session ended" in one for one in reasons)
        missing = await play(episode(url.replace("secret", "wrong")), 0)
        assert "Failed to connect" in missing.error
    gone = await play(episode(url), 0)
    assert "Failed to connect" in gone.error
    assert gone.meta["retried"] == 1
    assert counts["closed"] == counts["opened"]


async def test_a_move_on_which_the_server_fails_is_its_players_invalid_move(counts):
    with serving("kuhn_poker") as url:
        rollout = await play(episode(url, moves=""), 0, (POLICY, POLICY))
    assert rollout.error is None
    assert rollout.extras["invalid_pid"] == rollout.extras["turns"][0]["pid"]
    assert "out of order" in rollout.extras["game_info"][0]["reason"]
    assert counts["closed"] == counts["opened"] == 1


async def test_a_server_that_answers_nonsense_costs_a_game_and_no_player(counts, monkeypatch):
    position = GameSession._position

    def odd(self, game, mover):
        seen = position(self, game, mover)
        return seen.model_copy(update={"rewards": {"nobody": 1.0}}) if self.moves else seen

    monkeypatch.setattr(GameSession, "_position", odd)
    with serving("kuhn_poker") as url:
        rollout = await play(
            episode(url), 0, (POLICY, POLICY), Arena(MockInferenceClient(lambda messages, seed: "check"))
        )
    assert "nobody" in rollout.error
    assert counts["closed"] == counts["opened"] == 1


def test_a_game_that_raises_after_a_move_ends_for_who_made_it(monkeypatch):
    session = GameSession("kuhn_poker", 2)
    seen = session.reset(seed=2**40)

    def broken(player):
        raise KeyError("board")

    monkeypatch.setattr(session.game, "observation", broken)
    seen = session.step(GameAction(message=seen.moves[0]))
    assert (seen.done, seen.rewards) == (True, {0: -2.0, 1: 2.0})


def test_both_seats_train_two_updates_over_a_server(tmp_path, counts):
    file = tmp_path / "served.toml"
    with serving("kuhn_poker") as url:
        file.write_text(
            f'[[envs]]\nid = "openenv:{url}"\n'
            'options = {num_players = 2, moves = "moves", max_open = 3}\nerror_allowance = 1\n'
        )
        few = {"learning__steps": "2", "evaluation__games": "2", "evaluation__games_during": "2"}
        run(configure(roomy_model(), str(file), **few), tmp_path / "run")
    last = metrics_of(tmp_path / "run")[-1]
    assert (last["accounts/failed"], last["accounts/finished"]) == (0, 16)
    assert counts["most"] <= 3
    assert counts["closed"] == counts["opened"] > 0


def test_only_games_are_served():
    with pytest.raises(InputError, match="is no game, but an environment"):
        openenv_app("rlcard:leduc-holdem", 2)
