"""Fine-tuning jobs that wait, are cancelled, crash, are killed or are interrupted by a restart."""

import asyncio
import errno
import hashlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from job_server import (
    ASK,
    base_policy,
    ended,
    forks,
    serving,
    start_endless,
    start_many,
    start_short,
    talk,
    upload,
    wait_for_step,
    when,
)
from live_server import Live
from matrices import first_of
from sparring.core import InputError
from sparring.core.files import lock_directory
from sparring.core.manifest import sealed, unsealed
from sparring.finetune.jobs.service import MAX_STARTS
from sparring.finetune.jobs.store import FileStore
from sparring.finetune.jobs.worker import train_job
from sparring.learn.fine_tuning.examples import Conversation, Preference, Renderer, WrongLine

# While a job runs


@pytest.fixture
def busy(tmp_path) -> Iterator[tuple[Live, str]]:
    """A server that works on a job that does not end."""
    with serving(tmp_path) as live:
        client = live.client()
        job = start_endless(client)
        wait_for_step(client, job, 1)
        yield live, job


def test_other_requests_are_answered_while_a_job_runs_and_a_second_job_waits(busy):
    live, job = busy
    client = live.client()
    second = start_short(client)
    assert client.chat.completions.create(model="tiny", messages=ASK).choices
    when(client, second.id, lambda one: one.status == "queued")
    with pytest.raises(openai.ConflictError, match=f"is in use by {second.id}"):
        client.files.delete(second.training_file)
    assert client.fine_tuning.jobs.retrieve(job).status == "running"
    cancelled = client.fine_tuning.jobs.cancel(second.id)
    assert cancelled.status == "cancelled"
    assert client.files.delete(second.training_file).deleted
    client.fine_tuning.jobs.cancel(job)


def test_cancelling_a_running_job_ends_its_process_and_the_next_one_is_trained(busy):
    live, job = busy
    client = live.client()
    second = start_short(client)
    cancelled = client.fine_tuning.jobs.cancel(job)
    assert (cancelled.status, cancelled.fine_tuned_model) == ("cancelled", None)
    assert ended(client, second.id).status == "succeeded"
    assert client.fine_tuning.jobs.retrieve(job).status == "cancelled"


def test_a_cancellation_that_cannot_be_written_is_an_error_and_is_asked_for_again(busy, monkeypatch):
    live, job = busy
    client = live.client()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sparring.finetune.jobs.store.write_file", no_space)
        with pytest.raises(openai.InternalServerError):
            client.fine_tuning.jobs.cancel(job)
        assert client.fine_tuning.jobs.retrieve(job).status == "running"
    assert client.fine_tuning.jobs.cancel(job).status == "cancelled"
    assert ended(client, start_short(client).id).status == "succeeded"


def test_a_process_that_crashes_fails_the_job_with_the_reason(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        first, second = start_endless(client), start_short(client)
        when(client, second.id, lambda job: job.status == "queued")
        (tmp_path / "files" / second.training_file / "content").unlink()
        client.fine_tuning.jobs.cancel(first)
        failed = ended(client, second.id)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.error.message.startswith("Training crashed: FileNotFoundError")
        assert client.chat.completions.create(model="tiny", messages=ASK).choices


def test_a_process_that_is_killed_again_and_again_fails_the_job(tmp_path):
    with serving(tmp_path) as live:
        client, before = live.client(), len(forks().started)
        job = start_endless(client)
        for number in range(MAX_STARTS):
            when(client, job, lambda _, wanted=before + number: len(forks().started) > wanted)
            os.kill(forks().started[-1], signal.SIGKILL)
        failed = ended(client, job)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.error.message == "Training crashed: the process that trains was ended by signal 9"


@pytest.fixture
def full_disk(monkeypatch):
    """Make ``times`` attempts to store a job's results fail, and try again at once."""

    def fill(times: int) -> None:
        left = iter(range(times))

        def put(store: FileStore, *arguments: object) -> None:
            if next(left, None) is not None:
                raise OSError(errno.ENOSPC, "No space left on device")
            store_result(store, *arguments)

        store_result = FileStore.put_result
        monkeypatch.setattr(FileStore, "put_result", put)
        monkeypatch.setattr("sparring.finetune.jobs.service.RETRY_SECONDS", 0.01)

    return fill


def test_a_trained_job_is_not_lost_because_a_disk_is_full_for_a_while(tmp_path, full_disk):
    full_disk(2)
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        client = live.client()
        done = ended(client, start_short(client).id)
        assert done.status == "succeeded"
        assert client.files.content(done.result_files[0]).text.startswith("step,")
        assert client.chat.completions.create(model=done.fine_tuned_model, messages=ASK).choices
    assert len(notes) == 2
    assert all("is tried again in 0.01 s (OSError(28, 'No space left on device')" in note for note in notes)


def test_a_job_that_the_server_cannot_finish_fails_and_lists_no_model(tmp_path, full_disk, monkeypatch):
    full_disk(100)
    monkeypatch.setattr("sparring.finetune.jobs.service.MAX_RETRIES", 3)
    with serving(tmp_path) as live:
        client = live.client()
        failed = ended(client, start_short(client).id)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.error.message.startswith("The server cannot finish it: OSError(28")
        assert client.fine_tuning.jobs.checkpoints.list(failed.id).data == []
        assert [file.purpose for file in client.files.list()] == ["fine-tune"]
        assert [model.id for model in client.models.list()] == ["tiny", "base"]


# Restarts


def bytes_of(directory: Path) -> dict[str, str]:
    """The hashes of all adapters and results of the only job."""
    (training,) = directory.glob("jobs/*/training")
    files = [*training.glob("step-*/*"), training / "results.csv", training / "state" / "learner.safetensors"]
    return {str(file.relative_to(training)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, str]:
    """The hashes of a job of many steps that nothing interrupts."""
    directory = tmp_path_factory.mktemp("alone")
    with serving(directory) as live:
        assert ended(live.client(), start_many(live.client())).status == "succeeded"
    return bytes_of(directory)


@pytest.mark.slow  # test_learn_fine_tuning cuts one off after any step by default
@pytest.mark.parametrize("interruptions", first_of([(9,), (1, 9, 20)]))
def test_a_job_that_is_interrupted_ends_with_the_same_bytes(tmp_path, alone, interruptions):
    with serving(tmp_path) as live:
        job = start_many(live.client())
    for step in interruptions:
        with serving(tmp_path) as live:  # ends with a kill of the process that trains
            wait_for_step(live.client(), job, step)
    with serving(tmp_path) as live:
        done = ended(live.client(), job)
        assert done.status == "succeeded"
        assert live.client().fine_tuning.jobs.list().data == [done]
        messages = [e.message for e in live.client().fine_tuning.jobs.list_events(job, limit=1000)]
    assert "Fine-tuning job continues from its last saved step" in messages
    assert bytes_of(tmp_path) == alone


@pytest.mark.slow
def test_a_job_whose_process_is_killed_several_times_ends_with_the_same_bytes(tmp_path, alone):
    before = len(forks().started)
    with serving(tmp_path) as live:
        job = start_many(live.client())
        for number, step in enumerate((1, 9, 20)):
            when(live.client(), job, lambda _, wanted=before + number: len(forks().started) > wanted)
            wait_for_step(live.client(), job, step)
            os.kill(forks().started[-1], signal.SIGKILL)
        assert ended(live.client(), job).status == "succeeded"
    assert bytes_of(tmp_path) == alone


def test_models_are_served_again_after_a_restart_unless_the_base_is_another(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        job = start_short(client)
        model = ended(client, job.id).fine_tuned_model
    with serving(tmp_path) as live:
        client = live.client()
        assert model in [one.id for one in client.models.list()]
        assert client.chat.completions.create(model=model, messages=ASK).choices
        assert client.fine_tuning.jobs.retrieve(job.id).status == "succeeded"
    with serving(tmp_path, base="other") as live:
        client = live.client()
        assert [one.id for one in client.models.list()] == ["other", "base"]
        with pytest.raises(openai.BadRequestError, match=f"{model} is a model of tiny, but this server has"):
            client.fine_tuning.jobs.create(model=model, training_file=job.training_file)


def test_a_model_whose_weights_were_changed_is_not_served_and_is_named(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        job = start_short(client)
        model = ended(client, job.id).fine_tuned_model
    (weights,) = tmp_path.glob("jobs/*/training/step-*/adapter_model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        assert model not in [one.id for one in live.client().models.list()]
    (note,) = notes
    assert note.startswith(f"note: {model} is not served (")
    assert f"the weights in {weights.parent} have hash" in note


def test_a_directory_belongs_to_one_server(tmp_path):
    with serving(tmp_path), pytest.raises(InputError, match="is in use by another server"), serving(tmp_path):
        pass


def test_a_directory_that_cannot_hold_jobs_is_refused(tmp_path):
    (tmp_path / "files").touch()
    words = r"--jobs: .* cannot be used \(File exists\)"
    with pytest.raises(InputError, match=words), serving(tmp_path):
        pass


@pytest.mark.parametrize("content", first_of([b"{", b'{"id": 5}', b"", b"null", b"\xff"], 2))
def test_a_damaged_record_is_named_at_the_start_and_costs_only_its_file_or_job(tmp_path, content):
    with serving(tmp_path) as live:
        damaged, whole = (upload(live.client(), [talk("a", text)]) for text in ("b", "c"))
        job = live.client().fine_tuning.jobs.create(model="tiny", training_file=damaged).id
    for record in (f"files/{damaged}/file.json", f"jobs/{job}/job.json"):
        (tmp_path / record).write_bytes(content)
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        assert [one.id for one in live.client().files.list()] == [whole]
        assert [one.id for one in live.client().fine_tuning.jobs.list()] == []
    assert [note for note in notes if "file.json is missing or damaged; it is left out" in note]
    assert [note for note in notes if "job.json is missing or damaged; it is left out" in note]
    assert (tmp_path / "files" / damaged / "file.json").read_bytes() == content


@pytest.mark.parametrize("content", first_of([b"{\n", b"{}\n", b"7\n", b"\xff\n"], 2))
def test_damaged_metrics_of_a_job_are_said_in_one_line(tmp_path, content):
    with serving(tmp_path) as live:
        jobs = live.client().with_options(max_retries=0).fine_tuning.jobs
        file = upload(live.client(), [{"messages": "wrong"}])
        job = jobs.create(model="tiny", training_file=file).id
        ended(live.client(), job)
        training = tmp_path / "jobs" / job / "training"
        training.mkdir(exist_ok=True)
        (training / "metrics.jsonl").write_bytes(content)
        with pytest.raises(
            openai.InternalServerError, match=f"the metrics of job {job} are damaged"
        ) as error:
            jobs.list_events(job)
        assert str(tmp_path) not in str(error.value)
        assert jobs.retrieve(job).status == "failed"


def test_jobs_made_at_once_are_all_kept(tmp_path):
    async def create(live: Live) -> list[str]:
        async with live.async_client() as client:
            file = upload(live.client(), [{"messages": "wrong"}])
            made = (client.fine_tuning.jobs.create(model="tiny", training_file=file) for _ in range(8))
            return [job.id for job in await asyncio.gather(*made)]

    with serving(tmp_path) as live:
        ids = asyncio.run(create(live))
        assert {ended(live.client(), one).status for one in ids} == {"failed"}
        assert {one.id for one in live.client().fine_tuning.jobs.list()} == set(ids)


def test_a_job_that_was_interrupted_goes_on_before_those_that_wait(tmp_path, monkeypatch):
    """Also before an older one."""
    with serving(tmp_path) as live:
        client = live.client()
        running = start_endless(client)
        wait_for_step(client, running, 1)
        waiting = start_short(client).id
        when(client, waiting, lambda job: job.status == "queued")
    record = tmp_path / "jobs" / waiting / "job.json"
    record.write_bytes(sealed(unsealed(record.read_bytes()) | {"created": 1}))
    started: list[str] = []

    class Noted:
        async def start(self, directory: Path) -> object:
            started.append(directory.name)
            return await original.start(directory)

    original = forks()
    monkeypatch.setattr("job_server.forks", Noted)
    with serving(tmp_path) as live:
        client = live.client()
        when(client, running, lambda job: bool(started))
        client.fine_tuning.jobs.cancel(running)
        ended(client, waiting)
    assert started == [running, waiting]


def test_no_two_processes_train_one_job(tmp_path):
    """The second one waits until the first has ended, and reads nothing before."""
    lock = lock_directory(tmp_path)
    with ThreadPoolExecutor() as threads:
        second = threads.submit(train_job, tmp_path)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        os.close(lock)
        second.result(timeout=60)
    assert b"job.json is missing or damaged" in (tmp_path / "outcome.json").read_bytes()


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_a_line_that_cannot_fit_is_refused_by_its_characters(method):
    """Tokenising 50 million of them would keep all jobs waiting for minutes."""
    long = "x" * 50_000_000
    calls: list[str] = []
    policy = base_policy()
    renderer = Renderer(policy.tokens, policy.context_length)
    (asked, said), answer = talk("a", "b")["messages"], {"role": "assistant", "content": long}
    render = {
        "dpo": lambda: renderer.preference(Preference(7, [asked], answer, said)),
        "supervised": lambda: renderer.conversation(Conversation(7, [asked, answer], (1,))),
    }[method]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(policy.tokens), "render", lambda *_: calls.append("render"))
        with pytest.raises(WrongLine, match="line 7: its 50000001 characters are more than 256 tokens"):
            render()
    assert calls == []


def test_a_flipped_bit_in_what_a_job_trains_on_fails_it(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        first, second = start_endless(client), start_short(client)
        when(client, second.id, lambda job: job.status == "queued")
        content = tmp_path / "files" / second.training_file / "content"
        before = content.read_bytes()
        content.write_bytes(before.replace(b"a", b"c", 1))
        assert content.read_bytes() != before
        client.fine_tuning.jobs.cancel(first)
        failed = ended(client, second.id)
        assert failed.status == "failed"
        assert "content is missing or damaged" in failed.error.message
