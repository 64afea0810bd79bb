"""A server with fine-tuning jobs on tiny models, and what tests ask of it."""

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from fastapi import FastAPI

from job_workers import NEWS, Forks
from live_server import TOKEN, Live, running
from sparring.engine.adapters import ClientAdapters
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.engine.server import create_app
from sparring.finetune.jobs.records import ServedBase, StoredJob
from sparring.finetune.jobs.routes import FILES, add_job_routes
from sparring.finetune.jobs.service import JobService
from sparring.learn.policy import BASE, LoraSettings, PolicyModel
from tiny_models import tiny_model

ASK = [{"role": "user", "content": "what is up"}]
MANY = {"n_epochs": 10, "batch_size": 4, "learning_rate_multiplier": 20}
"""Hyper-parameters with which 40 examples make 100 steps."""


@functools.cache
def forks() -> Forks:
    return Forks()


def base_policy(architecture: str = "llama") -> PolicyModel:
    return PolicyModel(str(tiny_model(architecture)), LoraSettings(1))


def told(service: JobService) -> JobService:
    """Let each change of a job be news."""
    changing = service.jobs.changing

    @contextlib.contextmanager
    def changing_and_telling(job: StoredJob) -> Iterator[StoredJob]:
        with changing(job) as changed:
            yield changed
        NEWS.tell()

    service.jobs.changing = changing_and_telling
    return service


@contextlib.contextmanager
def serving(
    directory: Path, *, base: str = "tiny", notes: list[str] | None = None, **options
) -> Iterator[Live]:
    """A server over ``directory`` whose workers are forked."""
    policy = base_policy("qwen3" if base == "other" else "llama")
    engine = EmbeddedEngine(policy, max_tokens=8)
    engine.publish(base, BASE, 0)
    published = PublishedAdapters(engine)
    service = told(
        JobService(
            directory,
            published,
            ServedBase.of(base, policy.model_name, engine.facts()),
            aliases={"base": base},
            say=(notes if notes is not None else []).append,
            launch=forks().start,
            **{"save_seconds": 0.0, "adapters": {}, **options},
        )
    )
    app: FastAPI = create_app(
        engine,
        token=TOKEN,
        aliases={"base": base},
        adapters=ClientAdapters(published, directory, frozenset([base])),
        larger_bodies={FILES: 8 * 2**20},
        made=service.made,
        running=service.running,
    )
    add_job_routes(app, service)
    with running(app, engine) as live:
        yield live


def talk(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def preference(question: str, good: str, bad: str) -> dict[str, Any]:
    return {
        "input": {"messages": [{"role": "user", "content": question}]},
        "preferred_output": [{"role": "assistant", "content": good}],
        "non_preferred_output": [{"role": "assistant", "content": bad}],
    }


def upload(client: openai.OpenAI, lines: list[Any], name: str = "data.jsonl") -> str:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return client.files.create(file=(name, content), purpose="fine-tune").id


def ended(client: openai.OpenAI, job_id: str) -> Any:
    """Wait for the end of a job."""
    return when(client, job_id, lambda job: job.status in ("succeeded", "failed", "cancelled"))


def when(client: openai.OpenAI, job_id: str, condition: Any) -> Any:
    """Wait until a condition holds for a job, and return it."""
    found: list[Any] = []

    def holds() -> bool:
        found[:] = [client.fine_tuning.jobs.retrieve(job_id)]
        return bool(condition(found[0]))

    NEWS.until(holds)
    return found[0]


def wait_for_step(client: openai.OpenAI, job_id: str, step: int) -> None:
    def metrics(job: Any) -> list[Any]:
        events = client.fine_tuning.jobs.list_events(job_id, limit=1000).data
        return [event for event in events if event.type == "metrics"]

    when(client, job_id, lambda job: len(metrics(job)) >= step or job.status == "succeeded")


def supervised(**hyperparameters) -> dict[str, Any]:
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


def dpo(**hyperparameters) -> dict[str, Any]:
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}


def many_talks() -> list[dict[str, Any]]:
    return [talk(f"question {index % 7}", f"answer {index}") for index in range(40)]


def start_short(client: openai.OpenAI, model: str = "tiny") -> Any:
    """Create a job of one step."""
    file = upload(client, [talk("a", "b")])
    return client.fine_tuning.jobs.create(model=model, training_file=file, method=supervised(n_epochs=1))


def start_many(client: openai.OpenAI, **other: int) -> str:
    file = upload(client, many_talks())
    return client.fine_tuning.jobs.create(
        model="tiny", training_file=file, seed=5, method=supervised(**MANY | other)
    ).id


def start_endless(client: openai.OpenAI) -> str:
    """Start a job of 10,000 steps, more than any test waits for: it is there to be cancelled."""
    file = upload(client, many_talks())
    method = supervised(n_epochs=250, batch_size=1)
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file, method=method)
    when(client, job.id, lambda one: one.status == "running")
    return job.id
