"""Play a trained best response against the policy that it answers, and compute the exact measure."""

from collections.abc import Sequence
from pathlib import Path

from sparring.commands.answered import Answered
from sparring.commands.model_source import find_model
from sparring.commands.serving import build_engine
from sparring.config import Config
from sparring.core import AgentSpec, CallSettings, InferenceClient, SparringError, derive_seed
from sparring.core.adapters import TRAINED
from sparring.engine.api_models import CALLS_AT_ONCE, MembersClient, openai_client
from sparring.engine.paid_answers import ANSWERS_FILE, CallsSpent, PaidAnswers, PaidFile
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import game_at
from sparring.envs.policy_lines import is_policy_file
from sparring.envs.scripted import PLAYER_NAMES, TablePlayer, make_player
from sparring.envs.templates import get_template
from sparring.evaluation.best_response import Gains, Won, measure_gains
from sparring.evaluation.match import CONCURRENCY, Mixture, Progress, mapped
from sparring.evaluation.nash_conv import LONG_LIMIT, nash_conv, nash_conv_of_policy, states_of
from sparring.evaluation.results import NashConvResult
from sparring.evaluation.venues import GameVenue, ProgramVenue
from sparring.run.given_adapters import frozen_of


class Measuring:
    """Plays the best response and the policy against the policy, on the same deals, in every seat.

    At most ``calls`` are made to models behind an API, those of the training included; ``None`` for no limit.
    """

    def __init__(
        self,
        answered: Answered,
        directory: Path,
        config: Config,
        seed: int,
        progress: Progress,
        calls: int | None = None,
    ) -> None:
        self.answered = answered
        self.venue, self.policy = answered.venue, answered.policy
        trained = find_model(str(directory)).adapters()
        fixed = {self._served(one): directory / "given" / one for one in self.policy.adapters}
        adapters = {**trained, **fixed, **self.venue.frozen}
        model = answered.source.model
        self.engine = build_engine(model, adapters, config.inference, seed, progress)
        self.answers = PaidFile(directory / ANSWERS_FILE, calls)
        apis = {name: one for name, one in self.policy.others.items() if not is_policy_file(one)}
        if isinstance(self.venue, ProgramVenue):
            apis |= frozen_of(self.venue.config, "api")
        limit = config.inference.max_tokens
        self.apis = {
            name: PaidAnswers(one, openai_client(one), self.answers, limit, measured=True)
            for name, one in apis.items()
        }
        self.response = [one if one in trained else TRAINED for one in self.policy.policies]
        self.config = config
        self.seed = derive_seed(seed, "exploit")
        self.progress = progress

    @property
    def client(self) -> InferenceClient:
        """What answers for everybody."""
        return MembersClient(self.engine, self.apis) if self.apis else self.engine

    async def gains(self, games: int) -> tuple[Gains, list[Won]]:
        """Return what the response gains, and the games in which it earned most."""
        venue, calls = self.venue, CallSettings(max_tokens=self.config.inference.max_tokens)
        agents = [mapped(one, self._scripted) for one in venue.agents(self._seats, calls)]
        response = venue.agents(self.response, calls)
        doing = f"{venue.name}: the best response and the policy, against the policy"
        async with venue.playing(self.client) as play:
            with self.progress.doing(doing, "games", games) as count:
                return await measure_gains(
                    play,
                    venue,
                    agents,
                    response,
                    games,
                    self.seed,
                    count,
                    concurrency=CALLS_AT_ONCE if self.apis else CONCURRENCY,
                    ends=CallsSpent if self.apis else (),
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
        if not isinstance(self.venue, GameVenue) or self.apis:
            return None
        env = self.venue.env
        if library_of(env.id) != "openspiel" or env.stop:
            return None
        first = self.policy.seats[0]
        script = self._script_of(first) if isinstance(first, str) else None
        try:
            if script is not None:
                return nash_conv_of_policy(env.id, self.answered.query.name, _table(script, env.id))
            return await nash_conv(
                self.client,
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


def _table(script: str, env_id: str) -> Sequence[Sequence[float]]:
    """Return the policy of a scripted player, by information state and legal action."""
    player, states = make_player(script, env_id, seed=0), states_of(env_id)
    if not isinstance(player, TablePlayer):
        return [[1 / len(one.actions)] * len(one.actions) for one in states]
    chances = [player.policy(game_at(env_id, one.history).state) for one in states]
    policies = zip(chances, states, strict=True)
    return [[chance.get(action, 0.0) for action in one.actions] for chance, one in policies]
