"""Known policies of Kuhn poker."""

import random

from open_spiel.python import policy as openspiel_policy

from evaluation_client import legal_moves
from sparring.envs.openspiel_game import information_states, load_game


def kuhn_equilibrium(alpha: float):
    """Kuhn's family of equilibria (1950): the opener bets a jack with ``alpha``, 0 to 1/3."""
    aggression = {
        "none": {"J": alpha, "Q": 0.0, "K": 3 * alpha},
        "they check": {"J": 1 / 3, "Q": 0.0, "K": 1.0},
        "they bet": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
        "you check, they bet": {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0},
    }

    def policy(observation: str) -> dict[str, float]:
        moves_so_far = observation.removeprefix("Moves so far: ").split(".")[0]
        chance = aggression[moves_so_far][observation[-2]]
        strong = next(move for move in legal_moves(observation) if move in ("bet", "call"))
        weak = next(move for move in legal_moves(observation) if move in ("check", "fold"))
        return {strong: chance, weak: 1 - chance}

    return policy


def random_policy(seed: int):
    def policy(observation: str) -> dict[str, float]:
        draw = random.Random(f"{seed}{observation}")
        weights = {move: draw.random() for move in legal_moves(observation)}
        return {move: weight / sum(weights.values()) for move, weight in weights.items()}

    return policy


class PythonPolicy(openspiel_policy.Policy):
    """A policy for OpenSpiel's Python algorithms, by action id and information state."""

    def __init__(self, env_id, policy):
        game = load_game(env_id)
        super().__init__(game, list(range(game.num_players())))
        self.chances = {}
        for state in information_states(env_id):
            chances = policy(state.observation)
            self.chances[state.info_state] = {
                action: chances.get(name, 0.0)
                for action, name in zip(state.actions, state.legal_actions, strict=True)
            }

    def action_probabilities(self, state, player_id=None):
        return dict(self.chances[state.information_state_string(state.current_player())])
