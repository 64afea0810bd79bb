"""PersonsTable: one game or episode as the person at the page sees it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sparring.core import InputError, SparringError
from sparring.core.text import printable

WAIT_SECONDS = 3600.0
"""How long the person may take for an answer."""


@dataclass
class Told:
    """What somebody did, with what nobody else could see: it is shown when the game has ended."""

    who: str
    action: str
    said: str = ""
    thought: str = ""
    problem: str = ""


@dataclass
class PersonsTable:
    """A game in progress. A driver asks and tells; the page looks and answers.

    Attributes:
        title: what is played, and where the person sits.
        turn: the number of the question, counted over all games of a page, so that an answer to an earlier
            one changes nothing.
        rules: what introduces the game.
        heard: what the person sees now.
        legal: the legal moves, if they are listed.
        asking: whether the person is to answer.
        problem: why the last answer was not taken, or why the game failed.
        mine: the person's own answers.
        outcome: how it ended; empty before.
        revealed: what all players did and thought, once it has ended.
    """

    title: str = ""
    turn: int = 0
    rules: str = ""
    heard: str = ""
    legal: list[str] | None = None
    asking: bool = False
    problem: str = ""
    mine: list[str] = field(default_factory=list)
    outcome: str = ""
    revealed: list[Told] = field(default_factory=list)
    _answer: "asyncio.Future[str] | None" = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, heard: str, legal: list[str] | None = None) -> str:
        """Wait for the person's answer; of several questions at once, each waits for the one before.

        Raises:
            SparringError: none came in :data:`WAIT_SECONDS`.
        """
        async with self._one_at_a_time:
            self.turn, self.heard, self.legal, self.asking = self.turn + 1, heard, legal, True
            self._answer = asyncio.get_running_loop().create_future()
            try:
                typed = await asyncio.wait_for(self._answer, WAIT_SECONDS)
            except TimeoutError:
                raise SparringError("nobody answered for an hour") from None
            finally:
                self.asking, self._answer = False, None
            self.mine.append(typed)
            self.problem = ""
            return typed

    def answer(self, turn: int, text: str) -> None:
        """Take the person's answer to a question; raise an InputError if that is not the present one."""
        if self._answer is None or self._answer.done() or turn != self.turn:
            raise InputError("turn", f"{turn} is not the present question", "Look at the page again")
        self.asking = False
        self._answer.set_result(text)

    def refuse(self, problem: str) -> None:
        """Say why the last answer was not taken."""
        self.mine.pop()
        self.problem = problem

    def end(self, outcome: str, revealed: list[Told]) -> None:
        """Show how it ended and what all players did."""
        self.outcome, self.revealed = outcome, revealed

    def to_dict(self) -> dict[str, Any]:
        """Return what the page shows, as text without control characters."""
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        harmless: dict[str, Any] = _printable(msgspec.to_builtins(shown))
        return harmless


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return {name: _printable(one) for name, one in value.items()} if isinstance(value, dict) else value
