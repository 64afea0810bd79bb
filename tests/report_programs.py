"""Runs of programs written by hand."""

import asyncio
from pathlib import Path

from report_pages import Page
from sparring.collection.rollout_log import RolloutLog
from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    EpisodeError,
    EpisodeRequest,
    MockInferenceClient,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    Step,
)


def a_rollout(episode_type, artifact=None, meta=None, id="", steps=(), extras=None, rewards=None):
    return Rollout(
        episode_type=episode_type,
        artifact=artifact,
        meta=meta or {},
        id=id,
        steps=list(steps),
        extras=extras or {},
        rewards=rewards or {},
    )


def step_of(role: str, text: str, reward: float = 0.0) -> Step:
    """Make one model call."""
    completion = [{"role": "assistant", "content": text}]
    return Step(role, [{"role": "user", "content": "q"}], completion, [1], [2], [-0.5], reward)


def write_log(run_dir: Path, step: int, rollouts: list[Rollout]) -> None:
    """Write a program's run that consists only of a rollout log."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(CONFIG)
    RolloutLog(run_dir / "rollouts").write(step, rollouts)


CONFIG = '[model]\nname = "smollm2-135m"\n\n[program]\ntype = "proposer_solver"\n'


class Solve(SingleTurnEpisode):
    """One question with one answer; half of the mock's answers are right."""

    episode_type = "solve"
    rubric = Rubric([lambda rollout, arena: {"Solver": float(rollout.steps[0].completion_text == "71")}])

    def get_initial_actor(self, artifact, state):
        return "Solver"

    def get_initial_prompt(self, arena, artifact, state):
        if artifact["question"] == "0 / 0":
            raise EpisodeError("nobody can solve this")
        return f"Calculate {artifact['question']}"


class Propose(SingleTurnEpisode):
    """One proposal without a transcript, and eight sub-episodes about it."""

    episode_type = "propose"

    @property
    def rubric(self):
        def goldilocks(rollout, arena):
            return {"Proposer": 1 - 2 * abs(rollout.extras["pass_rate"] - 0.5)}

        def pass_rate(rollout, arena):
            return {"Proposer": rollout.extras["pass_rate"]}

        return Rubric([goldilocks, pass_rate], [1.0, 0.0])

    def get_initial_actor(self, artifact, state):
        return "Proposer"

    def get_initial_prompt(self, arena, artifact, state):
        return "Write an arithmetic question."

    async def rollout(self, arena, artifact, state=None):
        state = await super().rollout(arena, artifact, state)
        question = {"question": state.last_completion_text, "ground_truth": "71"}
        state.child_results += await arena.generate_rollouts([EpisodeRequest("solve", question)] * 8)
        return state

    def get_extras(self, state):
        scores = [child.rewards.get("Solver", 0.0) for child in state.child_results]
        return {"pass_rate": sum(scores) / len(scores), "solver_rewards": scores}


class Debate(AlternatingRolesEpisode):
    """Two sides, each of which gets a private fact."""

    episode_type = "debate"
    rubric = Rubric([lambda rollout, arena: {"Aff": 1.0, "Neg": -1.0}])
    roles = ("Aff", "Neg")

    def get_initial_prompt(self, arena, artifact, state):
        return {
            role: f"Topic: {artifact['topic']}\nYou are {role}; only you know fact {role}-7."
            for role in self.roles
        }

    async def env_response(self, state, arena, artifact):
        return {"Neg": "The judge nods at you."} if state.turn == 3 else ""

    def get_extras(self, state):
        reasons = "Aff gave a reason for each claim. " * 20
        return {**super().get_extras(state), "verdict": "Aff", "judge": reasons}


class Program(Arena):
    """Both types of episodes, with a policy for each side."""

    def __init__(self, client, requests):
        super().__init__(client, seed=3, retries=1)
        self.requests = requests
        for role, policy in (("Proposer", "proposer"), ("Solver", "solver"), ("Aff", "aff"), ("Neg", "neg")):
            self.add_role(Role(role, f"You are the {role}.", policy=policy))
        self.add_episode("solve", Solve())
        self.add_episode("propose", Propose())
        self.add_episode("debate", Debate(max_turns=4))

    def get_batch(self):
        return self.requests


def answer(messages, seed):
    """Return the mock model's answer, which depends on the question and the seed."""
    asked = messages[-1]["content"]
    if asked.startswith("Calculate"):
        return "71" if seed % 2 else "It is 17.\nOr so."
    if asked.startswith("Write"):
        return f"{seed % 60} + {71 - seed % 60}"
    return f"Reason number {len(messages)}: {'everybody' if seed % 2 else 'nobody'} likes them."


def play(run_dir: Path, steps: list[int], requests: list[EpisodeRequest]) -> None:
    """Play real episodes with a mock model and log them as a run does."""
    arena = Program(MockInferenceClient(answer), requests)
    for step in steps:
        arena.step_num = step
        _, results = asyncio.run(arena.play_step())
        rollouts = [rollout for result in results for rollout in result.all_rollouts()]
        RolloutLog(run_dir / "rollouts").write(step, rollouts)


def text_of(html: str) -> str:
    """Return the visible text with single spaces."""
    return " ".join(" ".join(Page(html).text).split())
