"""What a best response gains in games as they are played, in which a policy's invalid answers lose."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparring.envs.openspiel_game import rewards_after_invalid

Chances = Mapping[str, tuple[Mapping[int, float], float]]
"""By information state: the chance of each legal action among the legal ones, and that of all of them."""


@dataclass(frozen=True)
class GameAsPlayed:
    """An OpenSpiel game, with perfect recall, in which an invalid answer ends the game, and a policy for it.

    Rewards are in the game's own units. A best response gives only legal answers.
    """

    game: Any
    policy: Chances

    def gains(self) -> list[float]:
        """Return for each seat the gain of a best response over the policy, which has all other seats."""
        root = self.game.new_initial_state()
        values = self._values(root)
        return [_BestResponse(self, pid).value(root) - values[pid] for pid in range(len(values))]

    def answers(self, state: Any) -> tuple[list[tuple[int, float]], float]:
        """Return the actions in a state with their probabilities, and the probability of invalid answers."""
        if state.is_chance_node():
            return state.chance_outcomes(), 0.0
        chances, legal = self.policy[state.information_state_string()]
        return [(action, legal * chance) for action, chance in chances.items()], 1.0 - legal

    def _values(self, state: Any) -> list[float]:
        """Return what each seat earns from a state on if all of them have the policy."""
        if state.is_terminal():
            return list(state.returns())
        actions, invalid = self.answers(state)
        values = [0.0] * self.game.num_players()
        if invalid:
            values = [invalid * reward for reward in rewards_after_invalid(self.game, state.current_player())]
        for action, chance in actions:
            for seat, value in enumerate(self._values(state.child(action))):
                values[seat] += chance * value
        return values


class _BestResponse:
    """The best response in one seat: in each information state, the action that is best there on average."""

    def __init__(self, played: GameAsPlayed, pid: int) -> None:
        self._played = played
        self._pid = pid
        self._reached: dict[str, list[tuple[Any, float]]] = defaultdict(list)
        """Its states by information state, with the probability that chance and the others lead there."""
        self._best: dict[str, int] = {}
        self._reach(played.game.new_initial_state(), 1.0)

    def value(self, state: Any) -> float:
        """Return what it earns from a state on."""
        if state.is_terminal():
            return float(state.returns()[self._pid])
        if state.current_player() == self._pid:
            return self.value(state.child(self._action(state.information_state_string())))
        actions, invalid = self._played.answers(state)
        value = sum(chance * self.value(state.child(action)) for action, chance in actions)
        if invalid:
            value += invalid * rewards_after_invalid(self._played.game, state.current_player())[self._pid]
        return value

    def _action(self, info_state: str) -> int:
        if info_state not in self._best:
            reached = self._reached[info_state]

            def worth(action: int) -> float:
                return sum(chance * self.value(state.child(action)) for state, chance in reached)

            self._best[info_state] = max(reached[0][0].legal_actions(), key=worth)
        return self._best[info_state]

    def _reach(self, state: Any, chance: float) -> None:
        if state.is_terminal():
            return
        if state.current_player() == self._pid:
            self._reached[state.information_state_string()].append((state, chance))
            actions = [(action, 1.0) for action in state.legal_actions()]
        else:
            actions, _ = self._played.answers(state)
        for action, share in actions:
            self._reach(state.child(action), chance * share)
