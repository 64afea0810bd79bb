"""The report's charts as plain Plotly figures; the page draws them in its own colours."""

import json
from collections.abc import Callable
from html import escape
from typing import Any

from selfplay.tracking.report_data import RunData
from selfplay.tracking.report_lines import COLOURS, Chart, banded_curve, curve, percent_axis, plain
from selfplay.tracking.report_program_plots import (
    failure_charts,
    measure_charts,
    policy_rating_charts,
    role_reward_charts,
    rubric_charts,
)
from selfplay.tracking.report_summary import match_rates, matches_by_series, nash_by_env

MAX_OPPONENTS = 30
"""How many rated opponents the chart of ratings has room for."""


def chart_sections(run: RunData) -> list[tuple[str, list[Chart]]]:
    """Return the charts that a run has data for, by section title."""
    made = _program_charts(run) if run.is_program else _game_charts(run)
    learning = [loss_chart, gradient_chart, entropy_chart, legal_mass_chart, mismatch_chart]
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
    """Return the sections of charts as HTML, and the JSON list of figures that the page's script draws."""
    html: list[str] = []
    figures: list[dict[str, Any]] = []
    for title, charts in chart_sections(run):
        cards = []
        for chart in charts:
            chart_id = f"chart-{len(figures)}"
            lines = [trace for trace in chart.traces if trace.get("showlegend", True)]
            layout = {"showlegend": len(lines) > 1, **chart.layout}
            figures.append({"id": chart_id, "traces": chart.traces, "layout": layout})
            cards.append(
                f'<div class="card"><h3>{escape(chart.title)}</h3>'
                f'<p class="muted">{escape(chart.caption)}</p>'
                f'<div class="chart" id="{chart_id}"></div></div>'
            )
        html.append(f'<section><h2>{escape(title)}</h2><div class="grid">{"".join(cards)}</div></section>')
    # "<" must not appear: it could end the script element.
    return "".join(html), json.dumps(figures).replace("<", "\\u003c")


def win_rate_chart(run: RunData) -> Chart | None:
    """Wins against each evaluation opponent."""
    return _match_chart(run, "Wins", "Win rate in evaluation matches", "Bands are 95% Wilson intervals.")


def draw_rate_chart(run: RunData) -> Chart | None:
    """Draws against each evaluation opponent, where there were any."""
    if not any(match.draws for match in run.evaluations):
        return None
    caption = "Against perfect play a draw is the most that many games allow."
    return _match_chart(run, "Draws", "Draw rate in evaluation matches", caption)


def _match_chart(run: RunData, name: str, title: str, caption: str) -> Chart | None:
    chart = Chart(title, caption, layout=percent_axis(whole=True))
    for index, ((env_id, opponent), matches) in enumerate(matches_by_series(run).items()):
        rates = [match_rates(match)[name] for match in matches]
        label = _match_label(run, env_id, opponent)
        chart.traces += banded_curve(label, [match.step for match in matches], rates, index)
    return chart if chart.traces else None


def nash_chart(run: RunData) -> Chart | None:
    """NashConv of every exactly evaluated game."""
    chart = Chart(
        "NashConv",
        "What best responses would win from this policy, over all seats; 0 is an equilibrium.",
        layout={"yaxis": {"rangemode": "tozero"}},
    )
    for index, (env_id, found) in enumerate(nash_by_env(run).items()):
        series = [float(item.step) for item in found], [item.nash_conv or 0.0 for item in found]
        chart.traces.append(curve(env_id, series, index, markers=True))
    return chart if chart.traces else None


def rolling_evaluation_chart(run: RunData) -> Chart | None:
    """Win rate of the evaluation games that run beside training, where there are any."""
    names = [name for name in run.metric_names() if _is_metric(name, "evaluation-", "/Win Rate")]
    return _metric_chart(
        run, names, "Win rate in rolling evaluation", "Mean over the last games.", percent_axis(whole=True)
    )


def ratings_chart(run: RunData) -> Chart | None:
    """The last known rating of the best rated members of the pool, with two standard deviations."""
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
    caption = "Last known mean, plus and minus two standard deviations."
    if left_out:
        caption += f" The best {len(best)}; {left_out} more are left out."
    return Chart("Ratings of the pool", caption, [trace], layout)


def invalid_chart(run: RunData) -> Chart | None:
    """Invalid moves in training and in evaluation."""
    chart = Chart(
        "Games with an invalid move of the model",
        "In training: mean over the last games. In evaluation: 95% Wilson intervals.",
        layout=percent_axis(),
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
    """Wins, draws and well-formed answers in training games."""
    suffixes = ("/Win Rate", "/Draw Rate", "/Format Success Rate")
    names = [name for name in run.metric_names() if _is_metric(name, "collection-", *suffixes)]
    caption = "Mean over the last games; against itself the win rate says nothing about strength."
    return _metric_chart(run, names, "Training games", caption, percent_axis(whole=True))


def reward_chart(run: RunData) -> Chart | None:
    """Mean reward of each seat in training games."""
    names = [
        name for name in run.metric_names() if _is_metric(name, "collection-") and "/Reward (pid=" in name
    ]
    return _metric_chart(run, names, "Reward by seat", "Mean over the last training games.")


def length_chart(run: RunData) -> Chart | None:
    """Length of the model's answers in training games."""
    names = [
        name for name in run.metric_names() if _is_metric(name, "collection-", "/Response Length (tokens)")
    ]
    layout = {"yaxis": {"rangemode": "tozero"}}
    return _metric_chart(run, names, "Answer length", "Tokens, mean over the last training answers.", layout)


def exploration_chart(run: RunData) -> Chart | None:
    """Variety of play by environment and n-gram."""
    names = [name for name in run.metric_names() if name.startswith("exploration/")]
    return _metric_chart(
        run, names, "Variety of play", "Share of distinct n-grams of actions.", percent_axis()
    )


def loss_chart(run: RunData) -> Chart | None:
    """The learner's losses."""
    return _learner_chart(run, lambda name: "loss" in name, "Loss", "As the learner reports it.")


def gradient_chart(run: RunData) -> Chart | None:
    """Norm of the gradient."""
    layout = {"yaxis": {"rangemode": "tozero"}}
    return _learner_chart(run, lambda name: "grad" in name, "Gradient norm", "Before clipping.", layout)


def entropy_chart(run: RunData) -> Chart | None:
    """Entropy and divergence from references."""
    words = ("entropy", "kl")
    return _learner_chart(run, lambda name: _has_word(name, words), "Entropy and divergence", "In nats.")


def legal_mass_chart(run: RunData) -> Chart | None:
    """Probability that the policy puts on legal answers, in training and in exact evaluation."""
    chart = Chart("Probability on legal answers", "The rest goes to answers the game refuses.")
    chart.layout = percent_axis()
    for name in run.metric_names():
        if name.startswith("learner/") and "legal_mass" in name:
            chart.traces.append(curve(name.removeprefix("learner/"), run.series(name), len(chart.traces)))
    for env_id, found in nash_by_env(run).items():
        known = [(float(item.step), item.legal_mass) for item in found if item.legal_mass is not None]
        if known:
            series = [step for step, _ in known], [mass for _, mass in known]
            chart.traces.append(curve(f"{env_id}, exact", series, len(chart.traces), markers=True))
    return chart if chart.traces else None


def mismatch_chart(run: RunData) -> Chart | None:
    """How far the engine's and the learner's log-probabilities lie apart."""
    caption = "Per token, between the engine that sampled and the learner that trains; logarithmic."
    layout = {"yaxis": {"type": "log", "dtick": "D2", "tickformat": ".0e"}}
    return _learner_chart(run, lambda name: "mismatch" in name, "Log-probability mismatch", caption, layout)


def games_speed_chart(run: RunData) -> Chart | None:
    """Games per second."""
    names = [
        name for name in run.metric_names() if name.endswith(("games_per_second", "episodes_per_second"))
    ]
    title = "Episodes per second" if run.is_program else "Games per second"
    return _metric_chart(run, names, title, "Wall clock.", {"yaxis": {"rangemode": "tozero"}})


def tokens_speed_chart(run: RunData) -> Chart | None:
    """Tokens per second, generated and trained; orders of magnitude can lie between them."""
    names = [name for name in run.metric_names() if name.endswith(("tokens_per_second", "tok_s"))]
    layout = {"yaxis": {"type": "log", "dtick": "D2", "tickformat": "~s"}}
    return _metric_chart(run, names, "Tokens per second", "Wall clock; logarithmic.", layout)


def phases_chart(run: RunData) -> Chart | None:
    """Seconds that each phase of a step took, stacked."""
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
    """Return a chart of the learner's metrics of wanted names; of several policies, one line for each."""
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


def _is_metric(name: str, namespace: str, *endings: str) -> bool:
    """Say whether a metric belongs to a namespace and, where endings are given, ends in one of them."""
    return name.startswith(namespace) and (not endings or name.endswith(endings))


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    """Say whether one of ``words`` is part of a name between slashes and underscores."""
    return any(word in name.replace("/", "_").split("_") for word in words)


def _env_of(name: str) -> str:
    """Return the environment in a name such as ``collection-kuhn_poker/Reward``."""
    return name.split("-", 1)[1].rsplit("/", 1)[0]


def _plays_one_game(run: RunData) -> bool:
    """Say whether there is a single environment, which legends then need not name."""
    return len(run.env_ids()) == 1


def _label(run: RunData, name: str) -> str:
    """Return a metric's name as a legend shows it, without its namespace."""
    if name.startswith(("collection-", "evaluation-")):
        measure = name.rsplit("/", 1)[1]
        return measure if _plays_one_game(run) else f"{_env_of(name)}: {measure}"
    return name.split("/", 1)[-1]


def _match_label(run: RunData, env_id: str, opponent: str) -> str:
    """Return how a legend names a series of matches."""
    return f"against {opponent}" if _plays_one_game(run) else f"{env_id} against {opponent}"
