"""What a dry run does beyond the checks of a start: a rehearsal, and a look into the model's files."""

from sparring.config import Config
from sparring.config.play import Games
from sparring.learn.model_files import BUNDLED_MODEL, model_directory
from sparring.learn.model_fit import check_model_fits
from sparring.run.evaluation_opponents import evaluation_opponents
from sparring.run.rehearsal import rehearse


def dry_run_of(config: Config) -> tuple[list[str], list[str]]:
    """Return one line for each thing that went well, and notes.

    Raises:
        InputError: a run would fail.
    """
    rehearsal = rehearse(config)
    found, notes = rehearsal.found, [*rehearsal.notes, *_note_on_evaluations(config)]
    name, settings = config.model.name, config.inference
    directory = model_directory(name)
    if directory is None and name == BUNDLED_MODEL:
        return found, notes
    if directory is None:
        return found, [*notes, f"the tokenizer and the layers of {name} were not checked: it is not here yet"]
    room = [settings.max_context] if settings.max_context is not None else []
    room += [settings.max_cached_tokens] if settings.engine == "embedded" else []
    limit = min(room, default=10**9)
    notes += check_model_fits(name, directory, config.lora.target_modules, rehearsal.calls, limit)
    return [*found, f"tokenizer, layers and context of {name}"], notes


def _note_on_evaluations(config: Config) -> list[str]:
    """Return a note if evaluations play more games than training, as in a short run that tries something."""
    if not isinstance(config.play, Games):
        return []
    evaluation, steps = config.evaluation, config.learning.steps
    during = (steps - 1) // evaluation.every if evaluation.every else 0
    evaluated = 0
    for game in config.evaluated:
        matches = len(evaluation_opponents(config, game)) if game.num_players > 1 else 1
        whole, part = game.games or evaluation.games, game.games or evaluation.games_during
        evaluated += matches * (2 * whole + during * part)
    trained = steps * config.collection.games_per_step
    if evaluated <= trained:
        return []
    return [
        f"evaluations play {evaluated} games, training {trained}; for a short run, lower evaluation.games "
        "or set evaluation.opponents = []"
    ]
