"""RunningScale: the root mean square, over the batches so far, of what a game pays.

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

from selfplay.core import SelfplayError

DECAY = 0.99
"""The greatest d."""


@dataclass
class RunningScale:
    """The scale that the module's docstring describes.

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
            SelfplayError: the mean square is not finite.
        """
        square = sum(one * one for one in numbers) / len(numbers)
        if not math.isfinite(square):
            raise SelfplayError("a reward or an advantage of this batch is not finite, or its square is not")
        if square**0.5 <= least:
            return
        decay = min(DECAY, self.batches / (self.batches + 1))
        self.mean_square = decay * self.mean_square + (1 - decay) * square
        self.batches += 1
