"""Joints: what a chat template writes after an answer, so that a conversation's token ids can be extended.

A template renders whole conversations. What it writes between an answer and the next one is read off a small
conversation whose answer is known. Nearly all templates write the same there in every conversation; the
others, which for example move the rules into the last question, are recognised when a model is loaded.
"""

from collections.abc import Callable

from sparring.core.errors import InputError
from sparring.core.messages import Message, Messages

ASKED: Message = {"role": "user", "content": "Is it so?"}
SAID: Message = {"role": "assistant", "content": "Indeed."}
RULES: Message = {"role": "system", "content": "Be brief."}
_MARK: Message = {"role": "assistant", "content": "Mark8c41f6e02b."}
_LONGER: tuple[Messages, ...] = ([ASKED, SAID, ASKED, SAID, ASKED], [RULES, ASKED, SAID, ASKED])

Template = Callable[[Messages], str]
"""Renders a conversation with the beginning of the next answer, or raises InputError."""


class Joints:
    """See the module.

    Args:
        template: the chat template.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    @classmethod
    def of(cls, template: Template) -> "Joints | None":
        """Return a template's joints; ``None`` if they depend on what is before the answer."""
        joints = cls(template)
        return joints if joints._hold() else None

    def after_answer(self, messages: Messages) -> str:
        """Return what the template writes between an answer and the next one, ``messages`` included.

        Raises:
            InputError: the template rejects these messages.
        """
        return self._template([ASKED, _MARK, *messages]).partition(_MARK["content"])[2]

    def _hold(self) -> bool:
        """Return whether the template writes the same after an answer in longer conversations.

        Before an answer that was given it may write more or less than before one that is asked for: models
        begin their reasoning, or name a channel, by themselves.
        """
        try:
            joint = self.after_answer([ASKED])
        except InputError:
            return False
        if ASKED["content"] not in joint:
            return False
        for messages in _LONGER:
            try:
                _, *between, last = self._template(messages).split(SAID["content"])
            except InputError:
                continue  # a template without a system role
            if last != joint or not all(joint.startswith(one) or one.startswith(joint) for one in between):
                return False
        return True
