"""RunView: a run at one moment, as far as it has been read."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from sparring.config.finetune import AgentParameters
from sparring.core.env_id import env_name, with_options, with_short_names
from sparring.evaluation.figures import FigureName
from sparring.view.episodes import LoggedEpisode
from sparring.view.evaluations import Figures, of_tasks
from sparring.view.fine_tuning import FineTuning
from sparring.view.metrics import POOL, Series
from sparring.view.population import Population

REWARD = "program/reward/"
RECENT_STEPS = 20
"""The number of steps from which the remaining time is estimated."""


@dataclass(frozen=True)
class Rating:
    """A model's strength: mean and standard deviation in TrueSkill's units, and games if known.

    It was ``drawn`` as an opponent for so many games of training.
    """

    uid: str
    mu: float
    sigma: float
    games: int | None = None
    drawn: int = 0


@dataclass(frozen=True)
class RunView:
    """A run as far as it has been read. Nobody changes one that was handed out.

    Args:
        name: the run's name.
        config: the run's configuration; empty if it is unknown.
        series: metrics by name; those of the model pool only for the first models.
        latest: the latest value of every metric, including ``step`` and ``wall_time`` (seconds since 1970).
        lines: the number of lines of metrics.
        damaged_lines: the number of lines of metrics that could not be read.
        figures: the figures of the evaluations, by name and update.
        damaged_evaluations: the files of evaluations that could not be read.
        moments: the population at some updates, the newest last; only that one may have pairs.
        game: the last finished game or conversation.
        share_read: the share of the recorded data that has been read; below 1, more can be read at once.
        trouble: why nothing could be read this time; empty if nothing is wrong.
        actors: the current load of each actor of a cluster, by name; see ``TrackerService.heartbeat``.
        in_use: whether a process trains this run, as far as is known.
        tuning: what is particular to a run through fine-tuning jobs; ``None`` for any other. Its steps are
            iterations, and metrics and evaluations count them from 0.
        config_problem: what is wrong with the configuration; empty if nothing is, or there is none.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    damaged_lines: int = 0
    figures: Figures = field(default_factory=dict)
    damaged_evaluations: list[str] = field(default_factory=list)
    moments: list[Population] = field(default_factory=list)
    game: LoggedEpisode | None = None
    share_read: float = 1.0
    trouble: str = ""
    actors: dict[str, dict[str, Any]] = field(default_factory=dict)
    in_use: bool = True
    tuning: FineTuning | None = None
    config_problem: str = ""

    @property
    def step(self) -> int:
        """The number of complete updates; of a fine-tuning run, of complete iterations."""
        if self.tuning is not None:
            return self.tuning.iteration
        return int(self.latest.get("step", 0))

    @property
    def total_steps(self) -> int | None:
        """The number of updates or iterations that the run is configured for; ``None`` if unknown."""
        if self.tuning is None:
            steps = self.setting("learning", "steps", int)
        else:
            steps = (self.setting("finetune", "rl", dict) or {}).get("num_iterations")
        return steps if isinstance(steps, int) else None

    @property
    def is_finished(self) -> bool:
        """Whether the last update has been recorded. Evaluation and saving may still follow."""
        if self.tuning is not None:
            return self.tuning.is_done
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def is_program(self) -> bool:
        """Whether the run trains on a program, by its configuration or, without one, by its metrics."""
        if self.config:
            return "program" in self.config
        return any(name.startswith("program/") for name in self.series)

    def has_critic(self, policy: str) -> bool:
        """Return whether a policy learns with a critic, by the configuration."""
        own = (self.setting("learning", "policies", dict) or {}).get(policy)
        critics = [self.setting("learning", "critic", dict)]
        critics += [own.get("critic")] if isinstance(own, dict) else []
        return any(critic is not None for critic in critics)

    @property
    def turn(self) -> str:
        """The noun for what :attr:`step` counts: a turn of the run's loop."""
        return "update" if self.tuning is None else "iteration"

    @property
    def unit(self) -> str:
        """The noun for the run's games, in the plural."""
        return "episodes" if self.is_program else "games"

    @property
    def model(self) -> str:
        """The model's name, which a configuration gives as text or in a table."""
        if self.tuning is not None:
            return ", ".join(self.tuned_models()) or "unknown"
        model = self.config.get("model", self.config.get("model_name"))
        if isinstance(model, dict):
            model = next((model[key] for key in ("name", "id", "path", "base") if key in model), None)
        return str(model) if model is not None else "unknown"

    def tuned_models(self) -> list[str]:
        """Return the models from which a fine-tuning run begins, by the configuration; none without one."""
        agents = (self.setting("finetune", "agents", dict) or {}).values()
        named = [agent.get("model_name") for agent in agents if isinstance(agent, dict)]
        if not named and "finetune" in self.config:
            named = [AgentParameters().model_name]
        return list(dict.fromkeys(name for name in named if isinstance(name, str)))

    def setting(self, section: str, name: str, kind: type) -> Any:
        """Return a value of the configuration; ``None`` if it is missing or of another type."""
        found = self.config.get(section)
        value = found.get(name) if isinstance(found, dict) else None
        return value if isinstance(value, kind) else None

    def metric(self, name: str) -> Series:
        """Return a metric by step; empty if it was never recorded."""
        return self.series.get(name, Series())

    def under(self, prefix: str, ending: str = "") -> dict[str, Series]:
        """Return the metrics with a prefix and an ending, by the rest of their names, in order of names."""
        names = sorted(name for name in self.series if name.startswith(prefix) and name.endswith(ending))
        return {name.removeprefix(prefix).removesuffix(ending): self.series[name] for name in names}

    def plays(self) -> list[str]:
        """Return the name of the program, or those of the environments, of training if any is known."""
        if self.is_program:
            names = (self.setting("program", name, str) for name in ("protocol", "path", "type"))
            return [str(next(filter(None, names), None))]
        played = {rest.rpartition("/")[0] for rest in self.under("collection-")} - {""}
        measured = {name.env_id for name in self.figures if not name.is_of_task} - {""}
        return sorted(played) or _names_of(self.config.get("envs")) or sorted(measured)

    def watches(self) -> list[str]:
        """Return the names of the games of evaluations, if they have games of their own."""
        return _names_of(self.setting("evaluation", "envs", list))

    def shown(self, text: str) -> str:
        """Return a text for a reader, in which environments have short names."""
        games = self.config.get("envs"), self.setting("evaluation", "envs", list)
        return with_short_names(text, [one for some in games for one in _ids_of(some)])

    def asks(self) -> list[str]:
        """Return the names of the tasks that were asked."""
        return list(dict.fromkeys(name.env_id for name in of_tasks(self.figures)))

    def evaluated_in(self) -> set[str]:
        """Return the names of all environments that are played, in training or in evaluations."""
        found = (name.env_id for name in self.figures if not name.is_of_task)
        return {*self.plays(), *found} - {""}

    @property
    def last_evaluation(self) -> int:
        """The update of the last evaluation, but for tasks, which have their own pace; 0 without one."""
        steps = [step for name, one in self.figures.items() if not name.is_of_task for step in one]
        return max(steps, default=0)

    def last_measured(self, name: FigureName) -> int:
        """The update of the last evaluation that may have measured a figure."""
        return max(self.figures[name]) if name.is_of_task and name in self.figures else self.last_evaluation

    def staleness(self) -> dict[int, Series]:
        """Return the share of the trained answers by their age in versions, in order of age."""
        found = {int(age): one for age, one in self.under("overlap/staleness_").items() if age.isdecimal()}
        return dict(sorted(found.items()))

    def answers(self, measure: str) -> dict[str, Series]:
        """Return a figure of the trained answers by role or, in games, by seat."""
        found = self.under(f"answers/{measure}/")
        return found if self.is_program else {role.replace("player_", "seat "): found[role] for role in found}

    def roles(self) -> list[str]:
        """Return every role of a program that metrics name, sorted."""
        return list(self.under(REWARD))

    def policies(self) -> list[str]:
        """Return the policies that have learners of their own, sorted; empty if there is only one."""
        return sorted({rest.rpartition("/")[0] for rest in self.under("learner/")} - {""})

    def pool(self) -> dict[str, dict[str, float]]:
        """Return the latest figures of the model pool's members by uid and name."""
        found: dict[str, dict[str, float]] = {}
        for name, value in self.latest.items():
            if name.startswith(POOL) and "/" in (rest := name.removeprefix(POOL)):
                uid, measure = rest.rsplit("/", 1)
                found.setdefault(uid, {})[measure] = value
        return found

    def population(self) -> Population | None:
        """Return the newest moment of the population; ``None`` without any."""
        return self.moments[-1] if self.moments else None

    @property
    def has_population(self) -> bool:
        """Whether a policy has met frozen copies, as far as is known."""
        population = self.population()
        return population is not None and population.has_copies

    def ratings(self) -> list[Rating]:
        """Return the latest ratings, best first; empty if no model has been rated."""
        ratings = [
            Rating(
                uid,
                one["mu"],
                one["sigma"],
                int(one["games"]) if "games" in one else None,
                int(one.get("drawn", 0)),
            )
            for uid, one in self.pool().items()
            if {"mu", "sigma"} <= one.keys()
        ]
        if len({(one.mu, one.sigma) for one in ratings}) < 2:
            return []
        return sorted(ratings, key=lambda one: (-one.mu, one.uid))

    def of_last_step(self) -> dict[str, float]:
        """Return the metrics of the last step."""
        return {
            name: one.values[-1]
            for name, one in self.series.items()
            if one.steps and one.steps[-1] == self.step
        }

    def seconds(self) -> float:
        """Return the wall-clock time from the first evaluation to the last metrics; 0 without metrics.

        The first line is written at the end of its step, so the seconds that it records are added.
        """
        times = self.metric("wall_time")
        if not times.values:
            return 0.0
        phases = self.under("time/", "_seconds").values()
        recorded = sum(one.values[0] for one in phases if one.steps[0] == times.steps[0])
        return times.values[-1] - times.values[0] + recorded

    def step_seconds(self) -> list[float]:
        """Return the wall-clock seconds of the last steps, oldest first, without pauses before a resume."""
        times = self.metric("wall_time").values[-RECENT_STEPS - 1 :]
        spans = [later - earlier for earlier, later in pairwise(times)]
        usual = median(spans) if spans else 0.0
        return [span for span in spans if 0 <= span <= 20 * usual]

    def seconds_left(self) -> float | None:
        """Return the remaining seconds at the latest speed; ``None`` if they are unknown."""
        spans = self.step_seconds()
        if self.total_steps is None or not spans:
            return None
        return max(0, self.total_steps - self.step) * sum(spans) / len(spans)


def _names_of(games: Any) -> list[str]:
    return list(dict.fromkeys(map(env_name, _ids_of(games))))


def _ids_of(games: Any) -> list[str]:
    tables = [game for game in games if isinstance(game, dict)] if isinstance(games, list) else []
    return [_id_of(str(game.get("id")), game.get("options")) for game in tables]


def _id_of(env_id: str, options: Any) -> str:
    try:
        return with_options(env_id, options if isinstance(options, dict) else {})
    except TypeError:  # of a damaged configuration: JSON has no dates
        return env_id


class ViewSource(Protocol):
    """A source of views: a run directory or a live cluster."""

    def read(self) -> RunView:
        """Read what is new, with little work, and return the current view.

        The method is called about every second from a thread, never concurrently, and again at once while
        ``share_read`` is below 1. It raises nothing; failures go into ``trouble``.
        """
