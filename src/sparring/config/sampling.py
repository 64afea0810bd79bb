"""How answers are drawn that nobody learns from."""

from pydantic import Field

from sparring.config.base import Settings
from sparring.core.sampling import MAX_PENALTY, MIN_PENALTY


class SamplingSettings(Settings):
    """How answers are drawn that nobody learns from. What a policy learns from is always drawn from the
    distribution that it learns."""

    top_p: float | None = Field(default=None, ge=1e-9, le=1)
    """Draw from the likeliest tokens that together have this probability; 1 keeps all."""
    top_k: int | None = Field(default=None, ge=0, le=10_000_000)
    """Draw from this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Leave out tokens that have less than this share of the highest probability."""
    repetition_penalty: float | None = Field(default=None, ge=MIN_PENALTY, le=MAX_PENALTY)
    """Divide the positive logits of tokens in the prompt or the answer by this, and multiply the others."""
    from_model: bool = False
    """Take what is left out here from the model's own `generation_config.json`, and the temperature too where
    none is set."""
