"""Warnings about a run that keeps going: what its metrics show to be wrong, and what to check."""

from collections.abc import Iterator, Mapping
from typing import Any

from sparring.view.findings.finding import COMPARED, SCORED, TASKS, Finding, has_examples

MOST = 0.5
"""The share of cut answers or of equal groups from which a warning is due."""
GAMES = "collection-"
RAISED = "accounts/raised "
NO_ADVANTAGE = "no advantage"
EQUAL_GROUPS = "equal groups"
_STOP = {
    "games": 'set template = "fewshot-text", or stop, a text that ends answers, in [[envs]], or use a chat '
    "model",
    "games of libraries": "set stop, a text that ends answers, in [[envs]], or use a chat model",
    "a program": "set stop, a text that ends answers, in [roles.NAME], or use a chat model",
}
_LEARNED = "howto-logging.md#is-anything-learned"


def warnings_of(metrics: Mapping[str, Any]) -> list[Finding]:
    """Return the warnings about the metrics of one step, the most serious first."""
    return [
        *_nothing_learned(metrics),
        *_cut(metrics),
        *_endless(metrics),
        *_equal_groups(metrics),
        *_rewarded_in_vain(metrics),
    ]


class WarningLog:
    """Reports each cause once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def new(self, metrics: Mapping[str, Any]) -> list[Finding]:
        """Return the warnings about these metrics whose cause has not been reported yet."""
        due = [*_raised(metrics), *warnings_of(metrics)]
        found = [one for one in due if self._reported.isdisjoint((one.cause, *one.whole))]
        self._reported |= {one.cause for one in found}
        return found


def game_raises(
    counts: Mapping[str, float], started: float, updates: tuple[int, int] | None = None
) -> Finding:
    """Return that games ended because the game raised an error on a move: how many, by its type."""
    share = sum(counts.values()) / started
    return Finding(
        "game raises",
        "critical",
        f"{share:.0%} of the games ended because the game raised an error on a move, mostly "
        f"{max(counts, key=counts.__getitem__)}, which counts as an invalid move",
        "correct the game; in rollouts/, game_info has the file and the line",
        ("envs",),
        "concepts.md#invalid-moves",
        share,
        updates,
    )


def _raised(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    counts = dict(_by_role(metrics, RAISED))
    started = metrics.get("accounts/started", 0)
    if sum(counts.values()) > MOST * started > 0:
        yield game_raises(counts, started)


def _nothing_learned(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    rewards = (SCORED, TASKS, "credit.type")
    if metrics.get("answers/zero_advantage_share") == 1:
        yield Finding(
            NO_ADVANTAGE,
            "critical",
            "every advantage is 0, so the rewards teach nothing",
            "check in the rollouts and the reward functions whether all compared rewards are equal",
            rewards,
            _LEARNED,
            1.0,
        )
        return
    for role, share in _by_role(metrics, "answers/zero_advantage_share/"):
        if share == 1:
            yield Finding(
                f"{NO_ADVANTAGE}/{role}",
                "critical",
                f"every advantage of {role} is 0, so it learns nothing from the rewards",
                "check in the rollouts whether its reward ever differs",
                rewards,
                _LEARNED,
                1.0,
                whole=(NO_ADVANTAGE,),
            )
    for name, norm in metrics.items():
        if name.startswith("learner/") and name.endswith("/grad_norm") and norm == 0:
            policy = name.removeprefix("learner/").removesuffix("grad_norm").rstrip("/")
            yield Finding(
                f"no gradient/{policy}" if policy else "no gradient",
                "critical",
                f"the gradient{f' of {policy}' if policy else ''} is 0, so the update changed nothing",
                "check the advantages and learning.algorithm",
                ("learning.algorithm",),
                _LEARNED,
                0.0,
            )


def _cut(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    going_on = dict(_by_role(metrics, "answers/going_on_share/"))
    endless = dict(_by_role(metrics, "answers/endless_reasoning_share/"))
    games = [name.removeprefix(GAMES).rpartition("/")[0] for name in metrics if name.startswith(GAMES)]
    played = "games" if has_examples(games) else "games of libraries"
    if any(name.startswith("program/") for name in metrics):
        played = "a program"
    for role, share in _by_role(metrics, "answers/cut_share/"):
        if share > MOST:
            yield Finding(
                f"cut/{role}",
                "warning",
                f"{share:.0%} of the answers of {role} are cut at the token limit",
                _advice_on_cut(share, going_on.get(role, 0.0), endless.get(role, 0.0), _STOP[played]),
                ("inference.max_tokens", "envs", "roles"),
                _LEARNED,
                share,
            )


def _endless(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each role whose answers are thoughts without an end, but not for want of tokens."""
    cut = dict(_by_role(metrics, "answers/cut_share/"))
    for role, share in _by_role(metrics, "answers/endless_reasoning_share/"):
        if share > MOST >= cut.get(role, 0.0):
            yield Finding(
                f"endless thoughts/{role}",
                "critical",
                f"{share:.0%} of the answers of {role} are thoughts without an end, which say nothing; "
                "NashConv and legal count legal answers inside them",
                "switch thoughts off, as in model.template_options = {enable_thinking = false}, or reward "
                "those that end",
                ("model.template_options", "rewards.step"),
                "howto-reasoning.md#whose-tags",
                share,
            )


def _advice_on_cut(share: float, going_on: float, endless: float, stop: str) -> str:
    """Return what to do about cut answers, of which ``going_on`` of all began with a legal answer, and
    ``endless`` are thoughts without an end. ``stop`` is how to end a turn of a base model."""
    if endless > share / 2:
        return (
            "most are still thinking: raise inference.max_tokens, or end thoughts sooner with a smaller "
            "inference.max_reasoning"
        )
    if going_on > share / 2:
        return (
            "most begin with a legal move and go on, because the model does not end its turn, as base models "
            f"do not: {stop}"
        )
    longer = "raise inference.max_tokens (and the role's max_tokens), or ask for shorter answers"
    if share < 1:
        return longer
    return f"{longer}; if the model never ends its turn, as base models do not: {stop}"


def _equal_groups(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    share = metrics.get("program/equal_group_share")
    if isinstance(share, float) and share >= MOST and metrics.get("answers/zero_advantage_share") != 1:
        yield Finding(
            EQUAL_GROUPS,
            "warning",
            f"{share:.0%} of the groups have equal rewards throughout and teach nothing",
            "use larger groups, harder or easier tasks, or finer-grained rewards",
            (COMPARED, TASKS, "credit.group"),
            "concepts.md#credit",
            share,
        )


def _rewarded_in_vain(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    for role, _ in _by_role(metrics, "program/rewarded_without_step/"):
        yield Finding(
            f"rewarded without step/{role}",
            "critical",
            f"{role} gets rewards but has no step, so it is not trained",
            "check that the episode appends response.to_step(...) to state.trajectory for it",
            (),
            "tutorial-conversation.md#write-it",
        )


def _by_role(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    return (
        (name.removeprefix(prefix), value)
        for name, value in metrics.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    )
