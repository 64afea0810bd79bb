"""When a run has settled: its evaluations no longer find that the policy plays better."""

from pathlib import Path

from sparring.config.population import EvaluationSettings
from sparring.evaluation.match_result import MatchResult
from sparring.evaluation.result_files import evaluated_steps, read_evaluation


def has_settled(directory: Path, settings: EvaluationSettings) -> bool:
    """Whether none of the last ``patience`` evaluations found a better policy.

    Those count that were due, every ``every`` updates. That of a last update which was not due does not, so
    that a run that was made longer settles as one that was as long from the beginning.

    The rule: an evaluation finds a better policy if the mean reward in one of its matches is beyond chance
    above the best so far, which means that the lower end of its 95% interval is above the mean that was the
    best. Then that mean becomes the best; smaller steps add up until they count. The first evaluation has
    nothing to be compared with and counts as better. One without a finished match says nothing.

    Args:
        directory: the run's directory of evaluations.
        settings: ``patience``, the number of evaluations, 0 for never, and ``every``.
    """
    if not (settings.patience and settings.every):
        return False
    best: dict[tuple[str, str], float] = {}
    since = 0
    for step in evaluated_steps(directory):
        if step % settings.every:
            continue
        better, measured = False, False
        for path in sorted(directory.glob(f"step-{step:06d}-*.json")):
            _, match = read_evaluation(path)
            if not isinstance(match, MatchResult) or not match.games:
                continue
            measured = True
            played, reward = (match.env_id, match.opponent), match.mean_reward
            if played not in best or reward.low > best[played]:
                best[played], better = reward.mid, True
        since = 0 if better else since + measured
    return since >= settings.patience
