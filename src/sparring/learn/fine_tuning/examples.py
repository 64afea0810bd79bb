"""Examples of a fine-tuning job: as messages, and as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparring.core import InputError, Message, Messages, SparringError, TrainingRecord
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import ChatTokens, most_characters_of_a_token


class WrongLine(SparringError):
    """A line of a training file that cannot be trained on, and its number from 1."""

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem
        super().__init__(f"line {line}: {problem}")

    def __reduce__(self) -> tuple[type["WrongLine"], tuple[int, str]]:
        return type(self), (self.line, self.problem)


@dataclass(frozen=True)
class Conversation:
    """A conversation, and the indices of the assistant's messages in it that are trained on."""

    line: int
    messages: Messages
    trained: tuple[int, ...]


@dataclass(frozen=True)
class Preference:
    """A conversation that ends before an assistant's turn, a preferred and a rejected answer to it."""

    line: int
    messages: Messages
    preferred: Message
    rejected: Message


class Renderer:
    """Turns examples into token ids as the engine does for a request, within ``context_length`` tokens.

    Where the template opens a thought, an answer without one ends it at once.
    """

    def __init__(self, tokens: ChatTokens, context_length: int) -> None:
        self.tokens = tokens
        self.context_length = context_length
        self._reader = AnswerReader(tokens.tokenizer)
        self._most_characters = context_length * most_characters_of_a_token(tokens.tokenizer)

    def conversation(self, example: Conversation) -> list[TrainingRecord]:
        """Return a record for each answer that is trained on.

        Raises WrongLine if the template rejects the messages, or they exceed the context.
        """
        messages = example.messages
        return [
            self._record(example.line, messages[:index], messages[index]["content"])
            for index in example.trained
        ]

    def preference(self, example: Preference) -> list[TrainingRecord]:
        """Return the records of the preferred and of the rejected answer, without a reference."""
        answers = (example.preferred["content"], example.rejected["content"])
        good, bad = (self._record(example.line, example.messages, answer) for answer in answers)
        if good.completion_token_ids == bad.completion_token_ids:
            raise WrongLine(example.line, "the preferred and the rejected answer are the same")
        return [good, bad]

    def _record(self, line: int, prompt: Messages, answer: str) -> TrainingRecord:
        characters = len(answer) + sum(len(message["content"]) for message in prompt)
        if characters > self._most_characters:  # tokenising them would take minutes
            limit = self.context_length
            raise WrongLine(line, f"its {characters} characters are more than {limit} tokens can have")
        try:
            ids = self.tokens.render(prompt)
            completion = self._completion(ids, prompt, answer)
        except InputError as error:
            raise WrongLine(line, error.problem) from error
        if completion[-1] not in self.tokens.stop_token_ids:  # who asks later may name no line feed as a stop
            completion = [*completion, self.tokens.tokenizer.eos_token_id]
        length = len(ids) + len(completion)
        if length > self.context_length:
            limit = self.context_length
            raise WrongLine(line, f"it has {length} tokens, but the model's context has {limit}")
        return given_answer(ids, completion)

    def _completion(self, ids: list[int], prompt: Messages, answer: str) -> list[int]:
        opened = self._reader.opened(ids)
        if opened is None:
            return self.tokens.encode_answer(prompt, answer)
        first, second = opened
        if second in answer:
            return self.tokens.encode_answer(prompt, answer.lstrip().removeprefix(first).lstrip("\n"))
        return [*self._reader.closing(opened), *self.tokens.encode_answer(prompt, answer)]


def families(openings: Sequence[Messages]) -> list[int]:
    """Number examples by what comes before the first answer: equal openings have equal numbers."""
    numbers: dict[tuple[tuple[str, str], ...], int] = {}
    keys = [tuple((one["role"], one["content"]) for one in opening) for opening in openings]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def opening(messages: Messages) -> Messages:
    """Return the messages before the assistant's first."""
    roles = [message["role"] for message in messages]
    return messages[: roles.index("assistant")] if "assistant" in roles else messages


def given_answer(prompt: list[int], completion: list[int]) -> TrainingRecord:
    """Return the record of an answer that nobody drew."""
    return TrainingRecord(
        role_id="",
        rollout_id="",
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=[0.0] * len(completion),
        reward=0.0,
        advantage=0.0,
    )
