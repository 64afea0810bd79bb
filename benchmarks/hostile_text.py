"""Send hostile text for some minutes through everything that reads a model's text, and count its effects.

Prompts: conversations of hostile messages through the tokenizers in tests/tokenizer_families.py and the
bundled model's, if it is installed. A finding is a prompt whose control tokens are not those of the same
conversation with harmless contents, or an ordinary prompt whose ids are not the tokenizer's own.
Play: a game and a model whose texts are hostile. Errors: error lines of the command line. Watch: its panels,
tables, charts and games. For these three, a finding is a character that acts on a terminal.
Report: a page of a run in which every name and word is hostile. A finding is an element, attribute or script
that comes from the text.
Server: chat requests over HTTP. A finding is a special token in the prompt, or a response with status 500.
Every exception counts as a crash.

Command:  python benchmarks/hostile_text.py [--minutes 60] [--seed 0]
Needs:    this package with its extras ``serve`` and ``watch``, and tests/. Exits with 1 on any finding.
"""

import argparse
import asyncio
import io
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from rich.console import Console
from textual.geometry import Size
from transformers import AutoTokenizer

from hostile_text import ACTS_ON_A_TERMINAL, HOSTILE_PIECES
from live_server import TOKEN, Live, engine_over, running
from measuring import print_table
from sparring.cli import main as command_line
from sparring.commands.persons_games import Dealt, ModelPlayer
from sparring.commands.play import play_game
from sparring.core import CallSettings, InputError, Messages, MockInferenceClient
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.chat_tokens import ChatTokens
from sparring.core.files import cache_directory
from sparring.engine.server import create_app
from sparring.envs.game import Game
from sparring.envs.templates import get_template
from sparring.view.cards import card_of
from sparring.view.charts import Chart, Line
from sparring.view.watch.header import header
from sparring.view.watch.panels import population_panel, ratings_panel
from sparring.view.watch.plot import draw_chart
from sparring.view.watch.text import card_text
from sparring.view.watch.widgets import OVERVIEW
from test_core_text import hostile_game, hostile_view
from test_view_report_hostile import hostile_page
from tiny_models import tiny_policy
from tokenizer_families import FAMILIES, as_usual, control_ids, tokenizer_of
from watched_runs import text_of

ORDINARY = (
    "I win.",
    " ",
    "\n",
    "[4]",
    "user",
    "assistant",
    "Winner: Neg",
    "a < b",
    "x",
    "The motion is right",
)
AT_ONCE = {"prompts": 200, "play": 20, "errors": 200, "report": 20, "watch": 200, "server": 3}
"""Tries per check in a round. All checks take about equally long, except the prompts."""
TAGS = ("think", "tool_call", "tool_response")
TEXTS, TOKENS, TERMINAL, HTML, IDS, CRASHES = (
    "texts",
    "special tokens from contents",
    "characters that act on a terminal",
    "elements from text",
    "ordinary prompts with other ids",
    "crashes",
)
COLUMNS = (TEXTS, TOKENS, TERMINAL, HTML, IDS, CRASHES)


def hostile(rng: random.Random, *, pieces: int = 8) -> str:
    """Return hostile pieces, whole and in parts, between ordinary and random text, cut between characters."""
    parts = []
    for _ in range(rng.randrange(pieces)):
        piece = rng.choice(HOSTILE_PIECES)
        kind = rng.randrange(10)
        if kind < 5:
            parts.append(piece)
        elif kind < 7:
            cut = rng.randrange(len(piece) + 1)
            parts += [piece[:cut], rng.choice(["", " ", rng.choice(HOSTILE_PIECES)]), piece[cut:]]
        elif kind < 9:
            parts.append(rng.choice(ORDINARY))
        else:
            parts.append("".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(6))))
    return "".join(parts).encode("utf-8", "replace").decode()


class Prompts:
    """Send conversations through the tokenizers of all families."""

    def __init__(self) -> None:
        tokenizers = {family: tokenizer_of(family) for family in FAMILIES}
        bundled = cache_directory() / BUNDLED_MODEL
        if bundled.is_dir():
            tokenizers[BUNDLED_MODEL] = AutoTokenizer.from_pretrained(bundled)
        self.tokens = {family: ChatTokens(one, family) for family, one in tokenizers.items()}
        self.control = {family: control_ids(one) for family, one in tokenizers.items()}

    def check(self, rng: random.Random, counts: Counter[str]) -> None:
        """Send one conversation, hostile or ordinary, through one family's tokenizer."""
        family = rng.choice(list(self.tokens))
        tokens, control = self.tokens[family], self.control[family]
        is_ordinary = rng.random() < 0.1
        said = self._conversation(rng, family, is_ordinary=is_ordinary)
        counts[TEXTS] += len(said)
        ids = tokens.render(said)
        if is_ordinary:
            counts[IDS] += ids != as_usual(tokens.tokenizer, said)
            return
        harmless = [{**message, "content": "x"} for message in said]
        found = [number for number in ids if number in control]
        counts[TOKENS] += found != [one for one in as_usual(tokens.tokenizer, harmless) if one in control]
        plain = said[0]["content"]
        before = sum(one in control for one in tokens.render([{"role": "text", "content": "x"}]))
        after = sum(one in control for one in tokens.render([{"role": "text", "content": plain}]))
        counts[TOKENS] += abs(after - before) + sum(one in control for one in tokens.encode(plain))

    def _conversation(self, rng: random.Random, family: str, *, is_ordinary: bool) -> Messages:
        def text() -> str:
            return "".join(rng.choices(ORDINARY, k=rng.randrange(6))) if is_ordinary else hostile(rng)

        turns = rng.choice([1, 3, 5])
        said: Messages = [
            {"role": "assistant" if turn % 2 else "user", "content": text()} for turn in range(turns)
        ]
        for message in said[1::2]:  # an answer's own tags are left to the template
            for tag in TAGS:
                message["content"] = message["content"].replace(f"<{tag}>", "").replace(f"</{tag}>", "")
            if any(f"{end}{tag}>" in message["content"] for tag in TAGS for end in "</"):
                message["content"] = "x"
        refused = "System role not supported" in str(self.tokens[family].tokenizer.chat_template)
        with_rules = not refused and rng.random() < 0.5
        return [{"role": "system", "content": text()}, *said] if with_rules else said


class HostileGame(Game):
    """A game in which every word is hostile. It has two moves: first the person's, then the model's."""

    def __init__(self, text: str) -> None:
        super().__init__("hostile", 2)
        self.text = text
        self.moves = 0

    @property
    def current_pid(self) -> int:
        """The person has seat 0."""
        return self.moves

    def rules(self, pid: int) -> str:
        """Hostile."""
        return self.text

    def observation(self, pid: int) -> str:
        """Hostile."""
        return self.text

    def legal_actions(self) -> list[str] | None:
        """Not told."""
        return None

    def apply(self, action: str) -> bool:
        """Take any move."""
        self.moves += 1
        return True

    def _finished(self) -> bool:
        return self.moves > 1

    def _own_rewards(self) -> dict[int, object]:
        return {0: 0.0, 1: 0.0}


def check_play(rng: random.Random, counts: Counter[str]) -> None:
    """Play a game between a person and a model."""
    text, answer = hostile(rng), hostile(rng)
    counts[TEXTS] += 2
    shown = Console(file=io.StringIO(), width=80)
    stdin, sys.stdin = sys.stdin, io.StringIO("x\n")
    try:
        client = MockInferenceClient([answer])
        with asyncio.Runner() as runner:
            policies, calls = ["default", "default"], CallSettings(max_tokens=8)
            model = ModelPlayer(client, policies, get_template("qwen3-zs"), calls)
            play_game(Dealt(HostileGame(text), 0, model, 1), runner, shown)
    finally:
        sys.stdin = stdin
    counts[TERMINAL] += len(ACTS_ON_A_TERMINAL.findall(shown.file.getvalue()))


def check_error(rng: random.Random, counts: Counter[str]) -> None:
    """Print an error line of the command line."""
    text = hostile(rng)
    counts[TEXTS] += 1
    stderr, sys.stderr = sys.stderr, io.StringIO()
    app, command_line.app = command_line.app, _raises(InputError("judge", text, text))
    try:
        command_line.main(["train"])
        line = sys.stderr.getvalue()
    finally:
        sys.stderr, command_line.app = stderr, app
    counts[TERMINAL] += len(ACTS_ON_A_TERMINAL.findall(line)) + (line.count("\n") != 1)


def _raises(error: Exception) -> Callable[..., None]:
    def app(*arguments: object, **options: object) -> None:
        raise error

    return app


def check_report(rng: random.Random, counts: Counter[str]) -> None:
    """Write a report page."""
    text = hostile(rng, pieces=5)
    counts[TEXTS] += 1
    page = hostile_page(text)
    tags = Counter(tag for tag, _ in page.elements)
    brought = tags["script"] != 4 or tags["style"] != 1 or tags["img"] or tags["iframe"] or page.open
    counts[HTML] += bool(brought) + sum(name.startswith("on") for _, one in page.elements for name in one)


def check_watch(rng: random.Random, counts: Counter[str]) -> None:
    """Render everything that a terminal shows of a run."""
    text, room = hostile(rng, pieces=4), Size(rng.randrange(20, 140), rng.randrange(5, 50))
    counts[TEXTS] += 1
    view = hostile_view(text)
    game, width = hostile_game(text), room.width
    panels = (*OVERVIEW.values(), ratings_panel, population_panel)
    drawn = [text_of(panel(view), width) for panel in panels]
    drawn += [text_of(card_text(card_of(one)), width) for one in (game, *game.children)]
    chart = Chart(text, [Line(text, [1.0, 2.0], [0.0, 1.0])])
    drawn += [header(view, 0.0, width).plain, draw_chart(chart, "update", width, room.height).plain]
    counts[TERMINAL] += sum(len(ACTS_ON_A_TERMINAL.findall(shown)) for shown in drawn)


class Server:
    """Send chat requests as a client."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.special = set(live.engine.model.tokenizer.all_special_ids)

    def check(self, rng: random.Random, counts: Counter[str]) -> None:
        """Send one request."""
        text = hostile(rng, pieces=4)
        role, allowed = rng.choice([("user", 3), ("system", 3), ("text", 0)])
        counts[TEXTS] += 1
        messages = [{"role": role, "content": text or "x"}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": True}
        answer = self.live.post("/v1/chat/completions", json=body)
        if answer.status_code == 200:
            ids = answer.json()["prompt_token_ids"]
            counts[TOKENS] += sum(one in self.special for one in ids) != allowed
        else:
            counts[CRASHES] += answer.status_code != 400


def fuzz(checks: dict[str, Callable[[random.Random, Counter[str]], None]], minutes: float, seed: int) -> bool:
    """Run the checks in turn until the time is up; print the counts; return whether nothing was found."""
    rng = random.Random(seed)
    counts: dict[str, Counter[str]] = {name: Counter() for name in checks}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for name, check in checks.items():
            for _ in range(AT_ONCE[name]):
                state = rng.getstate()
                before = Counter(counts[name])
                try:
                    check(rng, counts[name])
                except Exception:  # noqa: BLE001 - counted, and shown
                    counts[name][CRASHES] += 1
                    traceback.print_exc()
                if any(counts[name][column] != before[column] for column in COLUMNS[1:]):
                    replay = random.Random()
                    replay.setstate(state)
                    print(f"{name}: {hostile(replay)!a} or what follows it", file=sys.stderr)
    rows = [[name, *(f"{counts[name][column]:,}" for column in COLUMNS)] for name in checks]
    total = [f"{sum(one[column] for one in counts.values()):,}" for column in COLUMNS]
    print_table(["through", *COLUMNS], [*rows, ["all", *total]])
    return not any(one[column] for one in counts.values() for column in COLUMNS[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    engine = engine_over(tiny_policy())
    with running(create_app(engine, token=TOKEN), engine) as live:
        checks = {
            "prompts": Prompts().check,
            "play": check_play,
            "errors": check_error,
            "report": check_report,
            "watch": check_watch,
            "server": Server(live).check,
        }
        clean = fuzz(checks, arguments.minutes, arguments.seed)
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
