"""The table of ``sparring psro``, printed after every iteration."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparring.commands.psro_files import Iteration, PsroState
from sparring.core.text import one_line
from sparring.evaluation.tables import NOTHING, UNPLAYABLE, nash_conv_text

HEAD = ("Member", "Updates", "Games", "Weight now", "Gain", "NashConv")
GAIN = (
    "Gain: what the member earns more than the mixture that it was trained against, over both seats, with a "
    "95% interval"
)
BOUND = "its expectation is a lower bound of that mixture's NashConv."
NO_BOUND = (
    "rewards do not sum to zero here, so what its opponents earn counts against it, and this is no bound of "
    "NashConv."
)
NASH_CONV_NOTE = "NashConv: of the mixture with it."


def psro_table(state: PsroState) -> Group:
    """Return a row for each member: its weight in the last mixture, and what its iteration found."""
    table = Table(title=Text(one_line(f"{state.env_id}, {state.solver}")), title_justify="left")
    for name in HEAD:
        table.add_column(name, justify="left" if name == "Member" else "right")
    for one in state.iterations:
        table.add_row(*row_of(one, state))
    unplayable = [Text(UNPLAYABLE)] if any(not one.is_playable for one in state.iterations) else []
    return Group(table, Text(f"{gain_note(state)} {NASH_CONV_NOTE}"), *unplayable)


def row_of(one: Iteration, state: PsroState) -> tuple[str, ...]:
    """Return an iteration's cells below ``HEAD``."""
    return (
        one.member,
        str(one.updates) if one.updates else NOTHING,
        f"{one.training_games:,}" if one.training_games else NOTHING,
        f"{state.iterations[-1].mixture[one.member]:.1%}",
        gain_text(one),
        nash_conv_text(one.nash_conv, one.is_playable),
    )


def gain_note(state: PsroState) -> str:
    """Return what the gain means in this game."""
    return f"{GAIN}; {BOUND if state.matrix.is_zero_sum else NO_BOUND}"


def gain_text(one: Iteration) -> str:
    """Return the gain of a best response with its interval."""
    if one.gain is None:
        return NOTHING
    low, mid, high = one.gain
    return f"{mid:+.3f} ({low:+.3f} to {high:+.3f})"
