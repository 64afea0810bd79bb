"""Prompt templates: they build the prompt that a model reads before it moves, and parse its answer.

The models' own chat templates add the markup around the messages; these templates give only the text.
"""

import re
from abc import ABC, abstractmethod
from functools import lru_cache

from sparring.core import CallSettings, EpisodeError, InputError, Message, Messages
from sparring.core.chat_tokens import LINE_END
from sparring.core.errors import shown
from sparring.core.own_code import is_class_path, messages_of, method_of, own_object, returned, text_of, truth
from sparring.core.types import UNSET
from sparring.envs.examples import example_turns
from sparring.envs.game import Game


class PromptTemplate(ABC):
    """Converts a position into a prompt, and an answer into an action.

    ``strict`` templates treat an ill-formed answer as an invalid move; the others pass its text to the game.
    ``stop`` is a text that ends an answer where neither the game nor the run names one.
    """

    name: str
    strict: bool
    stop: str = ""

    @abstractmethod
    def messages(self, game: Game, pid: int) -> Messages:
        """Return the prompt for ``pid``, who is to move. A message of role ``text`` gets no chat markup."""

    @abstractmethod
    def extract(self, text: str) -> tuple[str, bool]:
        """Return the action in an answer, and whether the answer has the requested form."""

    @abstractmethod
    def answer(self, action: str) -> str:
        """Return the exact answer that the template requests for ``action``, ``stop`` included."""


def calls_of(template: PromptTemplate) -> CallSettings:
    """Return what a template sets for calls that leave it open: its stop."""
    return CallSettings(stop=(template.stop,)) if template.stop else UNSET


class CheckedTemplate(PromptTemplate):
    """Passes every call on to ``template``; an answer of the wrong kind is an EpisodeError that names the
    method."""

    def __init__(self, template: PromptTemplate) -> None:
        for name, kind in (("name", str), ("strict", bool)):
            if not isinstance(getattr(template, name, None), kind):
                problem = f"{type(template).__name__} has no {name}"
                fix = "Write strict = True or strict = False" if kind is bool else 'Write name = "..."'
                raise InputError("env.template", problem, f"{fix} in the class")
        stop = getattr(template, "stop", "")
        if not isinstance(stop, str):
            problem = f"the stop of {type(template).__name__} is not a text"
            raise InputError("env.template", problem, 'Write one, such as stop = "\\n", in the class')
        self.template = template
        self.name, self.strict, self.stop = template.name, template.strict, stop

    def messages(self, game: Game, pid: int) -> Messages:
        source, made = method_of(self.template, "messages"), self.template.messages(game, pid)
        prompt: Messages = returned(made, list, source)
        if not prompt:
            raise EpisodeError(f"{source} returned no message")
        return messages_of(prompt, source)

    def extract(self, text: str) -> tuple[str, bool]:
        source, found = method_of(self.template, "extract"), self.template.extract(text)
        pair = returned(found, tuple, source)
        if len(pair) != 2:
            raise EpisodeError(f"{source} returned {len(pair)} values, not an action and true or false")
        return text_of(pair[0], source), truth(pair[1], source)

    def answer(self, action: str) -> str:
        source = method_of(self.template, "answer")
        answer = text_of(self.template.answer(action), source)
        if not answer.endswith(self.stop):
            raise EpisodeError(f"{source} returned {shown(answer)}, which does not end with stop")
        return answer


_TOKEN = re.compile(r"\\boxed\s*\{|\\[{}\\]|[{}]")
_WRAPPER = re.compile(r"\\(?:boxed|text|texttt|textbf|textit|textrm|mathrm|mathbf|mathtt)\s*\{")


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` in ``text``, or ``None`` if no box is closed.

    Braces inside are balanced, the content may span lines, and a wrapper around the whole content
    (``\text{4}``) is removed. Of nested boxes the outermost counts. Time is linear in the text's length.
    """
    content = None
    open_boxes: list[int | None] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "}":
            start = open_boxes.pop() if open_boxes else None
            if start is not None:
                content = text[start : match.start()]
        elif token == "{":
            open_boxes.append(None)
        elif token.startswith("\\boxed"):
            open_boxes.append(match.end())
    return None if content is None else _unwrap(content)


def _unwrap(content: str) -> str:
    """Return a text without the commands around all of it."""
    closed_by, opened = dict[int, int](), list[int]()
    for place, char in enumerate(content):
        if char == "{":
            opened.append(place)
        elif char == "}" and opened:
            closed_by[opened.pop()] = place
    start, stop = _stripped(content, 0, len(content))
    while (match := _WRAPPER.match(content, start, stop)) and closed_by.get(match.end() - 1) == stop - 1:
        start, stop = _stripped(content, match.end(), stop - 1)
    return content[start:stop]


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the bounds of a part of a text without the spaces at its ends."""
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop


MAX_MOVE_WORDS = 10
_PLACEHOLDER = re.compile(r"(?<!\w)\{([A-Za-z_]\w*)\}")  # the argument of a command, \boxed{move}, is none


class BoxedTemplate(PromptTemplate):
    r"""One instruction, one observation; the action is expected in the last ``\boxed{...}``. Without one, the
    whole answer is the action, and it is ill-formed.

    Args:
        name: the template's name.
        layout: text of the message; ``{observation}``, once, stands for the rules and the observation.
        role: role of the message (``text`` for models without a chat template).
        system: text of a system message before it, if any.
    """

    strict = False

    def __init__(self, name: str, layout: str, role: str = "user", system: str = "") -> None:
        self.name = name
        for placeholder in _PLACEHOLDER.findall(layout):
            if placeholder != "observation":
                fix = "{observation} stands for the rules and the observation"
                raise InputError("layout", f"{name} has an unknown placeholder {{{placeholder}}}", fix)
        if (found := layout.count("{observation}")) != 1:
            raise InputError("layout", f"{name} has {found} times {{observation}}", "Write it once")
        self._before, self._after = layout.split("{observation}")
        self._role = role
        self._head: Messages = [{"role": "system", "content": system}] if system else []

    def messages(self, game: Game, pid: int) -> Messages:
        text = f"{self._before}{game.rules(pid)}\n\n{game.observation(pid)}{self._after}"
        return [*self._head, {"role": self._role, "content": text}]

    def extract(self, text: str) -> tuple[str, bool]:
        boxed = extract_boxed(text)
        return (boxed, True) if boxed else (text.strip(), False)

    def answer(self, action: str) -> str:
        return f"\\boxed{{{action}}}"


class FewshotTemplate(PromptTemplate):
    """Example turns before the real one; an answer must be the bare move and nothing else.

    The rules and the examples are the same in every prompt of a seat, so they are one shared prefix. Games
    that do not list legal moves get an instruction instead of examples.
    """

    strict = True
    name = "fewshot-chat"

    def messages(self, game: Game, pid: int) -> Messages:
        now = game.brief(pid)
        head = _fewshot_head(game.env_id, game.num_players, pid, game.rules(pid))
        if len(head) == 1:
            return [{"role": "user", "content": f"{head[0]['content']}\n\n{now}"}]
        return [*head, {"role": "user", "content": now}]

    def extract(self, text: str) -> tuple[str, bool]:
        action = text.strip()
        return action, _BARE_MOVE.fullmatch(action) is not None

    def answer(self, action: str) -> str:
        return action


class FewshotTextTemplate(PromptTemplate):
    """The few-shot prompt as plain text, for base models; the first line of an answer must be the bare move.

    A line feed ends an answer. After each example there is one and no more, because many tokenizers have a
    token for two of them, which would then be the likelier end.
    """

    strict = True
    name = "fewshot-text"
    stop = LINE_END

    def messages(self, game: Game, pid: int) -> Messages:
        examples = example_turns(game.env_id, game.num_players, pid)
        shown_turns = "".join(f"{_turn(observation)} {move}\n" for observation, move in examples)
        rules = game.rules(pid) if examples else f"{game.rules(pid)}\n{_BARE_MOVE_REQUEST}"
        return [{"role": "text", "content": f"{rules}\n\n{shown_turns}{_turn(game.brief(pid))}"}]

    def extract(self, text: str) -> tuple[str, bool]:
        action = text.partition("\n")[0].strip()
        return action, _BARE_MOVE.fullmatch(action) is not None

    def answer(self, action: str) -> str:
        return f" {action}{self.stop}"


def _turn(observation: str) -> str:
    """Return a position and the beginning of the line that its move ends."""
    space = "\n" if "\n" in observation else " "
    return f"Position:{space}{observation}\nMove:"


_BARE_MOVE = re.compile(rf"\[[^\[\]\n]+\]|[^\s\[\]]+(?: [^\s\[\]]+){{0,{MAX_MOVE_WORDS - 1}}}")


@lru_cache(maxsize=256)
def _fewshot_head(env_id: str, num_players: int, pid: int, rules: str) -> tuple[Message, ...]:
    """Return everything before the real position, in messages that all prompts share: do not modify them."""
    examples = example_turns(env_id, num_players, pid)
    if not examples:
        return ({"role": "user", "content": f"{rules}\n{_BARE_MOVE_REQUEST}"},)
    head: Messages = []
    before = f"{rules}\n\n"
    for observation, move in examples:
        head.append({"role": "user", "content": before + observation})
        head.append({"role": "assistant", "content": move})
        before = ""
    return tuple(head)


_BARE_MOVE_REQUEST = "Answer with your move only, in the format that the rules ask for."


_BOX_REQUEST = "Think step by step, then give your final move inside \\boxed{}."
_TWO_PLAYERS = "This is a two-player zero-sum game. Play legal moves and try to win.\n"


TEMPLATES: dict[str, PromptTemplate] = {
    template.name: template
    for template in (
        BoxedTemplate(
            "default",
            "You are playing a game. Play legal moves and try to win. "
            f"{_BOX_REQUEST}\n\n{{observation}}\n\nMove:",
            role="text",
        ),
        BoxedTemplate("qwen3-zs", f"{_TWO_PLAYERS}Observation: {{observation}}\n{_BOX_REQUEST}"),
        BoxedTemplate(
            "qwen3-sp",
            "This is a single-player game. Play legal moves and try to solve it.\n"
            f"Observation: {{observation}}\n{_BOX_REQUEST}",
        ),
        BoxedTemplate("qwen3-reasoning", f"Question: {{observation}}\n{_BOX_REQUEST}"),
        BoxedTemplate("gemma3-zs", f"{_TWO_PLAYERS}Observation: {{observation}}\n{_BOX_REQUEST}"),
        BoxedTemplate(
            "llama-instruct-zs",
            f"Current observation: {{observation}}\n{_BOX_REQUEST}",
            system="You play a two-player zero-sum game. Play legal moves and try to win.",
        ),
        FewshotTemplate(),
        FewshotTextTemplate(),
    )
}
"""The templates by name."""


def get_template(name: str) -> PromptTemplate:
    """Return the template with this name, or one of your own (``my_templates.py:terse``: a template, or a
    subclass of PromptTemplate without arguments). Templates hold no state of a game."""
    if is_class_path(name):
        return CheckedTemplate(own_object(name, PromptTemplate, "env.template"))
    if name not in TEMPLATES:
        fix = f"Use one of {', '.join(TEMPLATES)}, or my_file.py:my_template"
        raise InputError("env.template", f"no template {name!r}", fix)
    return TEMPLATES[name]
