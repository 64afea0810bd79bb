"""CheckedTemplate: a template of a user's own, whose methods must return what they promise."""

from sparring.core import EpisodeError, InputError, Messages
from sparring.core.messages import as_messages, check_text
from sparring.core.own_code import method_of, returned, truth
from sparring.envs.game import Game
from sparring.envs.prompt_template import PromptTemplate


class CheckedTemplate(PromptTemplate):
    """Passes every call on to ``template`` and checks the answer.

    Raises:
        InputError: the template has no ``name`` or ``strict``.
        EpisodeError: from every method whose answer is of the wrong kind; it names the method.
    """

    def __init__(self, template: PromptTemplate) -> None:
        for name, kind in (("name", str), ("strict", bool)):
            if not isinstance(getattr(template, name, None), kind):
                problem = f"{type(template).__name__} has no {name}"
                fix = "Write strict = True or strict = False" if kind is bool else 'Write name = "..."'
                raise InputError("env.template", problem, f"{fix} in the class")
        self.template = template
        self.name, self.strict = template.name, template.strict

    def messages(self, game: Game, pid: int) -> Messages:
        """See PromptTemplate."""
        source, made = method_of(self.template, "messages"), self.template.messages(game, pid)
        prompt: Messages = returned(made, list, source)
        if not prompt:
            raise EpisodeError(f"{source} returned no message")
        try:
            return as_messages(prompt)
        except (TypeError, ValueError) as error:
            raise EpisodeError(f"{source}: {error}") from error

    def extract(self, text: str) -> tuple[str, bool]:
        """See PromptTemplate."""
        source, found = method_of(self.template, "extract"), self.template.extract(text)
        pair = returned(found, tuple, source)
        if len(pair) != 2:
            raise EpisodeError(f"{source} returned {len(pair)} values, not an action and true or false")
        return _text(pair[0], source), truth(pair[1], source)

    def answer(self, action: str) -> str:
        """See PromptTemplate."""
        return _text(self.template.answer(action), method_of(self.template, "answer"))


def _text(value: object, source: str) -> str:
    text = returned(value, str, source)
    try:
        check_text(text)
    except ValueError as error:
        raise EpisodeError(f"{source}: {error}") from error
    return text
