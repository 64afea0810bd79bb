"""Play a trained best response against the policy that it answers, and compute the exact measure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sparring.collection.rollout_log import write_rollouts
from sparring.commands.answered import Answered
from sparring.commands.serving import build_engine
from sparring.config.model import InferenceSettings
from sparring.core import AgentSpec, CallSettings, InferenceClient, SparringError, derive_seed
from sparring.core.adapters import TRAINED
from sparring.engine.api_models import CALLS_AT_ONCE
from sparring.engine.paid_answers import ANSWERS_FILE, CallsSpent, PaidFile, paying_client
from sparring.envs.catalog import library_of
from sparring.envs.policy_lines import is_policy_file
from sparring.envs.scripted import PLAYER_NAMES, make_player
from sparring.envs.templates import get_template
from sparring.evaluation.best_response import Gains, Won, measure_gains
from sparring.evaluation.exact_payoffs import policy_of
from sparring.evaluation.match import CONCURRENCY, Agent, Mixture, Play, Progress, mapped
from sparring.evaluation.nash_conv import LONG_LIMIT, nash_conv, nash_conv_of_policy
from sparring.evaluation.results import NashConvResult
from sparring.evaluation.venues import GameVenue, ProgramVenue

WON_GAMES = "won.jsonl"
"""The games in which the response earned most."""


def write_won(directory: Path, won: Sequence[Won]) -> None:
    """Write the games in which the response earned most."""
    write_rollouts(directory / WON_GAMES, 0, [rollout for one in won for rollout in one.rollouts])


class Measuring:
    """Plays a response and the policy against the policy, on the same deals, in every seat.

    Args:
        answered: who is answered.
        directory: has the file of the answers that were paid for.
        trained: the adapters of a response that is a model, by policy; with none, a table responds.
        fixed: the adapters of the policy.
        inference: how models answer.
        calls: at most so many calls are made to models behind an API, those of the training included;
            ``None`` for no limit.
    """

    def __init__(
        self,
        answered: Answered,
        directory: Path,
        trained: Mapping[str, Path],
        fixed: Mapping[str, Path],
        inference: InferenceSettings,
        seed: int,
        progress: Progress,
        calls: int | None = None,
    ) -> None:
        self.answered = answered
        self.venue, self.policy = answered.venue, answered.policy
        self.trained = trained
        frozen = self.venue.frozen.adapters
        self.adapters = {self._served(name): path for name, path in fixed.items()} | dict(frozen)
        self.inference = inference
        self.answers = PaidFile(directory / ANSWERS_FILE, calls)
        self.addresses = answered.apis
        self.seed = seed
        self.progress = progress
        self.engine = self._engine()

    def _engine(self) -> InferenceClient | None:
        """Return what answers for models that are here; ``None`` if there is none."""
        seats = [(seat,) if isinstance(seat, str) else seat.members for seat in self._seats]
        named = {name for members in seats for name in members}
        models = {name for name in named if self._script_of(name) is None} - {*self.addresses}
        if not (models or self.trained or isinstance(self.venue, ProgramVenue)):
            return None
        adapters = {**self.trained, **self.adapters}
        return build_engine(self.answered.source.model, adapters, self.inference, self.seed, self.progress)

    def client(self, *, measured: bool = True) -> InferenceClient:
        """Return what answers for everybody; not ``measured``, answers that were paid for come again."""
        if not self.addresses and self.engine is not None:
            return self.engine
        limit = self.inference.max_tokens
        return paying_client(self.engine, self.addresses, self.answers, limit, measured=measured)

    @property
    def agents(self) -> list[Agent]:
        """Who answers in each seat for the policy."""
        calls = CallSettings(max_tokens=self.inference.max_tokens)
        return [mapped(one, self._scripted) for one in self.venue.agents(self._seats, calls)]

    @property
    def _response(self) -> Sequence[Agent]:
        """Who answers in each seat for the response."""
        if not self.trained:
            return [mapped(one, partial(replace, stand_in=True)) for one in self.agents]
        names = [one if one in self.trained else TRAINED for one in self.policy.policies]
        return self.venue.agents(names, CallSettings(max_tokens=self.inference.max_tokens))

    async def gains(self, games: int, play: Play, *, look: bool = False) -> tuple[Gains, list[Won]]:
        """Return what the response gains, and the games in which it earned most.

        ``play`` plays them with a client of :meth:`client`. When the calls are used up, the rounds that were
        played count; in a ``look`` while the response learns, which has other games, CallsSpent is raised.
        """
        doing = f"{self.venue.name}: the best response and the policy, against the policy"
        with self.progress.doing(doing, "games", games) as count:
            return await measure_gains(
                play,
                self.venue,
                self.agents,
                self._response,
                games,
                derive_seed(self.seed, "look" if look else "exploit"),
                count,
                concurrency=CALLS_AT_ONCE if self.addresses else CONCURRENCY,
                ends=() if look or not self.addresses else CallsSpent,
            )

    @property
    def _seats(self) -> list[str | Mixture[str]]:
        return [mapped(seat, self._served) for seat in self.policy.seats]

    def _served(self, name: str) -> str:
        """Return the name under which the frozen policy's adapters are served beside what was trained."""
        return f"frozen/{name}" if name in self.policy.adapters else name

    def _scripted(self, agent: AgentSpec) -> AgentSpec:
        script = self._script_of(agent.model)
        return agent if script is None else AgentSpec("script", script)

    def _script_of(self, name: str) -> str | None:
        """Return the scripted player, or the policy's file, that a name means; ``None`` for a model."""
        meant = self.policy.others.get(name, name)
        return meant if meant in PLAYER_NAMES or is_policy_file(meant) else None

    async def exact(self) -> NashConvResult | None:
        """Return the policy's exact measure; ``None`` where there is none, or it would take too long.

        It also counts invalid answers as the games do, if one of them ends a game.
        """
        if not isinstance(self.venue, GameVenue) or self.addresses:
            return None
        env = self.venue.env
        if library_of(env.id) != "openspiel" or env.stop:
            return None
        first = self.policy.seats[0]
        script = self._script_of(first) if isinstance(first, str) else None
        try:
            if script is not None:
                policy = policy_of(env.id, make_player(script, env.id, seed=0))
                return nash_conv_of_policy(env.id, self.answered.query.name, policy)
            return await nash_conv(
                self.client(),
                env.id,
                get_template(env.template),
                model=self._seats,
                timeout=LONG_LIMIT,
                progress=self.progress,
                as_played=env.error_allowance == 0,
            )
        except SparringError as error:  # the games are played, and their result is worth as much without it
            self.progress.say(f"note: nothing exact beside the gains: {error}")
            return None
