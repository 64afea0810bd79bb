"""The charts of rewards and of learning."""

from dataclasses import replace

from selfplay.read.charts import (
    FROM_ZERO,
    SMALL,
    WHOLE,
    Chart,
    Line,
    chart,
    lines_of,
    share_chart,
    with_wide_axis,
)
from selfplay.read.evaluations import exact_of
from selfplay.read.run_view import REWARD, RunView
from selfplay.read.series import Series


def reward_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of what is rewarded, and of how much of it teaches anything."""
    groups = {"groups with equal rewards": run.metric("program/equal_group_share")}
    return [
        chart("Reward by seat", lines_of(_seat_rewards(run)), "Mean over recent training games."),
        _role_rewards(run),
        *_reward_functions(run),
        share_chart(
            "Answers without advantage",
            lines_of(run.answers("zero_advantage_share") | groups),
            "Share of the answers whose advantage is 0, so that the rewards teach nothing about them.",
        ),
    ]


def _seat_rewards(run: RunView) -> dict[str, Series]:
    found = {rest: one for rest, one in run.under("collection-").items() if "/Reward (pid=" in rest}
    several = len({rest.rpartition("/")[0] for rest in found}) > 1
    named = {}
    for rest, one in found.items():
        env_id, _, measure = rest.rpartition("/")
        seat = f"seat {measure.removeprefix('Reward (pid=').removesuffix(')')}"
        named[f"{env_id}: {seat}" if several else seat] = one
    return named


def _role_rewards(run: RunView) -> Chart | None:
    roles = run.roles()
    lines = [replace(one, colour=roles.index(one.name)) for one in lines_of(run.under(REWARD))]
    title = f"Reward of {lines[0].name}" if len(lines) == 1 else "Reward by role"
    return chart(title, lines, "Mean over the episodes of an update, sub-episodes included.")


def _reward_functions(run: RunView) -> list[Chart | None]:
    """Return a chart of the values of the reward functions for each type of episode.

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
    caption = "Value of a reward function before its weight; mean over the episodes of an update."
    return [chart(title, lines_of(named), caption) for title, named in (small | large).items()]


def learning_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of the learner's updates."""
    ages = staleness(run)
    by_age = {"this version" if not age else f"{age} older": one for age, one in ages.items()}
    mismatch = chart(
        "Log-probability mismatch",
        _of_learner(run, "mismatch"),
        "Nats per token, between the engine that samples and the learner that trains.",
    )
    return [
        chart("Loss", _of_learner(run, "loss"), "As reported by the learner."),
        chart(
            "Explained variance",
            _of_learner(run, "explained_variance"),
            "Share of the variance of the returns that the critic knows beforehand.",
            bounds=WHOLE,
        ),
        chart("Mean value", _of_learner(run, "mean_value"), "What the critic expects, in units of reward."),
        chart("Gradient norm", _of_learner(run, "grad"), "Before clipping.", bounds=FROM_ZERO),
        chart(
            "Entropy",
            _of_learner(run, "entropy", whole=True),
            "Of the distribution over the vocabulary at the drawn tokens, in nats per token.",
            bounds=FROM_ZERO,
        ),
        chart(
            "Entropy over legal answers",
            _of_learner(run, "legal_entropy", whole=True),
            "In nats an answer; 0 where the policy is pure.",
            bounds=FROM_ZERO,
        ),
        chart(
            "Divergence", _of_learner(run, "kl"), "From another policy, in nats per token.", bounds=FROM_ZERO
        ),
        share_chart(
            "Probability on legal answers",
            [*_of_learner(run, "legal_mass"), *_exact_masses(run)],
            "The rest goes to answers that the game rejects.",
            SMALL,
        ),
        with_wide_axis(mismatch),
        share_chart(
            "Clipped and left-out tokens",
            [*_of_learner(run, "clip_fraction"), *_of_learner(run, "correction_masked")],
            "Share of the tokens that the loss clips, and that its correction leaves out.",
            SMALL,
        ),
        chart("Learning rate", _of_learner(run, "learning_rate"), "At each update.", bounds=FROM_ZERO),
        share_chart(
            "Age of trained answers",
            lines_of(by_age) if any(ages) else [],
            "Share of the answers, by the number of versions between play and learning.",
        ),
    ]


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


def _exact_masses(run: RunView) -> list[Line]:
    found = exact_of(run.evaluations)
    lines = []
    for env_id, exact in found.items():
        masses = {float(one.step): one.legal_mass for one in exact if one.legal_mass is not None}
        name = f"{env_id}, exact" if len(found) > 1 else "exact"
        lines += lines_of({name: Series([*masses], [*masses.values()])})
    return lines


def staleness(run: RunView) -> dict[int, Series]:
    """Return the share of the trained answers by their age in versions, in order of age."""
    found = {int(age): one for age, one in run.under("overlap/staleness_").items() if age.isdecimal()}
    return dict(sorted(found.items()))
