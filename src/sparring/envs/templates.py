r"""Prompt templates: they build the prompt that a model reads before it moves, and parse its answer.

The models' own chat templates add the markup around the messages; these templates give only the text.
"""

import re
from functools import lru_cache

from sparring.core import InputError, Message, Messages
from sparring.core.own_classes import is_class_path, own_object
from sparring.envs.checked_template import CheckedTemplate
from sparring.envs.examples import example_turns
from sparring.envs.extraction import extract_boxed
from sparring.envs.game import Game
from sparring.envs.prompt_template import PromptTemplate

__all__ = ["BoxedTemplate", "FewshotTemplate", "PromptTemplate", "get_template", "template_names"]

MAX_MOVE_WORDS = 10
_PLACEHOLDER = re.compile(r"(?<!\w)\{([A-Za-z_]\w*)\}")  # the argument of a command, \boxed{move}, is none


class BoxedTemplate(PromptTemplate):
    r"""One instruction, one observation; the action is expected in the last ``\boxed{...}``.

    If there is no box or the box is empty, the whole answer is the action, and it is ill-formed.

    Args:
        name: the template's name.
        layout: text of the message; ``{observation}``, once, stands for the rules and the observation, with
            an empty line between them.
        role: role of the message (``text`` for models without a chat template).
        system: text of a system message before it, if any.

    Raises:
        InputError: the layout has another placeholder, or not one ``{observation}``.
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
        """See PromptTemplate."""
        text = f"{self._before}{game.rules(pid)}\n\n{game.observation(pid)}{self._after}"
        return [*self._head, {"role": self._role, "content": text}]

    def extract(self, text: str) -> tuple[str, bool]:
        """See PromptTemplate."""
        boxed = extract_boxed(text)
        return (boxed, True) if boxed else (text.strip(), False)

    def answer(self, action: str) -> str:
        r"""Return ``\boxed{action}``."""
        return f"\\boxed{{{action}}}"


class FewshotTemplate(PromptTemplate):
    """Example turns before the real one; an answer must be the bare move and nothing else.

    The rules and the examples are the same in every prompt of a seat, so they are one shared prefix.
    """

    strict = True
    name = "fewshot-chat"
    _MOVE = re.compile(rf"\[[^\[\]\n]+\]|[^\s\[\]]+(?: [^\s\[\]]+){{0,{MAX_MOVE_WORDS - 1}}}")

    def messages(self, game: Game, pid: int) -> Messages:
        """See PromptTemplate. Games that do not list legal moves get an instruction instead of examples."""
        now = game.brief(pid)
        head = _fewshot_head(game.env_id, game.num_players, pid, game.rules(pid))
        if len(head) == 1:
            return [{"role": "user", "content": f"{head[0]['content']}\n\n{now}"}]
        return [*head, {"role": "user", "content": now}]

    def extract(self, text: str) -> tuple[str, bool]:
        """Return the stripped answer, well formed if it looks like one move: one line, no prose."""
        action = text.strip()
        return action, self._MOVE.fullmatch(action) is not None

    def answer(self, action: str) -> str:
        """Return the action itself."""
        return action


@lru_cache(maxsize=256)
def _fewshot_head(env_id: str, num_players: int, pid: int, rules: str) -> tuple[Message, ...]:
    """Return everything before the real position: rules and examples, or rules and an instruction.

    All prompts share these messages; do not modify them.
    """
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


@lru_cache(maxsize=1)
def _templates() -> dict[str, PromptTemplate]:
    templates = [
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
    ]
    return {template.name: template for template in templates}


def template_names() -> list[str]:
    """Return the names that ``get_template`` knows."""
    return list(_templates())


def get_template(name: str) -> PromptTemplate:
    """Return the template with this name, or one of your own. Templates hold no state of a game.

    Args:
        name: a name, or the file and the name of a template, or of a subclass of PromptTemplate without
            arguments: ``my_templates.py:terse``.

    Raises:
        InputError: there is no such template.
    """
    if is_class_path(name):
        return CheckedTemplate(own_object(name, PromptTemplate, "env.template"))
    templates = _templates()
    if name not in templates:
        fix = f"Use one of {', '.join(templates)}, or my_file.py:my_template"
        raise InputError("env.template", f"no template {name!r}", fix)
    return templates[name]
