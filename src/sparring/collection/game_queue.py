"""GameQueue: which games go to a collector next, and how many may start."""

from sparring.collection.games_in_flight import GamesInFlight, PlaySettings
from sparring.collection.scheduler import GameJob, GameScheduler
from sparring.population.environment_samplers import WeightedEnvSampler
from sparring.population.league import League
from sparring.population.model_pool import ModelPool

NO_LIMIT = 1 << 30


class GameQueue:
    """Games that a lost collector had come first, then new ones; see the module.

    Args:
        pool: chooses opponents.
        settings: the games to play.
        ledger: the games that were handed out before.
        league: chooses the players of training games, if there is one.
    """

    def __init__(
        self, pool: ModelPool, settings: PlaySettings, ledger: GamesInFlight, league: League | None = None
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.ledger = ledger
        self.scheduler = GameScheduler(
            pool,
            WeightedEnvSampler(list(settings.environments), list(settings.weights)),
            evaluation=settings.evaluation,
            seed=settings.seed,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            league=league,
            pin_evaluation=settings.max_eval_games_per_ckpt is not None,
        )

    def next_jobs(self, collector: str, training: int, evaluation: int, step: int) -> list[GameJob]:
        """Hand out at most this many games of each kind; ``step`` counts the run's updates.

        Payoff games take the places of training games, and no training game starts before they have ended.
        """
        jobs = self.ledger.hand_out_again(collector, "train", training)
        jobs += self.ledger.hand_out_again(collector, "payoff", training - len(jobs))
        for payoff_job in self.scheduler.next_payoff_jobs(training - len(jobs)):
            jobs.append(self._handed_out(collector, payoff_job))
        for _ in range(min(training - len(jobs), self._training_left())):
            jobs.append(self._handed_out(collector, self.scheduler.next_train_job()))
        evaluations = self.ledger.hand_out_again(collector, "eval", evaluation)
        for _ in range(min(evaluation - len(evaluations), self._evaluation_left(step))):
            evaluations.append(self._handed_out(collector, self._next_eval_job()))
        return jobs + evaluations

    def has_any(self, training: int, evaluation: int, step: int) -> bool:
        """Return whether :meth:`next_jobs` would hand out a game."""
        kinds = {job.meta.type for job in self.ledger.again}
        waiting = {"train", "payoff"} & kinds or self.pool.payoffs.waiting
        train = training > 0 and bool(waiting or self._training_left() > 0)
        return train or (evaluation > 0 and ("eval" in kinds or self._evaluation_left(step) > 0))

    def replace_opponents(self, removed: set[str]) -> None:
        """Give the games against removed members, which have not ended, another opponent.

        Payoff games of removed members are given up.
        """
        train_job = self.scheduler.train_job
        self.ledger.give_up(lambda job: job.is_payoff and bool(removed & {*job.uids}))
        self.ledger.replace(lambda job: train_job(job.meta.index) if removed & {*job.uids} else job)

    def _handed_out(self, collector: str, job: GameJob) -> GameJob:
        self.ledger.hand_out(collector, job)
        return job

    def _next_eval_job(self) -> GameJob:
        current = self.pool.current_uid() or ""
        place = self.ledger.evaluated.get(current, 0)
        self.ledger.evaluated[current] = place + 1
        return self.scheduler.next_eval_job(place if self.scheduler.pin_evaluation else None)

    def _training_left(self) -> int:
        if self.pool.payoffs.waiting or self.ledger.accounts.payoffs_in_flight:
            return 0
        allowed = self.settings.training_allowed(self.ledger.consumed)
        return NO_LIMIT if allowed is None else max(0, allowed - self.ledger.accounts.started)

    def _evaluation_left(self, step: int) -> int:
        settings, ledger = self.settings, self.ledger
        if not settings.evaluation:
            return 0
        left = NO_LIMIT
        if settings.eval_games_per_step is not None:
            left = settings.eval_games_per_step * (step + 1) - ledger.accounts.eval_started
        if settings.max_eval_games_per_ckpt is not None:
            most = settings.max_eval_games_per_ckpt * len(settings.evaluation)
            left = min(left, most - ledger.evaluated.get(self.pool.current_uid() or "", 0))
        return max(0, left)
