"""GameScheduler: which game is played next, by whom and from which seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from selfplay.core import AgentSpec, PlaySpec, TaskMeta, derive_seed
from selfplay.population.environment_samplers import BaseEnvSampler
from selfplay.population.model_pool import ModelPool

UNTRAINED = "base"
"""What the client calls the model without an adapter: a checkpoint that has no path."""


@dataclass(frozen=True)
class EnvSpec:
    """An environment as the scheduler sees it. ``key`` names the episode registered with the arena.

    ``trained_seats`` is how many seats are the policy's and trained; 0 leaves it to the pool's mode.
    """

    key: str
    env_id: str
    num_players: int
    trained_seats: int = 0


@dataclass(frozen=True)
class Job:
    """One game to run. ``uids`` says which member of the pool sits in each seat."""

    meta: TaskMeta
    spec: PlaySpec
    episode_key: str
    uids: tuple[str, ...]

    @property
    def name(self) -> str:
        """The rollout's id: the same in every repetition of the run."""
        return f"{self.meta.type}-{self.meta.index:08d}"


class GameScheduler:
    """Makes jobs. A job follows from the run's seed, its index and the pool's state when it is made.

    Args:
        pool: chooses opponents. In mode ``mirror`` the policy holds every seat and every seat is trained;
            otherwise it holds one seat (or as many as the environment says), drawn uniformly, and one
            opponent holds the others.
        environments: draws the environment of each training game.
        evaluation: pairs of environment and opponent uid, taken in turn.
        seed: the run's.
        temperature: at which trained seats draw.
        max_tokens: most tokens of an answer.
        pin_evaluation: evaluation games are played by the pool's current checkpoint to their end; otherwise
            by whatever the policy is meanwhile.
    """

    def __init__(
        self,
        pool: ModelPool,
        environments: BaseEnvSampler[EnvSpec],
        *,
        evaluation: Sequence[tuple[EnvSpec, str]] = (),
        seed: int,
        temperature: float,
        max_tokens: int,
        pin_evaluation: bool = False,
    ) -> None:
        self.pool = pool
        self.environments = environments
        self.evaluation = list(evaluation)
        self.seed = seed
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.pin_evaluation = pin_evaluation
        self.next_train = 0
        self.next_eval = 0

    def next_train_job(self) -> Job:
        """The next training game."""
        index, self.next_train = self.next_train, self.next_train + 1
        rng = random.Random(derive_seed(self.seed, "train job", index))
        env = self.environments.sample(rng)
        current = self.pool.current_uid() or ""
        trained = env.trained_seats or (env.num_players if self.pool.sample_mode == "mirror" else 1)
        if trained == env.num_players:
            return self._job("train", index, env, (current,) * env.num_players, set(range(env.num_players)))
        opponent = self.pool.sample(current, rng)
        seats = (
            {rng.randrange(env.num_players)}
            if trained == 1
            else set(rng.sample(range(env.num_players), trained))
        )
        uids = tuple(current if pid in seats else opponent for pid in range(env.num_players))
        return self._job("train", index, env, uids, seats)

    def next_eval_job(self, place: int | None = None) -> Job:
        """The next evaluation game: environments and opponents in turn, seats in turn, nothing is trained.

        ``place`` counts where the turns are; by default all evaluation games of the run.
        """
        index, self.next_eval = self.next_eval, self.next_eval + 1
        turn, which = divmod(index if place is None else place, len(self.evaluation))
        env, opponent = self.evaluation[which]
        seat = turn % env.num_players
        current = self.pool.current_uid() or ""
        uids = tuple(current if pid == seat else opponent for pid in range(env.num_players))
        return self._job("eval", index, env, uids, set(), seat)

    def _job(
        self,
        kind: str,
        index: int,
        env: EnvSpec,
        uids: tuple[str, ...],
        trained: set[int],
        eval_pid: int | None = None,
    ) -> Job:
        seed = derive_seed(self.seed, kind, index)
        agents = tuple(self._agent(uid, pid in trained) for pid, uid in enumerate(uids))
        opponents = [uid for uid in uids if uid != self.pool.current_uid()]
        meta = TaskMeta(
            type="train" if kind == "train" else "eval",
            index=index,
            env_id=env.env_id,
            seed=seed,
            opponent_uid=opponents[0] if opponents else None,
            ckpt_uid=self.pool.current_uid(),
            info={} if eval_pid is None else {"eval_pid": eval_pid},
        )
        return Job(meta, PlaySpec(env.env_id, env.num_players, agents, seed), env.key, uids)

    def _agent(self, uid: str, trained: bool) -> AgentSpec:
        if trained:
            return AgentSpec("policy", "default", self.temperature, self.max_tokens)
        if uid == self.pool.current_uid() and not self.pin_evaluation:
            return AgentSpec("model", "default", self.temperature, self.max_tokens)
        name, kind = self.pool.ckpt_path(uid) or (uid, "fixed")
        if kind == "script":
            return AgentSpec("script", name or uid)
        if kind == "checkpoint":
            name = uid if name else UNTRAINED
        return AgentSpec("model", name or uid, self.temperature, self.max_tokens)

    def state_dict(self) -> dict[str, int]:
        """How many jobs of each type were made."""
        return {"next_train": self.next_train, "next_eval": self.next_eval}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from :meth:`state_dict`."""
        self.next_train, self.next_eval = state["next_train"], state["next_eval"]
