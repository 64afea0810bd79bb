"""The table of calibration: best responses to policies whose exact gain is known, one file for each.

A policy is a file; a cell that has been measured is not measured again.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from time import process_time

import msgspec
import pyspiel

from sparring.collection.serialization import UNREADABLE
from sparring.commands.best_response import Train
from sparring.commands.exploit import PROBE, Budget, exploit
from sparring.core import InputError, SparringError
from sparring.core.env_id import env_name
from sparring.core.files import write_file
from sparring.core.text import file_part
from sparring.envs.openspiel_game import game_at, load_game
from sparring.evaluation.calibration import CALIBRATION_FILE, Calibration, CalibrationCell
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import states_of
from sparring.evaluation.policy_file import write_policy

GAMES = (
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "liars_dice(dice_sides=3)",
    "liars_dice(dice_sides=4)",
    "turn_based_simultaneous_game(game=goofspiel(num_cards=3,imp_info=True))",
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))",
    "nim(pile_sizes=1;3)",
    "nim(pile_sizes=1;3;5)",
    "first_sealed_auction(max_value=6)",
    "dark_hex(board_size=2)",
    "tiny_hanabi",
)
"""The games of the table."""
_ITERATIONS = {"cfr-1": 1, "cfr-4": 4, "cfr-16": 16, "cfr-64": 64, "cfr-256": 256}

Policy = dict[str, dict[int, float]]
"""The probability of each legal action by information state."""


def uniform(env_id: str) -> Policy:
    """Return the policy that plays all legal actions alike."""
    return {one.info_state: dict.fromkeys(one.actions, 1 / len(one.actions)) for one in states_of(env_id)}


def counterfactual(env_id: str, iterations: int) -> Policy:
    """Return the average policy after so many iterations of CFR: the more, the nearer to an equilibrium.

    (Zinkevich et al., Regret Minimization in Games with Incomplete Information, 2007.) With more than two
    players it need not come near one.
    """
    solver = pyspiel.CFRSolver(load_game(env_id))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    average = solver.average_policy()
    return {
        one.info_state: dict(average.action_probabilities(game_at(env_id, one.history).state))
        for one in states_of(env_id)
    }


def mixed(one: Policy, other: Policy, share: float) -> Policy:
    """Return the policy that plays ``one`` in this share of its decisions, and ``other`` in the rest."""
    return {
        state: {
            action: share * one[state][action] + (1 - share) * chance for action, chance in chances.items()
        }
        for state, chances in other.items()
    }


def _half(env_id: str) -> Policy:
    return mixed(uniform(env_id), counterfactual(env_id, 256), 0.5)


def _tenth(env_id: str) -> Policy:
    return mixed(uniform(env_id), counterfactual(env_id, 256), 0.1)


def policies() -> dict[str, Callable[[str], Policy]]:
    """Return how each policy of the table is made, by its name."""
    solved = {
        name: lambda env_id, iterations=iterations: counterfactual(env_id, iterations)
        for name, iterations in _ITERATIONS.items()
    }
    return {"uniform": uniform, "half-uniform": _half, "tenth-uniform": _tenth, **solved}


def make_table(
    directory: Path,
    budget: Budget,
    start: str,
    train: Train,
    progress: Progress,
    games: tuple[str, ...] = GAMES,
) -> Path:
    """Measure the cells that ``directory`` lacks, write the table of all, and return its file.

    Raises:
        SparringError: a training had to stop, or a file cannot be written.
    """
    cells = list[CalibrationCell]()
    for env_id in games:
        for name, make in policies().items():
            stem = file_part(f"{env_name(env_id)}-{name}")
            file = directory / "cells" / f"{stem}.json"
            cell = _read(file)
            if cell is None:
                progress.say(f"{env_id}, {name}: cell {len(cells) + 1} of {len(games) * len(policies())}")
                path = directory / "policies" / f"{stem}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_file():
                    write_policy(path, make(env_id))
                cell = _measure(env_id, name, path, directory / "runs" / stem, budget, start, train, progress)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_file(file, msgspec.json.encode(cell))
                shutil.rmtree(directory / "runs" / stem)
            cells.append(cell)
    table = directory / CALIBRATION_FILE
    write_file(table, Calibration(PROBE, cells).to_bytes())
    return table


def _measure(
    env_id: str,
    name: str,
    path: Path,
    run: Path,
    budget: Budget,
    start: str,
    train: Train,
    progress: Progress,
) -> CalibrationCell:
    began = process_time()
    found = exploit(str(path), env_id, run, budget, start=start, train=train, progress=progress)
    if found is None or found.exact is None:
        raise SparringError(f"{env_id}, {name}: it was not measured; give the command again")
    game = load_game(env_id)
    kind = game.get_type()
    return CalibrationCell(
        game=env_id,
        perfect_information=kind.information == kind.Information.PERFECT_INFORMATION,
        states=len(states_of(env_id)),
        players=game.num_players(),
        unit=game.max_utility() - game.min_utility(),
        policy=name,
        exact=found.exact.nash_conv,
        found=(found.total.low, found.total.mid, found.total.high),
        updates=found.updates,
        settled=found.settled,
        training_games=found.training_games,
        seconds=round(process_time() - began, 1),
    )


def _read(file: Path) -> CalibrationCell | None:
    """Return a cell that was measured; ``None`` if it was not. Raises InputError: it is damaged."""
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=CalibrationCell)
    except UNREADABLE as error:
        raise InputError(str(file), "is no cell of a table", "Delete it: it is measured again") from error
