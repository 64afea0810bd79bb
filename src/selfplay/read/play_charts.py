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
            "Games with an invalid move of the model",
            [*_training(run, {"training": "Invalid Move Rate"}), *rate_lines(run, "Lost by an invalid move")],
            "Training: mean over recent games. Evaluation: bands are 95% Wilson intervals.",
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
        (f"{name}, {env_id}" if env_id else name, one)
        for name, measure in measures.items()
        for env_id, one in by_env(run, "collection-", measure)
    )


def _variety(run: RunView) -> list[Chart | None]:
    """Return a chart of the variety of play for each environment."""
    by_env_id: dict[str, list[tuple[str, Series]]] = {}
    for rest, one in run.under("exploration/").items():
        env_id, _, measure = rest.rpartition("/")
        by_env_id.setdefault(env_id, []).append((measure.removeprefix("Pct. Unique Action "), one))
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
    counts = {name: run.series.get(f"accounts/{name}", Series()) for name in ("failed", "retried")}
    return chart(
        f"Failed and retried {run.unit}",
        lines_of((name, one) for name, one in counts.items() if any(one.values)),
        "Total since the start of the run.",
        bounds=FROM_ZERO,
    )


def answer_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of the answers used for training."""
    return [
        share_chart("Answers cut at the token limit", _by_role(run, "cut_share"), "Share of the answers."),
        chart(
            "Answer length",
            _by_role(run, "tokens"),
            "Tokens, mean over the step's answers.",
            bounds=FROM_ZERO,
        ),
        chart(
            "Entropy of sampling, estimated",
            _by_role(run, "entropy_estimate"),
            "Mean of -log p over the sampled tokens, in nats per token.",
            bounds=FROM_ZERO,
        ),
    ]


def _by_role(run: RunView, measure: str) -> list[Line]:
    """Return a figure of the trained answers, by role or seat."""
    return lines_of(run.under(f"answers/{measure}/").items())


def speed_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of speed and of where the time goes."""
    games = {"": run.series.get("time/games_per_second", Series())}
    idle = {
        label: run.series.get(f"overlap/{name}_idle_share", Series())
        for label, name in (("learner", "learner"), ("engines", "engine"))
    }
    phases = {
        rest.removesuffix("_seconds"): one
        for rest, one in run.under("time/").items()
        if rest.endswith("_seconds") and "step" not in rest and "total" not in rest
    }
    stacked = chart(
        "Seconds per phase", lines_of(phases.items()), "Stacked, for each step.", bounds=FROM_ZERO
    )
    return [
        chart(
            f"{run.unit.capitalize()} per second", lines_of(games.items()), "Wall clock.", bounds=FROM_ZERO
        ),
        with_wide_axis(chart("Tokens per second", _token_speeds(run), "Wall clock.")),
        replace(stacked, stacked=True) if stacked is not None else None,
        share_chart("Idle share of the time", lines_of(idle.items()), "For want of anything to do."),
    ]


def _token_speeds(run: RunView) -> list[Line]:
    """Return the speeds of engines, of generating and of training."""
    engines = {
        rest.removesuffix("/tok_s"): one for rest, one in run.under("inference/").items() if "/tok_s" in rest
    }
    ending = "_tokens_per_second"
    found = {
        rest.removesuffix(ending): one for rest, one in run.under("time/").items() if rest.endswith(ending)
    }
    return lines_of((engines | found).items())
