"""Exact NashConv in a game of millions: answers are kept in a file, with which the same command goes on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.commands.members import Member, base_of
from sparring.config.play import GameSettings
from sparring.engine.api_models import MembersClient
from sparring.envs.openspiel_game import game_at, load_game
from sparring.envs.templates import get_template
from sparring.evaluation import NashConvResult
from sparring.evaluation.board_policy import AnswersInOrder, board_rules, fill_table, policy_of
from sparring.evaluation.hidden_board import HiddenBoard
from sparring.evaluation.hidden_board_gains import gains
from sparring.evaluation.match import Progress
from sparring.evaluation.policy_table import PolicyTable, TableHeader, read_table
from sparring.learn.model_files import fingerprint, resolve_model
from sparring.run.hardware import base_dtype, choose_device

DIRECTORY = Path("nash-conv")
"""Where the tables are, below the current directory."""
BLOCK_ROWS = 1024
"""Information states that a kill may cost."""


class BoardNashConv:
    """The measure of one model in one game; :attr:`table` is a context, which ends the claim on it.

    The table's name follows from all that decides its content, so another model or template has another.

    Raises:
        InputError: another process measures the same.
        DamagedState: the table is damaged.
    """

    def __init__(self, member: Member, env: GameSettings, models: Sequence[str], progress: Progress) -> None:
        self.env, self.models, self.progress = env, models, progress
        self.template = get_template(env.template)
        with progress.doing(f"listing the information states of {env.id}"):
            self.board = HiddenBoard.build(board_rules(env.id))
        hashes, dtype = _computed_by(member)
        first = game_at(env.id, self.board.start)
        prompt = json.dumps(self.template.messages(first, first.current_pid)).encode()
        header = TableHeader(
            game=env.id,
            template=env.template,
            model=", ".join(models),
            fingerprint={**hashes, "prompt": hashlib.sha256(prompt).hexdigest()},
            dtype=dtype,
            rows=sum(map(len, self.board.states)),
            actions=self.board.rules.cells,
            block_rows=BLOCK_ROWS,
            start=self.board.start,
        )
        game = load_game(env.id).get_type().short_name
        DIRECTORY.mkdir(exist_ok=True)
        name = f"{game}-{hashlib.sha256(header.line()).hexdigest()[:12]}.table"
        self.table = PolicyTable(DIRECTORY / name, header)

    async def measure(self, client: MembersClient, most: int | None) -> NashConvResult | None:
        """Ask for the states that are left, at most ``most`` and what completes their block; ``None`` if
        that leaves some."""
        table, board, say = self.table, self.board, self.progress.say
        rows = table.header.rows
        say(f"{self.env.id}: {rows:,} information states, {table.done:,} of them in {table.path}")
        asked = AnswersInOrder(client, board, self.env.id, self.template, self.models, client.forget_contexts)
        if table.done < rows:
            say("Ctrl-C stops; the same command then goes on")
            await fill_table(table, asked, rows=most and table.done + most, progress=self.progress)
        if table.done < rows:
            left = f"{rows - table.done:,} of {rows:,} information states are left"
            say(f"note: NashConv is left out: {left}; the same command goes on with them")
            return None
        with self.progress.doing("computing best responses"):
            policy = policy_of(board, read_table(table.path)[1])
            exact = gains(board, policy.policies)
        return NashConvResult(
            env_id=self.env.id,
            model=table.header.model,
            nash_conv=exact.nash_conv,
            exploitability=list(exact.exploitability),
            values=list(exact.values),
            best_response_values=list(exact.best_response_values),
            legal_mass=policy.legal_mass,
            min_legal_mass=policy.min_legal_mass,
            policy={},
            observations={},
        )


def _computed_by(member: Member) -> tuple[Mapping[str, str], str]:
    """Return the hashes of a loaded model's files and adapters, and the type in which it computes."""
    model = base_of([member])
    dtype = base_dtype(model.dtype, choose_device(model.device))
    hashes = fingerprint(resolve_model(model.name))
    return {**hashes, "adapters": member.weights()}, f"{dtype}, quantization {model.quantization}"
