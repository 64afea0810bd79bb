"""Adapters reach engines on machines that do not see the run's directory, and what arrives is checked."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.cluster.adapters import KEPT_COPIES, KEPT_OBJECTS, AdapterCache, AdapterFiles
from sparring.collection.local_handle import LocalHandle
from sparring.core import SparringError, TransientError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, AdapterRef
from sparring.engine.adapters import DeliveryError, file_hash
from sparring.engine.answering import EngineCall
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.hosts import EmbeddedHost, EngineRequest
from sparring.learn.checkpoints import save_adapter, write_delivery
from sparring.learn.policy import PolicyModel
from tiny_models import perturb_adapter, text_prompt, tiny_policy

THERE = "/run/on/the/other/machine"


class OtherMachine(AdapterFiles):
    """The files of a machine where a directory of this one has another name."""

    def __init__(self, here: Path, put: Callable[[Any], Any] = lambda files: files) -> None:
        super().__init__(put)
        self.here = here
        self.asked = 0

    async def copy(self, path: str) -> Any:
        self.asked += 1
        return await super().copy(path.replace(THERE, str(self.here)))


class NodeCopies(AdapterCache):
    """A node that has the model."""

    async def prepare(self) -> None:
        """Copy nothing."""


def an_adapter(directory: Path, weights: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / ADAPTER_FILE).write_bytes(weights)


def fetch(cache: AdapterCache, name: str) -> Path:
    return asyncio.run(cache.fetch(f"{THERE}/{name}"))


@pytest.fixture
def adapters(tmp_path) -> Path:
    """The run's directory, with small files in place of adapters."""
    for number in range(KEPT_COPIES + 2):
        an_adapter(tmp_path / "run" / str(number), b"weights %d" % number)
    return tmp_path / "run"


@pytest.fixture
def versions(tmp_path) -> dict[int, AdapterRef]:
    """Two versions of a policy, under the names that they have on the other machine."""
    policy = tiny_policy(perturbed=False)
    for version in (1, 2):
        perturb_adapter(policy, f"v{version}", seed=version)
        save_adapter(tmp_path / "run" / str(version), policy, "tiny", f"v{version}")
        write_delivery(tmp_path / "run" / str(version), policy, f"v{version}", version)
    return {version: AdapterRef("default", version, f"{THERE}/{version}") for version in (1, 2)}


async def started(files: Any, cache: Path) -> EmbeddedHost:
    host = EmbeddedHost(
        lambda: tiny_policy(perturbed=False),
        lambda policy: EmbeddedEngine(policy, max_tokens=8, max_cached_tokens=4096),
        2,
        copies=NodeCopies(LocalHandle(files), cache) if files is not None else None,
    )
    await host.start()
    return host


async def answer(host: EmbeddedHost, adapter: AdapterRef) -> list[float]:
    response = await host.complete(EngineRequest(0, adapter, EngineCall(text_prompt("a"), seed=0)))
    return response.completion_logprobs


async def test_an_engine_that_does_not_see_the_adapter_answers_as_one_that_does(tmp_path, versions):
    files = OtherMachine(tmp_path / "run")
    here, there = await started(None, tmp_path), await started(files, tmp_path / "cache")
    for version, adapter in versions.items():
        seen = AdapterRef("default", version, str(tmp_path / "run" / str(version)))
        assert await answer(there, adapter) == await answer(here, seen)
    assert files.asked == 2
    await answer(there, versions[1])
    assert files.asked == 2  # it holds both
    hashes = {file_hash(tmp_path / "run" / str(version)) for version in versions}
    assert {file_hash(path) for path in (tmp_path / "cache").iterdir()} == hashes


async def test_two_versions_with_the_same_weights_are_two_copies(tmp_path, versions):
    """An update whose advantages are all zero changes nothing."""
    one, other = tmp_path / "run" / "1", tmp_path / "run" / "2"
    shutil.copytree(one, other, dirs_exist_ok=True)
    (other / DELIVERY_FILE).write_text(
        json.dumps(json.loads((one / DELIVERY_FILE).read_text()) | {"version": 2})
    )
    host = await started(OtherMachine(tmp_path / "run"), tmp_path / "cache")
    assert await answer(host, versions[1]) == await answer(host, versions[2])


async def test_weights_in_the_type_in_which_a_model_computes_answer_the_same_and_are_half_as_large(tmp_path):
    def model() -> PolicyModel:
        return tiny_policy(perturbed=False, dtype=torch.bfloat16)

    policy, engine = model(), partial(EmbeddedEngine, max_tokens=8, max_cached_tokens=4096)
    perturb_adapter(policy, "v1", seed=1)
    host = EmbeddedHost(model, engine, 2)
    await host.start()
    answers, sizes = [], []
    for dtype in (torch.float32, torch.bfloat16):
        path = tmp_path / str(dtype)
        save_adapter(path, policy, "tiny", "v1", version=1, dtype=dtype)
        answers.append(await answer(host, AdapterRef("default", 1, str(path))))
        sizes.append(sum(one.nbytes for one in load_file(path / ADAPTER_FILE).values()))
    assert answers[0] == answers[1]
    assert answers[0] != await answer(host, AdapterRef("base", 0, None))
    assert sizes[0] == 2 * sizes[1]


async def test_a_copy_with_the_description_of_other_weights_is_not_served(tmp_path, versions):
    shutil.copy(tmp_path / "run" / "2" / DELIVERY_FILE, tmp_path / "run" / "1" / DELIVERY_FILE)
    host = await started(OtherMachine(tmp_path / "run"), tmp_path / "cache")
    with pytest.raises(DeliveryError, match="version 1 was not delivered"):
        await answer(host, versions[1])


async def test_where_there_is_no_adapter_either_the_error_has_one_line(tmp_path):
    host = await started(OtherMachine(tmp_path), tmp_path / "cache")
    with pytest.raises(SparringError, match=r"there is no adapter at .* of the command") as caught:
        await answer(host, AdapterRef("default", 9, f"{THERE}/9"))
    assert "\n" not in str(caught.value)


class Wire:
    """What is awaited for the files; the first time they arrive damaged."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.arrive = [{ADAPTER_FILE: b"other weights"}, files]

    def __await__(self) -> Generator[None, None, dict[str, bytes]]:
        yield
        return self.arrive.pop(0)


def test_a_copy_that_is_damaged_on_its_way_is_not_kept_and_fetched_again(tmp_path, adapters):
    cache = AdapterCache(LocalHandle(OtherMachine(adapters, Wire)), tmp_path / "cache")
    with pytest.raises(TransientError, match="damaged on its way"):
        fetch(cache, "1")
    assert not (tmp_path / "cache").exists()
    assert (fetch(cache, "1") / ADAPTER_FILE).read_bytes() == b"weights 1"


def test_a_copy_that_was_damaged_in_the_cache_is_replaced(tmp_path, adapters):
    cache = AdapterCache(LocalHandle(OtherMachine(adapters)), tmp_path / "cache")
    place = fetch(cache, "1")
    (place / ADAPTER_FILE).write_bytes(b"half")
    assert (fetch(cache, "1") / ADAPTER_FILE).read_bytes() == b"weights 1"
    (place / ADAPTER_FILE).unlink()
    assert (fetch(cache, "1") / ADAPTER_FILE).read_bytes() == b"weights 1"


@pytest.mark.parametrize("name", [ADAPTER_CONFIG, DELIVERY_FILE])
def test_a_copy_whose_weights_are_whole_and_whose_description_is_damaged_is_replaced(
    tmp_path, adapters, name
):
    """A node that loses power may keep a file's name without its content."""
    (adapters / "1" / name).write_bytes(b"{}")
    cache = AdapterCache(LocalHandle(OtherMachine(adapters)), tmp_path / "cache")
    (fetch(cache, "1") / name).write_bytes(b"")
    assert (fetch(cache, "1") / name).read_bytes() == b"{}"


def test_what_killed_engines_left_of_copies_does_not_stay(tmp_path, adapters, monkeypatch):
    cache = AdapterCache(LocalHandle(OtherMachine(adapters)), tmp_path / "cache")

    def killed(path: Path, target: Path) -> None:
        raise InterruptedError

    for number in ("1", "2"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(InterruptedError):
                fetch(cache, number)
    assert len([*(tmp_path / "cache").iterdir()]) == 1
    assert [*(tmp_path / "cache").iterdir()] != [fetch(cache, "1")]
    assert [*(tmp_path / "cache").iterdir()] == [fetch(cache, "1")]


async def test_engines_of_a_machine_that_fetch_at_the_same_time_share_one_copy(tmp_path, adapters):
    files = LocalHandle(OtherMachine(adapters))
    caches = [AdapterCache(files, tmp_path / "cache") for _ in range(8)]
    places = await asyncio.gather(*(cache.fetch(f"{THERE}/1") for cache in caches))
    assert len(set(places)) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [places[0].name]
    assert (places[0] / ADAPTER_FILE).read_bytes() == b"weights 1"


def test_the_copy_that_was_not_used_for_the_longest_time_is_deleted(tmp_path, adapters):
    cache = AdapterCache(LocalHandle(OtherMachine(adapters)), tmp_path / "cache")
    places = [fetch(cache, str(number)) for number in range(KEPT_COPIES)]
    for age, place in enumerate(places):
        os.utime(place, (1000 + age, 1000 + age))
    fetch(cache, "0")
    fetch(cache, str(KEPT_COPIES))
    assert places[0].exists()
    assert not places[1].exists()
    assert all(place.exists() for place in places[2:])


def test_the_object_store_keeps_the_adapters_that_were_asked_for_last(tmp_path, adapters):
    puts: list[dict[str, bytes]] = []

    def put(files: dict[str, bytes]) -> dict[str, bytes]:
        puts.append(files)
        return files

    files = OtherMachine(adapters, put)
    for number in range(KEPT_OBJECTS):
        asyncio.run(files.copy(f"{THERE}/{number}"))
    asyncio.run(files.copy(f"{THERE}/0"))
    assert len(puts) == KEPT_OBJECTS
    asyncio.run(files.copy(f"{THERE}/{KEPT_OBJECTS}"))
    asyncio.run(files.copy(f"{THERE}/0"))
    assert len(puts) == KEPT_OBJECTS + 1
    asyncio.run(files.copy(f"{THERE}/1"))
    assert len(puts) == KEPT_OBJECTS + 2


@pytest.mark.parametrize("name", [ADAPTER_FILE, ADAPTER_CONFIG])
def test_an_adapter_that_was_written_anew_is_read_anew(tmp_path, adapters, name):
    (adapters / "1" / ADAPTER_CONFIG).write_bytes(b"old")
    cache = AdapterCache(LocalHandle(OtherMachine(adapters)), tmp_path / "cache")
    fetch(cache, "1")
    (adapters / "1" / name).write_bytes(b"new")
    os.utime(adapters / "1" / name, (1, 1))
    assert (fetch(cache, "1") / name).read_bytes() == b"new"
