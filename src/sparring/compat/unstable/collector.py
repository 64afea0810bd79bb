"""Collector: what UnstableBaselines' arguments say to play, and how the actor is built from it."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import ray

from sparring.cluster.actor_classes import EngineActor, restarting
from sparring.cluster.calls import found
from sparring.cluster.collector import CollectorService
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.host import EngineSettings
from sparring.collection.collector import Limits
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.results import EnvSpec, TakeIn
from sparring.compat.unstable.forms import gpus_of_cluster, with_names
from sparring.compat.unstable.settings import from_vllm_config
from sparring.core import Episode, InputError
from sparring.envs.catalog import check_playable
from sparring.envs.game_episode import GameEpisode
from sparring.envs.scripted import PLAYER_NAMES
from sparring.envs.templates import get_template
from sparring.run.evaluation_opponents import check_opponent_name

Env = Sequence[Any]
"""(environment id, number of players, prompt template), and optionally the number of trained seats, which
otherwise follows from the pool's mode."""


@dataclass(frozen=True)
class CollectorArguments:
    """Those of ``Collector``, which plays games and starts ``num_actors`` inference actors.

    Opponents are given by name: ``random`` or ``optimal`` (scripted), ``base`` (the untrained model), the
    directory of an adapter, or a model behind an API. With several evaluation environments,
    ``evaluation_opponent`` may be a list.

    Raises:
        InputError: an argument is impossible, or an opponent is not available.
    """

    num_actors: int
    step_buffer: Any
    model_pool: Any
    tracker: Any
    vllm_config: dict[str, Any]
    training_envs: Sequence[Env]
    evaluation_envs: Sequence[Env] = ()
    evaluation_opponent: str | Sequence[str] = "google/gemini-2.0-flash-lite-001"
    max_eval_games_per_ckpt: int = 32
    filter_opponent_invalid: bool = False
    action_extraction: str = "default"
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_actors < 1:
            raise InputError("num_actors", f"{self.num_actors} is not positive", "Give 1 or more")
        if self.action_extraction != "default":
            raise InputError(
                "action_extraction",
                f"there is no {self.action_extraction!r}",
                "A prompt template reads answers: default",
            )
        self.engine()
        for env in self.envs():
            env_of(env)
        if not self.training_envs:
            raise InputError("training_envs", "is empty, so nothing is played", "Name an environment")
        self.check_opponents()

    def for_actor(self) -> dict[str, Any]:
        """Add the opponents to the pool; see :class:`CollectorActor`."""
        for name in self.opponents():
            kind = "script" if name in PLAYER_NAMES else "fixed"
            ray.get(self.model_pool.add_fixed.remote(name, kind=kind, active=False))
        return {"build": partial(build_collector, with_names(self))}

    def check_opponents(self) -> None:
        """Check that the opponents of evaluations can play in this process, which may lack a key."""
        for env, name in zip(self.evaluation_envs, self.opponents(), strict=True):
            if env[1] > 1:
                check_opponent_name(name, "evaluation_opponent")

    def engine(self) -> EngineSettings:
        """Return the settings of an engine."""
        return from_vllm_config(self.vllm_config)

    def envs(self) -> list[Env]:
        """Return all environments."""
        return [*self.training_envs, *self.evaluation_envs]

    def opponents(self) -> list[str]:
        """Return the opponent of each evaluation environment."""
        if isinstance(self.evaluation_opponent, str):
            return [self.evaluation_opponent] * len(self.evaluation_envs)
        return list(self.evaluation_opponent)

    def play(self) -> PlaySettings:
        """Return the games to play."""
        evaluations = zip(self.evaluation_envs, self.opponents(), strict=True)
        engine = self.engine()
        return PlaySettings(
            environments=tuple(map(env_of, self.training_envs)),
            weights=(1.0,) * len(self.training_envs),
            evaluation=tuple((env_of(env), f"fixed-{opponent}") for env, opponent in evaluations),
            seed=self.seed,
            temperature=engine.inference.temperature,
            max_tokens=engine.inference.max_tokens,
            max_eval_games_per_ckpt=self.max_eval_games_per_ckpt,
        )


def build_collector(settings: CollectorArguments) -> CollectorService:
    """Build the collector in its process, with its inference actors: with a GPU each if there are any."""
    settings.check_opponents()
    context, engine = ray.get_runtime_context(), settings.engine()
    form = restarting(EngineActor, max_task_retries=0, num_gpus=1 if gpus_of_cluster() else 0)
    engines = [
        form.remote(engine, f"Engine-{number}", settings.tracker) for number in range(settings.num_actors)
    ]
    return CollectorService(
        context.get_actor_name() or f"Collector-{context.get_actor_id()}",
        EngineClient(engines, calls_per_engine=engine.inference.max_queue),
        found(settings.step_buffer),
        found(settings.model_pool),
        found(settings.tracker),
        settings.play(),
        {env_of(env).key: episode_of(env) for env in settings.envs()},
        Limits(max_calls=settings.num_actors * engine.inference.max_queue),
        TakeIn(settings.filter_opponent_invalid),
    )


def env_of(env: Env) -> EnvSpec:
    """Return the scheduler's view of an environment given as UnstableBaselines gives it.

    Raises:
        InputError: there is no such environment or template.
    """
    env_id, num_players, template, *seats = env
    check_playable(env_id, num_players)
    get_template(template)
    return EnvSpec(f"{env_id}|{num_players}|{template}", env_id, num_players, *seats)


def episode_of(env: Env) -> Episode:
    """Return the episode that plays an environment."""
    return GameEpisode(env[0], env[1], get_template(env[2]))
