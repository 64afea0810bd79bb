"""The table of calibration: responses in tables to policies whose exact gain is known, one file for each.

A policy is a file; a cell that has been measured is not measured again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import pyspiel

from sparring.commands.answered import AgentQuery
from sparring.commands.best_response import Train
from sparring.commands.exploit import Budget
from sparring.commands.table_card import answer_in_table
from sparring.config import Config
from sparring.config.loading import load_config
from sparring.core import SparringError
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.env_id import env_name
from sparring.core.files import write_file
from sparring.core.text import file_part
from sparring.envs.catalog import longest_move
from sparring.envs.openspiel_game import game_at, load_game
from sparring.evaluation.calibration import CALIBRATION_FILE, Calibration, CalibrationCell
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import states_of
from sparring.evaluation.policy_file import write_policy
from sparring.evaluation.tournament_files import keep_same, read_content, write_content

GAMES = (
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "liars_dice(numdice=1,dice_sides=4)",
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))",
    "dark_hex(board_size=2)",
    "first_sealed_auction(players=2,max_value=6)",
    "battleship(board_width=2,board_height=2,ship_sizes=[1],ship_values=[1],num_shots=2,"
    "allow_repeated_shots=False)",
    "tiny_hanabi",
    "tiny_bridge_2p",
    "clobber(rows=2,columns=4)",
    "y(board_size=3)",
)
"""The games of the table: poker, dice, cards, boards seen and unseen, auctions, partners, three players."""
BUDGET = "budget.json"
"""What the directory's cells were measured with."""
NEAR = 256
"""Iterations of CFR after which a policy is near an equilibrium in a game for two."""
MODEL = BUNDLED_MODEL
"""The language model of the table, untrained and after a short training."""
TRAINING = {
    **{"learning.steps": "6", "collection.games_per_step": "512", "collection.concurrency": "512"},
    **{"model.threads": "1", "model.dtype": "auto"},
    **{"evaluation.every": "0", "evaluation.games": "2", "evaluation.nash_conv": "false"},
    **{"evaluation.opponents": '["random"]', "run.keep_checkpoints": "1"},
}
"""What the short training changes in the preset ``kuhn``."""

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


def tables() -> dict[str, Callable[[str], Policy]]:
    """Return how each policy of the table that is a table itself is made, by its name."""
    return {
        "uniform": uniform,
        "half-uniform": lambda env_id: mixed(uniform(env_id), counterfactual(env_id, NEAR), 0.5),
        "tenth-uniform": lambda env_id: mixed(uniform(env_id), counterfactual(env_id, NEAR), 0.1),
        "cfr-4": lambda env_id: counterfactual(env_id, 4),
        "cfr-32": lambda env_id: counterfactual(env_id, 32),
        f"cfr-{NEAR}": lambda env_id: counterfactual(env_id, NEAR),
    }


LANGUAGE_MODELS = ("untrained", "trained")
LEAST_TOKENS = 12
"""An answer's limit in the short training is as many tokens, or more where moves are longer."""
SHARE_OF_GAMES = 4
"""Language models answer slowly, so they learn from, and are measured by, one game in so many."""
POLICIES = (*tables(), *LANGUAGE_MODELS)
"""The policies of the table, in every game."""


def make_table(
    directory: Path,
    budget: Budget,
    train: Train,
    progress: Progress,
    games: Sequence[str] = GAMES,
    policies: Sequence[str] = POLICIES,
) -> Path:
    """Measure the cells that ``directory`` lacks, write the table of all, and return its file.

    Tables come first, since language models take longer.

    Raises:
        InputError: the directory has cells of another budget.
        SparringError: a training had to stop, or a file cannot be written.
    """
    fix = "Give the same options, or name another directory"
    keep_same(directory / BUDGET, budget, "cells of another budget", fix)
    places = [(env_id, name) for name in policies for env_id in games]
    cells = list[CalibrationCell]()
    for number, (env_id, name) in enumerate(places, start=1):
        stem = file_part(f"{env_name(env_id)}-{name}")
        file = directory / "cells" / f"{stem}.json"
        cell = read_content(file, CalibrationCell, "Delete it: it is measured again")
        if cell is None:
            progress.say(f"{env_id}, {name}: cell {number} of {len(places)}")
            agent = _agent(env_id, name, directory, stem, train)
            cell = _measure(env_id, name, agent, directory / "cards" / stem, _given(name, budget), progress)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_content(file, cell)
        cells.append(cell)
    table = directory / CALIBRATION_FILE
    write_file(table, Calibration(cells).to_bytes())
    return table


def _given(name: str, budget: Budget) -> Budget:
    """Return the budget of a policy."""
    if name not in LANGUAGE_MODELS:
        return budget
    updates, games = (max(2, count // SHARE_OF_GAMES) for count in (budget.updates, budget.games))
    return replace(budget, updates=updates, games=games)


def _agent(env_id: str, name: str, directory: Path, stem: str, train: Train) -> str:
    """Return the name of an agent: the file of a policy, the base model, or a run that is trained now."""
    if name == LANGUAGE_MODELS[0]:
        return MODEL
    if name == LANGUAGE_MODELS[1]:
        run = directory / "runs" / stem
        if not train(training_of(env_id), run):
            raise SparringError(f"{env_id}: the training was stopped; give the command again")
        return str(run)
    path = directory / "policies" / f"{stem}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_policy(path, tables()[name](env_id))
    return str(path)


def training_of(env_id: str) -> Config:
    """Return the configuration of the short training in a game."""
    seats = load_game(env_id).num_players()
    limit = str(max(LEAST_TOKENS, longest_move(env_id, seats)))
    games = {"envs": f"[{{id = {json.dumps(env_id)}, num_players = {seats}, explore = 0.2}}]"}
    limits = dict.fromkeys(("inference.max_tokens", "learning.max_generation_len"), limit)
    return load_config("kuhn", TRAINING | games | limits)


def _measure(
    env_id: str, name: str, agent: str, card: Path, budget: Budget, progress: Progress
) -> CalibrationCell:
    began, game = process_time(), load_game(env_id)
    query = AgentQuery(agent, env_id, num_players=game.num_players())
    found, _ = answer_in_table(query, card, budget, progress)
    if found.exact_gains is None:
        raise SparringError(f"{env_id}, {name}: it has no exact measure")
    kind = game.get_type()
    return CalibrationCell(
        game=env_id,
        perfect_information=kind.information == kind.Information.PERFECT_INFORMATION,
        states=len(states_of(env_id)),
        players=game.num_players(),
        unit=game.max_utility() - game.min_utility(),
        policy=name,
        exact=sum(found.exact_gains),
        found=(found.total.low, found.total.mid, found.total.high),
        settled=found.settled,
        training_games=found.training_games,
        seconds=round(process_time() - began, 1),
    )
