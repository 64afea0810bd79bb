"""Scripted players in an OpenSpiel game, exactly: what they do, and what they earn against each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring.envs.openspiel_game import game_at, load_game
from sparring.envs.scripted import ScriptedPlayer
from sparring.evaluation.nash_conv import states_of


def policy_of(env_id: str, player: ScriptedPlayer) -> list[list[float]]:
    """Return the probability of each legal action in each of the game's :func:`states_of`."""
    policy = []
    for state in states_of(env_id):
        table = game_at(env_id, state.history)
        chances = player.chances(table)
        policy.append([chances.get(move, 0.0) for move in table.legal_actions()])
    return policy


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
