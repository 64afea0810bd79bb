"""The report's charts as plain Plotly figures, which the page draws in its own colours."""

import json
from collections.abc import Callable
from html import escape
from typing import Any

from selfplay.read.run_data import RunData
from selfplay.report.answer_plots import answer_charts
from selfplay.report.lines import (
    COLOURS,
    Chart,
    banded_curve,
    curve,
    largest,
    plain,
    share_axis,
    wide_axis,
)
from selfplay.report.program_plots import (
    failure_charts,
    measure_charts,
    policy_rating_charts,
    role_reward_charts,
    rubric_charts,
)
from selfplay.report.summary import match_rates, matches_by_series, nash_by_env

FEW_STEPS = 12
"""Up to this many steps, the axis has a tick for each; with more, Plotly chooses whole steps by itself."""
MAX_OPPONENTS = 30
"""The largest number of opponents in the chart of ratings."""


def chart_sections(run: RunData) -> list[tuple[str, list[Chart]]]:
    """Return the charts for which the run has data, by section title."""
    made = _program_charts(run) if run.is_program else _game_charts(run)
    learning = [loss_chart, gradient_chart, entropy_chart, legal_mass_chart, mismatch_chart]
    made.append(("Answers", [*answer_charts(run)]))
    made.append(("Learning", [make(run) for make in learning]))
    made.append(("Speed", [make(run) for make in (games_speed_chart, tokens_speed_chart, phases_chart)]))
    charts = [(title, [chart for chart in found if chart is not None]) for title, found in made]
    return [(title, present) for title, present in charts if present]


def _game_charts(run: RunData) -> list[tuple[str, list[Chart | None]]]:
    strength = [win_rate_chart, nash_chart, draw_rate_chart, rolling_evaluation_chart, ratings_chart]
    play = [invalid_chart, outcome_chart, reward_chart, length_chart, exploration_chart]
    return [("Strength", [make(run) for make in strength]), ("Play", [make(run) for make in play])]


def _program_charts(run: RunData) -> list[tuple[str, list[Chart | None]]]:
    strength = [*measure_charts(run), *policy_rating_charts(run)]
    play = [*role_reward_charts(run), *rubric_charts(run), *failure_charts(run)]
    return [("Strength", [*strength]), ("Play", [*play])]


def charts_html(run: RunData) -> tuple[str, str]:
    """Return the sections of charts as HTML, and the JSON list of figures for the page's script."""
    html: list[str] = []
    figures: list[dict[str, Any]] = []
    steps = {"xaxis": {"dtick": 1}} if last_step(run) <= FEW_STEPS else {}
    for title, charts in chart_sections(run):
        cards = []
        for chart in charts:
            chart_id = f"chart-{len(figures)}"
            layout = {"showlegend": _needs_legend(chart), **steps, **chart.layout}
            figures.append({"id": chart_id, "traces": chart.traces, "layout": layout})
            cards.append(
                f'<div class="card"><h3>{escape(chart.title)}</h3>'
                f'<p class="muted">{escape(chart.caption)}</p>'
                f'<div class="chart" id="{chart_id}"></div></div>'
            )
        html.append(f'<section><h2>{escape(title)}</h2><div class="grid">{"".join(cards)}</div></section>')
    # "<" must not appear: it could end the script element.
    return "".join(html), json.dumps(figures).replace("<", "\\u003c")


def _needs_legend(chart: Chart) -> bool:
    """Return whether the title leaves lines unnamed: there are several, or one of another name."""
    names = [trace["name"] for trace in chart.traces if trace.get("showlegend", True)]
    return len(names) > 1 or any(name.lower() != chart.title.lower() for name in names)


def win_rate_chart(run: RunData) -> Chart | None:
    """Return the chart of wins against each evaluation opponent."""
    return _match_chart(run, "Wins", "Win rate in evaluation matches", "Bands are 95% Wilson intervals.")


def draw_rate_chart(run: RunData) -> Chart | None:
    """Return the chart of draws against each evaluation opponent; ``None`` without any draw."""
    if not any(match.draws for match in run.evaluations):
        return None
    caption = "In many games a draw is the best possible result against perfect play."
    return _match_chart(run, "Draws", "Draw rate in evaluation matches", caption)


def _match_chart(run: RunData, name: str, title: str, caption: str) -> Chart | None:
    chart = Chart(title, caption, layout=share_axis(whole=True))
    for index, ((env_id, opponent), matches) in enumerate(matches_by_series(run).items()):
        rates = [match_rates(match)[name] for match in matches]
        label = _match_label(run, env_id, opponent)
        chart.traces += banded_curve(label, [match.step for match in matches], rates, index)
    return chart if chart.traces else None


def nash_chart(run: RunData) -> Chart | None:
    """Return the chart of the NashConv of every exactly evaluated game."""
    chart = Chart(
        "NashConv",
        "The gain of best responses against this policy, summed over seats; 0 is an equilibrium.",
        layout={"yaxis": {"rangemode": "tozero"}},
    )
    for index, (env_id, found) in enumerate(nash_by_env(run).items()):
        series = [float(item.step) for item in found], [item.nash_conv or 0.0 for item in found]
        chart.traces.append(curve(env_id, series, index, markers=True))
    return chart if chart.traces else None


def rolling_evaluation_chart(run: RunData) -> Chart | None:
    """Return the chart of the win rate in evaluation games played alongside training, if there are any."""
    names = [name for name in run.metric_names() if _is_metric(name, "evaluation-", "/Win Rate")]
    return _metric_chart(
        run, names, "Win rate in rolling evaluation", "Mean over recent games.", share_axis(whole=True)
    )


def ratings_chart(run: RunData) -> Chart | None:
    """Return the chart of the latest ratings of the pool's best members, with two standard deviations."""
    ratings: dict[str, dict[str, float]] = {}
    for line in run.metrics:
        for name, value in line.items():
            if name.startswith("model-pool/") and name.endswith(("/mu", "/sigma")) and value is not None:
                uid, measure = name.removeprefix("model-pool/").rsplit("/", 1)
                ratings.setdefault(uid, {})[measure] = value
    complete = {uid: rating for uid, rating in ratings.items() if {"mu", "sigma"} <= rating.keys()}
    best = sorted(complete, key=lambda uid: complete[uid]["mu"], reverse=True)[:MAX_OPPONENTS][::-1]
    if not best:
        return None
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [complete[uid]["mu"] for uid in best],
        "y": [plain(uid) for uid in best],
        "error_x": {"type": "data", "array": [2 * complete[uid]["sigma"] for uid in best], "width": 3},
        "marker": {"color": COLOURS[0], "size": 8},
        "showlegend": False,
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "TrueSkill rating"}},
        "yaxis": {"type": "category", "automargin": True},
        "hovermode": "closest",
        "height": max(300, 90 + 22 * len(best)),
    }
    left_out = len(complete) - len(best)
    caption = "Latest mean, plus and minus two standard deviations."
    if left_out:
        caption += f" Only the best {len(best)} are shown; {left_out} more are left out."
    return Chart("Ratings of the pool", caption, [trace], layout)


def invalid_chart(run: RunData) -> Chart | None:
    """Return the chart of invalid moves in training and in evaluation."""
    chart = Chart(
        "Games with an invalid move of the model",
        "Training: mean over recent games. Evaluation: bands are 95% Wilson intervals.",
        layout=share_axis(),
    )
    for name in run.metric_names():
        if _is_metric(name, "collection-", "/Invalid Move Rate"):
            label = "training" if _plays_one_game(run) else f"training, {_env_of(name)}"
            chart.traces.append(curve(label, run.series(name), len(chart.traces)))
    lines = len(chart.traces)
    for index, ((env_id, opponent), matches) in enumerate(matches_by_series(run).items()):
        rates = [match_rates(match)["Lost by an invalid move"] for match in matches]
        label = _match_label(run, env_id, opponent)
        chart.traces += banded_curve(label, [match.step for match in matches], rates, lines + index)
    return chart if chart.traces else None


def outcome_chart(run: RunData) -> Chart | None:
    """Return the chart of wins, draws and well-formed answers in training games."""
    suffixes = ("/Win Rate", "/Draw Rate", "/Format Success Rate")
    names = [name for name in run.metric_names() if _is_metric(name, "collection-", *suffixes)]
    caption = "Mean over recent games. In self-play the win rate says nothing about strength."
    return _metric_chart(run, names, "Training games", caption, share_axis(whole=True))


def reward_chart(run: RunData) -> Chart | None:
    """Return the chart of the mean reward of each seat in training games."""
    names = [
        name for name in run.metric_names() if _is_metric(name, "collection-") and "/Reward (pid=" in name
    ]
    return _metric_chart(run, names, "Reward by seat", "Mean over recent training games.")


def length_chart(run: RunData) -> Chart | None:
    """Return the chart of the number of turns of training games."""
    names = [name for name in run.metric_names() if _is_metric(name, "collection-", "/Game Length")]
    layout = {"yaxis": {"rangemode": "tozero"}}
    return _metric_chart(run, names, "Game length", "Turns, mean over recent training games.", layout)


def exploration_chart(run: RunData) -> Chart | None:
    """Return the chart of the variety of play by environment and n-gram."""
    names = [name for name in run.metric_names() if name.startswith("exploration/")]
    return _metric_chart(run, names, "Variety of play", "Share of distinct n-grams of actions.", share_axis())


def loss_chart(run: RunData) -> Chart | None:
    """Return the chart of the learner's losses."""
    return _learner_chart(run, lambda name: "loss" in name, "Loss", "As reported by the learner.")


def gradient_chart(run: RunData) -> Chart | None:
    """Return the chart of the norm of the gradient."""
    layout = {"yaxis": {"rangemode": "tozero"}}
    return _learner_chart(run, lambda name: "grad" in name, "Gradient norm", "Before clipping.", layout)


def entropy_chart(run: RunData) -> Chart | None:
    """Return the chart of entropy and of divergence from reference models."""
    words = ("entropy", "kl")
    return _learner_chart(run, lambda name: _has_word(name, words), "Entropy and divergence", "In nats.")


def legal_mass_chart(run: RunData) -> Chart | None:
    """Return the chart of the policy's probability on legal answers, in training and exact evaluation."""
    chart = Chart("Probability on legal answers", "The rest goes to answers that the game rejects.")
    for name in run.metric_names():
        if name.startswith("learner/") and "legal_mass" in name:
            chart.traces.append(curve(_label(run, name), run.series(name), len(chart.traces)))
    for env_id, found in nash_by_env(run).items():
        known = [(float(item.step), item.legal_mass) for item in found if item.legal_mass is not None]
        if known:
            series = [step for step, _ in known], [mass for _, mass in known]
            chart.traces.append(curve(f"{env_id}, exact", series, len(chart.traces), markers=True))
    chart.layout = share_axis(largest=largest(chart.traces))
    return chart if chart.traces else None


def mismatch_chart(run: RunData) -> Chart | None:
    """Return the chart of the difference between the engine's and the learner's log-probabilities."""
    caption = "Nats per token, between the engine that samples and the learner that trains."
    chart = _learner_chart(run, lambda name: "mismatch" in name, "Log-probability mismatch", caption)
    return _with_wide_axis(chart, ".2~e")


def games_speed_chart(run: RunData) -> Chart | None:
    """Return the chart of games per second."""
    names = [name for name in run.metric_names() if name.endswith("games_per_second")]
    title = "Episodes per second" if run.is_program else "Games per second"
    return _metric_chart(run, names, title, "Wall clock.", {"yaxis": {"rangemode": "tozero"}})


def tokens_speed_chart(run: RunData) -> Chart | None:
    """Return the chart of generated and trained tokens per second, which may differ by magnitudes."""
    names = [name for name in run.metric_names() if name.endswith(("tokens_per_second", "tok_s"))]
    return _with_wide_axis(_metric_chart(run, names, "Tokens per second", "Wall clock."), "~s")


def _with_wide_axis(chart: Chart | None, tickformat: str) -> Chart | None:
    """Give a chart the axis that fits its values; the caption names a logarithmic one."""
    if chart is not None:
        chart.layout = wide_axis(chart.traces, tickformat)
        if chart.layout["yaxis"].get("type") == "log":
            chart.caption += " The axis is logarithmic."
    return chart


def phases_chart(run: RunData) -> Chart | None:
    """Return the stacked chart of the seconds that each phase of a step takes."""
    names = [name for name in run.metric_names() if name.startswith("time/") and name.endswith("_seconds")]
    names = [name for name in names if "step" not in name and "total" not in name]
    chart = Chart("Seconds per phase", "Stacked, for each step.", layout={"yaxis": {"rangemode": "tozero"}})
    for index, name in enumerate(names):
        label = name.removeprefix("time/").removesuffix("_seconds")
        chart.traces.append({**curve(label, run.series(name), index), "stackgroup": "phases"})
    return chart if chart.traces else None


def _metric_chart(
    run: RunData, names: list[str], title: str, caption: str, layout: dict[str, Any] | None = None
) -> Chart | None:
    """Return a chart with one line for each metric, or ``None`` without metrics."""
    if not names:
        return None
    traces = [curve(_label(run, name), run.series(name), index) for index, name in enumerate(names)]
    return Chart(title, caption, traces, layout or {})


def _learner_chart(
    run: RunData,
    is_wanted: Callable[[str], bool],
    title: str,
    caption: str,
    layout: dict[str, Any] | None = None,
) -> Chart | None:
    """Return a chart of the wanted learner metrics, with one line for each policy if there are several."""
    names = [name for name in run.metric_names() if name.startswith("learner/")]
    policies = run.policies()
    if not policies:
        wanted = [name for name in names if is_wanted(name.removeprefix("learner/"))]
        return _metric_chart(run, wanted, title, caption, layout)
    split = [(name, *name.removeprefix("learner/").rsplit("/", 1)) for name in names if name.count("/") > 1]
    found = [(name, policy, measure) for name, policy, measure in split if is_wanted(measure)]
    several = len({measure for _, _, measure in found}) > 1
    chart = Chart(title, caption, layout=layout or {})
    for name, policy, measure in found:
        label = f"{policy}: {measure}" if several else policy
        index = len(chart.traces) if several else policies.index(policy)
        chart.traces.append(curve(label, run.series(name), index))
    return chart if chart.traces else None


def last_step(run: RunData) -> float:
    """Return the highest step of metrics and evaluations; 0 without any."""
    steps = [line["step"] for line in run.metrics if isinstance(line.get("step"), int | float)]
    return max([*steps, *(evaluation.step for evaluation in run.evaluations)], default=0)


def _is_metric(name: str, namespace: str, *endings: str) -> bool:
    """Return whether a metric belongs to a namespace and, if endings are given, has one of them."""
    return name.startswith(namespace) and (not endings or name.endswith(endings))


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    """Return whether one of ``words`` is a part of a name between slashes and underscores."""
    return any(word in name.replace("/", "_").split("_") for word in words)


def _env_of(name: str) -> str:
    """Return the environment in a name such as ``collection-kuhn_poker/Reward``."""
    return name.split("-", 1)[1].rsplit("/", 1)[0]


def _plays_one_game(run: RunData) -> bool:
    """Return whether there is a single environment, which legends then need not name."""
    return len(run.env_ids()) == 1


def _label(run: RunData, name: str) -> str:
    """Return a metric's name for a legend, without its namespace."""
    if name.startswith(("collection-", "evaluation-")):
        measure = name.rsplit("/", 1)[1]
        return measure if _plays_one_game(run) else f"{_env_of(name)}: {measure}"
    if name.startswith(("exploration/", "inference/")):
        of_what, _, measure = name.split("/", 1)[1].rpartition("/")
        return f"{of_what}: {measure}".removesuffix(": tok_s")
    return name.split("/", 1)[-1].removesuffix("_tokens_per_second").replace("_", " ")


def _match_label(run: RunData, env_id: str, opponent: str) -> str:
    """Return the name of a series of matches for a legend."""
    return f"against {opponent}" if _plays_one_game(run) else f"{env_id} against {opponent}"
