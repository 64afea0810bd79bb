"""The body of a request for a job, in OpenAI's format."""

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sparring.engine.server_schema import ApiError
from sparring.learn.fine_tuning.settings import JobSettings

Auto = Literal["auto"]
MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512
MAX_EPOCHS, MAX_BATCH, MAX_MULTIPLIER, MAX_BETA = 1000, 4096, 1e6, 100.0
SUFFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Supervised(_Strict):
    n_epochs: int | Auto = "auto"
    batch_size: int | Auto = "auto"
    learning_rate_multiplier: float | Auto = "auto"


class _Dpo(_Supervised):
    beta: float | Auto = "auto"


class _SupervisedMethod(_Strict):
    hyperparameters: _Supervised = _Supervised()


class _DpoMethod(_Strict):
    hyperparameters: _Dpo = _Dpo()


class _Method(_Strict):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: _SupervisedMethod | None = None
    dpo: _DpoMethod | None = None
    reinforcement: Any = None


class CreateJob(_Strict):
    """Body of ``POST /v1/fine_tuning/jobs``."""

    model: str = Field(min_length=1)
    training_file: str = Field(min_length=1)
    validation_file: str | None = None
    suffix: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    method: _Method | None = None
    hyperparameters: _Supervised | None = None
    metadata: dict[str, str] | None = None
    integrations: list[Any] | None = None

    def check(self) -> None:
        """Check what types do not show. Raises ApiError."""
        if self.integrations:
            raise _unsupported("integrations", "this server reports to nobody")
        if self.suffix is not None and not SUFFIX.fullmatch(self.suffix):
            raise _wrong("suffix", "use 1 to 64 letters, digits, '.', '_' and '-'")
        metadata = self.metadata or {}
        too_long = any(len(key) > MAX_KEY or len(value) > MAX_VALUE for key, value in metadata.items())
        if len(metadata) > MAX_METADATA or too_long:
            limits = f"{MAX_METADATA} pairs, keys of {MAX_KEY} and values of {MAX_VALUE} characters"
            raise _wrong("metadata", f"at most {limits}")
        if self.method is not None and self.hyperparameters is not None:
            raise _wrong("hyperparameters", "give them within method only")

    def settings(self, seed: int) -> JobSettings:
        """Return the settings; ``seed`` is used if the request has none. Raises ApiError."""
        method = self.method or _Method(type="supervised")
        if method.type == "reinforcement":
            raise _unsupported("method.type", "this server has the methods supervised and dpo")
        for name in ("supervised", "dpo", "reinforcement"):
            if name != method.type and getattr(method, name) is not None:
                raise _wrong(f"method.{name}", f"the type of the method is {method.type}")
        chosen: _Supervised
        if method.type == "dpo":
            chosen = method.dpo.hyperparameters if method.dpo else _Dpo()
        else:
            given = method.supervised.hyperparameters if method.supervised else None
            chosen = given or self.hyperparameters or _Supervised()
        place = "hyperparameters" if self.method is None else f"method.{method.type}.hyperparameters"
        beta = chosen.beta if isinstance(chosen, _Dpo) else "auto"
        return JobSettings(
            method=method.type,
            seed=seed if self.seed is None else self.seed,
            n_epochs=_whole(chosen.n_epochs, f"{place}.n_epochs", MAX_EPOCHS),
            batch_size=_whole(chosen.batch_size, f"{place}.batch_size", MAX_BATCH),
            learning_rate_multiplier=_positive(
                chosen.learning_rate_multiplier, f"{place}.learning_rate_multiplier", MAX_MULTIPLIER
            ),
            beta=_positive(beta, f"{place}.beta", MAX_BETA),
        )


def _whole(value: int | Auto, param: str, most: int) -> int | None:
    if value == "auto":
        return None
    if not 1 <= value <= most:
        raise _wrong(param, f"give a number from 1 to {most}, or auto")
    return value


def _positive(value: float | Auto, param: str, most: float) -> float | None:
    if value == "auto":
        return None
    if not 0 < value <= most:
        raise _wrong(param, f"give a number above 0 and up to {most:g}, or auto")
    return value


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}", param=param)


def _unsupported(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}. Leave it out", param=param, code="unsupported_value")
