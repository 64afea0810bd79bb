"""Jobs that end at once and train nothing, and drawn answers, to try a configuration without cost."""

import random
from urllib.parse import quote

from selfplay.core import Messages, MockInferenceClient
from selfplay.finetune.providers.job import Job, JobRequest
from selfplay.programs.proofs.decisions import SCALES, stated
from selfplay.programs.proofs.protocol import Protocol

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


def drawing_agents(protocol: Protocol) -> MockInferenceClient:
    """Return a client that answers with a message to every channel or with a decision, drawn by the seed.

    Each is a valid answer in some rounds of the protocol; where it is not, the next try draws again.
    """
    message = "\n".join(f"{channel.name}: What follows from that?" for channel in protocol.channels)
    decisions = [stated(entry) for entry in SCALES[protocol.scale]]

    def answer(messages: Messages, seed: int | None) -> str:
        drawn = random.Random(seed)
        return message if drawn.random() < 0.5 else drawn.choice(decisions)

    return MockInferenceClient(answer)
