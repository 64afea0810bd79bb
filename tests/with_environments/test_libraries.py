"""Games of libraries: 200 plays of five games each pay and end as in the library itself, and runs train."""

import asyncio
import os
import random
import subprocess
import sys
import warnings

import pytest
from library_plays import gem_game, gymnasium_game, pettingzoo_at_once, pettingzoo_turns, rlcard_game

from game_runs import configure, metrics_of, run
from sparring.core import AgentSpec, Arena, MockInferenceClient, PlaySpec, derive_seed
from sparring.core.env_id import with_options
from sparring.core.errors import InputError
from sparring.envs.catalog import describe, list_environments
from sparring.envs.environments import build_environment
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from tiny_models import roomy_model

PLAYS = 200
GUESSES = {
    "gem:game:GuessTheNumber-v0-easy": ["1", "3", "5", "7", "9", "hello"],
    "gem:game:Mastermind-v0-easy": ["1 2", "2 3", "3 4", "4 5", "5 6"],
    "gem:game:Game2048-v0-easy": ["up", "down", "left", "right"],
    "gem:game:TowerofHanoi-v0-easy": ["A B", "A C", "B C", "C A", "C B", "B A"],
    "gem:game:FifteenPuzzle-v0-easy": ["up", "down", "left", "right"],
}
HANABI = {"colors": 2, "ranks": 3, "hand_size": 2, "max_information_tokens": 3, "max_life_tokens": 2}
LIMITS = {"max_episode_steps": 40}
GAMES = [
    ("pettingzoo:chess_v6", {}, pettingzoo_turns),
    ("pettingzoo:connect_four_v3", {}, pettingzoo_turns),
    ("pettingzoo:leduc_holdem_v4", {}, pettingzoo_turns),
    ("pettingzoo:texas_holdem_v4", {}, pettingzoo_turns),
    ("pettingzoo:hanabi_v5", HANABI, pettingzoo_turns),
    ("pettingzoo:tictactoe_v3", {}, pettingzoo_turns),
    ("pettingzoo:rps_v2", {"num_actions": 3, "max_cycles": 5}, pettingzoo_at_once),
    ("rlcard:leduc-holdem", {}, rlcard_game),
    ("rlcard:limit-holdem", {"game_num_players": 3}, rlcard_game),
    ("rlcard:no-limit-holdem", {}, rlcard_game),
    ("rlcard:uno", {}, rlcard_game),
    ("rlcard:blackjack", {}, rlcard_game),
    ("rlcard:doudizhu", {}, rlcard_game),
    ("gymnasium:FrozenLake-v1", LIMITS, gymnasium_game),
    ("gymnasium:CliffWalking-v1", LIMITS, gymnasium_game),
    ("gymnasium:Taxi-v4", LIMITS, gymnasium_game),
    ("gymnasium:Blackjack-v1", {}, gymnasium_game),
    ("gymnasium:CartPole-v1", LIMITS, gymnasium_game),
    *((name, {}, gem_game) for name in GUESSES),
]
IDS = [name for name, _, _ in GAMES]


def with_moves(env_id: str):
    """A client for games that list no moves: it guesses."""
    guesses = GUESSES.get(env_id.partition("{")[0], [""])
    return Arena(MockInferenceClient(lambda messages, seed: random.Random(seed).choice(guesses)))


@pytest.mark.parametrize(("name", "settings", "own"), GAMES, ids=IDS)
async def test_games_pay_and_end_as_in_the_library_itself_under_the_same_moves(name, settings, own):
    env_id = with_options(name, settings)
    (players,) = describe(env_id).players
    game = GameEpisode(env_id, players, get_template("fewshot-chat"), max_turns=5000)
    scripted = build_environment(env_id).lists_moves
    agents = (AgentSpec("script", "random") if scripted else AgentSpec("policy"),) * players
    ends = set()
    for seed in range(PLAYS):
        arena = with_moves(env_id)
        played = await game.generate(arena, PlaySpec(game.name, players, agents, seed), {"seed": seed})
        extras = played.rollout.extras
        rewards, over, cut = own(
            name.partition(":")[2], derive_seed(seed, "game"), extras["action_seq"], **settings
        )
        assert [extras["final_rewards"][player] for player in range(players)] == pytest.approx(rewards)
        assert over
        assert extras["game_info"][0]["truncated"] is cut
        ends.add((tuple(rewards), cut))
    assert len(ends) > 1 or name.endswith(("connect", "CliffWalking-v1"))


@pytest.mark.parametrize(("name", "settings", "own"), GAMES, ids=IDS)
async def test_a_game_is_the_same_alone_and_in_an_object_that_others_have_used(name, settings, own):
    """In threads, games are played at once, and objects go from one to the next."""
    env_id = with_options(name, settings | {"in_thread": True})
    (players,) = describe(env_id).players
    game = GameEpisode(env_id, players, get_template("fewshot-chat"), max_turns=40)
    agent = AgentSpec("script", "random") if build_environment(env_id).lists_moves else AgentSpec("policy")
    specs = [PlaySpec(game.name, players, (agent,) * players, seed) for seed in range(24)]
    slots = asyncio.Semaphore(4)

    async def played(spec):
        async with slots:
            extras = (await game.generate(with_moves(name), spec, {"seed": spec.seed})).rollout.extras
        return [turn["observation"] for turn in extras["turns"]], extras["final_rewards"]

    alone = [await played(spec) for spec in specs]
    assert alone == await asyncio.gather(*map(played, specs))


PROMPTS = """
import random, sys
from sparring.envs.environments import build_environment
environment, draw = build_environment(sys.argv[1]), random.Random(3)
for seed in range(3):
    situation = environment.begin(seed)
    while situation.observations:
        player = next(iter(situation.observations))
        print(situation.observations[player])
        situation = environment.play({player: draw.choice(situation.moves[player])})
"""


@pytest.mark.parametrize("name", [name for name in IDS if name.startswith("rlcard:")])
def test_prompts_do_not_depend_on_the_order_of_a_set(name):
    said = {
        subprocess.run(
            [sys.executable, "-c", PROMPTS, name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(said) == 1
    assert b"," in said.pop()


@pytest.mark.parametrize(
    "name", ["pettingzoo:rps_v2", "gymnasium:FrozenLake-v1", "rlcard:uno", "gem:game:Mastermind-v0-easy"]
)
async def test_every_object_that_plays_is_closed_once(monkeypatch, name):
    built = build_environment(name)
    kind, seats, begun, ended = type(built), built.num_players, [], []
    begin, end = kind.begin, kind.end
    monkeypatch.setattr(kind, "begin", lambda self, seed: begun.append(self) or begin(self, seed))
    monkeypatch.setattr(kind, "end", lambda self: ended.append(self) or end(self))
    game = GameEpisode(name, seats, get_template("fewshot-chat"), max_turns=20)
    agents, arena = (AgentSpec("policy"),) * seats, with_moves(name)
    specs = [PlaySpec(game.name, seats, agents, seed) for seed in range(12)]
    played = await asyncio.gather(*(game.generate(arena, spec, {"seed": spec.seed}) for spec in specs))
    assert len(played) == len(begun) == 12
    assert sorted(map(id, ended)) == sorted({*map(id, begun)})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pettingzoo:leduc_holdem_v4", {}),
        ("pettingzoo:rps_v2", {"num_actions": 3, "max_cycles": 2}),
        ("rlcard:leduc-holdem", {}),
        ("gymnasium:FrozenLake-v1", {"max_episode_steps": 4, "actions": ["left", "down", "right", "up"]}),
        ("gem:game:GuessTheNumber-v0-easy", {}),
    ],
)
def test_a_tiny_model_trains_two_updates(tmp_path, name, settings):
    file = tmp_path / "game.toml"
    options = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
    file.write_text(
        f'[[envs]]\nid = "{name}"\nnum_players = {describe(with_options(name, settings)).players[0]}\n'
        f"options = {{{options}}}\nerror_allowance = 1\n"
    )
    few = {"learning__steps": "2", "evaluation__games": "2", "evaluation__games_during": "2"}
    few |= {"evaluation__opponents": "['base']"}
    config = configure(roomy_model(), str(file), **few)
    assert name.partition(":")[2] in run(config, tmp_path / "run")
    last = metrics_of(tmp_path / "run")[-1]
    assert last["accounts/failed"] == 0
    assert last["accounts/finished"] == 16


@pytest.mark.parametrize(
    ("env_id", "line"),
    [
        ("pettingzoo:nosuch_v1", "env.id: PettingZoo has no game 'nosuch_v1'"),
        ("pettingzoo:go_v5", "env.options.render_text: go_v5 has no words of its own"),
        ('pettingzoo:chess_v6{"speed": 2}', "env.options: chess_v6 cannot be made"),
        ("rlcard:mahjong", "env.options.render_text: RLCard has no text for mahjong"),
        ('rlcard:uno{"game_num_players": 99}', "env.options.game_num_players: RLCard's uno is for 2,"),
        ('rlcard:limit-holdem{"num_players": 3}', "env.options: RLCard's limit-holdem has no setting num_pl"),
        ("rlcard:nosuch", "env.id: RLCard has no game 'nosuch'"),
        ("gymnasium:nosuch-v0", "env.id: nosuch-v0 cannot be made"),
        ("gymnasium:MountainCarContinuous-v0", "env.id: the moves of MountainCarContinuous-v0 are neither"),
        ('gymnasium:FrozenLake-v1{"actions": ["up"]}', "env.options.actions: has 1 names"),
        ("gem:nosuch", "env.id: nosuch cannot be made"),
    ],
)
def test_what_a_library_does_not_have_is_refused_in_one_line(env_id, line):
    with pytest.raises(InputError) as caught:
        describe(env_id)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_an_environment_that_a_module_registers_is_named_behind_it(tmp_path, monkeypatch):
    (tmp_path / "my_lights.py").write_text(
        """
import gymnasium

class Light(gymnasium.Env):
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 1, 1.0, True, False, {}

gymnasium.register("Light-v0", entry_point=Light)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = build_environment("gymnasium:my_lights:Light-v0")
    assert environment.begin(2**40).moves == {0: ["0", "1"]}
    assert environment.play({0: "1"}).rewards == {0: 1.0}


@pytest.mark.parametrize(("name", "players"), [("gymnasium:FrozenLake-v1", 1), ("rlcard:leduc-holdem", 2)])
async def test_words_of_ones_own_that_fail_are_no_players_invalid_move(tmp_path, name, players):
    file = tmp_path / "words.py"
    file.write_text("left = ['Go.']\ndef board(*_):\n    assert left, 'no words'\n    return left.pop()\n")
    env_id = with_options(name, {"render_text": f"{file}:board"})
    game, arena = GameEpisode(env_id, players, get_template("fewshot-chat")), with_moves(env_id)
    arena.client = MockInferenceClient(lambda messages, seed: "1" if players == 1 else "call")
    arena.add_episode("game", game)
    spec = PlaySpec(game.name, players, (AgentSpec("policy"),) * players, 0)
    rollout = (await arena.try_episode("game", spec, {"seed": 0})).rollout
    assert "no words" in rollout.error


def test_words_of_ones_own_are_shown(tmp_path):
    file = tmp_path / "words.py"
    file.write_text(
        "def board(seen, env, agent):\n    return f'{agent} sees {seen[\"observation\"].shape}'\n"
        "def move(action, env, agent):\n    return f'point {action}'\n"
    )
    options = {"render_text": f"{file}:board", "action_name": f"{file}:move", "rules": "Go.", "board_size": 3}
    environment = build_environment(with_options("pettingzoo:go_v5", options))
    now = environment.begin(0)
    assert environment.rules(0) == "Go.\nYou are black_0."
    assert now.observations[0].startswith("black_0 sees (3, 3, 17)\nLegal moves: point 0, point 1, ")
    assert now.moves[0][0] == "point 0"


OWN_GAME = '''
import gymnasium
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector


class Sticks(AECEnv):
    """Takes 1 or 2 of so many sticks; whoever takes the last one wins."""

    metadata = {"name": "sticks"}

    def __init__(self, sticks):
        super().__init__()
        self.sticks = sticks
        self.possible_agents = ["first", "second"]

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2, start=1)

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(self.sticks + 1)

    def observe(self, agent):
        return self.left

    def reset(self, seed=None, options=None):
        self.left, self.agents = self.sticks, list(self.possible_agents)
        self.turns = AgentSelector(self.agents)
        self.agent_selection = self.turns.next()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.left = max(0, self.left - action)
        if not self.left:
            self.rewards = {agent: 1.0 if agent == self.agent_selection else -1.0 for agent in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.turns.next()


def env(sticks=4):
    return Sticks(sticks)


def text(observation, env, agent):
    return f"{observation} sticks are left for {agent}."


def nothing():
    return "no game"
'''


async def test_a_pettingzoo_game_of_ones_own_is_named_by_the_function_that_makes_it(tmp_path):
    (tmp_path / "sticks.py").write_text(OWN_GAME)
    made = {"make": f"{tmp_path}/sticks.py:env", "render_text": f"{tmp_path}/sticks.py:text"}
    env_id = with_options("pettingzoo:sticks", {**made, "sticks": 3})
    game = GameEpisode(env_id, 2, get_template("fewshot-chat"))
    heard = []

    def take_one(messages, seed):
        heard.append(messages[-1]["content"])
        return "1"

    agents = (AgentSpec("policy"),) * 2
    arena = Arena(MockInferenceClient(take_one))
    played = await game.generate(arena, PlaySpec(game.name, 2, agents, 0), {"seed": 0})
    assert played.rollout.extras["final_rewards"] == {0: 1.0, 1: -1.0}
    assert "3 sticks are left for first.\nLegal moves: 1, 2." in heard[0]
    assert "2 sticks are left for second." in heard[1]


def test_installed_libraries_list_their_games_and_say_nothing_else(capfd):
    found = {one.env_id: one for one in list_environments()}
    assert all(found[name].playable for name, _, _ in GAMES)
    assert [found[name].players for name in ("pettingzoo:chess_v6", "rlcard:doudizhu")] == [[2], [3]]
    assert found["rlcard:mahjong"].reason == "RLCard has no text for mahjong"
    assert found["pettingzoo:go_v5"].reason == "go_v5 has no words of its own"
    assert "gymnasium:CartPole-v0" not in found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_environment("gymnasium:CartPole-v0").num_players == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("level", [30, 40, 50])
def test_how_much_gymnasium_says_stays_as_it_was_set(level, monkeypatch):
    logger = pytest.importorskip("gymnasium").logger
    monkeypatch.setattr(logger, "min_level", level)
    monkeypatch.delitem(sys.modules, "sparring.envs.gymnasium_games", raising=False)
    build_environment("gymnasium:CartPole-v1").begin(0)
    assert logger.min_level == level


@pytest.mark.parametrize(
    ("name", "moves"),
    [("gymnasium:FrozenLake-v1", "0, 1, 2, 3"), ("rlcard:leduc-holdem", "call, raise, fold")],
)
def test_legal_moves_are_below_words_of_ones_own_and_the_librarys(tmp_path, name, moves):
    file = tmp_path / "words.py"
    file.write_text("def board(*_):\n    return 'A board.'\n")
    own = build_environment(with_options(name, {"render_text": f"{file}:board"})).begin(0)
    assert [*own.observations.values()] == [f"A board.\nLegal moves: {moves}."]
    default = build_environment(name).begin(0)
    assert all(text.endswith(f"\nLegal moves: {moves}.") for text in default.observations.values())


async def test_an_invalid_move_in_a_library_s_environment_costs_what_the_options_say():
    env_id = with_options("gymnasium:CliffWalking-v1", {"invalid_reward": -200})
    game = GameEpisode(env_id, 1, get_template("fewshot-chat"))
    answers = iter(["0", "jump"])
    arena = Arena(MockInferenceClient(lambda messages, seed: next(answers)))
    played = await game.generate(arena, PlaySpec(game.name, 1, (AgentSpec("policy"),), 0), {"seed": 0})
    assert played.rollout.rewards == {"player_0": -201.0}


def test_what_is_no_pettingzoo_game_is_refused(tmp_path):
    (tmp_path / "sticks.py").write_text(OWN_GAME)
    made = {"make": f"{tmp_path}/sticks.py:nothing", "render_text": f"{tmp_path}/sticks.py:text"}
    with pytest.raises(InputError, match=r"returned 'no game', which is no environment of PettingZoo"):
        build_environment(with_options("pettingzoo:sticks", made))
