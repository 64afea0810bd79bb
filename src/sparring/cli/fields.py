"""Fields of the configuration on the command line: ``--learning.steps 20``."""

from sparring.core import InputError

_MEANT = {
    "algorithm": "learning.algorithm.type",
    "credit": "credit.type",
    "env": "envs.0.id",
    "envs": "envs.0.id",
    "lr": "learning.learning_rate",
    "model": "model.name",
    "program": "program.type",
}
"""The fields that options mean which have the name of no field, or of a section."""


def split_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Separate plain words from ``--a.b value`` and ``--a.b=value``.

    Raises:
        InputError: an option has no dot, so it is not a field of the configuration, or has no value.
    """
    words: list[str] = []
    overrides: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-"):
            words.append(argument)
            continue
        option, equals, value = argument.partition("=")
        if not option.startswith("--") or "." not in option:
            raise InputError(option, "there is no such option", _meant(option))
        if not equals:
            value = next(remaining, "--")
        if value.startswith("--"):
            raise InputError(option, "has no value", f"Give one: {option} VALUE")
        overrides[option.removeprefix("--")] = value
    return words, overrides


def _meant(option: str) -> str:
    """Suggest the field that an option without a dot may mean."""
    from sparring.config.problems import namesakes

    name = option.lstrip("-").replace("-", "_")
    meant = [_MEANT[name]] if name in _MEANT else namesakes(name)
    if len(meant) != 1:
        return "See the --help of the command"
    if meant == [name]:
        return f"It is a section: name a field of it, --{name}.FIELD"
    return f"Did you mean --{meant[0]}?"


def add_options(
    overrides: dict[str, str],
    *,
    seed: int | None = None,
    runtime: str | None = None,
    address: str | None = None,
) -> None:
    """Add the options that are short names of fields.

    Raises:
        InputError: such a field is given under its long name too.
    """
    options = {"run.runtime": ("--runtime", runtime), "ray.address": ("--address", address)}
    for field, (option, value) in options.items():
        if value is None:
            continue
        if field in overrides:
            raise InputError(option, f"is --{field}, which is given too", "Leave one of the two out")
        overrides[field] = value
    if seed is not None:
        overrides["seed"] = str(seed)
