"""What a dry run plays with: a client with made-up answers, and a template that notes which were legal."""

from collections.abc import Callable
from typing import Any

from sparring.core import EpisodeError, Messages, MockInferenceClient
from sparring.core.client import ModelResponse
from sparring.core.errors import shown
from sparring.envs.game import Game
from sparring.envs.templates import PromptTemplate
from sparring.learn.model_fit import Call

MOST_CALLS = 1000
"""How many calls of the model are kept: an endless conversation makes ever longer ones."""


class MadeUp(MockInferenceClient):
    """Answers by a function, likes all listed answers alike, and remembers its first questions."""

    def __init__(self, answer: Callable[[], str], calls: list[Call], max_tokens: int) -> None:
        super().__init__(lambda messages, seed: answer())
        self.remembered = calls
        self.default = max_tokens

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        """Return an answer; see the class."""
        self._remember(messages, max_tokens or self.default)
        return await super().complete(messages, temperature, max_tokens, *args, **options)

    async def give(self, messages: Messages, text: str, *args: Any, **options: Any) -> ModelResponse:
        """Return the answer that is given."""
        self._remember(messages, self.default)
        return await super().give(messages, text, *args, **options)

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return one log-probability for each completion."""
        self._remember(messages, 1)
        return [-1.0] * len(completions)

    def _remember(self, messages: Messages, max_tokens: int) -> None:
        if len(self.remembered) < MOST_CALLS:
            self.remembered.append((messages, max_tokens))


class Prompter(PromptTemplate):
    """A template that remembers which answers would be legal moves now, and which were seen."""

    def __init__(self, template: PromptTemplate) -> None:
        self.template = template
        self.name, self.strict, self.stop = template.name, template.strict, template.stop
        self.legal: list[str] = []
        self.seen: set[str] = set()

    def messages(self, game: Game, pid: int) -> Messages:
        """Note the legal answers; raise an EpisodeError if one is not read as its move."""
        moves = game.legal_actions() or []
        self.legal = [self.template.answer(move) for move in moves]
        for move, answer in zip(moves, self.legal, strict=True):
            if answer not in self.seen:
                self._check(move, answer)
        self.seen.update(self.legal)
        return self.template.messages(game, pid)

    def _check(self, move: str, answer: str) -> None:
        read, well_formed = self.template.extract(answer)
        if not well_formed or read.strip().casefold() != move.strip().casefold():
            form = "" if well_formed else ", which it finds ill-formed"
            said = f"the template {self.name} gives the answer {shown(answer)} for the move {shown(move)}"
            raise EpisodeError(f"{said}, and reads {shown(read)} in it{form}")

    def extract(self, text: str) -> tuple[str, bool]:
        """As the template."""
        return self.template.extract(text)

    def answer(self, action: str) -> str:
        """As the template."""
        return self.template.answer(action)
