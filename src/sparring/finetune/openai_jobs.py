"""OpenAIJobs: fine-tuning jobs of OpenAI, of ``sparring serve``, or of another server with OpenAI's routes.

Replies are read as plain JSON and only in the fields that are needed, because such servers differ in the
others; ``fields`` and ``states`` translate names.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI

from sparring.core import InputError, SparringError
from sparring.core.text import one_line
from sparring.engine.api_connection import ApiConnection, Fault
from sparring.engine.api_replies import ServiceError
from sparring.finetune.providers import (
    NAME_FIELD,
    STATES,
    FineTuneJobError,
    Job,
    JobProvider,
    JobRequest,
    body_of,
    check_identity,
    file_name_of,
    job_of,
)

PAGE = 100
MAX_PAGES = 50
"""The search for a job or a file by its name goes back this many pages of ``PAGE`` entries."""
QUOTA_CODES = {"daily_rate_limit_exceeded", "exceeded_quota_for_jobs"}
"""The API makes no more jobs for now. A job is asked for again later; anything else is an error."""
Reply = dict[str, Any]
Result = TypeVar("Result")


class OpenAIJobs(JobProvider):
    """Jobs at an API with OpenAI's routes for files and fine-tuning jobs.

    Rate limits (429), server errors (5xx), broken connections and unreadable replies are tried again with
    exponential back-off. A job or a file is looked for by its name before it is made a second time, because
    its reply may have been lost.

    Args:
        api_key: the key; it is never shown.
        base_url: address of the API, including ``/v1``.
        least_examples: the smallest number of examples that the API accepts; OpenAI's is 10.
        fields: names of fields by OpenAI's name, in requests and replies, where the server's differ.
        states: OpenAI's names of a job's states by the server's, where they differ.
        timeout: maximum seconds of one request.
        retries: number of tries after the first.
        wait: seconds before the second try; each further wait is twice as long, up to a minute.
        quota_waits: how often a job is asked for again, an hour later, if the day's jobs are used up.
        quota_wait: that hour, in seconds.
        say: is told of each such wait.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str,
        *,
        least_examples: int = 10,
        fields: Mapping[str, str] | None = None,
        states: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        retries: int = 6,
        wait: float = 1.0,
        quota_waits: int = 48,
        quota_wait: float = 3600.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.least_examples = least_examples
        self.fields = dict(fields or {})
        self.states = dict(states or {})
        self.quota_waits = quota_waits
        self.quota_wait = quota_wait
        self._say = say or (lambda line: None)
        self._api = ApiConnection(api_key, base_url, timeout=timeout, tries=retries + 1, backoff=wait)
        unknown = set(self.states.values()) - STATES.keys()
        if unknown:
            problem = f"{min(unknown)!r} is not a state of OpenAI's jobs"
            raise InputError("finetune.provider.states", problem, f"Use {', '.join(STATES)}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Close the connections at the end."""
        try:
            yield
        finally:
            await self._api.close()

    async def upload(self, name: str, examples: bytes) -> str:
        """Store a file of examples."""
        file_name = file_name_of(name, examples)

        async def once(client: AsyncOpenAI) -> str:
            found = await self._search(client, "/files", file_name, lambda one: one.get("filename"), "id")
            if found is not None:
                return _id(found)
            made = await client.files.with_raw_response.create(
                file=(file_name, examples), purpose="fine-tune"
            )
            return _id(made.http_response.json())

        return await self._tried(once, "the file cannot be uploaded", file_name)

    async def create(self, request: JobRequest, file: str) -> Job:
        """Make a job."""
        body = {self.fields.get(name, name): value for name, value in body_of(request, file).items()}
        for waited in range(self.quota_waits + 1):
            try:
                return await self._created(request, body)
            except _QuotaError as error:
                if waited == self.quota_waits:
                    raise FineTuneJobError(str(error)) from None
                self._say(f"{error}; the job is asked for again in {self.quota_wait / 60:g} minutes")
                await asyncio.sleep(self.quota_wait)
        raise AssertionError

    async def _created(self, request: JobRequest, body: Reply) -> Job:
        async def once(client: AsyncOpenAI) -> Job:
            found = await self._find(client, request)
            if found is not None:
                return found
            reply = await client.post("/fine_tuning/jobs", body=body, cast_to=object)
            return self._job(reply)

        return await self._tried(once, f"job {request.name} cannot be created", "", refused=FineTuneJobError)

    async def _find(self, client: AsyncOpenAI, request: JobRequest) -> Job | None:
        found = await self._search(
            client, "/fine_tuning/jobs", request.name, self._name_of, self.fields.get("id", "id")
        )
        if found is None:
            return None
        check_identity(request, self._metadata(found))
        return self._job(found)

    def _metadata(self, job: Reply) -> Reply:
        found = self._read(job, "metadata")
        return found if isinstance(found, dict) else {}

    async def status(self, job_id: str) -> Job:
        """Return what is known of a job."""

        async def once(client: AsyncOpenAI) -> Job:
            try:
                return self._job(await client.get(f"/fine_tuning/jobs/{job_id}", cast_to=object))
            except openai.NotFoundError:
                return Job(job_id, "not_found")

        return await self._tried(once, "the state of a job cannot be read", job_id)

    async def progress(self, job_id: str) -> str:
        """Return the message of the newest event; empty if there is none."""

        async def once(client: AsyncOpenAI) -> str:
            path = f"/fine_tuning/jobs/{job_id}/events"
            entries = _entries(await client.get(path, cast_to=object, options={"params": {"limit": "1"}}))
            return one_line(str(entries[0].get("message", ""))) if entries else ""

        try:
            return await self._tried(once, "the events of a job cannot be read", job_id)
        except SparringError:  # an API without events trains all the same
            return ""

    async def _search(
        self,
        client: AsyncOpenAI,
        path: str,
        name: str,
        name_of: Callable[[Reply], object],
        id_field: str,
    ) -> Reply | None:
        after: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            reply = await client.get(path, cast_to=object, options={"params": {"limit": str(PAGE), **after}})
            entries = _entries(reply)
            for entry in entries:
                if name_of(entry) == name:
                    return entry
            if not entries or not _has_more(reply):
                return None
            after = {"after": str(entries[-1].get(id_field, ""))}
        return None

    def _read(self, reply: Reply, name: str) -> Any:
        return reply.get(self.fields.get(name, name))

    def _name_of(self, job: Reply) -> object:
        return self._metadata(job).get(NAME_FIELD)

    def _job(self, reply: object) -> Job:
        if not isinstance(reply, dict):
            raise Fault("the reply is not an object")
        read = {name: self._read(reply, name) for name in ("id", "status", "fine_tuned_model")}
        said = str(read["status"])
        try:
            return job_of({**read, "status": self.states.get(said, said), "error": reply.get("error")})
        except ValueError as error:
            raise Fault(str(error)) from None

    async def _tried(
        self,
        ask: Callable[[AsyncOpenAI], Awaitable[Result]],
        failure: str,
        about: str,
        refused: type[SparringError] = SparringError,
    ) -> Result:
        """Ask until there is a reply. Raises SparringError, of type ``refused`` if none will ever come."""
        what = f"{failure}: {about}" if about else failure

        def verdict(error: ServiceError) -> Exception:
            if error.codes & QUOTA_CODES:
                return _QuotaError(f"{what}: {error.words}")
            if error.meaning == "key":
                problem = f"is not accepted by {urlsplit(self._api.base_url).hostname}"
                return InputError("the API's key", problem, "Set a key that it accepts")
            if error.meaning == "retry":
                return Fault(f"{error.status}, {error.words}", error.retry_after)
            return refused(f"{what}: {error.status}, {error.words}")

        return await self._api.ask(ask, verdict, what, refused=refused)


class _QuotaError(SparringError):
    """A quota is used up; the job may be asked for again later."""


def _entries(reply: object) -> list[Reply]:
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise Fault("the reply is not a list")
    return cast(list[Reply], data)


def _id(reply: object) -> str:
    found = reply.get("id") if isinstance(reply, dict) else None
    if not isinstance(found, str):
        raise Fault("the reply has no id")
    return found


def _has_more(reply: object) -> bool:
    return isinstance(reply, dict) and bool(reply.get("has_more"))
