"""What a new fine-tuning run takes from an earlier one: its parameters, and maybe models to test again."""

from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.config.finetune import FinetuneSettings
from sparring.config.loading import load_config
from sparring.core import InputError
from sparring.core.shell_command import shell_command
from sparring.finetune.run_files import CheckPointNotFoundError, RunFiles, read_state
from sparring.run.run_names import find_run

RUN = "finetune.base_run.run_id"
TESTS = {"rl": ["num_test_iterations"], "text_rl": ["test_scheme", "test_on_whole_dataset"]}
"""The parameters that a run does not take from another."""


def with_base_run(config: Config) -> Config:
    """Return the configuration with the parameters of its base run, or unchanged if it names none.

    What decides results is the base run's: the seed, the program, the roles and, of ``[finetune]``,
    everything but the provider and ``TESTS``. Tests that a local provider plays again need its model too.

    Raises:
        InputError: there is no such run, or it does not fit.
    """
    given = config.finetune
    if given is None:
        return config
    kind, name = given.base_run.base_run_type, given.base_run.run_id
    if kind == "none" and name is None:
        return config
    if kind == "none":
        raise InputError(
            "finetune.base_run.base_run_type",
            "is none, although a base run is named",
            'Set it to "parameters" or "rerun_tests"',
        )
    if name is None:
        raise InputError(RUN, "is missing", "Name the earlier run")
    path = find_run(name, RUN).absolute()
    base = load_config(str(path / "config.toml"), {})
    if base.finetune is None:
        raise InputError(
            RUN, f"{path} was not trained through fine-tuning jobs", "Name a run of sparring finetune"
        )
    if kind == "rerun_tests":
        _check_tests(path, given, base.finetune.rl.num_iterations)
    base_run = given.base_run.model_copy(update={"run_id": str(path)})
    kept: dict[str, Any] = {"provider": given.provider, "base_run": base_run}
    for section, fields in TESTS.items():
        new = {field: getattr(getattr(given, section), field) for field in fields}
        kept[section] = getattr(base.finetune, section).model_copy(update=new)
    taken = base.finetune.model_copy(update=kept)
    kept_of_base: dict[str, Any] = {"seed": base.seed, "program": base.program, "roles": base.roles}
    if kind == "rerun_tests" and given.provider.type == "local":
        kept_of_base["model"] = base.model
    return config.model_copy(update={**kept_of_base, "finetune": taken})


def _check_tests(path: Path, given: FinetuneSettings, iterations: int) -> None:
    """Check that the tests of a run can be played again.

    Raises:
        InputError: they cannot.
    """
    if given.text_rl.test_scheme == "none":
        raise InputError(
            "finetune.text_rl.test_scheme", "is none, so no test is played again", 'Set it to "all"'
        )
    files = RunFiles(path)
    try:
        state = read_state(files.state)
    except CheckPointNotFoundError:
        raise _not_done(path, "has not begun") from None
    if state.train_loop_stage != "done":
        raise _not_done(path, f"is in iteration {state.iteration + 1} of {iterations}")
    for iteration in range(iterations):
        if not files.state_of(iteration).exists():
            raise InputError(
                RUN, f"{path} has no state of iteration {iteration}", f"Restore {files.state_of(iteration)}"
            )
    if given.provider.type == "local" and not files.server.is_dir():
        problem = f"{path} has no directory {files.server.name}: its jobs were made elsewhere"
        raise InputError(RUN, problem, "Use the provider that it had")


def _not_done(path: Path, problem: str) -> InputError:
    return InputError(RUN, f"{path} {problem}", f"Finish it: {shell_command('finetune', '--resume', path)}")
