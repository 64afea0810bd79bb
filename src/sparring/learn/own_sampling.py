"""How a model asks to be sampled: the settings of its ``generation_config.json``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from sparring.config.model import SamplingSettings
from sparring.core import CallSettings, InputError, Sampling
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.sampling import AS_LEARNED, MAX_PENALTY, MIN_PENALTY
from sparring.core.types import UNSET
from sparring.learn.model_files import GENERATION_CONFIG, HUB_TIMEOUT_SECONDS, model_directory, resolve_model


class _Generation(msgspec.Struct):
    """What is read of the file. As in vLLM, what it leaves out changes nothing, and ``do_sample`` does not
    count: transformers writes it only where it is true."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=MIN_PENALTY, le=MAX_PENALTY)] | None = None


def own_sampling(model: str, field: str) -> CallSettings:
    """Return the temperature, if there is one, and the sampling that a model asks for in its files.

    Raises InputError, on ``field``: there is no such file, it cannot be read, or it names no such setting.
    """
    fix = "Leave it out, or write settings such as top_p = 0.9"
    file = _generation_config(model)
    if file is None and model != BUNDLED_MODEL:
        raise InputError(field, f"{model} has no {GENERATION_CONFIG} that could be read", fix)
    try:
        # The bundled model asks for nothing, also before it is here.
        found = msgspec.json.decode(b"{}" if file is None else file.read_bytes(), type=_Generation)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(field, f"{file} cannot be used: {error}", fix) from error
    if found == _Generation():
        names = ", ".join(_Generation.__struct_fields__)
        raise InputError(field, f"{GENERATION_CONFIG} of {model} has none of {names}", fix)
    sampling = Sampling(
        AS_LEARNED.top_p if found.top_p is None else found.top_p,
        max(0, found.top_k or 0),
        found.min_p or 0.0,
        AS_LEARNED.repetition_penalty if found.repetition_penalty is None else found.repetition_penalty,
    )
    return CallSettings(found.temperature, sampling=sampling)


def drawing(settings: SamplingSettings | None, model: str, field: str) -> CallSettings:
    """Return the sampling that settings ask for, and the temperature with ``from_model``; both are open
    without settings. ``field`` is where the settings stand; errors are as in :func:`own_sampling`."""
    if settings is None:
        return UNSET
    own = own_sampling(model, f"{field}.from_model") if settings.from_model else UNSET
    given = settings.model_dump(exclude_none=True, exclude={"from_model"})
    return CallSettings(own.temperature, sampling=replace(own.sampling or AS_LEARNED, **given))


def _generation_config(model: str) -> Path | None:
    directory = model_directory(model)
    if directory is not None and (directory / GENERATION_CONFIG).is_file():
        return directory / GENERATION_CONFIG
    if Path(model).is_dir() or model == BUNDLED_MODEL:
        return None
    from huggingface_hub import hf_hub_download

    if resolve_model(model) != model:
        return None  # the hub cannot be reached, and the copy here has no such file
    try:
        return Path(hf_hub_download(model, GENERATION_CONFIG, etag_timeout=HUB_TIMEOUT_SECONDS))
    except Exception:  # noqa: BLE001 - of either of two HTTP libraries; what failed does not matter
        return None
