"""DryRunJobs: jobs that end at once and train nothing, to try a configuration without cost."""

from urllib.parse import quote

from selfplay.finetune.providers.job import Job, JobRequest

PREFIX = "dry-run:"


class DryRunJobs:
    """A provider whose jobs succeed at once; the resulting model is the one that the job started from.

    The id of a job says all there is to know of it, so a run that is resumed finds its jobs.
    """

    least_examples = 1

    async def upload(self, name: str, examples: bytes) -> str:
        """Accept anything."""
        return f"file-{name}"

    async def create(self, request: JobRequest, file: str) -> Job:
        """Return a job that has succeeded."""
        return await self.status(f"{PREFIX}{quote(request.name, safe='')}:{request.model}")

    async def status(self, job_id: str) -> Job:
        """Return the job; one of another provider is not found."""
        if not job_id.startswith(PREFIX):
            return Job(job_id, "not_found")
        _, _, model = job_id.removeprefix(PREFIX).partition(":")
        return Job(job_id, "succeeded", model)

    async def events(self, job_id: str) -> list[str]:
        """Return nothing: nothing happens."""
        return []

    async def cancel(self, job_id: str) -> Job:
        """Return the job, which has ended already."""
        return await self.status(job_id)
