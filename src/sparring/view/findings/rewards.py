"""Diagnoses of rewards: whether they differ, between what, and because of what."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, pvariance

from sparring.core.confidence_intervals import wilson_interval
from sparring.view.findings.evidence import RunEvidence, Window
from sparring.view.findings.finding import COMPARED, SCORED, TASKS, Finding, has_examples
from sparring.view.findings.measures import has_improved, is_measured
from sparring.view.findings.played import RECENT, GameOutcome
from sparring.view.findings.warnings import EQUAL_GROUPS, MOST, NO_ADVANTAGE, warnings_of
from sparring.view.run_view import REWARD

TOP, BOTTOM = 0.85, 0.15
"""Mean rewards above or below these shares of their range are of a task that is too easy or too hard: of
groups of four, more than half are then all alike."""
SMALL_GROUP = 4
"""A baseline of G - 1 other rewards adds 1 / (G - 1) to the variance of an advantage: a third for four, and
as much again as there was for two."""
ALIKE = 0.95
"""The share of equal rewards from which a batch of 20 has one answer that differs, or none."""
OF_FORMAT = 0.9
"""The share of the variance of rewards from which they teach hardly anything but format."""
FORMAT_WORDS = ("format", "well_formed", "valid", "tag", "length", "syntax")
"""Words by which a reward function's name says that it looks at the form of an answer."""
TAKES_ALL = 0.9
"""The share of decided episodes from which one seat takes all: what is left to learn from falls with
p (1 - p), here to a third of what it is at a half."""
LEAST_DECIDED = 20
"""Fewer episodes say nothing about a share of nine tenths: its 95% interval is wider than 30 points."""
INVALID = "invalid moves"
CHEAP, LEAST_INVALID = 0.1, 5
"""The share of rewards below that of an invalid move from which it pays to make one, and the least number of
either."""


def warned(seen: RunEvidence) -> Iterator[Finding]:
    """Yield what at least half of the newest updates were warned of, as the terminal warns of one update.

    That one role has no advantage must have been seen twice: in one batch it happens by chance.
    """
    lines = seen.recent.lines
    found: dict[str, list[Finding]] = {}
    for line in lines:
        for one in warnings_of(line):
            found.setdefault(one.cause, []).append(one)
    for warnings in found.values():
        by_chance = len(warnings) == 1 and warnings[0].cause.startswith(f"{NO_ADVANTAGE}/")
        if len(warnings) >= MOST * len(lines) and not by_chance:
            yield replace(_of_the_same(seen, warnings[-1]), updates=seen.recent.updates, seen=len(warnings))


def _of_the_same(seen: RunEvidence, found: Finding) -> Finding:
    if found.kind not in (NO_ADVANTAGE, EQUAL_GROUPS):
        return found
    role = found.cause.partition("/")[2]
    return _why_alike(seen, found, [role] if role else [*seen.run.under(REWARD)])


def _why_alike(seen: RunEvidence, found: Finding, roles: list[str]) -> Finding:
    """Return a finding about equal rewards of some roles with what they are: opposite causes need opposite
    changes."""
    places = {role: _place(seen, role) for role in roles if seen.run.metric(f"{REWARD}{role}").values}
    draws = seen.recent.last("collection-", "/Draw Rate").values()
    invalid = seen.recent.last("collection-", "/Invalid Move Rate").values()
    if places and all(place >= TOP for place in places.values()):
        return replace(
            found,
            severity="warning" if has_improved(seen) else found.severity,
            text=f"{found.text}: nearly all earn as much as any ({_rewards_text(seen, [*places])})",
            advice="take harder tasks, or stop if this one is learned",
        )
    if places and all(place <= BOTTOM for place in places.values()):
        return replace(
            found,
            text=f"{found.text}: nearly all earn as little as any ({_rewards_text(seen, [*places])})",
            advice="take easier tasks, show examples in the prompt, reward parts of an answer, or check that "
            "the reward function accepts a right one",
        )
    if invalid and min(invalid) > TOP:
        return replace(
            found,
            text=f"{found.text}: nearly all games end by an invalid move",
            advice=f"let the model find legal moves first: {_show_moves(seen)}, give more tokens, or use a "
            "regulariser over legal answers",
            settings=("envs", "inference.max_tokens", "learning.algorithm"),
        )
    if draws and min(draws) > TOP:
        return replace(
            found,
            text=f"{found.text}: nearly all games are draws",
            advice="begin games from random positions, or play weaker or other opponents",
            settings=("envs", "population.sample_mode"),
        )
    return found


def _show_moves(seen: RunEvidence) -> str:
    if has_examples(seen.run.plays()):
        return "show examples in the prompt by a few-shot template"
    return "let the game's own text show what a move looks like"


def _place(seen: RunEvidence, role: str) -> float:
    """Return where the mean reward of a role is between the least and the most that is known of it, 0 to 1.

    A reward that never differed is at the top if it is above 0.
    """
    rewards = [one.rewards[role] for one in seen.played.outcomes if role in one.rewards]
    rewards += seen.run.metric(f"{REWARD}{role}").values
    low, high = min(rewards), max(rewards)
    if high == low:
        return float(high > 0)
    return ((seen.recent.median(f"{REWARD}{role}") or 0.0) - low) / (high - low)


def _rewards_text(seen: RunEvidence, roles: list[str]) -> str:
    means = ", ".join(f"{role} {seen.recent.median(REWARD + role) or 0.0:.3g}" for role in roles)
    return f"mean reward: {means}"


def alike(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each game or type of episode in which somebody earns the same in at least ``ALIKE``
    of the episodes that no invalid move has decided, in a run that has not become better by any measure. A
    baseline leaves their advantages small, but not 0. Without a measure it is a warning, because the game may
    be learned."""
    if has_improved(seen):
        return
    earned: dict[str, dict[str, list[float]]] = {}
    for one in seen.played.outcomes:
        for role, reward in one.rewards.items() if not one.invalid else ():
            earned.setdefault(one.where, {}).setdefault(role, []).append(reward)
    for where, by_role in earned.items():
        shares = {
            role: max(Counter(rewards).values()) / len(rewards)
            for role, rewards in by_role.items()
            if len(rewards) >= LEAST_DECIDED
        }
        roles = [role for role, share in shares.items() if share >= ALIKE]
        if roles:
            least = min(shares[role] for role in roles)
            found = Finding(
                f"alike/{where}",
                "critical" if is_measured(seen) else "warning",
                f"the reward of {' and '.join(roles)} is the same in {least:.0%} of the episodes of {where}",
                "check whether its reward can differ, and take harder or easier tasks",
                (SCORED, TASKS),
                "howto-logging.md#is-anything-learned",
                least,
                seen.recent.updates,
                whole=(NO_ADVANTAGE, f"{INVALID}/{where}", *(f"only format/{role}" for role in roles)),
            )
            yield _why_alike(seen, found, roles)


def groups_too_small(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if rewards are compared in groups of fewer than ``SMALL_GROUP`` on average."""
    size = seen.recent.median("program/group_size")
    if size is not None and size < SMALL_GROUP:
        yield Finding(
            "small groups",
            "warning",
            f"rewards are compared in groups of {size:.3g}, so advantages are mostly noise",
            f"compare at least {SMALL_GROUP}, better 8, or use a baseline that is remembered (rae, spo)",
            (COMPARED, "credit.type"),
            "concepts.md#credit",
            size,
            seen.recent.updates,
        )


def only_format(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where rewards differ because of the form of answers, and hardly because of anything
    else.

    In games this is the share of the rewards' variance that the step transforms made. In programs it is that
    of several reward functions of a role only those with a word of ``FORMAT_WORDS`` in their names differ.
    """
    yield from _only_step_rewards(seen)
    for role, functions in _functions(seen.played.outcomes).items():
        differing = [name for name, values in functions.items() if pvariance(values) > 0]
        others = [name for name in functions if not _is_of_format(name)]
        if others and differing and all(map(_is_of_format, differing)):
            yield Finding(
                f"only format/{role}",
                "critical",
                f"the rewards of {role} differ by {' and '.join(differing)} alone; {' and '.join(others)} "
                "never differs",
                "lower the weight of the form once it is learned, and take tasks that are sometimes solved",
                (SCORED, TASKS),
                "tutorial-conversation.md#write-it",
                1.0,
                seen.recent.updates,
            )


def _only_step_rewards(seen: RunEvidence) -> Iterator[Finding]:
    for where, answers in seen.played.earned.items():
        whole = pvariance([one.step for one in answers])
        game = pvariance([one.game for one in answers])
        share = 1.0 - game / whole if whole > 0 else 0.0
        added = any(one.step != one.game for one in answers)
        if added and share >= OF_FORMAT:
            yield Finding(
                f"only format/{where}",
                "critical",
                f"{share:.0%} of the differences between rewards in {where} are of rewards.step, not of the "
                "game",
                "make the rewards of rewards.step smaller than those of the game, or leave them out once "
                "answers are well formed",
                ("rewards.step", "rewards.final"),
                "howto-custom-reward.md#in-a-configuration",
                share,
                seen.recent.updates,
            )


def _functions(outcomes: list[GameOutcome]) -> dict[str, dict[str, list[float]]]:
    """Return the values of the reward functions by role and name."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in outcomes:
        for metric, value in one.metrics.items():
            name, _, role = metric.rpartition("/")
            found.setdefault(role, {}).setdefault(name, []).append(value)
    return found


def _is_of_format(name: str) -> bool:
    return any(word in name.lower() for word in FORMAT_WORDS)


def one_takes_all(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where one seat or role wins nearly all decided episodes that all learn from.

    Only episodes count whose rewards always add up to the same, because others need not have a winner, and
    which no invalid move has decided.
    """
    by_place: dict[str, list[GameOutcome]] = {}
    for one in seen.played.outcomes:
        if len(one.rewards) > 1 and not one.invalid:
            by_place.setdefault(one.where, []).append(one)
    for where, outcomes in by_place.items():
        sums = [sum(one.rewards.values()) for one in outcomes]
        decided = [one.rewards for one in outcomes if len({*one.rewards.values()}) > 1]
        winners = [max(rewards, key=rewards.__getitem__) for rewards in decided]
        if max(sums) - min(sums) > 1e-6 or len(winners) < max(LEAST_DECIDED, MOST * len(outcomes)):
            continue
        first = max(sorted({*winners}), key=winners.count)
        share = winners.count(first) / len(winners)
        if share >= TAKES_ALL:
            low, _, high = wilson_interval(winners.count(first), len(winners))
            yield Finding(
                f"takes all/{where}",
                "warning",
                f"{first} wins {share:.0%} ({100 * low:.0f} to {100 * high:.0f}) of {len(winners)} decided "
                f"episodes of {where}",
                "give each side a policy or a rate of its own, compare rewards within a seat, or play the "
                "stronger side against earlier copies; in some games the seat decides",
                ("learning.policies", "rewards.final", "population.sample_mode"),
                "howto-opponents.md#a-policy-for-each-side",
                share,
                seen.recent.updates,
                whole=(f"{INVALID}/{where}",),
            )


def invalid_moves(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where the model makes invalid moves in at least a quarter of the games, and has not
    made a quarter fewer since the run began: then it is not learning to make legal ones.

    The share is a mean over recent games, so before ``RECENT`` updates only nearly all games say it.
    """
    least = 0.25 if seen.run.step >= RECENT else TOP
    before_by_env = Window(seen.beginning.lines[:1]).medians("collection-", "/Invalid Move Rate")
    for env_id, share in seen.recent.last("collection-", "/Invalid Move Rate").items():
        before = before_by_env.get(env_id)
        if share >= least and (before is None or share > 0.75 * before):
            yield Finding(
                f"{INVALID}/{env_id}",
                "critical" if share > TOP else "warning",
                f"the model makes an invalid move in {share:.0%} of its games of {env_id}"
                + ("" if before is None else f", and did in {before:.0%} at first"),
                f"{_show_moves(seen)}, leave room for the longest move, punish invalid moves, or use "
                "a regulariser over legal answers",
                ("envs", "inference.max_tokens", "rewards.step", "learning.algorithm"),
                "concepts.md#invalid-moves",
                share,
                seen.recent.updates,
            )


def cheap_invalid_moves(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where an invalid move pays its player more than many games that ended by the rules: who
    is about to lose then gains by one."""
    by_place: dict[str, list[GameOutcome]] = {}
    for one in seen.played.outcomes:
        by_place.setdefault(one.where, []).append(one)
    for where, outcomes in by_place.items():
        paid = [one.rewards[one.invalid] for one in outcomes if one.invalid in one.rewards]
        by_rules = [reward for one in outcomes if not one.invalid for reward in one.rewards.values()]
        if len(paid) < LEAST_INVALID or len(by_rules) < LEAST_INVALID:
            continue
        mean = fmean(paid)
        worse = sum(reward < mean for reward in by_rules) / len(by_rules)
        if worse >= CHEAP:
            yield Finding(
                f"cheap invalid moves/{where}",
                "warning",
                f"an invalid move of {where} pays its player {mean:.3g} on average, more than "
                f"{worse:.0%} of the rewards of games that ended by the rules",
                "make it cost more than a lost game: invalid_reward in the options of a library's game, or "
                "what your own returns for an invalid move",
                ("envs",),
                "tutorial-game.md#environments-of-other-libraries",
                worse,
                seen.recent.updates,
            )
