"""What a role's later prompts show of its conversation.

A conversation is one sequence of token ids: a prompt begins with the last prompt and the answer to it, as it
was drawn, so that the engine and the learner compute shared tokens once. A role may forget on purpose; where
it does, the next prompt no longer begins with the last one.
"""

import re
from typing import Literal

from sparring.core.messages import Message, Messages

History = Literal["keep", "drop_reasoning", "summary"]
"""How a role remembers its own answers.

``keep``: as they were drawn, with their token ids.
``drop_reasoning``: without what they have between ``<think>`` and ``</think>``.
``summary``: the latest answer that has a text between ``<summary>`` and ``</summary>`` takes the place of
everything after the beginning and before it, and only that text is left of it. So a conversation without an
end fits into a context, and the role learns what to write down.
"""

_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)


def shown(messages: Messages, history: History, beginning: int) -> Messages:
    """Return the messages of a prompt as ``history`` shows them.

    Args:
        messages: the whole conversation, as its role heard and said it.
        history: the role's setting.
        beginning: number of first messages that are always shown unchanged: the rules, examples, and the
            first question.
    """
    if history == "drop_reasoning":
        return messages[:beginning] + [_without_reasoning(one) for one in messages[beginning:]]
    if history == "summary":
        for index in range(len(messages) - 1, beginning - 1, -1):
            found = _SUMMARY.search(messages[index]["content"])
            if found and messages[index]["role"] == "assistant":
                summary: Message = {"role": "assistant", "content": found[0]}
                return [*messages[:beginning], summary, *messages[index + 1 :]]
    return messages


def _without_reasoning(message: Message) -> Message:
    """Return an answer without its reasoning; one that was cut while it reasoned has nothing else."""
    content = message["content"]
    if message["role"] != "assistant" or ("<think>" not in content and "</think>" not in content):
        return message
    _, ended, answer = content.rpartition("</think>")
    rest = answer if ended else content.partition("<think>")[0]
    return {"role": "assistant", "content": rest.strip()}
