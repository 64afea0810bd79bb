"""What commands share: options, their words, and checks before a model is loaded."""

import typer

from sparring.core import InputError

SEED = typer.Option(min=0, help="Root of all randomness.")
TEMPERATURE = typer.Option(min=0, help="0 takes the most likely token.")
TEMPLATE = typer.Option(help="How positions become prompts; by default the run's own.")
RUNTIME = typer.Option(help="local (one process) or ray (a cluster).")
ADDRESS = typer.Option(help="Address of a Ray cluster; by default one is started on this machine.")
ENV_HELP = "The environment to play (see: sparring envs); by default the run's first."
MODEL_HELP = "A run's name or path, a run's checkpoint such as RUN@120 or RUN@best, an adapter, or a model."
GAME_OPTIONS = {"env.id": "--env", "env.num_players": "--players", "env.template": "--template"}
"""The options that say how a game is played, by the fields of the game's settings."""
PLAYER_HELP = f"{MODEL_HELP[:-1]}; or a mixture (see: sparring psro)."


def first_environment(run: str) -> str | None:
    """Return the first environment of a run or mixture; ``None`` if it plays a program.

    Raises:
        InputError: it is neither, or nothing.
    """
    from sparring.commands.model_source import check_base_model
    from sparring.config.loading import load_config
    from sparring.run.run_names import find_mixture, find_run, is_run_or_adapter, split_checkpoint

    mixture = find_mixture(run)
    if mixture is not None:
        from sparring.commands.mixture_file import read_mixture

        envs = read_mixture(mixture)[0].envs
        if not envs:
            raise InputError("--env", f"is missing, and {run} names none", "Name an environment")
        return envs[0].id
    try:
        directory = find_run(split_checkpoint(run)[0])
    except InputError as error:
        if not is_run_or_adapter(run):
            check_base_model(run)  # a name that means nothing is the greater problem
        raise InputError("--env", f"is missing, and {run} is not a run", "Name an environment") from error
    config = load_config(str(directory / "config.toml"), {})
    return config.envs[0].id if config.envs else None


def check_no_role(given: bool, env: str) -> None:
    """Check that no role is given where a game is played.

    Raises:
        InputError: one is.
    """
    if given:
        raise InputError("--role", f"is for programs, but {env} is a game", "Leave it out")
