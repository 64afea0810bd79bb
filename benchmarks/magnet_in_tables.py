"""What the constants of magnet do where the policy is a table: no language model, minutes of one core.

A policy here is a number for each action of each information state. Each update samples games from it,
averages the rewards of each action, and moves the policy a share ``fit`` of the way to magnet's target; the
magnet is a running average of the policy's logarithms. So what is left is the algorithm and the noise of the
games. With a language model one update moves far less than all of the way, and states share their weights.

The table gives NashConv of a slower average (0.95), as the mean and the largest value over the last four of
ten evaluations and over seeds, in units of the game. Rewards are divided by their root mean square; magnet
divides by that of advantages, which are smaller, so an alpha here corresponds to a larger one there.

Command:  python benchmarks/magnet_in_tables.py [--games kuhn_poker leduc_poker ...] [--alphas 0.5 0.67 1]
Needs:    this package.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyspiel
from numpy.typing import NDArray

from measuring import pin_one_thread, print_table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GAMES = {
    "kuhn_poker": (150, 1000),
    "leduc_poker": (240, 4096),
    "liars_dice(dice_sides=4)": (150, 4096),
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))": (
        (150, 4096)
    ),
}
"""Games of two players, with the number of updates and of games in each."""
PRIOR = 0.5
"""Steps without advantage that are added to those of each action."""
SLOW_DECAY = 0.95
"""Decay of the average that is evaluated."""
EVALUATIONS, LAST = 10, 4
"""Evaluations of a run, and those of them that the table is about."""


@dataclass
class Tree:
    """A game's N nodes and S information states; ``child_NA`` are nodes, ``chance_NA`` probabilities."""

    name: str
    child_NA: IntArray
    chance_NA: FloatArray
    state_N: IntArray
    return_N: FloatArray
    names: list[str] = field(default_factory=list)
    seats: list[int] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str) -> "Tree":
        """Visit all histories of a game."""
        children: list[list[int]] = []
        chances: list[list[float]] = []
        states: list[int] = []
        returns: list[float] = []
        index: dict[tuple[int, str], int] = {}
        actions: list[list[int]] = []

        def visit(state: "pyspiel.State") -> int:
            node = len(children)
            children.append([])
            chances.append([])
            states.append(-1)
            returns.append(state.returns()[0] if state.is_terminal() else 0.0)
            if state.is_chance_node():
                legal, chances[node] = (list(one) for one in zip(*state.chance_outcomes(), strict=True))
            else:
                legal = state.legal_actions()
            if not state.is_terminal() and not state.is_chance_node():
                pid = state.current_player()
                states[node] = index.setdefault((pid, state.information_state_string(pid)), len(index))
                if states[node] == len(actions):
                    actions.append(legal)
            children[node] = [visit(state.child(action)) for action in legal]
            return node

        visit(pyspiel.load_game(name).new_initial_state())
        width = max(map(len, children))
        child_NA, chance_NA = (
            np.zeros((len(children), width), dtype=np.int64),
            np.zeros((len(children), width)),
        )
        for node, nodes in enumerate(children):
            child_NA[node, : len(nodes)] = nodes
            chance_NA[node, : len(chances[node])] = chances[node]
        names, seats = [text for _, text in index], [pid for pid, _ in index]
        return cls(name, child_NA, chance_NA, np.array(states), np.array(returns), names, seats, actions)

    @property
    def legal_SA(self) -> NDArray[np.bool_]:
        """Which actions each state has."""
        counts = np.array([len(one) for one in self.actions])
        return np.arange(self.child_NA.shape[1]) < counts[:, None]

    def sample(
        self, policy_SA: FloatArray, games: int, generator: np.random.Generator
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Play games; return state, action and reward of each decision."""
        chance_NA = np.where(self.state_N[:, None] >= 0, policy_SA[self.state_N], self.chance_NA)
        cumulated_NA = chance_NA.cumsum(axis=1)
        node_G = np.zeros(games, dtype=np.int64)
        decisions: list[tuple[IntArray, IntArray, IntArray]] = []
        while True:
            (playing,) = np.nonzero(cumulated_NA[node_G, -1])
            if not len(playing):
                break
            cumulated = cumulated_NA[node_G[playing]]
            drawn = generator.random(len(playing)) * cumulated[:, -1]
            action = np.minimum((drawn[:, None] >= cumulated).sum(axis=1), cumulated.shape[1] - 1)
            decides = self.state_N[node_G[playing]] >= 0
            decisions.append((playing[decides], self.state_N[node_G[playing]][decides], action[decides]))
            node_G[playing] = self.child_NA[node_G[playing], action]
        game, state, action = (np.concatenate(one) for one in zip(*decisions, strict=True))
        sign = np.where(np.array(self.seats)[state] == 0, 1.0, -1.0)
        return state, action, sign * self.return_N[node_G][game]

    def nash_conv(self, policy_SA: FloatArray) -> float:
        """Return the gain of best responses, by OpenSpiel."""
        game = pyspiel.load_game(self.name)
        root = game.new_initial_state()
        table = {
            name: list(zip(actions, policy_SA[state, : len(actions)], strict=True))
            for state, (name, actions) in enumerate(zip(self.names, self.actions, strict=True))
        }
        policy = pyspiel.TabularPolicy(table)
        values = pyspiel.expected_returns(root, policy, -1, True)
        best = [pyspiel.TabularBestResponse(game, pid, policy).value_from_state(root) for pid in range(2)]
        return float(sum(best) - sum(values))


def normalised(log_SA: FloatArray, legal_SA: NDArray[np.bool_]) -> FloatArray:
    """Return logarithms of probabilities; 0 for actions that there are not."""
    masked = np.where(legal_SA, log_SA, -np.inf)
    masked -= masked.max(axis=1, keepdims=True)
    return np.where(legal_SA, masked - np.log(np.exp(masked).sum(axis=1, keepdims=True)), 0.0)


def values_of(
    tree: Tree, state: IntArray, action: IntArray, reward: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return value_SA, each action's mean reward drawn to its state's mean, and which states were met."""
    count_SA, sum_SA = np.zeros(tree.legal_SA.shape), np.zeros(tree.legal_SA.shape)
    np.add.at(count_SA, (state, action), 1)
    np.add.at(sum_SA, (state, action), reward)
    met_S = count_SA.sum(axis=1) > 0
    mean_S = sum_SA.sum(axis=1) / np.maximum(count_SA.sum(axis=1), 1)
    return (sum_SA + PRIOR * mean_S[:, None]) / (count_SA + PRIOR), met_S


def learn(
    tree: Tree, alpha: float, uniform: float, decay: float, fit: float, seed: int
) -> Iterator[FloatArray]:
    """Yield the slower average of the policy at every evaluation."""
    updates, games = GAMES[tree.name]
    generator, legal_SA = np.random.default_rng(seed), tree.legal_SA
    policy = average = slow = normalised(np.zeros(legal_SA.shape), legal_SA)
    equal_SA = np.exp(policy)
    for update in range(1, updates + 1):
        state, action, reward = tree.sample(np.exp(policy) * legal_SA, games, generator)
        value_SA, met_S = values_of(tree, state, action, reward / np.sqrt(np.mean(reward**2)))
        magnet_SA = (1 - uniform) * np.exp(normalised(average, legal_SA)) + uniform * equal_SA
        target = normalised(np.log(magnet_SA) + value_SA / alpha, legal_SA)
        policy = np.where(met_S[:, None], normalised(policy + fit * (target - policy), legal_SA), policy)
        kept = min(decay, update / (update + 1))
        average = np.where(met_S[:, None], kept * average + (1 - kept) * policy, average)
        kept = min(SLOW_DECAY, update / (update + 9))
        slow = kept * slow + (1 - kept) * policy
        if update % (updates // EVALUATIONS) == 0:
            yield np.exp(normalised(slow, legal_SA)) * legal_SA


def main() -> None:
    """Print a row for each game and setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--alphas", nargs="+", type=float, default=[0.5, 0.67, 1.0])
    parser.add_argument("--uniforms", nargs="+", type=float, default=[0.05])
    parser.add_argument("--decays", nargs="+", type=float, default=[0.8])
    parser.add_argument("--fits", nargs="+", type=float, default=[0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pin_one_thread()
    rows = []
    for name in options.games:
        tree = Tree.of(name)
        equal = tree.nash_conv(tree.legal_SA / tree.legal_SA.sum(axis=1, keepdims=True))
        settings = [
            (alpha, uniform, decay, fit)
            for alpha in options.alphas
            for uniform in options.uniforms
            for decay in options.decays
            for fit in options.fits
        ]
        for one in settings:
            curves = [[tree.nash_conv(p) for p in learn(tree, *one, seed)] for seed in range(options.seeds)]
            last = np.array(curves)[:, -LAST:]
            updates, games = GAMES[name]
            rows.append(
                [
                    *(name.split("(game=")[-1].split("(")[0], f"{updates} x {games}", f"{equal:.2f}"),
                    *map(str, one),
                    *(f"{last.mean():.3f}", f"{last.max():.3f}"),
                ]
            )
    heads = ["game", "updates x games", "uniform play", "alpha", "uniform", "decay", "fit", "mean", "largest"]
    print_table(heads, rows)


if __name__ == "__main__":
    main()
