"""Engines on a cluster that answer with given adapters, for games and measures outside a run."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import ray
from ray.exceptions import RayError

from sparring.cluster.actor_classes import AdapterFilesActor, restarting
from sparring.cluster.actor_errors import error_of
from sparring.cluster.connect import connected
from sparring.cluster.engine_start import EngineStarts, engine_names, start_engines
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.settings import EngineSettings
from sparring.cluster.handles import Named
from sparring.cluster.placement import Placement, beside_command
from sparring.cluster.view import NAMESPACE
from sparring.config import Config
from sparring.core import InferenceClient
from sparring.core.adapters import AdapterRef

ADAPTER_FILES = "AdapterFiles"


@asynccontextmanager
async def members_served(
    config: Config, adapters: Mapping[str, Path], say: Callable[[str], None]
) -> AsyncIterator[InferenceClient]:
    """Join the cluster and start the engines of a run; yield a client of them; end them.

    Args:
        config: the run's configuration; its learners and collectors are not started.
        adapters: the adapters that the client knows, by name; it knows the base model as ``base``.
        say: prints a line.

    Raises:
        InputError: there is no cluster, it has no room, or the model cannot be loaded.
        SparringError: the engines cannot start, or were lost.
    """
    config = _engines_only(config)
    namespace = f"{NAMESPACE}members-{uuid.uuid4().hex[:8]}"
    known = {name: AdapterRef(name, 0, str(path.absolute())) for name, path in adapters.items()}
    with connected(config.ray, namespace):
        placement = await asyncio.to_thread(Placement, config, say)
        files = restarting(AdapterFilesActor, name=ADAPTER_FILES, **beside_command()).remote()
        engines = start_engines(
            config, EngineSettings.of(config), placement, None, Named(ADAPTER_FILES, namespace)
        )
        starts = EngineStarts(dict(zip(engine_names(config), engines, strict=True)), say)
        client = EngineClient(
            engines,
            (),
            frozen=known,
            patience=config.ray.patience,
            calls_per_engine=config.inference.max_queue,
            adapters_only=True,
        )
        try:
            await starts.enough(config.ray.least_engines, config.ray.patience)
            yield client
            if client.fatal is not None:
                raise client.fatal
        except RayError as error:
            raise error_of("the cluster", error) from error
        finally:
            starts.cancel()
            await client.close()
            for actor in (files, *engines):
                ray.kill(actor)
            placement.remove()


def _engines_only(config: Config) -> Config:
    """Return a configuration that requests nothing for learners and collectors."""
    nothing = {"learners": 1, "shard_base": False, "cpus_per_learner": 0.0, "gpus_per_learner": 0.0}
    settings = config.ray.model_copy(update={**nothing, "collectors": 1, "cpus_per_collector": 0.0})
    return config.model_copy(update={"ray": settings})
