"""GameScheduler: chooses the next games, their players and their seeds."""

import random
from collections.abc import Sequence
from typing import Any

from sparring.collection.games_in_flight import GamesInFlight, PlaySettings
from sparring.collection.results import EnvSpec, GameJob
from sparring.core import AgentSpec, CallSettings, PlaySpec, TaskMeta, derive_seed
from sparring.core.adapters import BASE
from sparring.core.play import GameKind
from sparring.core.types import UNSET
from sparring.population.curriculum import Curriculum, WeightedEnvSampler
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.population.payoff_games import PayoffGame
from sparring.population.pool_members import POLICY_UID

NO_LIMIT = 1 << 30


def agent_of(pool: ModelPool, uid: str, others: CallSettings, calls: CallSettings = UNSET) -> AgentSpec:
    """Return who plays for a member of the pool in a seat that is not trained.

    It draws with ``calls``, and a member that is not a policy in training with ``others`` where these differ.
    """
    name, kind = pool.ckpt_path(uid) or (uid, "fixed")
    if kind == "script":
        return AgentSpec("script", name or uid)
    if kind == "checkpoint":
        name = uid if name else BASE
    calls = calls if kind == "policy" else others.over(calls)
    return AgentSpec("model", name or uid, calls.temperature, calls.max_tokens, sampling=calls.sampling)


class GameScheduler:
    """Makes games, each determined by the run's seed, its index and the pool's state at that moment.

    In a mirror game the policies play every seat and every seat is trained. Otherwise one seat (or the
    environment's ``trained_seats``), drawn uniformly, is played by its policy and trained, and opponents from
    the pool play the others: the same one for all seats of a policy. A frozen seat keeps its member. A league
    takes the place of the pool's mode. With a curriculum, the environments of training games are drawn by
    weights that follow the results that are rated when the game is made. Evaluation games are played by the
    pool's latest checkpoint if their number by checkpoint is limited, otherwise by the current policy, which
    may change during a game.
    """

    def __init__(
        self, pool: ModelPool, settings: PlaySettings, ledger: GamesInFlight, league: League | None = None
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.ledger = ledger
        self.league = league
        self.environments = WeightedEnvSampler(list(settings.environments), list(settings.weights))
        self.curriculum = Curriculum({env.key: env.rewards for env in settings.environments})
        self.next_train = 0
        self.next_eval = 0

    def next_jobs(self, collector: str, training: int, evaluation: int, step: int) -> list[GameJob]:
        """Hand out at most this many games of each kind; ``step`` counts the run's updates.

        Payoff games take the places of training games, and no training game starts before they have ended.
        """
        jobs = self.ledger.hand_out_again(collector, "train", training)
        jobs += self.ledger.hand_out_again(collector, "payoff", training - len(jobs))
        for game in self.pool.payoffs.take(training - len(jobs)):
            jobs.append(self._handed_out(collector, self._payoff_job(game)))
        for _ in range(min(training - len(jobs), self._training_left())):
            jobs.append(self._handed_out(collector, self.next_train_job()))
        evaluations = self.ledger.hand_out_again(collector, "eval", evaluation)
        for _ in range(min(evaluation - len(evaluations), self._evaluation_left(step))):
            evaluations.append(self._handed_out(collector, self.next_eval_job()))
        return jobs + evaluations

    def has_any(self, training: int, evaluation: int, step: int) -> bool:
        """Return whether :meth:`next_jobs` would hand out a game."""
        kinds = {job.meta.type for job in self.ledger.again}
        waiting = {"train", "payoff"} & kinds or self.pool.payoffs.waiting
        train = training > 0 and bool(waiting or self._training_left() > 0)
        return train or (evaluation > 0 and ("eval" in kinds or self._evaluation_left(step) > 0))

    def replace_opponents(self, removed: set[str]) -> None:
        """Give games against removed members another opponent, and give up their payoff games."""
        self.ledger.give_up(lambda job: job.is_payoff and bool(removed & {*job.uids}))
        self.ledger.replace(lambda job: self.train_job(job.meta.index) if removed & {*job.uids} else job)

    def _handed_out(self, collector: str, job: GameJob) -> GameJob:
        self.ledger.hand_out(collector, job)
        return job

    def _training_left(self) -> int:
        if self.pool.payoffs.waiting or self.ledger.going_on("payoff_"):
            return 0
        allowed = self.settings.training_allowed(self.ledger.consumed)
        return NO_LIMIT if allowed is None else max(0, allowed - self.ledger.accounts["started"])

    def _evaluation_left(self, step: int) -> int:
        settings, ledger = self.settings, self.ledger
        if not settings.evaluation:
            return 0
        left = NO_LIMIT
        if settings.eval_games_per_step is not None:
            left = settings.eval_games_per_step * (step + 1) - ledger.accounts["eval_started"]
        if settings.max_eval_games_per_ckpt is not None:
            most = settings.max_eval_games_per_ckpt * len(settings.evaluation)
            left = min(left, most - ledger.evaluated.get(self.pool.current_uid() or "", 0))
        return max(0, left)

    def count_result(self, job: GameJob, rewards: Sequence[float]) -> None:
        """Let the weights of environments follow the result of a training game, if they do."""
        if self.settings.curriculum and job.is_training:
            self.curriculum.add(job.episode_key, {pid: rewards[pid] for pid in job.spec.trained_pids})

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
        rng = random.Random(derive_seed(self.settings.seed, "train job", index))
        env = self._environments().sample(rng)
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

    def _environments(self) -> WeightedEnvSampler[EnvSpec]:
        """Return the environments of training games by their present weights."""
        settings = self.settings
        if not settings.curriculum:
            return self.environments
        keys = [env.key for env in settings.environments]
        return WeightedEnvSampler(settings.environments, self.curriculum.weights(keys, settings.weights))

    def _league_job(self, league: League, index: int, env: EnvSpec, rng: random.Random) -> GameJob:
        pairing = league.draw(rng, index, range(env.num_players))
        uids = [pairing.uids[pid] for pid in range(env.num_players)]
        learns = {pid for pid, uid in enumerate(uids) if uid == pairing.player}
        info = {"reason": pairing.reason}
        return self._job("train", index, env, pairing.player, tuple(uids), learns, info)

    def next_eval_job(self) -> GameJob:
        """Return the next evaluation game, in which no seat is trained.

        Pairs of environment and opponent take turns, and so do the seats whose policies are trained.
        """
        settings, current = self.settings, self.pool.current_uid() or ""
        index, self.next_eval = self.next_eval, self.next_eval + 1
        place = self.ledger.evaluated.get(current, 0)
        self.ledger.evaluated[current] = place + 1
        pinned = settings.max_eval_games_per_ckpt is not None
        turn, which = divmod(place if pinned else index, len(settings.evaluation))
        env, opponent = settings.evaluation[which]
        seats = env.trained_pids or range(env.num_players)
        seat = seats[turn % len(seats)]
        policy = env.policy(seat)
        me = (self.pool.current_uid(policy) or "") if pinned else policy
        uids = tuple(me if pid == seat else opponent for pid in range(env.num_players))
        return self._job("eval", index, env, me, uids, set())

    def _payoff_job(self, game: PayoffGame) -> GameJob:
        """Return a game without a trained seat; two in a row, with seats swapped, share the environment."""
        env = self.environments.sample(
            random.Random(derive_seed(self.settings.seed, "payoff pair", game.number // 2))
        )
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
        seed = derive_seed(self.settings.seed, kind, index)
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
        settings = self.settings
        if trained:
            return AgentSpec("policy", uid, settings.temperature, settings.max_tokens)
        calls = CallSettings(settings.temperature, settings.max_tokens)
        return agent_of(self.pool, uid, settings.opponents, calls)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of jobs made of each type, and what the weights of environments follow."""
        numbers = {"next_train": self.next_train, "next_eval": self.next_eval}
        return numbers | {"curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.next_train, self.next_eval = state["next_train"], state["next_eval"]
        self.curriculum.load_state_dict(state.get("curriculum", {}))
