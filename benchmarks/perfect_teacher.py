"""What a language model learns of TicTacToe from a perfect teacher, where self-play learns from its results.

The games are those of self-play. In place of a policy gradient, the algorithm minimises the cross-entropy
from perfect play, uniform among the best moves, to the policy, at every position that the games meet. No
reward teaches as much of a move, so this tells how much of what self-play does not learn in as many updates
is due to the model, its adapter and the steps of the optimizer.

Command:  sparring train benchmarks/perfect_teacher.toml
Needs:    this package and the bundled model, whose chat template is read here.
"""

import re
from typing import Any

import numpy as np
import pyspiel
from torch import Tensor

from sparring.envs.openspiel_game import wording_of
from sparring.envs.solver import Minimax
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.batch import Batch, Tokens
from sparring.learn.legal_answers import FloatArray
from sparring.learn.trie import TOKEN

GAME = "tic_tac_toe"
LAST_MESSAGE = re.compile(r".*<\|im_start\|>user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n", re.DOTALL)


class PerfectTeacher(BaseAlgo):
    """The algorithm that the module's docstring describes."""

    learns_from_draws = False

    def __init__(self) -> None:
        super().__init__()
        self._best = best_moves()
        self._seen: dict[bytes, dict[str, float]] = {}

    @property
    def needs_legal_answers(self) -> bool:
        """Always: the loss is over legal answers."""
        return True

    def cross_entropy_weight(self, regulariser_weight: float) -> float:
        """Return 1, because there is no other loss."""
        return 1.0

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return 0: nothing is learned from rewards."""
        return 0.0 * logprobs_S.sum()

    def pull(self, batch: Batch) -> FloatArray:
        """Return the perfect player's probability of each legal answer."""
        answers = zip(batch.answers.prompts, batch.answers.answers, strict=True)
        chance_A = np.array([self._best_at(prompt).get(self._text(ids[:-1]), 0.0) for prompt, ids in answers])
        assert np.allclose(batch.answers.totals(chance_A), 1), "the best moves are not all among the answers"
        return chance_A

    def _best_at(self, prompt: bytes) -> dict[str, float]:
        """Return the perfect player's moves by name, at the position with which a prompt ends."""
        if prompt not in self._seen:
            text = self._text(np.frombuffer(prompt, dtype=TOKEN).tolist())
            message = LAST_MESSAGE.fullmatch(text)
            assert message, f"not a prompt of the bundled model: {text!r}"
            self._seen[prompt] = self._best[message[1].rpartition("\n\n")[2]]
        return self._seen[prompt]

    def _text(self, ids: list[int]) -> str:
        text: str = self.policy.tokenizer.decode(ids)
        return text


def best_moves() -> dict[str, dict[str, float]]:
    """Return the perfect player's moves, by name, at every position, by what a player is told there."""
    wording, solver = wording_of(GAME), Minimax(GAME)
    found: dict[str, dict[str, float]] = {}

    def visit(state: Any) -> None:
        told = "" if state.is_terminal() else wording.observation(state, state.current_player())
        if state.is_terminal() or told in found:
            return
        names = dict(zip(state.legal_actions(), wording.moves(state), strict=True))
        found[told] = {names[action]: chance for action, chance in solver.policy(state).items()}
        for action in names:
            visit(state.child(action))

    visit(pyspiel.load_game(GAME).new_initial_state())
    return found
