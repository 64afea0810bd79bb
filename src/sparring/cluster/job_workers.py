"""Fine-tuning jobs on a cluster: each is trained by an actor, which ends with the job or with the server."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.cluster.connect import knock
from sparring.core import InputError, SparringError
from sparring.finetune.jobs.launch import Crash
from sparring.finetune.jobs.records import JOB_FILE

LOOK_SECONDS = 2.0


class JobActor:
    """Trains one job in its process."""

    def train(self, directory: str) -> None:
        """Train the job in ``directory``; see ``sparring.finetune.jobs.worker``.

        Raises:
            SparringError: this node does not see the directory.
        """
        if not (Path(directory) / JOB_FILE).is_file():
            raise SparringError(
                f"{directory} is not visible at {ray.util.get_node_ip_address()}, where Ray has started the "  # type: ignore[no-untyped-call]
                "job. Start the server with --jobs DIR in a directory that all machines share"
            )
        from sparring.finetune.jobs.worker import train_job

        train_job(Path(directory))


class ClusterWorkers:
    """Trains jobs in actors. If the cluster's ``head`` is known, a job ends only when that can be asked how.

    ``options`` are Ray's for the actors: what they request, and where they are. An actor has ``patience``
    seconds to start, and the head as many to come back.
    """

    def __init__(self, options: dict[str, Any], head: str | None, patience: float) -> None:
        self._options = options
        self._head = head
        self._patience = patience

    async def train(self, directory: Path) -> Crash | None:
        """Train the job in ``directory``; see ``sparring.finetune.jobs.launch.Launch``.

        Raises:
            SparringError: the cluster has had no room for it, or its head was lost.
        """
        options = {"max_restarts": 0, "max_task_retries": 0, **self._options}
        actor: Any = ray.remote(JobActor).options(**options).remote()
        try:
            await self._started(actor)
            await actor.train.remote(str(directory.absolute()))
        except RayTaskError as error:
            return Crash(str(error_of("the actor that trains", error)))
        except RayError as error:
            await self._head_answers()  # while the head is away, nobody knows how it ended
            return Crash(str(error_of("the actor that trains", error)), killed=True)
        finally:
            ray.kill(actor)
        return None

    async def _started(self, actor: Any) -> None:
        try:
            await asyncio.wait_for(actor.__ray_ready__.remote(), self._patience)
        except (TimeoutError, RayError) as error:
            problem = f"the actor that trains has not started within {self._patience:g} s"
            if isinstance(error, RayError):
                problem = str(error_of("the actor that trains", error))
            raise SparringError(problem) from error

    async def _head_answers(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                while self._head is not None:
                    with suppress(InputError):
                        await asyncio.to_thread(knock, self._head)
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            problem = f"the head of the cluster, {self._head}, has not answered for {self._patience:g} s"
            raise SparringError(problem) from None
