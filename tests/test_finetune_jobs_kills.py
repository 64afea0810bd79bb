"""``sparring serve --jobs`` as a real process that is killed (``kill -9``) at several moments of a job."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_commands import METHODS, Server, bytes_of, create, ended, rows, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[[str], Server]]:
    servers: list[Server] = []

    def make(name: str) -> Server:
        servers.append(Server(tmp_path / name))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_killed_at_any_moment_ends_the_job_with_the_same_bytes(start, method):
    alone = start("alone")
    assert ended(alone.client, create(alone.client, method)).status == "succeeded"
    server = start("killed")
    job = create(server.client, method)
    directory = server.directory
    moments: list[Callable[[], bool]] = [
        lambda: True,  # while files are checked, or just after
        lambda: bool(list(directory.glob("jobs/*/worker.log"))),  # while the process starts
        lambda: rows(directory) >= 1,
        lambda: rows(directory) >= 60,
        lambda: bool(list(directory.glob("jobs/*/training/step-*"))),
        lambda: bool(list(directory.glob("jobs/*/outcome.json"))),
    ]
    for moment in moments:
        wait_until(moment)
        server.kill()
        server.start()
        assert [one.id for one in server.client.fine_tuning.jobs.list(metadata={"mine": "yes"})] == [job]
    done = ended(server.client, job)
    assert (done.status, done.error) == ("succeeded", None)
    assert bytes_of(directory) == bytes_of(alone.directory)
    assert len(server.client.files.list(purpose="fine-tune-results").data) == 1
    model = done.fine_tuned_model
    assert server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "what is 1"}], max_tokens=4
    ).choices


def test_the_process_that_trains_ends_with_a_killed_server(start):
    server = start("orphan")
    create(server.client, "supervised", n_epochs=1000)
    wait_until(lambda: rows(server.directory) >= 1)
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    (worker,) = map(int, children.read_text().split())
    server.kill()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone)
