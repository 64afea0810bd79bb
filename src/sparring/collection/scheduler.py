"""GameScheduler: chooses the next game, its players and its seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparring.core import AgentSpec, PlaySpec, TaskMeta, derive_seed
from sparring.core.adapters import BASE
from sparring.core.play import GameKind
from sparring.population.environment_samplers import BaseEnvSampler
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.population.payoff_games import PayoffGame
from sparring.population.pool_members import POLICY_UID


@dataclass(frozen=True)
class EnvSpec:
    """An environment of the scheduler. ``key`` names the episode that is registered with the arena.

    ``trained_seats`` of 0 leaves their number to the pool's mode. ``policies`` are those of the seats; empty
    if ``default`` has every seat.
    """

    key: str
    env_id: str
    num_players: int
    trained_seats: int = 0
    policies: tuple[str, ...] = ()

    def policy(self, pid: int) -> str:
        """Return the policy that a seat plays and trains."""
        return self.policies[pid] if self.policies else POLICY_UID

    @property
    def trained_pids(self) -> list[int]:
        """The seats whose policies are trained; a frozen seat has a fixed member of the pool."""
        return [pid for pid in range(self.num_players) if not self.policy(pid).startswith("fixed-")]


@dataclass(frozen=True)
class GameJob:
    """One game to run. ``uids`` are the pool members in the seats, in seat order."""

    meta: TaskMeta
    spec: PlaySpec
    episode_key: str
    uids: tuple[str, ...]

    @property
    def name(self) -> str:
        """The rollout's id, which is the same in every repetition of the run."""
        return f"{self.meta.type}-{self.meta.index:08d}"

    @property
    def is_training(self) -> bool:
        """Whether the game is played to be learned from, not to evaluate or for payoffs."""
        return self.meta.type == "train"

    @property
    def is_payoff(self) -> bool:
        """Whether the game is played for the payoff matrix of the pool."""
        return self.meta.type == "payoff"


class GameScheduler:
    """Makes jobs. A job is determined by the run's seed, its index and the pool's state at that moment.

    In a mirror game the policies play every seat and every seat is trained. Otherwise one seat (or the
    environment's ``trained_seats``), drawn uniformly, is played by its policy and trained, and opponents from
    the pool play the others: the same one for all seats of a policy. A frozen seat keeps its member.

    Args:
        pool: chooses opponents; the policies are members.
        environments: draws the environment of each training game.
        evaluation: pairs of environment and opponent uid, used in turn.
        league: chooses the players of training games, in place of the pool's mode, if there is one.
        pin_evaluation: play evaluation games with the pool's latest checkpoint; otherwise with the current
            policy, which may change during a game.
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
        league: League | None = None,
        pin_evaluation: bool = False,
    ) -> None:
        self.pool = pool
        self.environments = environments
        self.evaluation = list(evaluation)
        self.seed = seed
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.league = league
        self.pin_evaluation = pin_evaluation
        self.next_train = 0
        self.next_eval = 0

    def next_train_job(self) -> GameJob:
        """Return the next training game."""
        index, self.next_train = self.next_train, self.next_train + 1
        job = self.train_job(index)
        trained = job.spec.trained_pids
        others = {uid for pid, uid in enumerate(job.uids) if pid not in trained}
        self.pool.count_drawn(others or {*job.uids})
        if self.league is not None:
            self.league.count(job.uids[trained[0]], job.meta.info["reason"])
        return job

    def train_job(self, index: int) -> GameJob:
        """Return the training game with this number, against an opponent of the pool's present state."""
        rng = random.Random(derive_seed(self.seed, "train job", index))
        env = self.environments.sample(rng)
        if self.league is not None:
            return self._league_job(self.league, index, env, rng)
        pids, policies = env.trained_pids, [env.policy(pid) for pid in range(env.num_players)]
        trained = env.trained_seats or (len(pids) if self.pool.draw_mirror(rng) else 1)
        if trained == len(pids):
            return self._job("train", index, env, policies[pids[0]], tuple(policies), set(pids))
        if not env.policies:
            opponents = {POLICY_UID: self.pool.sample(POLICY_UID, rng)}
        seats = {rng.choice(pids)} if trained == 1 else set(rng.sample(pids, trained))
        me = policies[min(seats)]
        if env.policies:
            others = dict.fromkeys(policies[pid] for pid in pids if pid not in seats)
            opponents = {policy: self.pool.sample(me, rng, policy) for policy in others}
        uids = tuple(one if pid in seats else opponents.get(one, one) for pid, one in enumerate(policies))
        return self._job("train", index, env, me, uids, seats)

    def _league_job(self, league: League, index: int, env: EnvSpec, rng: random.Random) -> GameJob:
        pairing = league.draw(rng)
        uids = [pairing.opponent] * env.num_players
        uids[pairing.seat] = pairing.player
        learns = {pid for pid, uid in enumerate(uids) if uid == pairing.player}
        info = {"reason": pairing.reason}
        return self._job("train", index, env, pairing.player, tuple(uids), learns, info)

    def next_eval_job(self, place: int | None = None) -> GameJob:
        """Return the next evaluation game, in which no seat is trained.

        Pairs of environment and opponent take turns, and so do the seats. ``place`` is the position in this
        order; by default the number of evaluation games of the run so far.
        """
        index, self.next_eval = self.next_eval, self.next_eval + 1
        turn, which = divmod(index if place is None else place, len(self.evaluation))
        env, opponent = self.evaluation[which]
        seat = turn % env.num_players
        policy = env.policy(seat)
        me = (self.pool.current_uid(policy) or "") if self.pin_evaluation else policy
        uids = tuple(me if pid == seat else opponent for pid in range(env.num_players))
        return self._job("eval", index, env, me, uids, set())

    def next_payoff_jobs(self, most: int | None = None) -> list[GameJob]:
        """Return at most so many of the payoff games that the pool waits for; no seat of theirs is trained.

        Two games in a row, which differ in the order of seats, have the same environment.
        """
        return [self._payoff_job(game) for game in self.pool.payoffs.take(most)]

    def _payoff_job(self, game: PayoffGame) -> GameJob:
        env = self.environments.sample(random.Random(derive_seed(self.seed, "payoff pair", game.number // 2)))
        return self._job("payoff", game.number, env, game.first, (game.first, game.second), set())

    def _job(
        self,
        kind: GameKind,
        index: int,
        env: EnvSpec,
        me: str,
        uids: tuple[str, ...],
        trained: set[int],
        info: dict[str, Any] | None = None,
    ) -> GameJob:
        seed = derive_seed(self.seed, kind, index)
        agents = tuple(self._agent(uid, pid in trained) for pid, uid in enumerate(uids))
        opponents = [uid for uid in uids if uid != me]
        meta = TaskMeta(
            type=kind,
            env_id=env.env_id,
            player_id=uids.index(me),
            seed=seed,
            ckpt_uid=me,
            opponent_uid=opponents[0] if opponents else None,
            index=index,
            info=info or {},
        )
        return GameJob(meta, PlaySpec(env.env_id, env.num_players, agents, seed), env.key, uids)

    def _agent(self, uid: str, trained: bool) -> AgentSpec:
        if trained:
            return AgentSpec("policy", uid, self.temperature, self.max_tokens)
        name, kind = self.pool.ckpt_path(uid) or (uid, "fixed")
        if kind == "script":
            return AgentSpec("script", name or uid)
        if kind == "checkpoint":
            name = uid if name else BASE
        return AgentSpec("model", name or uid, self.temperature, self.max_tokens)

    def state_dict(self) -> dict[str, int]:
        """Return the number of jobs made of each type."""
        return {"next_train": self.next_train, "next_eval": self.next_eval}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state."""
        self.next_train, self.next_eval = state["next_train"], state["next_eval"]
