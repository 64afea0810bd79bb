"""A job at a service with Tinker's API, in a process that tests kill: one_job.py URL DIRECTORY MODEL."""

import asyncio
import sys
from pathlib import Path

from sparring.finetune.model_groups import JobRecords
from sparring.finetune.providers import ENDED, JobRequest
from sparring.finetune.tinker_jobs import TinkerJobs
from sparring.finetune.tinker_service import TinkerService

HYPERPARAMETERS = {"n_epochs": 4, "batch_size": 2, "learning_rate_multiplier": 20.0, "rank": 3}
TALKS = [
    {
        "messages": [
            {"role": "user", "content": f"what is {n % 3}"},
            {"role": "assistant", "content": f"it is {n}"},
            {"role": "user", "content": "and then"},
            {"role": "assistant", "content": f"it is {n + 1}", "weight": n % 2},
        ]
    }
    for n in range(5)
]


def request_of(model: str, **more: object) -> JobRequest:
    return JobRequest("one", model, "supervised", HYPERPARAMETERS | more, seed=5)


def jobs_of(url: str, directory: Path) -> TinkerJobs:
    """Jobs whose state is saved after every step."""
    return TinkerJobs(TinkerService(url), directory / "tinker", 1, save_seconds=0.0)


async def trained(jobs: TinkerJobs, directory: Path, request: JobRequest) -> tuple[str | None, str, str]:
    """Submit a job, or find it; return its model, its error and what it said last."""
    job = await JobRecords(directory / "jobs").submit(jobs, request, TALKS)
    while job.status not in ENDED:
        await asyncio.sleep(0.02)
        job = await jobs.status(job.id)
    return job.model, job.error, await jobs.progress(job.id)


async def main(url: str, directory: Path, model: str) -> None:
    jobs = jobs_of(url, directory)
    async with jobs.running():
        print((await trained(jobs, directory, request_of(model)))[0])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
