"""The components of an experiment: what is played, by whom, and what is sampled in an iteration.

The answers and ends of an iteration's rollouts are kept one by one, so a kill costs only the calls in flight.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    EpisodeRequest,
    InferenceClient,
    Messages,
    ModelResponse,
    Rollout,
    Sampling,
    SparringError,
    derive_seed,
)
from sparring.core.client import told_of_reasoning
from sparring.core.concurrency import all_results
from sparring.core.errors import check_failures
from sparring.core.reasoning import ReasoningTags
from sparring.core.types import UNSET
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.finetune.run_files import GrowingFile, RolloutLine
from sparring.programs.proofs.claims import Claim
from sparring.programs.proofs.episode import ProofEpisode
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.state import ProofState

Row = tuple[int, Claim]
"""The number of a rollout in its iteration, and its claim."""


@dataclass(eq=False, repr=False)
class PureTextEnvironment:
    """The ``num_envs`` rollouts of each iteration: claims of one split, played by whoever ``agents()`` names.

    Training goes on through the claims from iteration to iteration, in a new order after each pass; a test
    begins anew each time.
    """

    arena: Arena
    protocol: Protocol
    claims: Sequence[Claim]
    num_envs: int
    agents: Callable[[], Mapping[str, AgentSpec]]
    _: KW_ONLY
    seed: int
    train: bool
    _drawn: int = field(default=0, init=False)

    @property
    def split(self) -> str:
        """``train`` or ``test``."""
        return "train" if self.train else "test"

    def rows(self, iteration: int) -> list[Row]:
        """Return what is played in an iteration."""
        first = iteration * self.num_envs if self.train else 0
        last = first + self.num_envs - 1
        passes = range(first // len(self.claims), last // len(self.claims) + 1)
        drawn = [claim for number in passes for claim in self._shuffled(number)]
        skipped = first - passes.start * len(self.claims)
        return list(enumerate(drawn[skipped : skipped + self.num_envs]))

    def draw(self) -> Row:
        """Draw a claim, another at each call, for a rollout beside those of :meth:`rows`."""
        number = self.num_envs + self._drawn
        self._drawn += 1
        return number, random.Random(derive_seed(self.seed, self.split, "drawn", number)).choice(self.claims)

    def _shuffled(self, number: int) -> list[Claim]:
        order = list(self.claims)
        random.Random(derive_seed(self.seed, self.split, "order", number)).shuffle(order)
        return order

    def get_datapoint_from_env_state_as_dict(self, env_state: ProofState) -> dict[str, Any]:
        """Return what an episode is about: its claim, the claim's truth, and the provers' stances."""
        return {
            "id": env_state["id"],
            "question": env_state["question"],
            "solution": env_state["claim"],
            "y": env_state["y"],
            "prover_stance": dict(env_state["stances"]),
        }

    async def play(self, iteration: int, row: Row, episode_type: str = "proof") -> Rollout:
        """Play one row; what happens follows from the seed, the split, the iteration and the row alone."""
        index, claim = row
        name = f"{self.split}-{iteration:06d}-{index:05d}"
        meta = {
            "seed": derive_seed(self.seed, self.split, iteration, index),
            "rollout_id": name,
            "step": iteration,
        }
        request = EpisodeRequest(
            episode_type, claim.to_dict(), meta, is_trainable=False, agents=self.agents()
        )
        (result,) = await self.arena.generate_rollouts([request])
        return result.rollout


@dataclass(frozen=True)
class ScenarioInstance:
    """What a trainer works with: who speaks when, what plays that, what is learned from and only measured,
    and the models of the agents by group."""

    protocol_handler: Protocol
    episode: ProofEpisode
    train_environment: PureTextEnvironment
    test_environment: PureTextEnvironment
    shared_model_groups: Mapping[str, PureTextSharedModelGroup]

    def group_of(self, agent: str) -> PureTextSharedModelGroup:
        """Return the group whose model an agent uses."""
        return next(one for one in self.shared_model_groups.values() if agent in one.agent_names)


def agents_of(
    groups: Mapping[str, PureTextSharedModelGroup], calls: Mapping[str, CallSettings]
) -> dict[str, AgentSpec]:
    """Return who answers for each agent now: the present model of its group."""
    agents = {}
    for group in groups.values():
        for name in group.agent_names:
            one = calls.get(name, UNSET)
            agents[name] = AgentSpec("model", group.model_name, one.temperature, sampling=one.sampling)
    return agents


MAX_FAILED = 0.5
"""A larger share of failed rollouts means that something is broken."""


async def sample(
    environment: PureTextEnvironment,
    iteration: int,
    play: Callable[[Row], Awaitable[Rollout]],
    kept: GrowingFile[RolloutLine] | None,
    workers: int,
    on_rollout: Callable[[], None],
) -> list[Rollout]:
    """Return the rollouts of an iteration in the order of its rows, at most ``workers`` in flight. Those that
    ``kept`` has are not played again, and each that ends well is added to it; a failed one is returned with
    its error. Raises SparringError: more than half failed.
    """
    rows = environment.rows(iteration)
    done = {line.index: line.rollout for line in kept.read()} if kept is not None else {}
    slots = asyncio.Semaphore(workers)

    async def play_row(row: Row) -> Rollout:
        index, _ = row
        if index not in done:
            async with slots:
                done[index] = await play(row)
            if kept is not None and done[index].error is None:
                kept.append(RolloutLine(done[index], index))
        on_rollout()
        return done[index]

    rollouts = await all_results(map(play_row, rows))
    failed = [one.error for one in rollouts if one.error is not None]
    check_failures(failed, len(rollouts), MAX_FAILED, "rollouts")
    return rollouts


class _Answer(msgspec.Struct):
    key: str
    response: ModelResponse


class KeptAnswers(InferenceClient):
    """Asks another client, and asks no question a second time; answers are kept in the file ``path``.

    A question is a call with all its arguments; one without a seed is always asked. A rollout that was cut
    short is played again from its answers. Raises InputError: a line of the file is damaged.
    """

    def __init__(self, client: InferenceClient, path: Path) -> None:
        self.client = client
        self.problem: SparringError | None = None
        """Why an answer could not be kept. No further question is asked then."""
        self._lines = GrowingFile(path, _Answer)
        self._answers = {line.key: line.response for line in self._lines.read()}

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        max_reasoning: int | None = None,
        sampling: Sampling | None = None,
        reasoning: ReasoningTags = "auto",
    ) -> ModelResponse:
        """Return the kept answer, or ask. Raises SparringError: it cannot be kept."""
        own = None if reasoning == "auto" else reasoning
        # A client of one's own may not know the last four.
        given: dict[str, Any] = {"stop": stop, "max_reasoning": max_reasoning, "sampling": sampling}
        some = {name: one for name, one in given.items() if one}
        told = told_of_reasoning(self.client, reasoning)
        question: list[Any] = [messages, temperature, max_tokens, return_tokens, model, seed, stop]
        question += [one for one in (max_reasoning, sampling, own) if one is not None]
        key = hashlib.sha256(msgspec.json.encode(question)).hexdigest()
        if seed is not None and key in self._answers:
            return self._answers[key]
        if self.problem is not None:
            raise self.problem
        response = await self.client.complete(
            messages,
            temperature,
            max_tokens,
            return_tokens,
            model=model,
            seed=seed,
            **some,
            **told,
        )
        if not told or response.reasoning is None:
            response = response.read_by(reasoning)
        if seed is not None:
            self._keep(key, response)
        return response

    def _keep(self, key: str, response: ModelResponse) -> None:
        self._answers[key] = response
        try:
            self._lines.append(_Answer(key, response))
        except OSError as error:
            self.problem = SparringError(f"{self._lines.path} cannot be written ({error})")
            raise self.problem from error

    async def get_policy_version(self) -> int:
        """Return the client's."""
        return await self.client.get_policy_version()


@contextmanager
def answers_kept(arena: Arena, path: Path) -> Iterator[None]:
    """Keep the answers to an arena's calls in a file while the body runs. Raises SparringError: one could not
    be kept."""
    asked = arena.client
    arena.client = keeping = KeptAnswers(asked, path)
    try:
        yield
    finally:
        arena.client = asked
    if keeping.problem is not None:
        raise keeping.problem
