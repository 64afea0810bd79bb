"""The run's directory, what is logged in addition, and how it is spread over a Ray cluster."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sparring.config.base import FilePath, Line, Name, Rule, Settings, at_field
from sparring.config.facts import Needs

STORES = ("s3", "gs", "az", "file", "memory")
NO_STORE = "is not the plain address of an object store"
STORE_FIX = "Write it like s3://bucket/prefix, without keys: these belong in the environment"


def is_store(address: str) -> bool:
    """Whether a text is the address of an object store, without a user, a password or a query."""
    return re.fullmatch(rf"({'|'.join(STORES)})://[\w./=+~-]+", address) is not None


def _store(address: str) -> str:
    if not is_store(address):
        raise at_field(NO_STORE, STORE_FIX)
    return address


class TrackingSettings(Settings):
    """Logs in addition to metrics.jsonl."""

    games_logged: int = Field(default=8, ge=0, le=10_000_000)
    """Number of games of each update that are saved in `rollouts/`, where failed games are always saved too,
    and of each match in `evaluation/`."""
    wandb_project: Annotated[Name | None, Needs("wandb", "wandb")] = None
    """Weights & Biases project; needs the extra `wandb`."""
    tensorboard: Annotated[bool, Needs("tensorboard", "tensorboard")] = False
    """Write TensorBoard files; needs the extra `tensorboard`."""


class RunSettings(Settings):
    """The run's directory, its checkpoints and its runtime."""

    runtime: Annotated[Literal["local", "ray"], Needs("ray", "ray", ("ray",))] = "local"
    """One process, or a Ray cluster (see `[ray]`)."""
    directory: FilePath = "runs"
    """Directory in which each run gets its own directory; relative to the working directory."""
    save_every: int = Field(default=10, ge=1, le=10_000_000)
    """Number of updates between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=1, le=1_000_000)
    """Number of newest checkpoints to keep; checkpoints of active opponents are kept in addition."""
    store: Annotated[Annotated[Line, AfterValidator(_store)] | None, Needs("fsspec", "store")] = None
    """Address of an object store that keeps a copy of the run under its name, such as `s3://bucket/prefix`
    (`gs`, `az` and `file` too), from which another machine resumes it; needs the extra `store`. Keys are read
    from the environment, as fsspec does."""
    keep_best: Line | None = None
    """The evaluation figure by which the best adapter is also kept, in `best/`: such as `win rate against
    random` or `NashConv`, followed by ` in ENV` where several environments have it, or a program's measure by
    its name. Larger is better, except for NashConv, loss rates and invalid moves; `smallest NAME` asks for
    the smallest value of a program's measure."""


class RaySettings(Settings):
    """How a run is spread over a Ray cluster; used if `run.runtime` is `ray`."""

    address: Line | None = None
    """Address of an existing cluster (`auto`, `HOST:6379`); by default a local one is started."""
    engines: int = Field(default=1, ge=1, le=10_000)
    """Number of inference actors, each with a copy of the base model."""
    min_engines: int | None = Field(default=None, ge=1, le=10_000)
    """Number of inference actors with which a run starts; the others join when the cluster has room for them.
    By default, it waits for all."""
    learners: int = Field(default=1, ge=1, le=10_000)
    """Number of learners, which share every batch."""
    shard_base: bool = False
    """Whether each learner keeps only its part of the base model's linear layers and gathers the rest when it
    uses them."""
    collectors: int = Field(default=1, ge=1, le=10_000)
    """Number of processes that play; they divide `collection.concurrency` among themselves."""
    cpus_per_engine: float = Field(default=1.0, ge=0, le=10_000)
    """Cores that Ray reserves for each inference actor."""
    gpus_per_engine: float = Field(default=0.0, ge=0, le=10_000)
    """GPUs that Ray reserves for each inference actor; with 0.5 an actor and a learner can share one."""
    cpus_per_learner: float = Field(default=1.0, ge=0, le=10_000)
    """Cores that Ray reserves for each learner."""
    gpus_per_learner: float = Field(default=0.0, ge=0, le=10_000)
    """GPUs that Ray reserves for each learner."""
    cpus_per_collector: float = Field(default=1.0, ge=0, le=10_000)
    """Cores that Ray reserves for each collector. With 0, Ray places collectors regardless of other load."""
    shared_directory: bool = False
    """Whether every node sees the command's files at the same paths. By default, the other nodes work with
    copies, and learners there hand over what they save."""
    patience: float = Field(default=300.0, ge=0.001, le=1e8)
    """Seconds that an actor may be unreachable before the run ends with an error; also how long a starting
    run waits for the resources that it requests."""
    max_restarts: int = Field(default=20, ge=0, le=100_000)
    """How often Ray may restart each actor of the run."""

    @property
    def least_engines(self) -> int:
        """Number of inference actors with which a run starts."""
        return self.min_engines or self.engines

    def rules(self) -> Iterable[Rule]:
        """There are learners among which a base is shared, and no fewer engines than the least."""
        return (self._learners_share, self._counts_fit)

    def _learners_share(self) -> None:
        if self.shard_base and self.learners == 1:
            raise at_field("is for several learners", "Raise ray.learners, or leave it out", "shard_base")

    def _counts_fit(self) -> None:
        if self.least_engines > self.engines:
            problem = f"{self.min_engines} is more than ray.engines, which is {self.engines}"
            raise at_field(problem, "Lower it, or raise ray.engines", "min_engines")
