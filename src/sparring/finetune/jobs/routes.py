"""The routes of OpenAI's files and fine-tuning API."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.datastructures import UploadFile

from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.records import FINE_TUNE, StoredJob
from sparring.finetune.jobs.schema import CreateJob
from sparring.finetune.jobs.service import JobService
from sparring.finetune.jobs.store import MAX_FILE_BYTES

FILES, JOBS, FINE_TUNING = "/v1/files", "/v1/fine_tuning/jobs", "/v1/fine_tuning/{rest:path}"
OPTION = "This server has no fine-tuning jobs. Start it with: sparring serve MODEL --jobs DIR"
METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + 2**16
"""Maximum size of an upload: a file and the form around it."""
MAX_FILENAME = 255
Limit = Annotated[int, Query(ge=1, le=10_000)]


def add_job_routes(app: FastAPI, service: JobService) -> None:
    """Add the routes for files and jobs; the rest of OpenAI's fine-tuning API is not supported."""
    _add_files(app, service)
    _add_jobs(app, service)

    @app.delete("/v1/models/{name:path}")
    async def delete_model(name: str) -> Response:
        service.delete_model(name)
        return JSONResponse({"id": name, "object": "model", "deleted": True})

    @app.api_route(FINE_TUNING, methods=["GET", "POST", "DELETE"])
    async def refuse(rest: str) -> Response:
        raise ApiError(400, f"This server has no {rest:.100}", code="not_supported")


def refuse_job_routes(app: FastAPI) -> None:
    """Answer all routes for files and jobs with the option that a server needs for them."""

    @app.api_route(FILES, methods=["GET", "POST"])
    @app.api_route(FILES + "/{rest:path}", methods=["GET", "POST", "DELETE"])
    @app.api_route(FINE_TUNING, methods=["GET", "POST", "DELETE"])
    async def refuse(rest: str = "") -> Response:
        raise ApiError(400, OPTION, code="not_supported")


def _add_files(app: FastAPI, service: JobService) -> None:
    files = service.files

    @app.post(FILES)
    async def upload(request: Request) -> Response:
        form = await request.form(max_files=1, max_fields=10)
        try:
            return JSONResponse((await _store(form)).to_object())
        finally:
            await form.close()

    async def _store(form: Any) -> Any:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise ApiError(400, "file: is missing from the form", param="file")
        if purpose != FINE_TUNE:
            raise ApiError(400, f"purpose: this server stores files for {FINE_TUNE} only", param="purpose")
        other = sorted(set(form) - {"file", "purpose"})
        if other:
            raise ApiError(400, f"{other[0]:.100}: this server cannot do that. Leave it out", param=other[0])
        name = (file.filename or "upload.jsonl")[:MAX_FILENAME]
        return await files.add(name, file.size or 0, file.file)

    @app.get(FILES)
    async def list_files(
        purpose: str | None = None,
        after: str | None = None,
        limit: Limit = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        found = [one.to_object() for one in files.all() if purpose in (None, one.purpose)]
        return JSONResponse(page(found if order == "asc" else found[::-1], after, limit))

    @app.get(FILES + "/{file_id}")
    async def retrieve_file(file_id: str) -> Response:
        return JSONResponse(files.get(file_id).to_object())

    @app.delete(FILES + "/{file_id}")
    async def delete_file(file_id: str) -> Response:
        service.delete_file(file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    @app.get(FILES + "/{file_id}/content")
    async def content(file_id: str) -> Response:
        return FileResponse(files.content(file_id), media_type="application/octet-stream")


def _add_jobs(app: FastAPI, service: JobService) -> None:
    jobs = service.jobs

    @app.post(JOBS)
    async def create(body: CreateJob) -> Response:
        return JSONResponse(service.create(body).to_object())

    @app.get(JOBS)
    async def list_jobs(request: Request, after: str | None = None, limit: Limit = 20) -> Response:
        found = [job.to_object() for job in reversed(jobs.all()) if _has_metadata(job, request)]
        return JSONResponse(page(found, after, limit))

    @app.get(JOBS + "/{job_id}")
    async def retrieve(job_id: str) -> Response:
        return JSONResponse(jobs.get(job_id).to_object())

    @app.post(JOBS + "/{job_id}/cancel")
    async def cancel(job_id: str) -> Response:
        job = jobs.get(job_id)
        service.cancel(job)
        return JSONResponse(job.to_object())

    @app.post(JOBS + "/{job_id}/{action}")
    async def pause_or_resume(job_id: str, action: Literal["pause", "resume"]) -> Response:
        jobs.get(job_id)
        raise ApiError(400, f"{action}: this server cannot {action} jobs", code="not_supported")

    @app.get(JOBS + "/{job_id}/events")
    async def events(job_id: str, after: str | None = None, limit: Limit = 20) -> Response:
        job = jobs.get(job_id)
        return JSONResponse(page(job.event_objects(jobs.rows(job)), after, limit))

    @app.get(JOBS + "/{job_id}/checkpoints")
    async def checkpoints(job_id: str, after: str | None = None, limit: Limit = 10) -> Response:
        job = jobs.get(job_id)
        return JSONResponse(page(job.checkpoint_objects(), after, limit))


def _has_metadata(job: StoredJob, request: Request) -> bool:
    if request.query_params.get("metadata") == "null":
        return job.metadata is None
    wanted = {
        match[1]: value
        for key, value in request.query_params.multi_items()
        if (match := METADATA.fullmatch(key)) is not None
    }
    return wanted.items() <= (job.metadata or {}).items()


def page(objects: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """Return the ``limit`` objects after the one with id ``after``, as OpenAI's list object. Raises ApiError:
    there is none."""
    first = 0
    if after is not None:
        ids = [one["id"] for one in objects]
        if after not in ids:
            raise ApiError(400, f"after: there is no {after!r:.100} in this list", param="after")
        first = ids.index(after) + 1
    data = objects[first : first + limit]
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": first + limit < len(objects),
    }
