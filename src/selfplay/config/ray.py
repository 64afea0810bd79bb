"""The section of the configuration that is for clusters."""

from pydantic import Field

from selfplay.config.base import Settings


class RaySettings(Settings):
    """How a run is spread over a Ray cluster; used if `run.runtime` is `ray`."""

    address: str | None = None
    """Of a cluster that is there (`auto`, `HOST:6379`); if not given, one is started on this machine."""
    engines: int = Field(default=1, ge=1)
    """Inference actors, each with a copy of the base model."""
    learners: int = Field(default=1, ge=1)
    """Learners that share every batch."""
    collectors: int = Field(default=1, ge=1)
    """Processes that play; `collection.concurrency` is shared among them."""
    cpus_per_engine: float = Field(default=1.0, ge=0)
    """Cores that Ray keeps for an inference actor."""
    gpus_per_engine: float = Field(default=0.0, ge=0)
    """GPUs of an inference actor; 0.5 shares one with a learner."""
    cpus_per_learner: float = Field(default=1.0, ge=0)
    """Cores that Ray keeps for a learner."""
    gpus_per_learner: float = Field(default=0.0, ge=0)
    """GPUs of a learner."""
    patience: float = Field(default=300.0, gt=0)
    """Seconds that a part of the run may be away before the run ends with an error."""
    max_restarts: int = Field(default=20, ge=0)
    """How often Ray starts each part of the run again."""
