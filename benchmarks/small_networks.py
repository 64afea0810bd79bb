"""A small network that answers all states of a game, and learns as ``magnet_in_tables`` has tables learn.

All states share its weights, as the prompts of a language model do: a step for one of them moves the others.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch

from game_trees import BoolArray, FloatArray, IntArray
from magnet_in_tables import (
    AVERAGES,
    DECAY,
    SQUARES_DECAY,
    Method,
    TreeTable,
    Values,
    games_of,
    normalised,
    step_of,
)
from sparring.learn.pace import Pace, Stride

WIDTH = 256
"""Size of the network's two hidden layers."""
Played = tuple[IntArray, IntArray, FloatArray, IntArray]
"""State, action, reward and game of each decision."""


@dataclass
class States:
    """A game's S states: who moves, what the network sees, and which actions are legal.

    ``output_SA`` is the output of the network for each action.
    """

    name: str
    seats: Sequence[int]
    features: list[list[float]]
    legal_SA: BoolArray
    output_SA: IntArray
    outputs: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the outputs."""
        self.outputs = int(self.output_SA.max()) + 1

    @property
    def equal_SA(self) -> FloatArray:
        """Uniform play."""
        equal_SA: FloatArray = self.legal_SA / self.legal_SA.sum(axis=1, keepdims=True)
        return equal_SA


@dataclass(frozen=True)
class Training:
    """A method, the rate of Adam's steps, their number in an update, Adam's first beta, and a pace.

    The loss of a method may also be ``reinforce``, the plain policy gradient. A pace is for ``magnet``. If
    it ``falls``, the rate goes along a line to 0.
    """

    method: Method
    rate: float = 1e-3
    epochs: int = 2
    momentum: float = 0.8
    pace: float | None = None
    falls: bool = False


class Learner:
    """A network, its reference and its slower averages. ``updates`` is how many it will make."""

    def __init__(self, states: States, training: Training, seed: int, updates: int) -> None:
        torch.manual_seed(seed)
        self._most = updates
        self.states, self.training = states, training
        self._method = training.method
        self._features_SF = torch.tensor(states.features)
        self._output_SA = torch.from_numpy(states.output_SA)
        layers = [torch.nn.Linear(self._features_SF.shape[1], WIDTH), torch.nn.Linear(WIDTH, WIDTH)]
        last = torch.nn.Linear(WIDTH, states.outputs)
        self.network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), last)
        self._reference = deepcopy(self.network)
        self.averages = {name: deepcopy(self.network) for name in AVERAGES}
        self._values_of = Values.of(self._method)
        self._tree_of = TreeTable(states.legal_SA) if self._method.tree else None
        betas = (training.momentum, SQUARES_DECAY)
        self._adam = torch.optim.Adam(self.network.parameters(), training.rate, betas=betas)
        self._pace = Pace()
        self._updates = 0

    def policy(self, network: torch.nn.Module) -> FloatArray:
        """Return the probabilities of actions in all states."""
        with torch.no_grad():
            logits = self._logits(network, np.arange(len(self.states.seats)))
        return np.exp(self._logarithms(logits)) * self.states.legal_SA

    def _logits(self, network: torch.nn.Module, some: IntArray) -> torch.Tensor:
        logits: torch.Tensor = network(self._features_SF[some]).gather(1, self._output_SA[some])
        return logits

    def _logarithms(self, logits: torch.Tensor, some: IntArray | slice = slice(None)) -> FloatArray:
        return normalised(logits.detach().double().numpy(), self.states.legal_SA[some])

    def update(self, play: Callable[[FloatArray], Played]) -> IntArray:
        """Learn from games, which ``play`` draws from probabilities; return the states that were met."""
        states, method = self.states, self._method
        policy_SA, legal_SA = self.policy(self.network), states.legal_SA
        drawn_SA = (1 - method.explore) * policy_SA + method.explore * states.equal_SA
        played = play(drawn_SA)
        value_SA, share_S = self._values_of(states.seats, drawn_SA, played[:3])
        if self._tree_of is not None:
            games = games_of(states.name, states.seats, drawn_SA, played)
            value_SA = self._tree_of(value_SA, games, policy_SA, self._values_of.scale_of_batch)
        met, root_S = np.flatnonzero(share_S), np.sqrt(share_S)
        reference_SA = self.policy(self._reference)
        magnet_SA = (1 - method.uniform) * reference_SA + method.uniform * states.equal_SA
        magnet, alpha = np.log(np.where(legal_SA, magnet_SA, 1.0))[met], np.full((len(met), 1), method.alpha)
        share_S1, last = (root_S[met] / root_S.sum())[:, None], None
        for _ in range(self.training.epochs):
            logits = self._logits(self.network, met)
            policy = self._logarithms(logits, met)
            if method.loss == "reinforce":
                step = _reinforce(played, met, policy, legal_SA)
            else:
                moves = step_of(method, alpha, policy, magnet, value_SA[met], legal_SA[met])
                step = share_S1 * moves
            if self.training.pace is not None:
                now = np.where(legal_SA[met], np.exp(policy), 0.0)
                if last is not None:
                    self._pace.follow(last.share(now.ravel()), self.training.pace)
                last = Stride(
                    now.ravel(), (now + moves).ravel(), np.broadcast_to(share_S1, now.shape).ravel()
                )
            left = 1 - self._updates / self._most if self.training.falls else 1.0
            self._adam.param_groups[0]["lr"] = self.training.rate * self._pace.factor * left
            self._adam.zero_grad()
            logits.backward(torch.from_numpy(-step).float())
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self._adam.step()
        self._updates += 1
        self._follow(self._reference, DECAY, 0)
        for name, (decay, power) in AVERAGES.items():
            self._follow(self.averages[name], decay, power)
        return met

    def _follow(self, follower: torch.nn.Module, most: float, power: int) -> None:
        decay = min(most, self._updates / (self._updates + power + 1))
        with torch.no_grad():
            for old, new in zip(follower.parameters(), self.network.parameters(), strict=True):
                old.lerp_(new, 1 - decay)


def _reinforce(played: Played, met: IntArray, policy: FloatArray, legal_SA: BoolArray) -> FloatArray:
    """Return how the policy gradient of the rewards above their mean moves the logits."""
    state, action, reward, _ = played
    push_SA = np.zeros(legal_SA.shape)
    np.add.at(push_SA, (state, action), (reward - reward.mean()) / len(state))
    push = push_SA[met]
    return push - np.exp(policy) * legal_SA[met] * push.sum(axis=1, keepdims=True)
