"""DryRunJobs: jobs that end at once and train nothing, to try a configuration without cost."""

from selfplay.finetune.providers.job import Job, JobRequest


class DryRunJobs:
    """A provider whose jobs succeed at once; the resulting model is the one that the job started from."""

    least_examples = 1

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    async def upload(self, name: str, examples: bytes) -> str:
        """Accept anything."""
        return f"file-{name}"

    async def create(self, request: JobRequest, file: str) -> Job:
        """Return a job that has succeeded."""
        return self._jobs.setdefault(request.name, Job(f"job-{request.name}", "succeeded", request.model))

    async def status(self, job_id: str) -> Job:
        """Return the job; one of an earlier process is not found."""
        return next((job for job in self._jobs.values() if job.id == job_id), Job(job_id, "not_found"))

    async def events(self, job_id: str) -> list[str]:
        """Return nothing: nothing happens."""
        return []

    async def cancel(self, job_id: str) -> Job:
        """Return the job, which has ended already."""
        return await self.status(job_id)
