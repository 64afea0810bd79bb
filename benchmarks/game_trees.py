"""Games of two players as arrays: all histories, games sampled from a table of probabilities, NashConv."""

from dataclasses import dataclass, field

import numpy as np
import pyspiel
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass
class Tree:
    """A game's N nodes and S information states; ``child_NA`` are nodes, ``chance_NA`` probabilities.

    ``features`` are OpenSpiel's tensors of the states, ``actions`` the ids of their legal actions.
    """

    name: str
    child_NA: IntArray
    chance_NA: FloatArray
    state_N: IntArray
    return_N: FloatArray
    names: list[str] = field(default_factory=list)
    seats: list[int] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    features: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str) -> "Tree":
        """Visit all histories of a game."""
        children: list[list[int]] = []
        chances: list[list[float]] = []
        states: list[int] = []
        returns: list[float] = []
        index: dict[tuple[int, str], int] = {}
        actions: list[list[int]] = []
        features: list[list[float]] = []

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
                    features.append(state.information_state_tensor(pid))
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
        arrays = child_NA, chance_NA, np.array(states), np.array(returns)
        return cls(name, *arrays, names, seats, actions, features)

    @property
    def legal_SA(self) -> BoolArray:
        """Which actions each state has."""
        counts = np.array([len(one) for one in self.actions])
        return np.arange(self.child_NA.shape[1]) < counts[:, None]

    def sample(
        self, policy_SA: FloatArray, games: int, generator: np.random.Generator
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Play games; return state, action and reward of each decision."""
        return self.sample_games(policy_SA, games, generator)[:3]

    def sample_games(
        self, policy_SA: FloatArray, games: int, generator: np.random.Generator
    ) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        """Play games; return state, action, reward and game of each decision."""
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
        return state, action, sign * self.return_N[node_G][game], game

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
