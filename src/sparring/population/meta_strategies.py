"""Meta-strategies: mixtures over the members of a population, solved from what they earn against each other.

OpenSpiel computes them, or CVXPY where the seats have different members. They need packages of the extra
``populations``, which are imported when a mixture is computed.
"""

import contextlib
import io
from collections.abc import Callable
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
_UNITS = (1.0, 0.1, 0.01, 10.0, 3.0, 0.3)
"""Of the largest payoff: those of 0.001 in a unit of 1 would be lost in the solver's tolerance."""

PACKAGES = ("cvxpy", "matplotlib", "networkx")
"""What the extra ``populations`` installs."""


def meta_strategy(name: MetaStrategy, payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each of M members, from which every seat of a symmetric game draws by itself.

    - ``nash``: for two seats, the Nash equilibrium of maximum entropy, as in Nash averaging (Balduzzi et al.,
      2018, "Re-evaluating evaluation"). Copies of a member share its probability and change nothing else.
    - ``alpharank``: the stationary distribution of alpha-rank (Omidshafiei et al., 2019, "alpha-Rank:
      multi-agent evaluation by evolution") in the limit of infinite alpha, as in OpenSpiel's PSRO: for two
      seats in one population, for more in one of each seat, of which a seat's share is taken. It depends only
      on who does better, not by how much.
    - ``prd``: projected replicator dynamics (Lanctot et al., 2017, "A unified game-theoretic approach to
      multiagent reinforcement learning"), the average over OpenSpiel's number of iterations, which takes
      seconds.
    - ``uniform``: every member alike; a best response to it is fictitious play.

    Args:
        name: one of these.
        payoffs: an axis of length M for each seat: what the first earns beside the others, whose order does
            not matter. For two seats, only the antisymmetric part counts for ``nash`` and ``alpharank``, half
            of what the row earns more than the column.

    Raises:
        InputError: the extra ``populations`` is not installed.
        SparringError: the solver of ``nash`` fails.
        ValueError: there is no member, or a payoff is not finite: a pair that did not meet is not a draw; or
            ``nash`` of more than two seats.
    """
    payoffs = np.asarray(payoffs, dtype=np.float64)
    if not payoffs.size or not np.isfinite(payoffs).all():
        raise ValueError("a meta-strategy needs the payoff of every pair")
    if name == "nash" and payoffs.ndim > 2:
        raise ValueError("nash is for two seats")
    if name == "uniform" or len(payoffs) == 1:
        return np.full(len(payoffs), 1 / len(payoffs))
    check_installed("meta-strategy", "populations", *PACKAGES)
    solver = {"nash": _nash, "alpharank": _alpharank, "prd": _prd}[name]
    weights_M: NDArray[np.float64] = np.maximum(solver(payoffs), 0.0)
    weights_M /= weights_M.sum()
    return weights_M


def nash_of_columns(payoffs_RC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each of C columns in a zero-sum game of rows against columns: of all their
    equilibrium strategies, the one of maximum entropy. Errors are as in :func:`meta_strategy`.

    Args:
        payoffs_RC: what the row earns against the column.
    """
    check_installed("meta-strategy", "populations", *PACKAGES)
    weights_C: NDArray[np.float64] = np.maximum(_in_some_unit(_columns, payoffs_RC), 0.0)
    weights_C /= weights_C.sum()
    return weights_C


def _nash(payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return OpenSpiel's Nash averaging."""
    import pyspiel
    from open_spiel.python.algorithms.nash_averaging import nash_averaging

    def solve(matrix_MM: NDArray[np.float64]) -> NDArray[np.float64]:
        nash_M1, _ = nash_averaging(pyspiel.create_matrix_game(matrix_MM, -matrix_MM))
        return np.asarray(nash_M1[:, 0])

    return _in_some_unit(solve, _antisymmetric(payoffs_MM))


def _columns(payoffs_RC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the columns' strategy that holds all rows to what some strategy of the rows guarantees them."""
    import cvxpy
    from cvxpy.error import SolverError

    rows, columns = payoffs_RC.shape
    rows_R, columns_C, value = cvxpy.Variable(rows, nonneg=True), cvxpy.Variable(columns), cvxpy.Variable()
    constraints = [
        payoffs_RC @ columns_C <= value,
        payoffs_RC.T @ rows_R >= value,
        cvxpy.sum(rows_R) == 1,
        cvxpy.sum(columns_C) == 1,
    ]
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(cvxpy.entr(columns_C))), constraints)
    problem.solve()
    if problem.status != cvxpy.OPTIMAL:
        raise SolverError(problem.status)
    return np.asarray(columns_C.value)


def _in_some_unit(
    solve: Callable[[NDArray[np.float64]], NDArray[np.float64]], payoffs_RC: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return an equilibrium, which is the same in every unit of payoffs.

    The solver gives up on about one random matrix in a thousand, as its feasible set has no interior; in
    another unit it takes other steps.
    """
    from cvxpy.error import SolverError

    largest = float(np.abs(payoffs_RC).max()) or 1.0
    for factor in _UNITS:
        with contextlib.suppress(SolverError):
            return solve(payoffs_RC / (largest * factor))
    raise SparringError(f"no equilibrium of {payoffs_RC.shape[1]} members was found in any of several units")


def _alpharank(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    from open_spiel.python.egt import alpharank

    tables = [_antisymmetric(payoffs)] if payoffs.ndim == 2 else _by_seat(payoffs)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints each noise level that is too small
        found = np.asarray(alpharank.sweep_pi_vs_epsilon(tables))
    return found if payoffs.ndim == 2 else found.reshape(len(payoffs), -1).sum(axis=1)


def _prd(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics

    return np.asarray(projected_replicator_dynamics(_by_seat(payoffs))[0])


def _antisymmetric(payoffs_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    return (payoffs_MM - payoffs_MM.T) / 2


def _by_seat(payoffs: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return what each seat earns, by the members in the seats."""
    return [np.moveaxis(payoffs, 0, seat) for seat in range(payoffs.ndim)]


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
