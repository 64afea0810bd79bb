"""Tables and readable games as Rich's renderables. Text of models is printed without control characters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from sparring.core.text import printable
from sparring.view.cards import Card, CardTurn, tokens_text
from sparring.view.charts import COLOURS
from sparring.view.tables import Cell, Table

TONES: Mapping[str, str] = {"good": "green", "warn": "yellow", "bad": "bold red"}
MUTED = "dim"
GLANCE_LINES = 12
"""The number of lines of an observation that are shown: the last ones, which hold the position."""
MAX_TEXT = 4000
"""Longer texts are cut to this many characters."""
INDENT, GAP = 2, 2
"""Spaces before the rows of groups with titles, and between columns."""


def line(text: str, style: str = "") -> Text:
    """Return text in one line, without anything that acts on a terminal."""
    return Text(printable(text, keep=""), style)


def table_text(table: Table) -> RenderableType:
    """Return a table; bars are left out, and the columns of all groups are aligned."""
    return _TableText(table)


@dataclass(frozen=True)
class _TableText:
    """A table whose columns are as wide as their cells, or as fits where it is shown."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        places = [place for place in range(len(table.heads)) if not _is_of_bars(table, place)]
        heads = [line(table.heads[place], MUTED) for place in places]
        groups = [
            (title, note, [[_cell_text(row[place]) for place in places] for row in rows])
            for title, note, rows in table.groups
        ]
        indent = INDENT if any(title for title, _, _ in groups) else 0
        columns = zip(heads, *(row for _, _, rows in groups for row in rows), strict=True)
        widths = [min(options.max_width, max(cell.cell_len for cell in column)) for column in columns]
        room = max(len(widths), options.max_width - indent - GAP * (len(widths) - 1))
        while sum(widths) > room:
            widths[widths.index(max(widths))] -= 1
        if any(table.heads):
            yield Padding(_rows([heads], widths), (0, 0, 0, indent))
        for title, note, rows in groups:
            if title:
                yield Text.assemble(line(title, "bold"), line(f" {note}" if note else "", MUTED))
            yield Padding(_rows(rows, widths), (0, 0, 0, indent))
        yield from (line(note, MUTED) for note in table.notes)


def _rows(rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> RichTable:
    drawn = RichTable.grid(padding=(0, GAP, 0, 0))
    for width in widths:
        drawn.add_column(width=width, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def card_text(card: Card | None) -> RenderableType:
    """Return a game, a proof or a conversation turn by turn, followed by its sub-episodes."""
    return line("No game has been logged yet.", MUTED) if card is None else Group(*_card_lines(card))


def _card_lines(card: Card) -> Iterator[RenderableType]:
    rewards = "   ".join(f"{name} {reward:+.3g}" for name, reward in card.rewards.items())
    players = ", ".join(f"{seat} {who}" for seat, who in card.players.items())
    head = ": ".join(filter(None, (card.where, players or card.title)))
    yield Text.assemble(line(head, "bold"), "   ", line(rewards, "bold blue"))
    yield Text()
    names = list(dict.fromkeys(turn.speaker for turn in card.turns if turn.speaker))
    for turn in card.turns:
        colour = COLOURS[names.index(turn.speaker) % len(COLOURS)] if turn.speaker else MUTED
        yield from _turn_lines(turn, colour)
    for text, style in ((card.ending, "italic"), (card.error, TONES["bad"])):
        if text:
            yield Text(_plain(text), style)
            yield Text()
    for part in card.parts:
        yield Padding(Group(*_card_lines(part)), (0, 0, 0, 4))
    if card.left_out:
        yield line(f"    and {card.left_out} more", MUTED)


def _turn_lines(turn: CardTurn, colour: str) -> Iterator[RenderableType]:
    who = f"{turn.speaker}, {turn.player}" if turn.player else turn.speaker or "environment"
    head = Text.assemble(("▌ ", colour), line(f"{turn.number or ''}  {who}".strip(), f"bold {colour}"))
    if turn.to:
        head.append_text(line(f" to {turn.to}", MUTED))
    if turn.action is not None:
        head.append_text(line(f"  plays {turn.action.strip() or 'nothing'}", "bold"))
    for mark, tone in turn.marks:
        if tone != "good":
            head.append_text(line(f"  {mark}", TONES.get(tone, "bold")))
    if turn.step is not None:
        head.append_text(line(f"   {tokens_text(turn.step)}", MUTED))
    yield head
    heard = _plain(turn.heard).splitlines()
    if len(heard) > GLANCE_LINES:
        heard = ["…", *heard[-GLANCE_LINES:]]
    said = "\n".join(f"{channel}: {text}" for channel, text in turn.parts.items()) or turn.text
    thought = _plain(f"thinks: {turn.reasoning.strip()}") if turn.reasoning.strip() else ""
    texts = [
        ("\n".join(heard), MUTED),
        (thought, MUTED),
        ("" if turn.text == turn.action else _plain(said), ""),
    ]
    for text, style in texts:
        if text:
            yield Padding(Text(text, style), (0, 0, 0, 2))
    yield Text()


def _plain(text: str) -> str:
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"
    return printable(text.expandtabs(4), keep="\n")


def _is_of_bars(table: Table, place: int) -> bool:
    cells = [row[place] for _, _, rows in table.groups for row in rows]
    return any(isinstance(cell, Cell) and cell.bars for cell in cells)


def _cell_text(cell: Cell | str | Any) -> Text:
    if isinstance(cell, str):
        return line(cell)
    pieces = [line(cell.text, "bold" if cell.strong else ""), line(cell.badge, TONES.get(cell.tone, ""))]
    pieces.append(line(cell.note, MUTED))
    return Text(" ").join(piece for piece in pieces if piece.plain)
