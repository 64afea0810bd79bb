"""Packages of ``sparring export --verifiers``: played by agents as games are here, and by vf-eval."""

import asyncio
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import short_game
from job_commands import TOKEN, Server
from sparring.commands.export_verifiers import export_verifiers
from sparring.config import load_config
from sparring.config.programs import VerifiersSettings
from sparring.core import AgentSpec, Arena, MockInferenceClient, PlaySpec, derive_seed
from sparring.envs.game_episode import build_episode
from sparring.programs.verifiers_arena import VerifiersArena
from tiny_models import roomy_model

TOPICS = ["Cars", "Trams", "Bells", "Tea", "Ink", "Salt", "Rain", "Coal", "Wool"]
DEBATE = f'[program]\ntype = "debate"\ntopics = {json.dumps(TOPICS)}\nnum_rounds = 1\n'
CONFIGURATIONS = {
    "kuhn-game": '[[envs]]\nid = "kuhn_poker"\ntemplate = "default"\n',
    "leduc-game": '[[envs]]\nid = "leduc_poker"\ntemplate = "default"\n',
    "sums-asked": '[program]\ntype = "questions"\nquestions = "arithmetic"\n',
    "own-thoughts": '[program]\ntype = "python"\npath = "words.py:Both"\n',
    "own-game": '[[envs]]\nid = "short_game.py:Talk"\ntemplate = "default"\n',
    "own-words": '[program]\ntype = "python"\npath = "words.py:Words"\n',
    "debated": f"{DEBATE}judge_by_score = true\n",
    "unjudged": f'{DEBATE}on_judge_failure = "draw"\n',
    "sums-proposed": '[program]\ntype = "proposer_solver"\nsolver_rollouts = 2\n',
}


STARTED = """
import asyncio

from sparring.core import Arena, EpisodeRequest, EpisodeState, Role, Rubric, SingleTurnEpisode

class Talk(SingleTurnEpisode):
    episode_type = "talk"
    rubric = Rubric([lambda rollout, arena: {"Speaker": float(rollout.artifact)}])

    def get_initial_actor(self, artifact, state):
        return "Speaker"

    def get_initial_prompt(self, arena, artifact, state):
        return f"{arena.word} {artifact}"

class Thoughts(Talk):
    async def rollout(self, arena, artifact, state=None):
        state = state or EpisodeState()
        prompts = [[{"role": "user", "content": f"{artifact}, {place}"}] for place in range(2)]
        answers = await asyncio.gather(*(self.call_model("Speaker", one, arena) for one in prompts))
        for prompt, answer in zip(prompts, answers):
            state.trajectory.append(answer.to_step("Speaker", prompt))
        return state

class Words(Arena):
    episode = Talk()

    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.add_role(Role("Speaker"))
        self.add_episode("talk", self.episode)

    async def startup(self):
        self.word = "Say"

    async def shutdown(self):
        del self.word

    def get_batch(self):
        return [EpisodeRequest("talk", number) for number in range(4)]

class Both(Words):
    episode = Thoughts()
"""


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Write a package and let it be imported, where nothing else is left; return its configuration."""

    def write(name):
        here = tmp_path / "here"
        here.mkdir()
        (here / "words.py").write_text(STARTED)
        (here / "short_game.py").write_text(Path(short_game.__file__).read_text())
        (here / "own.toml").write_text(CONFIGURATIONS[name])
        export_verifiers(str(here / "own.toml"), here / name)
        (here / name).rename(tmp_path / name)
        shutil.rmtree(here)
        monkeypatch.syspath_prepend(tmp_path / name)
        (config,) = (tmp_path / name).glob("*/config.toml")
        return load_config(str(config), {})

    return write


def drawn(messages):
    """Answer by the whole prompt alone, so that a game has the same moves wherever it is played."""
    text = "".join(one["content"] for one in messages)
    if "Legal moves" not in text:
        return text[-1] * (len(text) % 3 + 1)
    legal = re.findall(r"Legal moves: ([^.]*)", text)[-1].split(", ")
    return random.Random(zlib.crc32(text.encode())).choice(legal)


@pytest.mark.parametrize("name", ["kuhn-game", "leduc-game", "own-game"])
def test_a_game_pays_and_ends_there_as_here_under_the_same_moves(exported, name):
    config = exported(name)
    client = MockInferenceClient(lambda messages, seed: drawn(messages))
    settings = VerifiersSettings(taskset=name, tasks=50, batch_size=40, episodes_per_task=1)
    arena = VerifiersArena(client, settings)
    _, results = asyncio.run(arena.play_step())
    episode = build_episode(config.envs[0])
    outcomes = set()
    for result in results:
        assert result.rollout.error is None
        seed = derive_seed(config.seed, "task", result.rollout.artifact)
        agents = tuple(AgentSpec("model", f"player_{pid}") for pid in (0, 1))
        spec = PlaySpec(episode.name, 2, agents, seed)
        ours = asyncio.run(episode.generate(Arena(client), spec, {"seed": seed})).rollout.extras
        runs = [run for one in result.all_rollouts() for run in one.extras["runs"]]
        paid = {run["agent"]: run["reward"] for run in runs}
        assert paid == {name: ours["final_rewards"][int(name[-1])] for name in paid}
        assert ours["invalid_pid"] is None
        moves = sum(len(one.steps) for one in result.all_rollouts())
        assert moves == len(ours["turns"])
        outcomes.add(tuple(ours["final_rewards"].values()))
    # In the own game nothing is dealt, so these moves always lead to one outcome.
    assert (len(outcomes) > 1) == (name != "own-game")


def test_a_programs_roles_and_sub_episodes_are_agents(exported):
    exported("sums-proposed")
    client = MockInferenceClient(lambda messages, seed: "9 + 9" if seed % 2 else "9 + 9 = 18")
    settings = VerifiersSettings(taskset="sums-proposed", tasks=8, batch_size=8, episodes_per_task=2)
    _, results = asyncio.run(VerifiersArena(client, settings).play_step())
    runs = [run for result in results for one in result.all_rollouts() for run in one.extras["runs"]]
    assert {run["agent"] for run in runs} == {"Proposer", "Solver"}
    assert {run["reward"] for run in runs if run["agent"] == "Solver"} == {0.0, 1.0}


def test_a_debate_is_judged_by_an_agent_that_is_not_trained(exported):
    exported("debated")

    def said(messages, seed):
        return "Winner: Neg, score: 0.8" if "Who won?" in messages[-1]["content"] else "Because."

    settings = VerifiersSettings(taskset="debated", tasks=2, batch_size=1, episodes_per_task=1)
    _, (result,) = asyncio.run(VerifiersArena(MockInferenceClient(said), settings).play_step())
    assert result.rollout.error is None
    assert result.rollout.rewards == {"Aff": -0.8, "Neg": 0.8, "judge": 0.0}


def test_all_topics_of_a_debate_are_tasks_though_a_batch_draws_some(exported):
    exported("unjudged")
    settings = VerifiersSettings(taskset="unjudged", batch_size=1, episodes_per_task=1)
    assert len(VerifiersArena(MockInferenceClient(), settings).tasks) == len(TOPICS)


def test_a_program_starts_before_its_episodes_and_stops_after_them(exported):
    exported("own-words")
    client = MockInferenceClient(lambda messages, seed: messages[-1]["content"])
    settings = VerifiersSettings(taskset="own-words", tasks=4, batch_size=2, episodes_per_task=1)
    arena = VerifiersArena(client, settings)

    async def played():
        await arena.startup()
        _, results = await arena.play_step()
        await arena.shutdown()
        return results

    for result in asyncio.run(played()):
        assert result.rollout.error is None
        (step,) = result.rollout.steps
        assert step.completion_text == f"Say {result.rewards['Speaker']:.0f}"


def test_what_a_role_is_asked_at_once_are_two_conversations(exported):
    exported("own-thoughts")
    client = MockInferenceClient(lambda messages, seed: messages[-1]["content"])
    settings = VerifiersSettings(taskset="own-thoughts", tasks=4, batch_size=2, episodes_per_task=1)
    _, results = asyncio.run(VerifiersArena(client, settings).play_step())
    for result in results:
        assert result.rollout.error is None
        asked = [[len(step.prompt) for step in one.rollout.steps] for one in result.children]
        assert asked == [[1], [1]]


@pytest.mark.parametrize("name", ["kuhn-game", "sums-asked", "unjudged"])
def test_vf_eval_evaluates_what_was_exported(exported, name, tmp_path):
    config = exported(name)
    longest = collections.defaultdict(lambda: config.inference.max_tokens, judge=256, Aff=128, Neg=128)
    server = Server(tmp_path / "jobs", "--dtype", "float32", model=roomy_model())
    try:
        address = f"http://127.0.0.1:{server.port}/v1"
        command = [Path(sys.executable).with_name("vf-eval"), name, "--no-push", "--no-rich", "-m", "default"]
        command += ["-n", "3", "--client.base-url", address, "--client.api-key-var", "OWN_KEY"]
        command += ["--run.name", "own"]
        paths = [str(tmp_path / name), *sys.path]
        env = os.environ | {"OWN_KEY": TOKEN, "PYTHONPATH": os.pathsep.join(paths)}
        ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    finally:
        server.kill()
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = (tmp_path / "outputs" / "own" / "traces.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    assert len(episodes) == 3
    for episode in episodes:
        assert episode["ok"], episode["errors"]
        rewards = {one["agent"]["name"]: one["rewards"]["reward"]["score"] for one in episode["traces"]}
        if len(rewards) > 1:
            assert sum(rewards.values()) == 0
        trained = {one["agent"]["name"] for one in episode["traces"] if one["agent"]["trainable"]}
        assert trained == rewards.keys() - {"judge"}
        for one in episode["traces"]:
            assert 0 < one["num_output_tokens"] <= longest[one["agent"]["name"]] * len(one["calls"])
