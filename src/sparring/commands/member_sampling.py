"""How a member draws, as users write it behind its name: ``base,temperature=0.6,top_p=0.95``.

``sampling=model`` stands for what the model's own ``generation_config.json`` says.
"""

import re

from pydantic import Field, ValidationError

from sparring.config.model import SamplingSettings
from sparring.config.problems import first_problem
from sparring.core import CallSettings, InputError
from sparring.core.types import UNSET
from sparring.learn.own_sampling import drawing
from sparring.run.run_names import paths_of, split_checkpoint

OWN, PLAIN = "model", "plain"
"""What ``sampling`` may be: as the model asks for, or from its whole distribution."""
_WRITTEN = re.compile(r"(?P<name>.*?)(?P<settings>(?:,\w+=[^,=]*)*)", re.DOTALL)


class MemberSampling(SamplingSettings):
    """What may stand behind a member's name, ``sampling=model`` as ``from_model``."""

    temperature: float | None = Field(default=None, ge=0, le=100)


def split_sampling(written: str) -> tuple[str, str]:
    """Return a member's name, and what is written behind it with its comma; nothing behind what exists."""
    run, checkpoint = split_checkpoint(written)
    exists = "," not in checkpoint and any(path.exists() for path in paths_of(run))
    found = _WRITTEN.fullmatch(written)
    if found is None or exists:
        return written, ""
    return found["name"], found["settings"]


def member_calls(settings: str, model: str | None, field: str) -> CallSettings:
    """Return how a member draws by what is written behind its name.

    Args:
        settings: as from :func:`split_sampling`.
        model: the model whose own settings ``sampling=model`` means; ``None`` if they are not known here.
        field: what an error is about.

    Raises:
        InputError: there is no such setting, its value is impossible, or the model does not have it.
    """
    if not settings:
        return UNSET
    values = dict(one.split("=") for one in settings[1:].split(","))
    source = values.pop("sampling", PLAIN)
    known = [name for name in MemberSampling.model_fields if name != "from_model"]
    if unknown := values.keys() - {*known}:
        fix = f"Use {', '.join(known)} or sampling={OWN}"
        raise InputError(field, f"there is no setting {min(unknown)!r}", fix)
    if source not in (OWN, PLAIN):
        raise InputError(field, f"there is no sampling {source!r}", f"Use {OWN} or {PLAIN}")
    if source == OWN and model is None:
        problem = f"sampling={OWN} is for models that are served here"
        raise InputError(field, problem, "Write the settings, such as top_p=0.9")
    try:
        read = MemberSampling.model_validate_strings(values)
    except ValidationError as error:
        wrong = first_problem(error, values)
        raise InputError(field, f"{wrong.field} {wrong.problem}", wrong.fix) from error
    given = read.model_dump(exclude={"temperature", "from_model"})
    sampling = SamplingSettings(**given, from_model=source == OWN)
    return CallSettings(read.temperature).over(drawing(sampling, model or "", field))
