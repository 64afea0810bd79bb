"""What scripted players earn against each other in an OpenSpiel game, computed exactly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring.envs.openspiel_game import game_at, load_game
from sparring.envs.scripted import ScriptedPlayer


def exact_payoff(env_id: str, players: Sequence[ScriptedPlayer]) -> NDArray[np.float64]:
    """Return the expected reward of each seat, whose player is the one of ``players``.

    Every position that they may reach is visited, in a game of perfect information once.
    """
    table = game_at(env_id, ())
    kind = load_game(env_id).get_type()
    is_open = kind.information == kind.Information.PERFECT_INFORMATION
    known: dict[tuple[str, int], NDArray[np.float64]] = {}

    def value(state: Any) -> NDArray[np.float64]:
        if state.is_terminal():
            return np.array(state.returns())
        position = str(state), state.current_player()
        if position in known:
            return known[position]
        found = sum(
            (chance * value(state.child(action)) for action, chance in chances(state) if chance),
            np.zeros(len(players)),
        )
        if is_open:
            known[position] = found
        return found

    def chances(state: Any) -> list[tuple[int, float]]:
        if state.is_chance_node():
            return list(state.chance_outcomes())
        table.state = state
        player = players[state.current_player()].chances(table)
        moves = zip(state.legal_actions(), table.legal_actions(), strict=True)
        return [(action, player.get(move, 0.0)) for action, move in moves]

    return value(table.state)
