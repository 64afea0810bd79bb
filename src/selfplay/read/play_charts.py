"""The charts of play, of answers and of speed."""

from dataclasses import replace

from selfplay.read.charts import FROM_ZERO, SMALL, Chart, Line, chart, lines_of, share_chart, with_wide_axis
from selfplay.read.run_view import RunView
from selfplay.read.series import Series
from selfplay.read.strength_charts import by_env, rate_lines


def play_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of what happens in games and episodes."""
    return [
        share_chart(
            "Games with an invalid move",
            [*_training(run, {"training": "Invalid Move Rate"}), *rate_lines(run, "Lost by an invalid move")],
            "Shares of games. Training: games in which the model made one, mean over recent games. "
            "Evaluation: games that the model lost by one; bands are 95% Wilson intervals.",
            SMALL,
        ),
        share_chart(
            "Outcomes of training games",
            _training(run, {"won": "Win Rate", "drawn": "Draw Rate", "lost": "Loss Rate"}),
            "Mean over recent games. In self-play the win rate says nothing about strength.",
        ),
        share_chart(
            "Well-formed answers",
            lines_of(by_env(run, "collection-", "Format Success Rate")),
            "Share of the answers in recent training games.",
        ),
        chart(
            "Game length",
            lines_of(by_env(run, "collection-", "Game Length")),
            "Turns, mean over recent training games.",
            bounds=FROM_ZERO,
        ),
        *_variety(run),
        _failures(run),
    ]


def _training(run: RunView, measures: dict[str, str]) -> list[Line]:
    """Return rates of training games by their names; the environment is added if there are several."""
    return lines_of(
        {
            f"{name}, {env_id}" if env_id else name: one
            for name, measure in measures.items()
            for env_id, one in by_env(run, "collection-", measure).items()
        }
    )


def _variety(run: RunView) -> list[Chart | None]:
    """Return a chart of the variety of play for each environment."""
    by_env_id: dict[str, dict[str, Series]] = {}
    for rest, one in run.under("exploration/").items():
        env_id, _, measure = rest.rpartition("/")
        by_env_id.setdefault(env_id, {})[measure.removeprefix("Pct. Unique Action ")] = one
    return [
        share_chart(
            f"Variety of play, {env_id}" if len(by_env_id) > 1 else "Variety of play",
            lines_of(named),
            "Share of distinct n-grams of actions.",
            SMALL,
        )
        for env_id, named in by_env_id.items()
    ]


def _failures(run: RunView) -> Chart | None:
    counts = {name: run.metric(f"accounts/{name}") for name in ("failed", "retried")}
    return chart(
        f"Failed and retried {run.unit}",
        lines_of({name: one for name, one in counts.items() if any(one.values)}),
        "Total since the start of the run.",
        bounds=FROM_ZERO,
    )


def answer_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of the answers used for training."""
    return [
        share_chart(
            "Answers cut at the token limit",
            lines_of(run.answers("cut_share")),
            "Share of the answers.",
        ),
        chart(
            "Answer length",
            lines_of(run.answers("tokens")),
            "Tokens, mean over the update's answers.",
            bounds=FROM_ZERO,
        ),
        chart(
            "Entropy, estimated",
            lines_of(run.answers("entropy_estimate")),
            "Mean of -log p over the drawn tokens, in nats per token: an estimate of the entropy there.",
            bounds=FROM_ZERO,
        ),
    ]


def speed_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of speed and of where the time goes."""
    games = {"": run.metric("time/games_per_second")}
    idle = {
        "learner": run.metric("overlap/learner_idle_share"),
        "engines": run.metric("overlap/engine_idle_share"),
    }
    phases = run.under("time/", "_seconds")
    stacked = chart("Seconds per phase", lines_of(phases), "Stacked, for each update.", bounds=FROM_ZERO)
    speeds = run.under("inference/", "/tok_s") | run.under("time/", "_tokens_per_second")
    return [
        chart(f"{run.unit.capitalize()} per second", lines_of(games), "Wall clock.", bounds=FROM_ZERO),
        with_wide_axis(chart("Tokens per second", lines_of(speeds), "Wall clock.")),
        replace(stacked, stacked=True) if stacked is not None else None,
        share_chart("Idle share of the time", lines_of(idle), "For want of anything to do."),
    ]
