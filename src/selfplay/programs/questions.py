"""Questions: how a proposer writes them, how a solver is asked them, and which answers are right."""

import re
from abc import ABC, abstractmethod
from typing import TypedDict

from selfplay.core import Messages


class Question(TypedDict):
    """A question and its right answer; JSON-able, so that stores and logs can hold it."""

    question: str
    ground_truth: str


class Domain(ABC):
    """A kind of question. Domains hold no state.

    ``proposal_tokens`` and ``answer_tokens`` are enough for a well-formed proposal or answer.
    """

    proposal_tokens: int
    answer_tokens: int

    @abstractmethod
    def proposer_messages(self, examples: list[Question]) -> Messages:
        """What the proposer reads: a request for another question like ``examples``."""

    @abstractmethod
    def parse_question(self, text: str) -> Question | None:
        """The question in a proposer's answer; ``None`` unless it has exactly the form asked for."""

    @abstractmethod
    def solver_messages(self, question: Question) -> Messages:
        """What the solver reads."""

    @abstractmethod
    def parse_answer(self, text: str) -> str | None:
        """The result that a solver's answer states; ``None`` if it states none."""

    @abstractmethod
    def is_correct(self, result: str, question: Question) -> bool:
        """Whether a stated result is the right one."""

    @abstractmethod
    def key(self, question: Question) -> str:
        """What makes a question the same as another, however it is written."""

    @abstractmethod
    def seed_questions(self) -> list[Question]:
        """The first examples that a proposer sees."""

    def held_out_questions(self, count: int) -> list[Question]:
        """Up to ``count`` different questions for measuring, the same ones every time; none by default."""
        return []
