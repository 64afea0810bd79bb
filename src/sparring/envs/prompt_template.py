"""PromptTemplate: what every prompt template is."""

from abc import ABC, abstractmethod

from sparring.core import Messages
from sparring.envs.game import Game


class PromptTemplate(ABC):
    """Converts a position into a prompt, and an answer into an action.

    ``strict`` templates treat an ill-formed answer as an invalid move; the others pass its text to the game.
    """

    name: str
    strict: bool

    @abstractmethod
    def messages(self, game: Game, pid: int) -> Messages:
        """Return the prompt for ``pid``, who is to move. A message of role ``text`` gets no chat markup."""

    @abstractmethod
    def extract(self, text: str) -> tuple[str, bool]:
        """Return the action in an answer, and whether the answer has the requested form."""

    @abstractmethod
    def answer(self, action: str) -> str:
        """Return the exact answer that the template requests for ``action``."""
