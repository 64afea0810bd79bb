"""Ask a model a question with the answer Yes or No, and read its answer."""

import random
import re
from typing import Literal

import msgspec

from selfplay.core import EpisodeError, InferenceClient, Messages, MockInferenceClient, TransientError
from selfplay.finetune.analysers.analyser import REQUEST, PureTextRolloutAnalyser
from selfplay.finetune.analysers.messages import SentMessage

TRIES = 4
"""How often a model is asked until it answers Yes or No."""
MAX_TOKENS = 16
_ANSWER = re.compile(r"[\s*_`\"'(]*(yes|no)(?!\w)[\s*_`\"')]*(?:[.,:;!\n-].*)?", re.IGNORECASE | re.DOTALL)


class Answer(msgspec.Struct, kw_only=True):
    """The answer about a message.

    Attributes:
        rollout: the rollout's id, and with ``place``, ``agent`` and ``channel`` the message's name.
        answer: Yes or No; ``None`` if the model gave neither.
        by: whether the text decided, or a model.
        model: the model that was asked; empty if the text decided.
        said: what the model said last, or why it could not answer.
    """

    rollout: str
    place: str
    agent: str
    channel: str
    answer: bool | None
    by: Literal["text", "model"]
    model: str = ""
    said: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the message in a run."""
        return (self.rollout, self.place, self.agent, self.channel)


async def answer_about(
    analyser: PureTextRolloutAnalyser, message: SentMessage, client: InferenceClient, model: str
) -> Answer:
    """Return the answer about a message, from its text or else from a model.

    Raises:
        SelfplayError: the model cannot be reached, or does not exist.
    """
    names = dict(zip(("rollout", "place", "agent", "channel"), message.key, strict=True))
    decided = analyser.answer_of_text(message)
    if decided is not None:
        return Answer(**names, answer=decided, by="text")
    answer, said = await ask(analyser.prompt(message), client, model)
    return Answer(**names, answer=answer, by="model", model=model, said=said)


async def ask(prompt: Messages, client: InferenceClient, model: str) -> tuple[bool | None, str]:
    """Return the answer, and what the model said last.

    A model that says anything but Yes or No is told so and asked again, up to ``TRIES`` times. A prompt that
    the server refuses has no answer.

    Raises:
        SelfplayError: the model cannot be reached, or does not exist.
    """
    said = ""
    messages = list(prompt)
    for _ in range(TRIES):
        try:
            response = await client.complete(
                messages, temperature=0.0, max_tokens=MAX_TOKENS, return_tokens=False, model=model
            )
        except TransientError:
            raise
        except EpisodeError as error:
            return None, str(error)
        said = response.text
        answer = read_answer(said)
        if answer is not None:
            return answer, said
        messages += [
            {"role": "assistant", "content": said or "..."},
            {"role": "user", "content": REQUEST},
        ]
    return None, said


def read_answer(text: str) -> bool | None:
    """Return what a text answers that begins with the word Yes or No; ``None`` if it is neither."""
    match = _ANSWER.fullmatch(text)
    return None if match is None else match[1].lower() == "yes"


def drawing_client() -> InferenceClient:
    """Return a client that draws Yes or No, for a dry run."""
    drawn = random.Random(0)
    return MockInferenceClient(lambda messages, seed: drawn.choice(("Yes", "No")))
