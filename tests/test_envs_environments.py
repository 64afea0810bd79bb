"""Environments: their life, what they pay on the way, moves at once, options, and what is checked."""

import asyncio
import threading
from pathlib import Path

import pytest

from environment_sessions import closes_wait, counts, steps_wait
from game_runs import configure, metrics_of, run
from sparring.core import AgentSpec, Arena, EpisodeError, MockInferenceClient, PlaySpec, trajectories_of
from sparring.core.env_id import absolute_id, with_options
from sparring.core.errors import InputError, SparringError
from sparring.envs.catalog import describe, open_game
from sparring.envs.environment import BlockingEnvironment, Situation
from sparring.envs.environment_game import timed
from sparring.envs.environments import build_environment
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.evaluation.match import play_match
from sparring.run.configuration import load_fitted
from tiny_models import roomy_model

FILE = str(Path(__file__).with_name("own_environments.py"))
POLICY, RANDOM = AgentSpec("policy"), AgentSpec("script", "random")


@pytest.fixture(autouse=True)
def nothing_open():
    counts.clear()
    steps_wait.clear()
    closes_wait.clear()
    yield
    assert counts["opened"] == counts["closed"]
    assert not counts["reset after a failure"]


def episode(name, players=2, limits=None, **options):
    env_id = with_options(f"{FILE}:{name}", options)
    return GameEpisode(env_id, players, get_template("fewshot-chat"), **limits or {})


def saying(*answers):
    said = iter(answers * 1000)
    return Arena(MockInferenceClient(lambda messages, seed: next(said)))


async def play(playing, arena, agents=(POLICY, POLICY), seed=0):
    spec = PlaySpec(playing.name, len(agents), tuple(agents), seed)
    return (await playing.generate(arena, spec, {"seed": seed})).rollout


async def test_a_players_reward_is_the_sum_of_what_its_steps_were_paid():
    rollout = await play(episode("Walk", 1), saying("right", "left", "right", "right", "right"), (POLICY,))
    (trajectory,) = trajectories_of(rollout)
    paid = [step.info["step_reward"] for step in trajectory.steps]
    assert paid == [4.0, -1.0, -1.0, -1.0, 10.0]  # 5 before the first step
    assert trajectory.final_reward == rollout.rewards["player_0"] == 11.0
    assert [turn["reward"] for turn in rollout.extras["turns"]] == paid
    assert counts["opened"] == 1


async def test_players_who_move_at_once_are_asked_at_once():
    asked, both = [], asyncio.Event()

    class Waits(MockInferenceClient):
        async def complete(self, messages, *args, **options):
            asked.append(messages)
            if len(asked) % 2:
                await both.wait()
            both.set()
            return await super().complete(messages, *args, **options)

    answers = iter("21")
    rollout = await play(episode("Duel", rounds=1), Arena(Waits(lambda messages, seed: next(answers))))
    assert sorted(rollout.rewards.values()) == [0.0, 1.0]
    assert [turn["pid"] for turn in rollout.extras["turns"]] == [0, 1]
    assert rollout.extras["game_info"][1]["truncated"]
    assert not rollout.extras["game_info"][0]["truncated"]


async def test_of_players_who_move_at_once_only_who_made_no_move_is_asked_again():
    rollout = await play(episode("Duel", limits={"error_allowance": 1}, rounds=1), saying("7", "1", "2"))
    assert [(turn["pid"], turn["action"]) for turn in rollout.extras["turns"]] == [
        (0, "7"),
        (1, "1"),
        (0, "2"),
    ]
    assert rollout.rewards == {"player_0": 1.0, "player_1": 0.0}
    (step, _) = trajectories_of(rollout)[0].steps
    assert step.info["invalid_rewards"] == [-1.0, 1.0]


@pytest.mark.parametrize("script", [0, 1])
async def test_a_scripts_move_at_once_with_an_invalid_one_is_kept(script):
    agents = [POLICY, POLICY]
    agents[script] = RANDOM
    playing = episode("Duel", limits={"error_allowance": 1}, rounds=1)
    rollout = await play(playing, saying("7", "1"), agents)
    first = [0, 1, 1 - script]
    assert [(turn["pid"], turn["invalid"]) for turn in rollout.extras["turns"]] == [
        (pid, place < 2 and pid != script) for place, pid in enumerate(first)
    ]
    assert rollout.extras["invalid_pid"] is None


async def test_random_moves_of_an_opening_may_end_within_moves_at_once():
    openings = set()
    for seed in range(12):
        playing = episode("Duel", limits={"random_opening": 3})
        rollout = await play(playing, saying("1"), seed=seed)
        kinds = [turn["kind"] for turn in rollout.extras["turns"]]
        first = kinds[:3].count("script")
        assert kinds == ["script"] * (first + first % 2) + ["policy"] * (4 - first - first % 2)
        openings.add(first)
    assert len(openings) > 1


async def test_an_invalid_move_costs_beyond_what_was_earned():
    rollout = await play(episode("Duel"), saying("2", "1", "x", "1"))
    assert rollout.extras["invalid_pid"] == 0
    assert rollout.rewards == {"player_0": 0.0, "player_1": 1.0}
    assert [turn["reward"] for turn in rollout.extras["turns"]] == [1.0, 1.0, -1.0]


async def test_where_a_step_has_a_price_an_invalid_move_costs_what_the_environment_says():
    playing = episode("Walk", 1, {"error_allowance": 1}, invalid_reward=-20)
    rollout = await play(playing, saying("jump", "left", "jump", "jump"), (POLICY,))
    assert rollout.rewards == {"player_0": 5.0 - 1 - 20}
    assert [turn["reward"] for turn in rollout.extras["turns"]] == [5.0, -1.0, 0.0, -20.0]
    (trajectory,) = trajectories_of(rollout)
    assert [step.info.get("invalid_rewards") for step in trajectory.steps] == [[-15.0], None, [-16.0], None]


async def test_a_game_that_takes_too_long_keeps_what_it_paid():
    rollout = await play(episode("Walk", 1, {"max_turns": 4}), saying("right", "left"), (POLICY,))
    assert rollout.extras["truncated"]
    assert rollout.rewards == {"player_0": 1.0}


async def test_games_share_sessions_and_the_last_one_closes_them():
    result = await play_match(
        Arena(MockInferenceClient(lambda messages, seed: str(seed % 3))),
        episode("Duel", max_open=3),
        model="default",
        opponent=RANDOM,
        games=40,
        seed=0,
        concurrency=10,
    )
    assert result.games == counts["resets"] == 40
    assert counts["most"] == 3
    assert 3 <= counts["opened"] <= 6


async def test_a_game_whose_network_failed_begins_again_in_another_session():
    for fails in ("reset network", "step network"):
        counts.clear()
        result = await play_match(
            saying("right"), episode("Walk", 1, fails=fails), model="default", opponent=None, games=2, seed=0
        )
        assert result.games == 2
        assert counts["opened"] == counts["closed"] == 3


@pytest.mark.parametrize("fails", ["step bug", "reset bug", "close bug"])
async def test_a_session_whose_environment_fails_is_closed(fails, recwarn):
    playing, arena = episode("Duel", fails=fails), saying("1")
    arena.add_episode("duel", playing)
    result = await arena.try_episode("duel", PlaySpec("duel", 2, (POLICY, POLICY), 0))
    problem = result.rollout.error or str(recwarn.pop().message)
    method = fails.partition(" ")[0]
    assert problem.startswith(("Session.", f"Duel.{method}"))
    assert f"{method} failed" in problem
    assert counts["closed"] == counts["opened"] == 1


async def test_a_move_on_which_an_environment_fails_is_its_players_invalid_move():
    rollout = await play(episode("Free", 1, fails="step bug"), saying("right"), (POLICY,))
    assert (rollout.extras["raised"], rollout.rewards) == ("KeyError", {"player_0": 5.0})
    assert "in own_environments.py, line " in rollout.extras["game_info"][0]["reason"]


async def test_an_environment_that_fails_on_a_move_that_it_has_listed_has_failed_the_game():
    playing, arena = episode("Walk", 1, fails="step bug"), saying("right")
    arena.add_episode("walk", playing)
    result = await arena.try_episode("walk", PlaySpec("walk", 1, (POLICY,), 0))
    assert result.rollout.error_type == "KeyError"
    assert "in own_environments.py, line " in result.rollout.error


async def test_a_session_that_raised_on_a_move_plays_no_other_game():
    playing, arena = episode("Free", 1, fails="step bug"), saying("right")
    result = await play_match(arena, playing, model="default", opponent=None, games=6, seed=0, concurrency=2)
    assert result.games == 6
    assert counts["step failed"] == 1


async def test_what_an_environment_raises_beside_a_move_is_no_players_fault():
    playing, arena = episode("Walk", 1, fails="info bug"), saying("right")
    arena.add_episode("walk", playing)
    result = await arena.try_episode("walk", PlaySpec("walk", 1, (POLICY,), 0))
    assert "info failed" in result.rollout.error


async def test_a_step_that_waits_holds_back_no_other_game_and_its_session_is_closed_when_it_is_cancelled():
    steps_wait.append(asyncio.Event())
    waiting = asyncio.create_task(play(episode("Duel", rounds=1), saying("2", "1")))
    while not counts["waiting"]:
        await asyncio.sleep(0)
    sticks = GameEpisode("tic_tac_toe", 2, get_template("fewshot-chat"))
    other = await play(sticks, saying("4"), (RANDOM, RANDOM))
    assert other.extras["num_turns"] > 4
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert counts["opened"] == counts["closed"] == 1


async def test_what_waits_to_be_closed_counts_as_open():
    """Two games end, and the object that the first left closes slowly; others begin and end meanwhile."""
    closed = asyncio.Event()
    env_id = with_options(f"{FILE}:Duel", {"max_open": 2})
    ends = [asyncio.Event() for _ in range(6)]

    async def game(number):
        async with open_game(env_id, 2, number):
            await ends[number].wait()

    async def begin(number, opened):
        games.append(asyncio.create_task(game(number)))
        while counts["resets"] < opened:
            await asyncio.sleep(0)

    games = []
    await begin(0, 1)
    await begin(1, 2)
    ends[0].set()
    await games[0]
    closes_wait.append(closed)
    ends[1].set()
    while counts["closing"] < 1:
        await asyncio.sleep(0)
    closed.set()
    closes_wait.clear()
    closes_wait.append(closed := asyncio.Event())
    while counts["closing"] < 2:  # the idle one
        await asyncio.sleep(0)
    closes_wait.clear()
    await begin(2, 3)
    ends[2].set()
    await games[2]
    await begin(3, 4)
    closed.set()
    await games[1]
    await begin(4, 5)
    games.append(asyncio.create_task(game(5)))
    for _ in range(20):
        await asyncio.sleep(0)
    for end in ends:
        end.set()
    await asyncio.gather(*games)
    assert counts["most"] == 2


async def test_a_cancellation_passes_also_when_the_time_is_up_at_that_moment():
    steps_wait.append(asyncio.Event())
    environment = build_environment(f"{FILE}:Slow")
    environment.time_limit = 1e-9
    step = asyncio.create_task(timed(environment, "step", {}))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


class Threaded(BlockingEnvironment):
    """A step waits for ``goes_on``."""

    num_players, in_thread = 1, True

    def __init__(self):
        self.calls, self.threads = [], set()
        self.stepping, self.goes_on = threading.Event(), threading.Event()

    def call(self, name):
        self.calls.append(name)
        self.threads.add(threading.get_ident())

    def rules(self, player):
        return "Wait."

    def begin(self, seed):
        self.call("begin")
        return Situation({0: "Go."})

    def play(self, answers):
        self.stepping.set()
        self.goes_on.wait()
        self.call("play")
        return Situation({0: "Go."})

    def end(self):
        self.call("end")


async def test_what_runs_in_a_thread_ends_after_a_step_that_was_given_up_and_in_the_same_thread():
    environment = Threaded()
    await environment.reset(0)
    step = asyncio.create_task(environment.step({0: "on"}))
    await asyncio.to_thread(environment.stepping.wait)
    step.cancel()
    closing = asyncio.create_task(environment.close())
    await asyncio.sleep(0)
    environment.goes_on.set()
    await closing
    assert environment.calls == ["begin", "play", "end"]
    assert len(environment.threads) == 1


async def test_a_step_that_takes_too_long_is_given_up():
    steps_wait.append(asyncio.Event())
    playing, arena = episode("Slow", 1), saying("right")
    arena.add_episode("slow", playing)
    arena.retries = 1
    result = await arena.try_episode("slow", PlaySpec("slow", 1, (POLICY,), 0))
    assert result.rollout.error == "Slow.step took longer than 0.01 s"
    assert result.rollout.meta["retried"] == 1
    assert counts["opened"] == counts["closed"] == 2


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("nothing", "Odd.step returned None, not a Situation"),
        ("nobody", "Odd.step lets nobody act, but it is not over for player 0"),
        ("a stranger", "Odd.step names 7, which is no player of 0 to 0"),
        ("an empty text", "Odd.step shows player 0 an empty text"),
        ("no moves", "Odd.step has no moves of player 0, but lists_moves is true"),
        ("the same move twice", "Odd.step returned 'left' twice"),
        ("not a number", "Odd.step gave nan, which is not a finite number up to 1e30"),
        ("another end", 'Odd.step ends with True; write "terminated" or "truncated"'),
        ("a player after the end", "Odd.step lets player 0 act, for whom it is over"),
    ],
)
async def test_what_an_environment_answers_is_checked(said, problem):
    with pytest.raises(EpisodeError) as caught:
        await play(episode("Odd", 1, said=said), saying("left"), (POLICY,))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"speed": 3}, "env.id: Walk cannot be built: TypeError"),
        ({"max_open": 0}, "env.id: the max_open of Walk is 0. Write a whole number above 0"),
        ({"invalid_reward": "much"}, "env.id: the invalid_reward of Walk is 'much'. Write a number"),
        ({"max_open": 1.5}, "env.id: the max_open of Walk is 1.5. Write a whole number above 0"),
    ],
)
def test_options_that_a_class_does_not_take_are_refused(options, problem):
    with pytest.raises(InputError) as caught:
        episode("Walk", 1, **options)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("env_id", "instead"),
    [
        ("pettingzoo:my/pig.py:env", 'pettingzoo:pig, with make = "my/pig.py:env" in its options'),
        ("gymnasium:maze.py:Maze", "maze.py:Maze, if it is an Environment"),
    ],
)
def test_a_file_behind_a_librarys_name_is_refused_with_what_to_write(tmp_path, env_id, instead):
    with pytest.raises(InputError) as caught:
        describe(absolute_id(env_id, tmp_path))
    library = env_id.partition(":")[0]
    assert str(caught.value) == f"env.id: {library} has no game in a file of yours. Write {instead}"


def test_a_run_trains_in_environments_of_one_class_with_options_and_closes_all(tmp_path):
    file = tmp_path / "duels.toml"
    file.write_text(
        f"""
        [[envs]]
        id = "{FILE}:Duel"
        options = {{rounds = 1, max_open = 2}}

        [[envs]]
        id = "{FILE}:Duel"
        options = {{rounds = 2, numbers = 2}}
        error_allowance = 1
        """
    )
    small = {"learning__steps": "2", "evaluation__games": "2", "evaluation__games_during": "2"}
    config = configure(roomy_model(), str(file), **small)
    text = run(config, tmp_path / "run")
    assert "Duel(max_open=2, rounds=1)" in text
    assert "Duel(numbers=2, rounds=2)" in text
    assert metrics_of(tmp_path / "run")[-1]["accounts/failed"] == 0
    assert counts["resets"] > counts["opened"] > 0


def test_a_run_that_its_environment_stops_closes_all(tmp_path):
    file = tmp_path / "duels.toml"
    file.write_text(
        f"""
        [[envs]]
        id = "{FILE}:Duel"
        options = {{fails = "reset bug", times = 1000}}
        """
    )
    config = configure(roomy_model(), str(file), **{"evaluation__games": "2", "evaluation__opponents": "[]"})
    with pytest.raises(SparringError, match="reset failed"):
        run(config, tmp_path / "run")
    assert counts["opened"] == counts["closed"] > 0


async def test_all_idle_sessions_are_closed_also_if_a_run_that_ends_is_cancelled_again():
    env_id, ends = f"{FILE}:Duel", [asyncio.Event() for _ in range(4)]

    async def game(number):
        async with open_game(env_id, 2, number):
            await ends[number].wait()

    games = [asyncio.create_task(game(number)) for number in range(4)]
    while counts["resets"] < 4:
        await asyncio.sleep(0)
    for number in range(3):
        ends[number].set()
        await games[number]
    ends[3].set()
    while counts["closed"] < 1:
        await asyncio.sleep(0)
    closes_wait.append(asyncio.Event())
    while counts["closing"] < 1:
        await asyncio.sleep(0)
    closes_wait.clear()
    games[3].cancel()
    with pytest.raises(asyncio.CancelledError):
        await games[3]
    assert counts["opened"] - counts["closed"] == 1  # the one whose close was itself cancelled
    counts["closed"] += 1


def test_a_presets_opponents_are_checked_with_the_options_of_another_game():
    changed = {"envs.0.id": f"{FILE}:Odd", "envs.0.options": '{said = "nothing"}', "envs.0.num_players": "1"}
    _, notes = load_fitted("tictactoe", changed)
    assert not any(note.startswith("random") for note in notes)
