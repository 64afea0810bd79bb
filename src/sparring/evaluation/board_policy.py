"""What a model does in every information state of a game on a hidden board: asked for, kept, and read back.

States are asked for in the order of a depth-first visit, seat 0 first. Neighbours share all tries but the
last ones, and so do their prompts, whose common beginning the engine computes once.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from sparring.core import InferenceClient, InputError, SparringError
from sparring.core.concurrency import all_results
from sparring.core.text import duration_text
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import game_at, load_game
from sparring.envs.templates import PromptTemplate
from sparring.evaluation.hidden_board import (
    BoardRules,
    FloatArray,
    HiddenBoard,
    Int64Array,
    phantom_tic_tac_toe,
)
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import SCORED_AT_ONCE
from sparring.evaluation.policy_table import Float32Array, PolicyTable


def is_hidden_board(env_id: str) -> bool:
    """Return whether a game is ``phantom_ttt``, and tells the seats no more than their own tries."""
    if library_of(env_id) != "openspiel":
        return False
    game, known = load_game(env_id), {"gameversion": "classical", "obstype": "reveal-nothing"}
    return bool(game.get_type().short_name == "phantom_ttt" and game.get_parameters() == known)


def board_rules(env_id: str) -> BoardRules:
    """Return the rules of a game on a hidden board; raise an InputError if it is another."""
    if not is_hidden_board(env_id):
        raise InputError("env.id", f"{env_id} is not measured as a hidden board", "Choose phantom_ttt")
    return phantom_tic_tac_toe()


def rows_in_order(board: HiddenBoard) -> tuple[Int64Array, Int64Array]:
    """Return seat_R and state_R: the information state of each row of the board's tables."""
    order = [np.argsort(states.code_S) for states in board.states]
    seat_R = np.repeat([0, 1], [len(one) for one in order])
    return seat_R, np.concatenate(order)


class AnswersInOrder:
    """Asks the model of each seat for its probabilities of all legal answers, in the order of a table's
    rows.

    ``forget`` empties the client's caches, so that a block is the same whatever was asked before.
    """

    def __init__(
        self,
        client: InferenceClient,
        board: HiddenBoard,
        env_id: str,
        template: PromptTemplate,
        models: Sequence[str],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.client, self.board, self.env_id = client, board, env_id
        self.template, self.models, self._forget = template, models, forget
        self.seat_R, self.state_R = rows_in_order(board)
        self._slots = asyncio.Semaphore(SCORED_AT_ONCE)

    async def block(self, rows: range) -> Float32Array:
        """Return logprobs_RA of some rows.

        Raises:
            SparringError: the model failed, or gave no log-probabilities.
        """
        self._forget()
        logprobs_RA = np.full((len(rows), self.board.rules.cells), -np.inf, dtype=np.float32)
        for row, (actions, logprobs) in enumerate(await all_results(map(self._row, rows))):
            logprobs_RA[row, actions] = logprobs
        return logprobs_RA

    async def _row(self, row: int) -> tuple[list[int], list[float]]:
        seat = int(self.seat_R[row])
        async with self._slots:
            game = game_at(self.env_id, tuple(self.board.history(seat, int(self.state_R[row]))))
            answers = [self.template.answer(action) for action in game.legal_actions()]
            prompt = self.template.messages(game, seat)
            logprobs = await self.client.score(prompt, answers, model=self.models[seat])
        if any(map(math.isnan, logprobs)) or math.isinf(max(logprobs)):
            raise SparringError(f"the model gave no probabilities in row {row}: {logprobs}")
        return game.state.legal_actions(), logprobs


async def fill_table(
    table: PolicyTable, asked: AnswersInOrder, *, rows: int | None = None, progress: Progress | None = None
) -> None:
    """Append blocks until the table is complete, or has at least ``rows`` rows.

    The time that the first block took says how long all that is left will take.
    """
    progress, game, total = progress or Progress(), table.header.game, table.header.rows
    wanted, before, started = min(rows or total, total), table.done, perf_counter()
    with progress.doing(f"{game}: NashConv", "information states", wanted) as count:
        while table.done < wanted:
            is_first = table.done == before
            table.append(await asked.block(table.next_rows))
            count(table.done, wanted)
            if is_first:
                rate, left = (table.done - before) / (perf_counter() - started), total - table.done
                seconds = duration_text(left / rate)
                progress.say(f"{game}: {left:,} states are left, about {seconds} at {rate:,.1f} a second")


class BoardPolicy(NamedTuple):
    """The normalised policy_SA of each seat, and the mean and least probability of any legal answer."""

    policies: tuple[FloatArray, FloatArray]
    legal_mass: float
    min_legal_mass: float


def policy_of(board: HiddenBoard, logprobs_RA: Float32Array) -> BoardPolicy:
    """Return what the rows of a board's table say."""
    seat_R, state_R = rows_in_order(board)
    # Relative to the most likely answer, so that unlikely answers do not underflow.
    top_R = logprobs_RA.max(axis=1).astype(np.float64)
    weight_RA = np.exp(logprobs_RA - top_R[:, None])
    total_R = weight_RA.sum(axis=1)
    mass_R = total_R * np.exp(top_R)
    weight_RA /= total_R[:, None]
    policies = []
    for seat, states in enumerate(board.states):
        policy_SA = np.empty((len(states), board.rules.cells))
        policy_SA[state_R[seat_R == seat]] = weight_RA[seat_R == seat]
        policies.append(policy_SA)
    return BoardPolicy((policies[0], policies[1]), float(mass_R.mean()), float(mass_R.min()))
