"""How often a model's moves keep the value of the position, in games that minimax solves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparring.core import InputError
from sparring.core.confidence_intervals import Interval, wilson_interval
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import load_game, wording_of
from sparring.envs.scripted import TEXTARENA_TICTACTOE, tic_tac_toe_cell

Turn = Mapping[str, Any]
"""A turn of a rollout's ``extras["turns"]``, of which ``pid``, ``action`` and ``invalid`` are read."""


@dataclass(frozen=True)
class KeptValue:
    """Counts of the positions in which a model moved.

    A move keeps the value if perfect play from there on ends as well as from the position before it: it does
    not give away a win or a draw. An invalid move keeps nothing.

    Attributes:
        positions: moves of the model; a position that several games met counts each time.
        kept: those that kept the value.
        distinct: how many different positions there were.
        tested: positions in which at least one legal move does not keep the value.
        tested_kept: those in which the model's move kept it.
    """

    positions: int
    kept: int
    distinct: int
    tested: int
    tested_kept: int

    @property
    def share(self) -> Interval:
        """The share of positions in which the move keeps the value, with its 95% Wilson interval."""
        return wilson_interval(self.kept, self.positions)

    @property
    def tested_share(self) -> Interval:
        """The same among the positions in which a legal move could lose the value."""
        return wilson_interval(self.tested_kept, self.tested)

    def to_dict(self) -> dict[str, Any]:
        """Return counts and shares as JSON-able values; shares are [low, mid, high]."""
        return {**asdict(self), "share": list(self.share), "tested_share": list(self.tested_share)}


def solved_game(env_id: str) -> str | None:
    """Return the OpenSpiel game whose positions are those of ``env_id``, if minimax may solve it.

    That a search takes too many positions is found only by searching; see :func:`kept_value`.
    """
    if env_id in TEXTARENA_TICTACTOE:
        return "tic_tac_toe"
    if library_of(env_id) != "openspiel":
        return None
    kind = load_game(env_id).get_type()
    if kind.information != kind.Information.PERFECT_INFORMATION:
        return None
    if kind.chance_mode != kind.ChanceMode.DETERMINISTIC:
        return None
    from sparring.envs.solver import check_solvable  # imports OpenSpiel, which other games do not need

    try:
        check_solvable(env_id)
    except InputError:
        return None
    return env_id


def kept_value(env_id: str, games: Iterable[tuple[int, Sequence[Turn]]]) -> KeptValue:
    """Compare the moves of finished games with minimax: of each, the model's seat and the game's turns.

    Raises:
        InputError: the game has no solution, or its search needs more than 200,000 positions.
    """
    from sparring.envs.solver import Minimax, solve

    game = solved_game(env_id)
    solution = None if game is None else solve(game)
    if game is None or not isinstance(solution, Minimax):
        raise InputError("env.id", f"{env_id} is not solved by minimax", "Choose tic_tac_toe")
    kept = tested = tested_kept = positions = 0
    seen = set()
    for seat, turns in games:
        for pid, state, action in _replayed(game, env_id, turns):
            if pid != seat:
                continue
            best = solution.policy(state)
            positions += 1
            seen.add((str(state), state.current_player()))
            kept += action in best
            if len(best) < len(state.legal_actions()):
                tested += 1
                tested_kept += action in best
    return KeptValue(positions, kept, len(seen), tested, tested_kept)


def _replayed(game: str, env_id: str, turns: Sequence[Turn]) -> Iterator[tuple[int, Any, int | None]]:
    """Yield the seat, the position and OpenSpiel's action of each turn; ``None`` for an invalid move."""
    wording = wording_of(game)
    state = load_game(game).new_initial_state()
    for turn in turns:
        if turn["invalid"]:
            yield turn["pid"], state, None
            continue
        if env_id == game:
            action = state.legal_actions()[wording.moves(state).index(turn["action"])]
        else:
            action = tic_tac_toe_cell(turn["action"])
        yield turn["pid"], state, action
        state.apply_action(action)
