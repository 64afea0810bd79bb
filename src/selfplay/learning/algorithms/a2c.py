"""A2C: the policy gradient with a critic's advantages.

The loss of a token is that of REINFORCE,

    - A log pi,

where the advantage A is not a reward less what others earned, but what the learner's critic, a value head on
the same model, did not expect (``critic``, ``gae``). The advantages are computed before the step, of which an
update has one (Mnih et al. 2016, arXiv 1602.01783, in its synchronous form).
"""

from selfplay.learning.algorithms.reinforce import Reinforce


class A2c(Reinforce):
    """The algorithm that the module's docstring describes. Its learner must have a critic."""
