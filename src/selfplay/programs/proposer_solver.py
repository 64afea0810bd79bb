"""A proposer writes questions, solvers answer them, and the best questions are those they half solve.

Each proposal spawns solver episodes; the share of right answers is the question's pass rate, and the nearer it
is to the target, the more the proposer earns. Good questions are kept in the store ``questions``: they are the
examples that the proposer sees next, and they are asked again.
"""

import random
from typing import Any

from selfplay.core import (
    Arena,
    Artifact,
    ArtifactStore,
    CreditAssigner,
    Episode,
    EpisodeError,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    InferenceClient,
    Messages,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    TrainingBatch,
    VerboseLogger,
    derive_seed,
)
from selfplay.programs.arithmetic import Arithmetic
from selfplay.programs.questions import Domain, Question

INVALID_REWARD = -1.0
LOWEST_VALID_REWARD = -0.5
LEAST_WEIGHT = 0.05
LARGEST_DISTANCE = 0.5


def make_proposer_rubric(proposer_role: str, target_pass_rate: float = 0.5) -> Rubric:
    """1 - 2 |pass rate - target|, at least -0.5; an invalid question earns -1.

    Metrics, which earn nothing: ``valid``, and of valid questions ``pass_rate`` and ``distance``.
    """

    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        if not rollout.extras["valid"]:
            return {proposer_role: INVALID_REWARD}
        distance = abs(rollout.extras["pass_rate"] - target_pass_rate)
        return {proposer_role: max(LOWEST_VALID_REWARD, 1.0 - 2.0 * distance)}

    def valid(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {proposer_role: float(rollout.extras["valid"])}

    def pass_rate(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {proposer_role: rollout.extras["pass_rate"]} if rollout.extras["valid"] else {}

    def failed_solvers(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {proposer_role: float(rollout.extras["failed_solvers"])}

    return Rubric([goldilocks, valid, pass_rate, failed_solvers], [1.0, 0.0, 0.0, 0.0])


class SolveEpisode(SingleTurnEpisode):
    """One question, one answer: 1 for the right one, else 0. The artifact is a Question."""

    episode_type = "solve"

    def __init__(self, solver_role: str = "Solver", domain: Domain | None = None) -> None:
        super().__init__()
        self.solver_role = solver_role
        self.domain = domain or Arithmetic()
        self._rubric = Rubric([self._exact_match])

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_initial_actor(self, artifact: Question, state: EpisodeState) -> str:
        return self.solver_role

    def get_initial_prompt(self, arena: Arena, artifact: Question, state: EpisodeState) -> str:
        return artifact["question"]

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        state = state or EpisodeState()
        messages = with_system_prompt(arena, self.solver_role, self.domain.solver_messages(artifact))
        response = await self.call_model(self.solver_role, messages, arena)
        state.trajectory.append(response.to_step(self.solver_role, messages))
        return state

    def _exact_match(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        result = self.domain.parse_answer(rollout.steps[-1].completion_text)
        right = result is not None and self.domain.is_correct(result, rollout.artifact)
        return {self.solver_role: float(right)}


def with_system_prompt(arena: Arena, role_id: str, messages: Messages) -> Messages:
    role = arena.roles.get(role_id)
    if role is None:
        raise EpisodeError(f"the arena has no role {role_id}; add it with add_role")
    if not role.system_prompt:
        return messages
    return [{"role": "system", "content": role.system_prompt}, *messages]


class ProposerEpisode(Episode):
    """One proposal, then ``solver_rollouts`` episodes ``solve`` about it."""

    episode_type = "propose"

    def __init__(self, proposer_role="Proposer", solver_rollouts=8, domain=None, *, target_pass_rate=0.5, train_solvers=False, held_out=frozenset()):
        self.proposer_role = proposer_role
        self.solver_rollouts = solver_rollouts
        self.domain = domain or Arithmetic()
        self.train_solvers = train_solvers
        self.held_out = held_out
        self._rubric = make_proposer_rubric(proposer_role, target_pass_rate)

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    async def rollout(self, arena, artifact, state=None):
        state = state or EpisodeState()
        messages = with_system_prompt(arena, self.proposer_role, self.domain.proposer_messages(artifact["examples"]))
        response = await self.call_model(self.proposer_role, messages, arena)
        state.trajectory.append(response.to_step(self.proposer_role, messages))
        whole = response.finish_reason != "length"
        question = self.domain.parse_question(response.text) if whole else None
        state.data["question"] = question
        if question is None:
            return state
        held_out = self.domain.key(question) in self.held_out
        state.data["held_out"] = held_out
        request = EpisodeRequest("solve", question, is_trainable=self.train_solvers and not held_out)
        state.child_results += await arena.generate_rollouts([request] * self.solver_rollouts)
        return state

    def get_extras(self, state):
        question = state.data["question"]
        finished = [c.rollout for c in state.child_results if c.rollout.error is None]
        scores = [next(iter(r.rewards.values())) for r in finished]
        extras = {"valid": question is not None, "question": question, "held_out": state.data.get("held_out", False),
            "solver_rewards": scores, "failed_solvers": len(state.child_results) - len(scores)}
        if question is not None:
            if not scores:
                raise EpisodeError("failed")
            extras["pass_rate"] = sum(scores) / len(scores)
        return extras


class ProposerSolverArena(Arena):
    def __init__(self, client, *, domain=None, batch_size=32, group_size=16, solver_rollouts=8, reviewed=0, num_examples=8, target_pass_rate=0.5,
        proposer_policy="proposer", solver_policy="solver", train_solvers=True, held_out_size=300, store_size=500, evaluated_proposals=64, credit_assigner=None, seed=0, **kw):
        super().__init__(client, credit_assigner, seed=seed, **kw)
        self.domain = domain or Arithmetic()
        self.batch_size, self.group_size, self.solver_rollouts, self.reviewed = batch_size, group_size, solver_rollouts, reviewed
        self.num_examples = num_examples
        self.target = target_pass_rate
        self.evaluated_proposals = evaluated_proposals
        self.held_out = self.domain.held_out_questions(held_out_size)
        keys = frozenset(map(self.domain.key, self.held_out))
        self.add_role(Role("Proposer", policy=proposer_policy, max_tokens=self.domain.proposal_tokens))
        self.add_role(Role("Solver", policy=solver_policy, max_tokens=self.domain.answer_tokens))
        self.add_episode("solve", SolveEpisode("Solver", self.domain))
        self.add_episode("propose", ProposerEpisode("Proposer", solver_rollouts, self.domain, target_pass_rate=target_pass_rate, train_solvers=train_solvers, held_out=keys))
        self.add_store("questions", ArtifactStore(store_size, seed=derive_seed(seed, "questions")))
        self.seeds = self.domain.seed_questions()
        for q in self.seeds:
            self.stores["questions"].add(Artifact(q, id=self.domain.key(q)))

    def get_batch(self):
        requests = []
        store = self.stores["questions"]
        for g in range(self.batch_size // self.group_size):
            ex = [a.data for a in store.sample(self.num_examples, weighted=True)]
            requests += [EpisodeRequest("propose", {"examples": ex}, {"group": f"p{g}"}) for _ in range(self.group_size)]
        if self.step_num:
            for a in store.sample(self.reviewed, weighted=True):
                requests += [EpisodeRequest("solve", a.data, {"group": a.id}) for _ in range(self.solver_rollouts)]
        return requests

    async def play_step(self, concurrency=None, verbose=False):
        batch, results = await super().play_step(concurrency, verbose)
        store = self.stores["questions"]
        for r in results:
            x = r.rollout.extras
            if r.rollout.episode_type == "propose" and r.rollout.error is None and x["valid"] and not x["held_out"]:
                w = max(LEAST_WEIGHT, 1 - 2 * abs(x["pass_rate"] - self.target))
                store.add(Artifact(x["question"], id=self.domain.key(x["question"]), weight=w))
        return batch, results

    async def evaluate(self):
        solve = [EpisodeRequest("solve", q, {"seed": derive_seed(0, "e", i)}) for i, q in enumerate(self.held_out)]
        rng = random.Random(5)
        prop = []
        for g in range(4):
            ex = rng.sample(self.seeds, self.num_examples)
            prop += [EpisodeRequest("propose", {"examples": ex}, {"seed": derive_seed(0, "p", g, i)}) for i in range(self.evaluated_proposals // 4)]
        results = await self.generate_rollouts(solve + prop)
        s, p = results[: len(solve)], results[len(solve):]
        self.last = p
        ex = [r.rollout.extras for r in p]
        return {"exact": [r.rewards["Solver"] for r in s], "distance": [abs(x["pass_rate"] - self.target) if x["valid"] else .5 for x in ex],
                "valid": [float(x["valid"]) for x in ex]}
