"""A game of a run: the job, its rollout, and the result that is counted, rated and learned."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparring.collection.buffer_state import FinishedGame
from sparring.collection.tracker import Values, eval_values, trajectory_values
from sparring.core import Arena, PlaySpec, Rollout, TaskMeta, Trajectory, trajectories_of
from sparring.population.pool_members import POLICY_UID


@dataclass(frozen=True)
class EnvSpec:
    """An environment of the scheduler. ``key`` names the episode that is registered with the arena.

    ``trained_seats`` of 0 leaves their number to the pool's mode. ``policies`` are those of the seats; empty
    if ``default`` has every seat. ``rewards`` are the smallest and the largest one.
    """

    key: str
    env_id: str
    num_players: int
    trained_seats: int = 0
    policies: tuple[str, ...] = ()
    rewards: tuple[float, float] = (-1.0, 1.0)

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


@dataclass(frozen=True)
class GameResult:
    """The result of a game; a ``filtered`` one is left out of training and ratings on purpose.

    ``raised`` and ``failure`` are types of errors: of a move on which the game raised, and of a game that
    failed. ``invalid_seat`` ended the game by an invalid move.
    """

    name: str
    status: Literal["finished", "failed", "filtered"]
    retried: int = 0
    rewards: list[float] = field(default_factory=list)
    action_seq: list[str] = field(default_factory=list)
    raised: str | None = None
    failure: str | None = None
    invalid_seat: int | None = None


@dataclass(frozen=True)
class Played:
    """A job and its rollout; the rollout of a failed job holds the reason."""

    job: GameJob
    rollout: Rollout

    def result(self, filter_opponent_invalid: bool) -> GameResult:
        """Return the result; games that an untrained seat lost by an invalid move may be left out."""
        rollout, name = self.rollout, self.job.name
        retried = rollout.meta.get("retried", 0)
        if rollout.error is not None:
            return GameResult(name, "failed", retried, failure=rollout.error_type)
        raised = rollout.extras.get("raised")
        if filter_opponent_invalid and self.job.is_training and self._opponent_was_invalid():
            return GameResult(name, "filtered", retried, raised=raised)
        final_rewards = rollout.extras["final_rewards"]
        rewards = [final_rewards[pid] for pid in range(self.job.spec.num_players)]
        return GameResult(
            name,
            "finished",
            retried,
            rewards,
            rollout.extras["action_seq"],
            raised,
            invalid_seat=rollout.extras.get("invalid_pid"),
        )

    def trajectories(self, result: GameResult) -> list[Trajectory]:
        """Return the trajectories of the trained seats of a finished training game."""
        learns = self.job.is_training and result.status == "finished"
        return trajectories_of(self.rollout) if learns else []

    def _opponent_was_invalid(self) -> bool:
        invalid_pid = self.rollout.extras.get("invalid_pid")
        return invalid_pid is not None and invalid_pid not in self.job.spec.trained_pids


async def play(arena: Arena, job: GameJob) -> Played:
    """Play a game to its end, or to its last failure."""
    meta = {"rollout_id": job.name, "type": job.meta.type, "seed": job.meta.seed, "uids": list(job.uids)}
    result = await arena.try_episode(job.episode_key, job.spec, meta)
    return Played(job, result.rollout)


@dataclass(frozen=True)
class TakenIn:
    """Games that have ended: for the buffer, as values and counts by metric for the tracker, for the pool."""

    games: list[FinishedGame]
    values: Values
    counts: dict[str, int]
    results: list[GameResult]


@dataclass(frozen=True)
class TakeIn:
    """What becomes of a game that has ended, wherever it was played.

    Of every ``shown_per`` consecutive training games the first ``shown`` are logged, and all that failed.
    """

    filter_opponent_invalid: bool = False
    shown: int = 8
    shown_per: int = 256

    def __call__(self, played: Sequence[Played]) -> TakenIn:
        """Return what the buffer, the tracker and the pool receive."""
        results = [one.result(self.filter_opponent_invalid) for one in played]
        trajectories = [one.trajectories(result) for one, result in zip(played, results, strict=True)]
        values, counts = _values_of(played, results, trajectories)
        return TakenIn(list(map(self._finished, played, trajectories)), values, counts, results)

    def _finished(self, played: Played, trajectories: list[Trajectory]) -> FinishedGame:
        job, rollout = played.job, played.rollout
        is_shown = job.is_training and job.meta.index % self.shown_per < self.shown
        shown = rollout if is_shown or rollout.error is not None else None
        return FinishedGame(job.meta.index, trajectories, shown, rollout.error, job.meta.type)


def _values_of(
    played: Sequence[Played], results: Sequence[GameResult], trajectories: Sequence[Sequence[Trajectory]]
) -> tuple[Values, dict[str, int]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)
    for one, result, of_seats in zip(played, results, trajectories, strict=True):
        if result.status != "finished" or one.job.is_payoff:
            continue
        prefix, measured = _measured(one, of_seats)
        counts[prefix] += len(measured)
        for of_seat in measured:
            for name, numbers in of_seat.items():
                values[name] += numbers
    return dict(values), {prefix: count for prefix, count in counts.items() if count}


def _measured(played: Played, trajectories: Sequence[Trajectory]) -> tuple[str, list[Values]]:
    env_id, rewards = played.job.spec.env_id, played.rollout.extras["final_rewards"]
    if not played.job.is_training:
        seat = played.job.meta.player_id
        return f"evaluation-{env_id}", [eval_values(rewards, seat, env_id)]
    return f"collection-{env_id}", [trajectory_values(one, one.pid, env_id) for one in trajectories]
