"""The table of what an exactly evaluated policy plays in each information state."""

from html import escape

from selfplay.read.evaluations import Evaluation, exact_of
from selfplay.read.whole_run import WholeRun

POLICY_ROWS = 60
"""A game with more information sets than this gets no policy table."""


def policy_html(run: WholeRun) -> str:
    """Return the first and the last policy of each exactly evaluated game; empty without any."""
    return "".join(
        _policy_card(env_id, found)
        for env_id, found in exact_of(run.evaluations).items()
        if 0 < len(found[-1].policy) <= POLICY_ROWS
    )


def _policy_card(env_id: str, found: list[Evaluation]) -> str:
    last = found[-1]
    shown = [last] if len(found) == 1 else [found[0], last]
    heads = "".join(f"<th>Update {evaluation.step}</th>" for evaluation in shown)
    actions = sorted({action for chances in last.policy.values() for action in chances})
    colours = {action: index % 6 for index, action in enumerate(actions)}
    rows = "".join(
        f'<tr><td title="{escape(state)}">{escape(last.observations.get(state, state))}</td>'
        + "".join(f"<td>{_policy_bar(each.policy.get(state, {}), colours)}</td>" for each in shown)
        + "</tr>"
        for state in sorted(last.policy)
    )
    legend = "".join(
        f'<span class="legend"><i class="fill-{colour}"></i>{escape(action)}</span>'
        for action, colour in colours.items()
    )
    return (
        f'<div class="card scroll"><h3>{escape(env_id)}</h3><p class="muted">{legend}</p>'
        f'<table class="policy"><thead><tr><th>Information state</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _policy_bar(chances: dict[str, float], colours: dict[str, int]) -> str:
    """Return a stacked bar of action probabilities; those of at least 15% are labelled."""
    segments = []
    for action, chance in sorted(chances.items()):
        label = f"{100 * chance:.0f}%" if chance >= 0.15 else ""
        segments.append(
            f'<i class="fill-{colours.get(action, 0)}" style="width:{100 * chance:.2f}%" '
            f'title="{escape(action)}: {chance:.4f}">{label}</i>'
        )
    return f'<div class="stack">{"".join(segments)}</div>'
