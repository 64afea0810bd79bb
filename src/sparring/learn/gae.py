"""What rewards are worth: generalised advantage estimation with turns as time steps, and their scale.

The turns of one role in one rollout are a trajectory; what the others do in between belongs to the
environment. With the value V_t of the state before turn t and the reward r_t of the turn,

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = sum_k (gamma lambda)^k delta_{t+k}

(Schulman et al. 2016, arXiv 1506.02438, equations 11 and 16). The value's target is A_t + V_t.

A record gives each answer a reward R_t: the outcome for its role, and what its own transforms add to that.
The reward of the turn itself is the difference to the next turn's, r_t = R_t - R_{t+1}, and r_T = R_T at the
end. Where only the outcome is rewarded, it is 0 before the end. With gamma = lambda = 1 the target of each
turn is its R_t, and no turn pays for what another one's transforms added. With lambda < 1, A_t contains
(1 - lambda) times the opposite of what the next turn's transforms added beyond V_{t+1}; it is 0 in the mean
once the critic expects it.

A batch may have only a part of a trajectory: a buffer draws single steps, steps become stale, and a record is
cut at ``max_train_len``. A turn whose next one is missing counts as the last. Its target is then R_t, the
outcome that was really reached, so a missing turn costs variance but introduces no error with gamma = 1.

:class:`RunningScale` is the root mean square, over the batches so far, of what a game pays.
A game may pay 1 or 13. Divided by a running deviation of its returns or advantages, all games are alike, so
learning rates, clips and the weights of other terms need not know what a game pays. A critic divides rewards
by it, as in the reward scaling of PPO's implementations, such as VecNormalize (Engstrom et al. 2020, arXiv
2005.12729); losses over legal answers divide advantages by it. As there, no mean is subtracted. Here, none is
subtracted in the deviation either, so a game that nearly always pays the same does not get a tiny one. After
batch n with the mean square m_n,

    m <- d m + (1 - d) m_n,    d = min(0.99, (n - 1) / n),    scale = sqrt(m)

which is at first the plain mean of all batches and then forgets what games paid long ago, as the moments of
PopArt do (van Hasselt et al. 2016, arXiv 1602.07714). VecNormalize never forgets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparring.core import SparringError


@dataclass(frozen=True)
class ValuedTurn:
    """An answer as a time step: the ``number`` of a role's turn in a rollout, its R_t and its V_t.

    A turn without a rollout (an empty ``rollout_id``) is a trajectory of its own.
    """

    rollout_id: str
    role_id: str
    number: int
    reward: float
    value: float


def advantages_of(turns: Sequence[ValuedTurn], gamma: float, gae_lambda: float) -> list[float]:
    """Return A_t of each turn, in the order of ``turns``, which may be any."""
    place_of = {
        (turn.rollout_id, turn.role_id, turn.number): place
        for place, turn in enumerate(turns)
        if turn.rollout_id
    }
    advantages = [0.0] * len(turns)
    for place in sorted(range(len(turns)), key=lambda place: -turns[place].number):
        turn = turns[place]
        following = place_of.get((turn.rollout_id, turn.role_id, turn.number + 1))
        if following is None:
            advantages[place] = turn.reward - turn.value
        else:
            after = turns[following]
            delta = turn.reward - after.reward + gamma * after.value - turn.value
            advantages[place] = delta + gamma * gae_lambda * advantages[following]
    return advantages


DECAY = 0.99
"""The greatest d."""


@dataclass
class RunningScale:
    """The scale m of the module.

    Attributes:
        mean_square: m, in squared units of reward.
        batches: n, the number of batches in it.
    """

    mean_square: float = 0.0
    batches: int = 0

    @property
    def value(self) -> float:
        """The scale, in units of reward; 1 before the first batch."""
        return self.mean_square**0.5 if self.batches else 1.0

    def add(self, numbers: Sequence[float], least: float = 0.0) -> None:
        """Take a batch into account.

        One whose root mean square is not above ``least`` does not show what the game pays.

        Raises:
            SparringError: the mean square is not finite.
        """
        square = sum(one * one for one in numbers) / len(numbers)
        if not math.isfinite(square):
            raise SparringError("a reward or an advantage of this batch is not finite, or its square is not")
        if square**0.5 <= least:
            return
        decay = min(DECAY, self.batches / (self.batches + 1))
        self.mean_square = decay * self.mean_square + (1 - decay) * square
        self.batches += 1
