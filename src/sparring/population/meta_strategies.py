"""Meta-strategies: mixtures over the members of a population, solved from what they earn against each other.

OpenSpiel computes them. Its functions need packages of the extra ``populations``, which are imported when a
mixture is computed.
"""

import contextlib
import io
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sparring.core import SparringError
from sparring.core.errors import check_installed
from sparring.core.play import MetaStrategy
from sparring.population.payoffs import PayoffMatrix

META_STRATEGIES: tuple[MetaStrategy, ...] = get_args(MetaStrategy)

RESAMPLES = 60
"""The number of matrices that are drawn."""
_OTHER_UNITS = (1.0, 0.1, 0.01, 10.0, 3.0, 0.3)

PACKAGES = ("cvxpy", "matplotlib", "networkx")
"""What the extra ``populations`` installs."""


def meta_strategy(name: MetaStrategy, payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each of M members in a symmetric zero-sum game for two.

    - ``nash``: the Nash equilibrium of maximum entropy, as in Nash averaging (Balduzzi et al., 2018,
      "Re-evaluating evaluation"). Copies of a member share its probability and change nothing else.
    - ``alpharank``: the stationary distribution of alpha-rank in one population (Omidshafiei et al., 2019,
      "alpha-Rank: multi-agent evaluation by evolution") in the limit of infinite alpha, as in OpenSpiel's
      PSRO. It depends only on who beats whom, not by how much.
    - ``prd``: projected replicator dynamics (Lanctot et al., 2017, "A unified game-theoretic approach to
      multiagent reinforcement learning"), the average over OpenSpiel's number of iterations, which takes
      seconds.
    - ``uniform``: every member alike; a best response to it is fictitious play.

    Args:
        name: one of these.
        payoffs_MM: what the row earns against the column. Only its antisymmetric part counts, half of what
            the row earns more than the column.

    Raises:
        InputError: the extra ``populations`` is not installed.
        SparringError: the solver of ``nash`` fails.
        ValueError: there is no member, or a payoff is not finite: a pair that did not meet is not a draw.
    """
    payoffs_MM = np.asarray(payoffs_MM, dtype=np.float64)
    if not payoffs_MM.size or not np.isfinite(payoffs_MM).all():
        raise ValueError("a meta-strategy needs the payoff of every pair")
    if name == "uniform" or len(payoffs_MM) == 1:
        return np.full(len(payoffs_MM), 1 / len(payoffs_MM))
    check_installed("meta-strategy", "populations", *PACKAGES)
    solver = {"nash": _nash, "alpharank": _alpharank, "prd": _prd}[name]
    weights_M: NDArray[np.float64] = np.maximum(solver((payoffs_MM - payoffs_MM.T) / 2), 0.0)
    weights_M /= weights_M.sum()
    return weights_M


def nash_of_columns(payoffs_RC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each of C columns in a zero-sum game of rows against columns, as ``nash``.

    It is the share of a column in the symmetric game in which both sides choose a row and a column, earn with
    their row, and lose with their column. Errors are as in :func:`meta_strategy`.

    Args:
        payoffs_RC: what the row earns against the column.
    """
    rows, columns = payoffs_RC.shape
    payoffs_RCRC = payoffs_RC[:, None, None, :] - payoffs_RC.T[None, :, :, None]
    pairs = meta_strategy("nash", payoffs_RCRC.reshape(rows * columns, rows * columns))
    shares_C: NDArray[np.float64] = pairs.reshape(rows, columns).sum(axis=0)
    return shares_C


def _nash(payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return OpenSpiel's Nash averaging. The equilibrium is the same in every unit of payoffs.

    The solver gives up on about one random matrix in a thousand, as its feasible set has no interior; in
    another unit it takes other steps.
    """
    import pyspiel
    from cvxpy.error import SolverError
    from open_spiel.python.algorithms.nash_averaging import nash_averaging

    largest = float(np.abs(payoffs_MM).max()) or 1.0
    for unit in (1.0, *(largest * factor for factor in _OTHER_UNITS)):
        matrix_MM = payoffs_MM / unit
        with contextlib.suppress(SolverError):
            nash_M1, _ = nash_averaging(pyspiel.create_matrix_game(matrix_MM, -matrix_MM))
            return np.asarray(nash_M1[:, 0])
    raise SparringError(f"no equilibrium of {len(payoffs_MM)} members was found in any of several units")


def _alpharank(payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    from open_spiel.python.egt import alpharank

    with contextlib.redirect_stdout(io.StringIO()):  # it prints each noise level that is too small
        return np.asarray(alpharank.sweep_pi_vs_epsilon([payoffs_MM]))


def _prd(payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics

    row_M, _ = projected_replicator_dynamics([payoffs_MM, -payoffs_MM])
    return np.asarray(row_M)


class ResampledShare(NamedTuple):
    """A member's share in the solution of the payoffs, and its resampled range from ``low`` to ``high``.

    The range contains the share itself, and the shares in the solutions of 95% of :data:`RESAMPLES` matrices,
    drawn around the payoffs with their standard errors. It is **not** a confidence interval: solutions jump
    where two members are nearly equal, and a bootstrap of a discontinuous function has no known coverage.
    """

    share: float
    low: float
    high: float


def resampled_shares(name: MetaStrategy, matrix: PayoffMatrix) -> list[ResampledShare] | None:
    """Return each member's share in a meta-strategy with its resampled range.

    It is ``None`` if a pair did not meet.
    """
    if not np.isfinite(matrix.mean_MM).all():
        return None
    shares_M = meta_strategy(name, matrix.mean_MM)
    draw = np.random.default_rng(0)
    error_MM = matrix.advantage_error_MM
    drawn_DM = []
    for _ in range(RESAMPLES):
        noise_MM = np.triu(draw.normal(size=error_MM.shape) * error_MM, 1)
        drawn_DM.append(meta_strategy(name, matrix.advantage_MM + noise_MM - noise_MM.T))
    low_M, high_M = np.quantile(drawn_DM, (0.025, 0.975), axis=0)
    return [
        ResampledShare(float(share), float(min(low, share)), float(max(share, high)))
        for low, share, high in zip(low_M, shares_M, high_M, strict=True)
    ]
