"""The charts that a run's recorded metrics allow."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from selfplay.read.run_data import Evaluation
from selfplay.report.summary import Rate, match_rates
from selfplay.watch.run_view import RunView, Series

METRIC = "program/metric/"
REWARD = "program/reward/"
STALENESS = "overlap/staleness_"
INVALID = "invalid, "


@dataclass(frozen=True)
class Line:
    """A named line; ``low`` and ``high`` are its interval at each point, empty without one."""

    name: str
    steps: list[float]
    values: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """Lines over steps. The axis reaches all ``bounds``; a ``percent`` axis shows shares."""

    title: str
    lines: list[Line]
    percent: bool = False
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One figure of the evaluations by step, each with its 95% interval (of width 0 if it is exact).

    At the steps in ``unplayable`` it is a NashConv of a policy that cannot be played.
    """

    name: str
    is_share: bool
    points: list[tuple[int, Rate]] = field(default_factory=list)
    unplayable: set[int] = field(default_factory=set)


def learning_charts(view: RunView) -> list[Chart]:
    """Return the charts of strength, rewards and learning."""
    charts = evaluation_charts(view)
    rolling = _named(view, "evaluation-", "/Win Rate")
    charts += _chart("Win rate in rolling evaluation", rolling, percent=True, bounds=(0, 1))
    charts += _chart(
        "Reward by role", [(name.removeprefix(REWARD), one) for name, one in _under(view, REWARD)]
    )
    charts += _chart("Reward by seat", _seat_rewards(view))
    groups = [("equal groups", view.series.get("program/equal_group_share", Series()))]
    without = [*_answers(view, "zero_advantage_share"), *groups]
    charts += _chart("Answers without advantage", without, percent=True, bounds=(0, 1))
    for title, measure, bounds in (
        ("Loss", "loss", ()),
        ("Gradient norm", "grad_norm", (0.0,)),
        ("Probability on legal answers", "legal_mass", (1.0,)),
        ("Entropy over legal answers", "legal_entropy", (0.0,)),
        ("Divergence from the base", "kl_to_base", (0.0,)),
        ("Log-probability mismatch", "mismatch", (0.0,)),
        ("Log-probability mismatch, older tokens", "stale_mismatch", (0.0,)),
        ("Learning rate", "learning_rate", (0.0,)),
    ):
        percent = measure == "legal_mass"
        charts += _chart(title, _learner(view, measure), percent=percent, bounds=bounds)
    return charts


def rate_charts(view: RunView) -> list[Chart]:
    """Return the charts of faulty answers, variety of play, and other counts of the environment."""
    invalid = [
        (f"training{of}", one)
        for of, one in _named(view, "collection-", "/Invalid Move Rate", label=", {env}")
    ]
    charts = _chart("Games with an invalid move", invalid, percent=True, bounds=(0,))
    well_formed = _named(view, "collection-", "/Format Success Rate")
    charts += _chart("Well-formed answers", well_formed, percent=True, bounds=(0, 1))
    charts += _exploration(view)
    outcomes = [
        (name + of, one)
        for name, measure in (("won", "Win"), ("drawn", "Draw"), ("lost", "Loss"))
        for of, one in _named(view, "collection-", f"/{measure} Rate", label=", {env}")
    ]
    charts += _chart("Outcomes in training", outcomes, percent=True, bounds=(0, 1))
    charts += _overlap_charts(view)
    charts += _rubrics(view)
    failed = [(name, view.series.get(f"accounts/{name}", Series())) for name in ("failed", "retried")]
    if any(any(one.values) for _, one in failed):
        charts += _chart(f"Failed and retried {view.unit} so far", failed, bounds=(0,))
    charts += _chart("Turns of a game", _named(view, "collection-", "/Game Length"), bounds=(0,))
    charts += _chart(
        "Answers cut at the token limit", _answers(view, "cut_share"), percent=True, bounds=(0, 1)
    )
    charts += _chart("Tokens of an answer", _answers(view, "tokens"), bounds=(0,))
    charts += _chart("Entropy of sampling, estimated", _answers(view, "entropy_estimate"), bounds=(0,))
    return charts


def _overlap_charts(view: RunView) -> list[Chart]:
    """Return the charts of overlapping play and learning: idle time, and the age of trained records."""
    idle = [
        (label, view.series.get(f"overlap/{name}_idle_share", Series()))
        for label, name in (("learner", "learner"), ("engines", "engine"))
    ]
    by_age = [
        ("this version" if not age else f"{age} older", one) for age, one in staleness_series(view).items()
    ]
    return [
        *_chart("Idle share of the time", idle, percent=True, bounds=(0, 1)),
        *_chart("Age of trained records", by_age, percent=True, bounds=(0, 1)),
    ]


def staleness_series(view: RunView) -> dict[int, Series]:
    """Return the share of the trained records by their age in versions, in order of age."""
    found = {
        int(age): one
        for name, one in _under(view, STALENESS)
        if (age := name.removeprefix(STALENESS)).isdecimal()
    }
    return dict(sorted(found.items()))


def evaluation_charts(view: RunView) -> list[Chart]:
    """Return one chart of all shares, and one for every other figure of the evaluations."""
    measured = evaluation_figures(view)
    shares = [one for one in measured if one.is_share and not one.name.startswith(INVALID)]
    invalid = [one for one in measured if one.is_share and one not in shares]
    charts = []
    if shares:
        title = "Won in evaluation" if not view.is_program else "Evaluation"
        charts.append(Chart(title, list(map(_measured_line, shares)), True, (0, 1)))
    for one in measured:
        if not one.is_share:
            charts.append(Chart(one.name, [_measured_line(one)], False, (0,)))
    if invalid:
        charts.append(Chart("Lost by an invalid move", list(map(_measured_line, invalid)), True, (0,)))
    return charts


def evaluation_figures(view: RunView) -> list[Measured]:
    """Return every figure of the evaluations: matches, exact measures and measures of programs."""
    found: dict[tuple[str, bool], Measured] = {}
    for evaluation in view.evaluations:
        for name, is_share, rate in _figures(view, evaluation):
            measured = found.setdefault((name, is_share), Measured(name, is_share))
            measured.points.append((evaluation.step, rate))
            if not evaluation.is_playable:
                measured.unplayable.add(evaluation.step)
    return list(found.values())


def _figures(view: RunView, evaluation: Evaluation) -> Iterable[tuple[str, bool, Rate]]:
    of_env = f", {evaluation.env_id}" if len(view.plays()) > 1 else ""
    if evaluation.kind == "match" and evaluation.games > 0:
        rates = match_rates(evaluation)
        against = f"against {evaluation.opponent}" if evaluation.opponent else "solved"
        yield against + of_env, True, rates["Wins"]
        yield f"{INVALID}{evaluation.opponent or 'alone'}{of_env}", True, rates["Lost by an invalid move"]
    elif evaluation.nash_conv is not None:
        value = evaluation.nash_conv
        yield f"NashConv{of_env}", False, Rate(value, value, value)
    elif evaluation.kind == "measure" and evaluation.mean is not None:
        low, mean, high = evaluation.low, evaluation.mean, evaluation.high
        rate = Rate(mean if low is None else low, mean, mean if high is None else high)
        yield evaluation.name, evaluation.is_share, rate


def _measured_line(measured: Measured) -> Line:
    rates = [rate for _, rate in measured.points]
    return Line(
        measured.name,
        [float(step) for step, _ in measured.points],
        [rate.mid for rate in rates],
        [rate.low for rate in rates],
        [rate.high for rate in rates],
    )


def _chart(
    title: str,
    series: Iterable[tuple[str, Series]],
    *,
    percent: bool = False,
    bounds: tuple[float, ...] = (),
) -> list[Chart]:
    """Return a chart of the series that have points; an empty list without any."""
    lines = [Line(name, one.steps, one.values) for name, one in series if one.steps]
    return [Chart(title, lines, percent, bounds)] if lines else []


def _under(view: RunView, prefix: str) -> list[tuple[str, Series]]:
    """Return the metrics with a prefix, in alphabetical order."""
    return sorted((name, one) for name, one in view.series.items() if name.startswith(prefix))


def _named(view: RunView, prefix: str, suffix: str, *, label: str = "{env}") -> list[tuple[str, Series]]:
    """Return a metric of every environment, labelled by environment; a single one has an empty label."""
    found = [(name, one) for name, one in _under(view, prefix) if name.endswith(suffix)]
    several = len(found) > 1
    return [
        (label.format(env=name.removeprefix(prefix).removesuffix(suffix)) if several else "", one)
        for name, one in found
    ]


def _answers(view: RunView, measure: str) -> list[tuple[str, Series]]:
    """Return a figure of the trained answers, by role or seat."""
    prefix = f"answers/{measure}/"
    return [(name.removeprefix(prefix), one) for name, one in _under(view, prefix)]


def _seat_rewards(view: RunView) -> list[tuple[str, Series]]:
    found = [(name, one) for name, one in _under(view, "collection-") if "/Reward (pid=" in name]
    several = len({name.rsplit("/", 1)[0] for name, _ in found}) > 1
    named = []
    for name, one in found:
        env, measure = name.removeprefix("collection-").rsplit("/", 1)
        seat = "seat " + measure.removeprefix("Reward (pid=").removesuffix(")")
        named.append((f"{seat}, {env}" if several else seat, one))
    return named


def _learner(view: RunView, measure: str) -> list[tuple[str, Series]]:
    """Return a figure of the learner, or of every policy's learner, labelled by policy."""
    found = [(name, one) for name, one in _under(view, "learner/") if name.endswith(f"/{measure}")]
    return [(name.removeprefix("learner/").removesuffix(measure).rstrip("/"), one) for name, one in found]


def _exploration(view: RunView) -> list[Chart]:
    """Return a chart of the variety of play for each environment."""
    charts: dict[str, list[tuple[str, Series]]] = {}
    for name, one in _under(view, "exploration/"):
        env, measure = name.removeprefix("exploration/").rsplit("/", 1)
        charts.setdefault(env, []).append((measure.removeprefix("Pct. Unique Action "), one))
    title = "Distinct action n-grams"
    return [
        chart
        for env, series in charts.items()
        for chart in _chart(
            f"{title}, {env}" if len(charts) > 1 else title, series, percent=True, bounds=(0,)
        )
    ]


def _rubrics(view: RunView) -> list[Chart]:
    """Return a chart for each reward function of a program, with a line for each role."""
    charts: dict[str, list[tuple[str, Series]]] = {}
    for name, one in _under(view, METRIC):
        function, _, role = name.removeprefix(METRIC).rpartition("/")
        charts.setdefault(function.replace("/", ": ", 1), []).append((role, one))
    return [chart for function, series in charts.items() for chart in _chart(function, series)]
