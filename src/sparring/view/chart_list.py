"""The one list of charts: everything of a run that is worth plotting, for its page and for the terminal.

A new chart goes into the function of its section. Those of a population are in ``population_charts``, those
of runs through fine-tuning jobs in ``tuning_charts``.
"""

from collections.abc import Iterator
from dataclasses import replace

from sparring.core.confidence_intervals import Interval
from sparring.evaluation.figures import (
    ACCURACY,
    DRAWS,
    ENDED_BY_INVALID,
    MASS,
    NASH_CONV,
    WINS,
    FigureName,
    kind_of,
)
from sparring.view.charts import (
    FROM_ZERO,
    SMALL,
    WHOLE,
    Chart,
    Line,
    banded_line,
    chart,
    figure_line,
    lines_of,
    share_chart,
    with_wide_axis,
)
from sparring.view.evaluations import decisive, of_measure, of_program, of_tasks
from sparring.view.metrics import POOL, Series
from sparring.view.population_charts import population_charts
from sparring.view.run_view import REWARD, RunView
from sparring.view.tuning_charts import tuning_answer_charts, tuning_reward_charts, tuning_strength_charts

Charts = Iterator[Chart | None]


def chart_sections(run: RunView) -> dict[str, list[Chart]]:
    """Return the charts for which the run has data, by section."""
    if run.tuning is not None:
        made = {
            "Strength": tuning_strength_charts(run),
            "Rewards": tuning_reward_charts(run),
            "Answers": tuning_answer_charts(run),
        }
    else:
        made = {
            "Strength": _strength(run),
            "Population": _population(run),
            "Rewards": _rewards(run),
            "Learning": _learning(run),
            "Play": _play(run),
            "Answers": _answers(run),
            "Speed": _speed(run),
        }
    found = {title: [_shown(run, one) for one in charts if one is not None] for title, charts in made.items()}
    return {title: charts for title, charts in found.items() if charts}


def _shown(run: RunView, made: Chart) -> Chart:
    lines = [replace(one, name=run.shown(one.name)) for one in made.lines]
    return replace(made, title=run.shown(made.title), lines=lines)


def _strength(run: RunView) -> Charts:
    """Yield the charts of evaluations and ratings; NashConv is shown with a population, if there is one."""
    matches = decisive(run.figures)
    drawn = [
        _match_line(run, name)
        for name, series in of_measure(run.figures, DRAWS).items()
        if name._replace(measure=WINS) in matches and any(one.value for one in series.values())
    ]
    yield share_chart(
        "Win rate in evaluation matches",
        [_match_line(run, name) for name in matches if name.measure == WINS],
        "Bands are 95% Wilson intervals.",
    )
    yield share_chart(
        "Draw rate in evaluation matches",
        drawn,
        "In many games a draw is the best possible result against perfect play.",
    )
    yield chart(
        "Mean reward in evaluation matches",
        [_match_line(run, name) for name in matches if name.measure != WINS],
        "Of games that all players win or lose together. Bands are 95% intervals.",
    )
    if not run.has_population:
        yield nash_chart(run)
    yield share_chart(
        "Win rate in rolling evaluation",
        lines_of(_by_env(run, "evaluation-", "Win Rate")),
        "Mean over recent games.",
    )
    measures = of_program(run.figures)
    shares = [name for name, series in measures.items() if kind_of(series.values()) == "share"]
    yield share_chart(
        shares[0].measure if len(shares) == 1 else "Shares",
        [figure_line(name.measure, measures[name]) for name in shares],
        "Share of the items; bands are 95% Wilson intervals.",
    )
    for name in measures.keys() - {*shares}:
        line = figure_line(name.measure, measures[name])
        yield chart(name.measure, [line], "Mean over the items; the band is a 95% interval.")
    yield share_chart(
        "Accuracy in tasks",
        [figure_line(name.env_id, series) for name, series in of_tasks(run.figures, ACCURACY).items()],
        "Right answers to questions that are never trained on. Bands are 95% Wilson intervals.",
    )
    yield _policy_ratings(run)


def _match_line(run: RunView, name: FigureName) -> Line:
    where = f"{name.env_id} " if len(run.evaluated_in()) > 1 else ""
    who = f"against {name.opponent}" if name.opponent else "alone"
    return figure_line(f"{where}{who}", run.figures[name])


def nash_chart(run: RunView) -> Chart | None:
    """Return the chart of the NashConv of every exactly evaluated environment."""
    found = of_measure(run.figures, NASH_CONV)
    return chart(
        "NashConv",
        [figure_line(name.env_id if len(found) > 1 else "", series) for name, series in found.items()],
        "The gain of best responses against this policy, summed over seats; 0 is an equilibrium.",
        bounds=FROM_ZERO,
    )


def _policy_ratings(run: RunView) -> Chart | None:
    """Return the chart of the learning policies' ratings; ``None`` if they never met and so none is rated."""
    found = {policy: points for policy in run.policies() if (points := _ratings(run, policy))}
    if len({rating for points in found.values() for rating in points.values()}) < 2:
        return None
    lines = [banded_line(policy, points) for policy, points in found.items()]
    return chart("Ratings of the policies", lines, "TrueSkill mean, plus and minus two standard deviations.")


def _ratings(run: RunView, policy: str) -> dict[float, Interval]:
    means, deviations = run.metric(f"{POOL}{policy}/mu"), run.metric(f"{POOL}{policy}/sigma")
    spread = dict(zip(deviations.steps, deviations.values, strict=True))
    return {
        step: Interval(mean - 2 * spread[step], mean, mean + 2 * spread[step])
        for step, mean in zip(means.steps, means.values, strict=True)
        if step in spread
    }


def _population(run: RunView) -> Charts:
    nash = [nash_chart(run)] if run.has_population else []
    yield from population_charts(run, nash)


def _rewards(run: RunView) -> Charts:
    yield chart("Reward by seat", lines_of(_seat_rewards(run)), "Mean over recent training games.")
    roles = run.roles()
    rewards = lines_of({role: one for role, one in run.under(REWARD).items() if role in roles})
    lines = [replace(one, colour=roles.index(one.name)) for one in rewards]
    title = f"Reward of {lines[0].name}" if len(lines) == 1 else "Reward by role"
    yield chart(title, lines, "Mean over the episodes of an update, sub-episodes included.")
    yield from _reward_functions(run)
    about = "Share of a role in the sum of |advantage| over the tokens that are trained on."
    yield share_chart("Whose the signal is", lines_of(run.answers("advantage_share")), about)
    groups = {"groups with equal rewards": run.metric("program/equal_group_share")}
    yield share_chart(
        "Answers without advantage",
        lines_of(run.answers("zero_advantage_share") | groups),
        "Share of the answers whose advantage is 0, so that the rewards teach nothing about them.",
    )


def _seat_rewards(run: RunView) -> dict[str, Series]:
    found = {rest: one for rest, one in run.under("collection-").items() if "/Reward (pid=" in rest}
    several = len({rest.rpartition("/")[0] for rest in found}) > 1
    named = {}
    for rest, one in found.items():
        env_id, _, measure = rest.rpartition("/")
        seat = f"seat {measure.removeprefix('Reward (pid=').removesuffix(')')}"
        named[f"{env_id}: {seat}" if several else seat] = one
    return named


def _reward_functions(run: RunView) -> Charts:
    """Yield a chart of the values of the reward functions for each type of episode.

    Metrics that leave the range from -1 to 1 get charts of their own, so that they do not flatten the others.
    """
    small: dict[str, dict[str, Series]] = {}
    large: dict[str, dict[str, Series]] = {}
    for rest, one in run.under("program/metric/").items():
        episode_type, _, named = rest.partition("/")
        function, _, role = named.rpartition("/")
        label = f"{function}, {role}"
        if function and max(map(abs, one.values)) > 1:
            large[f"{episode_type}: {label}"] = {label: one}
        elif function:
            small.setdefault(f"Metrics of {episode_type}", {})[label] = one
    for title, found in (small | large).items():
        yield chart(
            title,
            lines_of(found),
            "Value of a reward function before its weight; mean over the episodes of an update.",
        )


def _learning(run: RunView) -> Charts:
    yield chart("Loss", _of_learner(run, "loss"), "As reported by the learner.")
    yield chart(
        "Explained variance",
        _of_learner(run, "explained_variance"),
        "Share of the variance of the returns that the critic knows beforehand.",
        bounds=WHOLE,
    )
    yield chart("Mean value", _of_learner(run, "mean_value"), "What the critic expects, in units of reward.")
    yield chart("Gradient norm", _of_learner(run, "grad"), "Before clipping.", bounds=FROM_ZERO)
    yield chart(
        "Entropy",
        _of_learner(run, "entropy", whole=True),
        "Of the distribution over the vocabulary at the drawn tokens, in nats per token.",
        bounds=FROM_ZERO,
    )
    yield chart(
        "Entropy over legal answers",
        _of_learner(run, "legal_entropy", whole=True),
        "In nats an answer; 0 where the policy is pure.",
        bounds=FROM_ZERO,
    )
    yield chart(
        "Divergence", _of_learner(run, "kl"), "From another policy, in nats per token.", bounds=FROM_ZERO
    )
    masses = of_measure(run.figures, MASS)
    exact = [
        figure_line(f"{name.env_id}, exact" if len(masses) > 1 else "exact", series)
        for name, series in masses.items()
    ]
    yield share_chart(
        "Probability on legal answers",
        [*_of_learner(run, "legal_mass"), *exact],
        "The rest goes to answers that the game rejects.",
        SMALL,
    )
    yield share_chart(
        "Values by the tree of games",
        _of_learner(run, "tree_share", whole=True),
        "Share of the values of answers that the tree knows; the others come from returns.",
    )
    yield chart(
        "Way to the targets",
        _of_learner(run, "progress"),
        "Share of the way that a step went, which sets the learning rate; above 1 it went past.",
    )
    yield with_wide_axis(
        chart(
            "Log-probability mismatch",
            _of_learner(run, "mismatch"),
            "Nats per token, between the engine that samples and the learner that trains.",
        )
    )
    yield share_chart(
        "Clipped and left-out tokens",
        [*_of_learner(run, "clip_fraction"), *_of_learner(run, "correction_masked")],
        "Share of the tokens that the loss clips, and that its correction leaves out.",
        SMALL,
    )
    yield chart("Learning rate", _of_learner(run, "learning_rate"), "At each update.", bounds=FROM_ZERO)
    ages = {"this version" if not age else f"{age} older": one for age, one in run.staleness().items()}
    yield share_chart(
        "Age of trained answers",
        lines_of(ages) if any(run.staleness()) else [],
        "Share of the answers, by the number of versions between play and learning.",
    )


def _of_learner(run: RunView, word: str, *, whole: bool = False) -> list[Line]:
    """Return the learner's metrics with a word (or several, joined) in their names.

    With ``whole``, the word is the whole name, which the lines then lack. With several policies there is a
    line for each, in the same colour in every chart.
    """
    policies = run.policies()
    found = []
    for rest, one in run.under("learner/").items():
        policy, _, measure = rest.rpartition("/")
        if measure == word if whole else f"_{word}_" in f"_{measure}_":
            shown = "" if whole else measure.replace("grad_", "gradient_").replace("_", " ")
            found.append((policy, shown, one))
    several = len({measure for _, measure, _ in found}) > 1
    lines = []
    for policy, measure, one in found:
        name = policy if policy and not several else ": ".join(filter(None, (policy, measure)))
        colour = policies.index(policy) if policy and not several else -1
        lines.append(Line(name, one.steps, one.values, colour=colour))
    return lines


def _play(run: RunView) -> Charts:
    ended = [_match_line(run, name) for name in of_measure(run.figures, ENDED_BY_INVALID)]
    yield share_chart(
        "Games with an invalid move",
        [*_training(run, {"training": "Invalid Move Rate"}), *ended],
        "Shares of games. Training: games in which the model made one, mean over recent games. "
        "Evaluation: games that the model ended by one; bands are 95% Wilson intervals.",
        SMALL,
    )
    yield share_chart(
        "Outcomes of training games",
        _training(run, {"won": "Win Rate", "drawn": "Draw Rate", "lost": "Loss Rate"}),
        "Mean over recent games. In self-play the win rate says nothing about strength.",
    )
    yield share_chart(
        "Well-formed answers",
        lines_of(_by_env(run, "collection-", "Format Success Rate")),
        "Share of the answers in recent training games.",
    )
    yield chart(
        "Game length",
        lines_of(_by_env(run, "collection-", "Game Length")),
        "Turns, mean over recent training games.",
        bounds=FROM_ZERO,
    )
    yield from _variety(run)
    counts = {name: run.metric(f"accounts/{name}") for name in ("failed", "retried")}
    yield chart(
        f"Failed and retried {run.unit}",
        lines_of({name: one for name, one in counts.items() if any(one.values)}),
        "Total since the start of the run.",
        bounds=FROM_ZERO,
    )


def _training(run: RunView, measures: dict[str, str]) -> list[Line]:
    return lines_of(
        {
            f"{name}, {env_id}" if env_id else name: one
            for name, measure in measures.items()
            for env_id, one in _by_env(run, "collection-", measure).items()
        }
    )


def _by_env(run: RunView, prefix: str, measure: str) -> dict[str, Series]:
    found = run.under(prefix, f"/{measure}")
    return dict(zip(found if len(found) > 1 else [""], found.values(), strict=False))


def _variety(run: RunView) -> Charts:
    by_env_id: dict[str, dict[str, Series]] = {}
    for rest, one in run.under("exploration/").items():
        env_id, _, measure = rest.rpartition("/")
        by_env_id.setdefault(env_id, {})[measure.removeprefix("Pct. Unique Action ")] = one
    for env_id, named in by_env_id.items():
        title = f"Variety of play, {env_id}" if len(by_env_id) > 1 else "Variety of play"
        yield share_chart(title, lines_of(named), "Share of distinct n-grams of actions.", SMALL)


def _answers(run: RunView) -> Charts:
    yield share_chart(
        "Answers cut at the token limit", lines_of(run.answers("cut_share")), "Share of the answers."
    )
    yield share_chart(
        "Explored answers",
        lines_of(run.answers("explored_share")),
        "Share of the answers that were random legal moves; the other charts here leave them out.",
    )
    yield chart(
        "Answer length",
        lines_of(run.answers("tokens")),
        "Tokens, mean over the update's answers.",
        bounds=FROM_ZERO,
    )
    yield chart(
        "Length of thoughts",
        lines_of(run.answers("reasoning_tokens")),
        "Tokens, mean over the answers with a thought; part of the answer's length.",
        bounds=FROM_ZERO,
    )
    yield share_chart(
        "Thoughts without an end",
        lines_of(run.answers("endless_reasoning_share")),
        "Share of the answers that were cut before anything was said.",
    )
    yield chart(
        "Entropy, estimated",
        lines_of(run.answers("entropy_estimate")),
        "Mean of -log p over the drawn tokens, in nats per token: an estimate of the entropy there.",
        bounds=FROM_ZERO,
    )


def _speed(run: RunView) -> Charts:
    games = {"": run.metric("time/games_per_second")}
    yield chart(f"{run.unit.capitalize()} per second", lines_of(games), "Wall clock.", bounds=FROM_ZERO)
    speeds = run.under("inference/", "/tok_s") | run.under("time/", "_tokens_per_second")
    yield with_wide_axis(chart("Tokens per second", lines_of(speeds), "Wall clock."))
    phases = run.under("time/", "_seconds")
    stacked = chart("Seconds per phase", lines_of(phases), "Stacked, for each update.", bounds=FROM_ZERO)
    yield None if stacked is None else replace(stacked, stacked=True)
    idle = {
        "learner": run.metric("overlap/learner_idle_share"),
        "engines": run.metric("overlap/engine_idle_share"),
    }
    yield share_chart("Idle share of the time", lines_of(idle), "For want of anything to do.")
