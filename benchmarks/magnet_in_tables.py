"""What algorithms over legal answers do where the policy is a table: no language model, minutes of one core.

A policy here is a number for each action of each information state. Each update samples games from it,
subtracts the baselines of ``SamePromptBaseline``, makes values Q of the advantages as
``learn.action_values`` does, and makes a step of Adam with the gradient of ``learn.algorithms.magnet``
or ``all_actions``; every state counts by its share of the decisions. The magnet is a running average of the
policy's logarithms, or a copy of the policy that is taken every few updates. So what is left is the algorithm
and the noise of the games. With a language model, states share their weights.

``fit`` is magnet without a gradient: each logarithm goes half of the way to the target. With a language model
one step is for all states, and those with more weight in the loss go further. ``by visits``, ``by root`` and
``alike`` divide such a step: a state goes 1 - exp(-k) of the way, where k is in proportion to the number of
the batch's games that meet it, to the square root of this number, or the same for all that were met, and 1 in
the mean over decisions. ``neurd, KL in the loss`` has the divergence beside the loss with its own gradient,
where ``neurd`` has it in the values.

The table gives NashConv of a slower average (0.95), in units of the game: the mean over the last four of ten
evaluations and over seeds, and the largest of these.

With ``tree values``, Q are those of ``learn.tree_values``, over the root mean square of the same advantages;
where no history of a state was met before, they are as without. With ``explore``, both players draw from a
mixture with this share of the uniform distribution. ``--rows tree`` is about these two.

With ``--rows one-step``, Adam has one second moment for all numbers, so that its step is one for all states,
which count by the square root of their decisions, as they do with a language model. Below each row of these
two tables is the same run's average of power 2, in which update n counts in proportion to its square.

Command:  python benchmarks/magnet_in_tables.py [--games kuhn_poker leduc_poker ...] [--seeds 0 1 2]
              [--rows losses|tree|one-step]
Needs:    this package.
"""

import argparse
import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from game_trees import BoolArray, FloatArray, IntArray, Tree
from measuring import pin_one_thread, print_table
from sparring.collection.transforms import SEAT_WEIGHT
from sparring.core.records import NO_ADVANTAGE
from sparring.learn.action_values import DECAY as MEMORY_DECAY
from sparring.learn.action_values import LEAST_CHANCE, PRIOR
from sparring.learn.critic import RunningScale
from sparring.learn.game_tree import HistoryGame, HistoryStep
from sparring.learn.histories import KEY_BYTES
from sparring.learn.tree_values import TreeValues

GAMES = {
    "kuhn_poker": (150, 1000),
    "leduc_poker": (240, 4096),
    "liars_dice(dice_sides=4)": (150, 4096),
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))": (
        (150, 4096)
    ),
}
"""Games of two players, with the number of updates and of games in each."""
SLOW_DECAY = 0.95
"""Decay of the average that is evaluated."""
AVERAGES = {"": (SLOW_DECAY, 8), "average of power 2": (1.0, 2)}
"""The largest decay of each average that is evaluated, and its power before that."""
EVALUATIONS, LAST = 10, 4
"""Evaluations of a run, and those of them that the table is about."""
FIT = 0.5
"""Share of the way to the target that ``fit`` goes in an update."""
SQUARES_DECAY = 0.99
"""Adam's second beta."""
DECAY = 0.8
"""Decay of the average in the magnet."""


@dataclass(frozen=True)
class Method:
    """A loss with its constants.

    The magnet is a copy taken every ``every`` updates or, if that is ``None``, an average with decay 0.8.
    With ``one_seat``, alpha is 0 for the second player. ``eta`` limits the step of ``magnet``. ``divided`` is
    how the states of ``fit`` divide one step. ``corrected`` and ``tracked`` are as in
    ``learn.action_values``; if they are ``None``, values are so for the losses that are linear in them.
    ``memory`` is that of ``learn.action_values``: how many earlier decisions of a state count at most.
    ``tree`` is whether values are those of ``learn.tree_values``, ``explore`` the share of the uniform
    distribution that actions are drawn from, and ``uniform`` that in the magnet. ``one_step`` is whether one
    step is for all states.
    """

    loss: str
    alpha: float = 0.8
    every: int | None = None
    one_seat: bool = False
    rate: float = 0.1
    momentum: float = 0.0
    beta: float = 4.0
    eta: float | None = None
    divided: str = ""
    corrected: bool | None = None
    tracked: bool | None = None
    memory: float = 0.0
    tree: bool = False
    explore: float = 0.0
    uniform: float = 0.05
    one_step: bool = False

    @property
    def changes(self) -> str:
        """What differs from the defaults besides alpha."""
        parts = [f"copy every {self.every}"] if self.every else []
        parts += ["one seat"] if self.one_seat else []
        parts += [] if self.eta is None else [f"eta {self.eta:g}"]
        parts += [self.divided] if self.divided else []
        parts += [] if self.corrected is None else [f"{'' if self.corrected else 'un'}corrected values"]
        parts += [] if self.tracked is None else ["tracked scale" if self.tracked else "scale of the batch"]
        default = Method(self.loss)
        parts += ["tree values"] if self.tree else []
        for name in ("explore", "uniform", "rate", "momentum", "beta", "memory"):
            if getattr(self, name) != getattr(default, name):
                parts.append(f"{name} {getattr(self, name):g}")
        return ", ".join(parts)


FIT_ONLY, MAGNET, POLICY, NEURD = Method("fit"), Method("magnet"), Method("policy"), Method("neurd")
IN_LOSS = Method("neurd, KL in the loss")
METHODS = [
    *(
        replace(method, alpha=alpha)
        for method in (FIT_ONLY, MAGNET, POLICY, NEURD)
        for alpha in (0.5, 0.8, 1.2)
    ),
    *(replace(method, alpha=0.0) for method in (POLICY, NEURD)),
    *(replace(FIT_ONLY, divided=how) for how in ("by visits", "by root", "alike")),
    IN_LOSS,
    replace(MAGNET, corrected=True),
    *(replace(one, corrected=False) for one in (POLICY, NEURD)),
    replace(MAGNET, tracked=True),
    *(replace(one, tracked=False) for one in (POLICY, NEURD)),
    *(replace(MAGNET, eta=eta) for eta in (1.25, 0.4, 0.1)),
    *(replace(method, every=every) for method in (MAGNET, POLICY, NEURD) for every in (5, 10)),
    *(replace(method, alpha=alpha, one_seat=True) for method in (POLICY, NEURD) for alpha in (0.8, 2.0)),
    *(replace(method, rate=0.2) for method in (MAGNET, POLICY, NEURD)),
    *(replace(method, momentum=0.8) for method in (MAGNET, POLICY, NEURD)),
    *(replace(NEURD, beta=beta) for beta in (1.0, 2.0, 8.0)),
    *(replace(method, memory=16.0) for method in (MAGNET, POLICY, NEURD)),
    *(replace(MAGNET, memory=memory) for memory in (4.0, 64.0, math.inf)),
]
"""The rows of the table."""
EXPLORING = Method("neurd", tree=True, explore=0.2, alpha=0.4, uniform=0.02, rate=0.2)
TREE_METHODS = [
    NEURD,
    replace(MAGNET, memory=16.0),
    *(replace(method, tree=True) for method in (NEURD, MAGNET)),
    *(replace(EXPLORING, loss=loss) for loss in ("neurd", "magnet")),
    replace(EXPLORING, alpha=0.5, rate=0.15),
    replace(EXPLORING, explore=0.0),
    replace(EXPLORING, tree=False),
]
"""The rows of the table about the values of the tree of games."""
ONE_STEP = [
    replace(method, loss=loss, rate=0.1, one_step=True)
    for method in (NEURD, replace(NEURD, tree=True), EXPLORING, replace(EXPLORING, alpha=0.5))
    for loss in ("neurd", "magnet")
]
"""The rows of the table about one step for all states."""
ROWS = {"losses": METHODS, "tree": TREE_METHODS, "one-step": ONE_STEP}


def normalised(log_SA: FloatArray, legal_SA: BoolArray) -> FloatArray:
    """Return logarithms of probabilities; 0 for actions that there are not."""
    masked = np.where(legal_SA, log_SA, -np.inf)
    masked -= masked.max(axis=1, keepdims=True)
    return np.where(legal_SA, masked - np.log(np.exp(masked).sum(axis=1, keepdims=True)), 0.0)


@dataclass
class Values:
    """Makes values of the games of each update, as ``learn.action_values`` does.

    ``corrected`` is whether they are divided by the chance that an action is taken at all, and ``scale`` the
    tracked one; ``None`` for that of each update. ``scale_of_batch`` is what the last values were divided by.
    """

    corrected: bool
    scale: RunningScale | None
    memory: float
    scale_of_batch: float = 1.0
    known: FloatArray = field(default_factory=lambda: np.zeros(0))
    """The number of decisions, and the sums of their advantages and of the probabilities of their actions."""

    @classmethod
    def of(cls, method: Method) -> "Values":
        """Return what makes the values for a method."""
        linear = method.loss not in ("fit", "magnet")
        tracked = linear if method.tracked is None else method.tracked
        corrected = linear if method.corrected is None else method.corrected
        return cls(corrected, RunningScale() if tracked else None, method.memory)

    def __call__(
        self, seats: Sequence[int], policy_SA: FloatArray, decisions: tuple[IntArray, IntArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return value_SA, the value of each action, and the share of each state among the decisions.

        A decision has a state, an action and a reward; they were drawn from ``policy_SA``.
        """
        state_D, action_D, reward_D = decisions
        seat_D = np.array(seats)[state_D]
        seat_mean_D = np.array([reward_D[seat_D == seat].mean() for seat in (0, 1)])[seat_D]
        count_S = np.bincount(state_D, minlength=len(seats))
        others_D = np.bincount(state_D, reward_D, len(count_S))[state_D] - reward_D
        baseline_D = (others_D + SEAT_WEIGHT * seat_mean_D) / (count_S[state_D] - 1 + SEAT_WEIGHT)
        advantage_D = reward_D - baseline_D
        scale = self.scale or RunningScale()
        scale.add(advantage_D.tolist(), least=NO_ADVANTAGE)
        self.scale_of_batch = scale.value
        number_SA, sum_SA, chance_SA = self._with_earlier(policy_SA, state_D, action_D, advantage_D)
        number_S1 = number_SA.sum(axis=1, keepdims=True)
        middle_S1 = (sum_SA.sum(axis=1, keepdims=True) + advantage_D.mean()) / (number_S1 + 1)
        if self.corrected:
            mean_SA = np.divide(chance_SA, number_SA, out=np.zeros_like(chance_SA), where=number_SA > 0)
            count_SA = number_SA * (1 - (1 - np.minimum(mean_SA, 1.0)) ** number_S1) + LEAST_CHANCE
        else:
            count_SA = number_SA + PRIOR
        value_SA = (sum_SA - number_SA * middle_S1) / count_SA / scale.value
        return value_SA, count_S / count_S.sum()

    def _with_earlier(
        self, policy_SA: FloatArray, state_D: IntArray, action_D: IntArray, advantage_D: FloatArray
    ) -> FloatArray:
        """Add decisions to the known ones, and return these: three numbers of each action."""
        if not self.known.size:
            self.known = np.zeros((3, *policy_SA.shape))
        number_S1 = self.known[0].sum(axis=1, keepdims=True)
        self.known *= np.minimum(MEMORY_DECAY, self.memory / np.maximum(number_S1, NO_ADVANTAGE))
        for sums_SA, number_D in zip(
            self.known, (1.0, advantage_D, policy_SA[state_D, action_D]), strict=True
        ):
            np.add.at(sums_SA, (state_D, action_D), number_D)
        return self.known


KEYS = [number.to_bytes(KEY_BYTES, "little") for number in range(10_000)]


def games_of(
    name: str,
    seats: Sequence[int],
    drawn_SA: FloatArray,
    decisions: tuple[IntArray, IntArray, FloatArray, IntArray],
) -> list[HistoryGame]:
    """Return the games of decisions, which were drawn from ``drawn_SA``."""
    order = np.argsort(decisions[3], kind="stable")
    state_D, action_D, reward_D, game_D = (one[order] for one in decisions)
    seat_D, width = np.array(seats)[state_D], drawn_SA.shape[1]
    codes, code_D = np.unique(state_D * width + action_D, return_inverse=True)
    steps = [
        HistoryStep(str(seats[state]), KEYS[state], KEYS[action], float(drawn_SA[state, action]))
        for state, action in (divmod(code, width) for code in codes.tolist())
    ]
    listed = [steps[code] for code in code_D.tolist()]
    starts = np.flatnonzero(np.diff(game_D, prepend=-1, append=-1)).tolist()
    first = np.where(seat_D == 0, reward_D, -reward_D)[starts[:-1]].tolist()
    return [
        HistoryGame(name, listed[start:stop], {"0": reward, "1": -reward})
        for (start, stop), reward in zip(pairwise(starts), first, strict=True)
    ]


class TreeTable:
    """Makes tree values of the games of each update; where no history was met before, values stay."""

    def __init__(self, legal_SA: BoolArray) -> None:
        self._values, self._actions = TreeValues(), [np.flatnonzero(row).tolist() for row in legal_SA]

    def __call__(
        self, value_SA: FloatArray, games: list[HistoryGame], policy_SA: FloatArray, scale: float
    ) -> FloatArray:
        """Return value_SA, from the values by returns."""
        rows = policy_SA.tolist()
        policy = {
            KEYS[state]: {KEYS[action]: rows[state][action] for action in actions}
            for state, actions in enumerate(self._actions)
        }
        value_SA = value_SA.copy()
        for asked, one in self._values.add(games, policy).items():
            state = int.from_bytes(asked, "little")
            actions, own = self._actions[state], np.array(list(one.advantages.values())) / scale
            value_SA[state, actions] = (1 - one.known) * value_SA[state, actions] + one.known * own
        return value_SA


def step_of(
    method: Method,
    alpha_S1: FloatArray,
    policy: FloatArray,
    magnet: FloatArray,
    value_SA: FloatArray,
    legal_SA: BoolArray,
) -> FloatArray:
    """Return how the loss moves the logarithms of each state."""
    pi_SA = np.exp(policy) * legal_SA
    if method.loss in ("fit", "magnet"):
        reply = magnet + value_SA / alpha_S1
        share = 1.0 if method.eta is None else method.eta * alpha_S1 / (1 + method.eta * alpha_S1)
        target = normalised(share * reply + (1 - share) * policy, legal_SA)
        return target - policy if method.loss == "fit" else np.exp(target) * legal_SA - pi_SA
    away_SA = alpha_S1 * above_mean(policy - magnet, pi_SA)
    gain_SA = above_mean(value_SA, pi_SA)
    if method.loss == "policy":
        return pi_SA * (gain_SA - away_SA)
    if method.loss == "neurd":
        return neurd(policy, gain_SA - away_SA, method.beta, legal_SA)
    return neurd(policy, gain_SA, method.beta, legal_SA) - pi_SA * away_SA


def above_mean(number_SA: FloatArray, weight_SA: FloatArray) -> FloatArray:
    """Return numbers less their mean in each state."""
    mean_S1: FloatArray = (weight_SA * number_SA).sum(axis=1, keepdims=True)
    return number_SA - mean_S1


def neurd(policy: FloatArray, gain_SA: FloatArray, beta: float, legal_SA: BoolArray) -> FloatArray:
    """Return the force on each logarithm; no gain pushes it further out than ``beta``."""
    equal_SA = legal_SA / legal_SA.sum(axis=1, keepdims=True)
    centred_SA = above_mean(policy, equal_SA)
    outwards_SA = (np.abs(centred_SA) > beta) & (centred_SA * gain_SA > 0)
    return legal_SA * above_mean(np.where(outwards_SA, 0.0, gain_SA), equal_SA)


def learn(tree: Tree, method: Method, seed: int, last: int = LAST) -> Iterator[list[FloatArray]]:
    """Yield the averages of the policy at each of the ``last`` evaluations."""
    updates, games = GAMES[tree.name]
    generator, legal_SA = np.random.default_rng(seed), tree.legal_SA
    policy = follower = normalised(np.zeros(legal_SA.shape), legal_SA)
    averages = [policy] * len(AVERAGES)
    equal_SA = np.exp(policy) * legal_SA
    alpha_S = np.full(len(tree.seats), method.alpha)
    if method.one_seat:
        alpha_S[np.array(tree.seats) == 1] = 0.0
    values_of = Values.of(method)
    tree_of = TreeTable(legal_SA) if method.tree else None
    adam = Adam(np.zeros(legal_SA.shape), np.zeros(legal_SA.shape), legal_SA if method.one_step else None)
    for update in range(1, updates + 1):
        policy_SA = np.exp(policy) * legal_SA
        drawn_SA = (1 - method.explore) * policy_SA + method.explore * equal_SA
        state_D, action_D, reward_D, game_D = tree.sample_games(drawn_SA, games, generator)
        value_SA, share_S = values_of(tree.seats, drawn_SA, (state_D, action_D, reward_D))
        weight_S = np.sqrt(share_S) / np.sqrt(share_S).sum() if method.one_step else share_S
        if tree_of is not None:
            played = games_of(tree.name, tree.seats, drawn_SA, (state_D, action_D, reward_D, game_D))
            value_SA = tree_of(value_SA, played, policy_SA, values_of.scale_of_batch)
        magnet_SA = (1 - method.uniform) * np.exp(normalised(follower, legal_SA)) + method.uniform * equal_SA
        magnet_SA = np.where(legal_SA, magnet_SA, 1.0)
        step_SA = step_of(method, alpha_S[:, None], policy, np.log(magnet_SA), value_SA, legal_SA)
        if method.loss == "fit":
            step_SA = fitted(method.divided, share_S)[:, None] * step_SA
        else:
            step_SA = method.rate * adam.step(weight_S[:, None] * step_SA, update, method.momentum)
        policy = normalised(policy + step_SA, legal_SA)
        if method.every is None:
            follower = mean_with(follower, policy, min(DECAY, update / (update + 1)))
        elif update % method.every == 0:
            follower = policy
        averages = [
            mean_with(old, policy, min(decay, update / (update + power + 1)))
            for old, (decay, power) in zip(averages, AVERAGES.values(), strict=True)
        ]
        if update % (updates // EVALUATIONS) == 0 and update > updates * (1 - last / EVALUATIONS):
            yield [np.exp(normalised(one, legal_SA)) * legal_SA for one in averages]


def fitted(divided: str, share_S: FloatArray) -> FloatArray:
    """Return the share of the way to the target that each state goes; 0 for those that no game met."""
    met_S = (share_S > 0).astype(float)
    if not divided:
        return FIT * met_S
    weight_S = {"by visits": share_S, "by root": np.sqrt(share_S), "alike": met_S}[divided]
    way_S: FloatArray = 1 - np.exp(-weight_S / (share_S * weight_S).sum())
    return way_S


@dataclass
class Adam:
    """The moments of Adam, whose second beta is ``SQUARES_DECAY``.

    With ``one_SA``, the numbers that it marks have one second moment, the mean of theirs.
    """

    first_SA: FloatArray
    second_SA: FloatArray
    one_SA: BoolArray | None = None

    def step(self, gradient_SA: FloatArray, update: int, momentum: float) -> FloatArray:
        """Return the step of update ``update``, counted from 1, at a rate of 1."""
        self.first_SA = mean_with(self.first_SA, gradient_SA, momentum)
        square_SA = gradient_SA**2
        if self.one_SA is not None:
            square_SA = np.full_like(square_SA, square_SA[self.one_SA].mean())
        self.second_SA = mean_with(self.second_SA, square_SA, SQUARES_DECAY)
        root_SA = np.sqrt(self.second_SA / (1 - SQUARES_DECAY**update)) + 1e-8
        step_SA: FloatArray = self.first_SA / (1 - momentum**update) / root_SA
        return step_SA


def mean_with(old: FloatArray, new: FloatArray, decay: float) -> FloatArray:
    """Return a running mean after one more number."""
    return decay * old + (1 - decay) * new


def curves(tree: Tree, method: Method, seeds: Sequence[int]) -> FloatArray:
    """Return NashConv of each average, for each seed and evaluation."""
    runs = [
        [[tree.nash_conv(one) for one in averages] for averages in learn(tree, method, seed)]
        for seed in seeds
    ]
    return np.moveaxis(np.array(runs), 2, 0)


def main() -> None:
    """Print a row for each method, with a column for each game."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", choices=list(ROWS), default="losses")
    options = parser.parse_args()
    pin_one_thread()
    gc.disable()  # hundreds of thousands of steps of games, and no cycles
    trees = [Tree.of(name) for name in options.games]
    equal = [tree.nash_conv(tree.legal_SA / tree.legal_SA.sum(axis=1, keepdims=True)) for tree in trees]
    rows = [["uniform play", "", "", *(f"{one:.2f}" for one in equal)]]
    shown = list(AVERAGES)[: 1 if options.rows == "losses" else None]
    for method in ROWS[options.rows]:
        all_curves = [curves(tree, method, options.seeds) for tree in trees]
        for number, average in enumerate(shown):
            cells = [f"{one[number].mean():.3f} ({one[number].max():.3f})" for one in all_curves]
            whose = ["", "", average] if average else [method.loss, f"{method.alpha:g}", method.changes]
            rows.append([*whose, *cells])
    names = [name.split("(game=")[-1].split("(")[0] for name in options.games]
    print_table(["loss", "alpha", "changes", *names], rows)


if __name__ == "__main__":
    main()
