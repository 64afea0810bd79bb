"""What a dry run does beyond the checks of a start: a rehearsal, and a look into the model's files."""

from selfplay.config import Config
from selfplay.learning.model_files import BUNDLED_MODEL
from selfplay.learning.model_fit import check_model_fits, model_directory
from selfplay.training.rehearsal import rehearse


def dry_run_of(config: Config) -> tuple[list[str], list[str]]:
    """Return one line for each thing that went well, and notes.

    Raises:
        InputError: a run would fail.
    """
    rehearsal = rehearse(config)
    found, notes = rehearsal.found, rehearsal.notes
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
