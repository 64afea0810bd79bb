"""Settings that would do the same thing twice, such as two baselines of one reward."""

from collections import Counter

from sparring.config.algorithms import LossSettings
from sparring.config.learning import LearningSettings
from sparring.config.rewards import CreditSettings, RewardSettings, RoleAdvantage, SamePrompt
from sparring.core import InputError

_FIX = "Leave one of the two out"


def check_one_purpose(
    rewards: RewardSettings, credit: CreditSettings | None, learning: LearningSettings
) -> None:
    """Check that no two settings serve one purpose.

    A reward has at most one baseline: a moving average of the seat (``role_advantage``), other games at the
    same prompt (``same_prompt_baseline``), what ``credit`` subtracts, or a critic's value. (``normalize``
    after a moving average, as in UnstableBaselines, is of the batch and is allowed.) What classes of your own
    do is not known, so they may stand beside anything.

    Raises:
        InputError: two do.
    """
    for field, transforms in (
        ("final", [one.type.removesuffix("_by_env") for one in rewards.final]),
        ("step", [one.type for one in rewards.step]),
        ("sampling", [one.type.removesuffix("_by_env") for one in rewards.sampling]),
    ):
        twice = [name for name, count in Counter(transforms).items() if count > 1 and name != "python"]
        if twice:
            raise InputError(f"rewards.{field}", f"{twice[0]} is there twice", _FIX)
    kinds = {one.type for one in rewards.final}
    if kinds >= {"win_draw_loss", "game_range"}:
        problem = "win_draw_loss and game_range both set the scale of rewards"
        raise InputError("rewards.final", problem, _FIX)
    _check_baselines(rewards, credit, learning)
    algorithms = {"learning.algorithm": learning.algorithm}
    for policy, settings in learning.policies.items():
        if settings.algorithm is not None:
            algorithms[f"learning.policies.{policy}.algorithm"] = settings.algorithm
    for field, algorithm in algorithms.items():
        if (
            isinstance(algorithm, LossSettings)
            and algorithm.kl_weight
            and algorithm.regulariser == algorithm.kl_to
        ):
            problem = f"{algorithm.regulariser} is the model of kl_weight too"
            raise InputError(f"{field}.regulariser", problem, "Set one of the two: none, or a kl_weight of 0")


def _check_baselines(
    rewards: RewardSettings, credit: CreditSettings | None, learning: LearningSettings
) -> None:
    moving = next((one.type for one in rewards.final if isinstance(one, RoleAdvantage)), None)
    if moving is None:
        return
    second = None
    if credit is not None and credit.type not in ("episodic", "python"):
        second, fix = f"credit {credit.type}", _FIX
    elif learning.critic is not None or learning.own_critics:
        second, fix = "a critic", _FIX
    elif credit is None and any(isinstance(one, SamePrompt) for one in rewards.sampling):
        second = "same_prompt_baseline in rewards.sampling"
        fix = "Leave one of the two out: rewards.sampling = [] has none"
    if second is not None:
        raise InputError("rewards.final", f"{moving} is a baseline, and so is {second}", fix)
