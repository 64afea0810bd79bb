"""EmbeddedHost loads adapters by path, verifies, serves and drops them."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sparring.core import InputError, ModelResponse, SparringError, TransientError
from sparring.core.adapters import DELIVERY_FILE, AdapterRef
from sparring.core.manifest import seal
from sparring.engine.adapters import Delivery, DeliveryError
from sparring.engine.answering import EngineCall
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.hosts import EmbeddedHost, EngineRequest
from sparring.engine.load_window import WINDOW_SECONDS, LoadWindow
from sparring.engine.resident_adapters import ResidentAdapters
from sparring.learn.checkpoints import save_adapter, write_delivery
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import BASE, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import perturb_adapter, text_prompt, tiny_model, tiny_policy

PROMPTS = ["a", "ab", "abc", "rules rules rules: move 1", "rules rules rules: move 2"]
BASE_REF = AdapterRef("base", 0, None)


@pytest.fixture(scope="module")
def learner() -> PolicyModel:
    """A policy with the adapters ``v1`` to ``v4``, which have different weights."""
    policy = tiny_policy(perturbed=False)
    for version in range(1, 5):
        perturb_adapter(policy, f"v{version}", seed=version)
    return policy


@pytest.fixture
def versions(learner, tmp_path) -> dict[int, AdapterRef]:
    """The learner's adapters on disk; adapter 0 is untrained."""
    names = {0: "default"} | {version: f"v{version}" for version in range(1, 5)}
    for version, name in names.items():
        save_adapter(tmp_path / f"{version:06}", learner, "tiny", name)
        write_delivery(tmp_path / f"{version:06}", learner, name, version)
    return {version: AdapterRef("default", version, str(tmp_path / f"{version:06}")) for version in names}


def build_host(max_adapters: int = 4, **options) -> EmbeddedHost:
    limits = {"max_tokens": 8, "max_queue": 500, "max_cached_tokens": 4096}
    return EmbeddedHost(
        lambda: tiny_policy(perturbed=False),
        lambda policy: EmbeddedEngine(policy, **(limits | options)),
        max_adapters,
    )


async def started(max_adapters: int = 4, **options) -> EmbeddedHost:
    host = build_host(max_adapters, **options)
    await host.start()
    return host


@contextmanager
def taken_away(adapter: AdapterRef) -> Iterator[None]:
    """An adapter's files are elsewhere meanwhile: only an engine that holds it can answer with it."""
    there = Path(adapter.path)
    elsewhere = there.rename(there.with_name("elsewhere"))
    yield
    elsewhere.rename(there)


async def ask(host, adapter, text="a", seed=0, max_tokens=None, temperature=1.0) -> ModelResponse:
    call = EngineCall(text_prompt(text), temperature, max_tokens, seed=seed)
    return await host.complete(EngineRequest(0, adapter, call))


async def ask_all(host, adapter, seeds=range(3), **options) -> list[ModelResponse]:
    asked = [ask(host, adapter, text, seed, **options) for text in PROMPTS for seed in seeds]
    return await asyncio.gather(*asked)


def assert_drawn_from(learner: PolicyModel, adapter: str, responses: list[ModelResponse]) -> None:
    plan = build_plan([r.prompt_token_ids for r in responses], [r.completion_token_ids for r in responses])
    with torch.no_grad(), learner.adapter(adapter):
        logprobs_C = plan_logprobs(learner, plan)
    expected: list[list[float]] = [[] for _ in responses]
    for sample, prediction in zip(plan.sample_S, plan.prediction_S, strict=True):
        expected[sample].append(float(logprobs_C[prediction]))
    for response, logprobs in zip(responses, expected, strict=True):
        assert response.completion_logprobs == pytest.approx(logprobs, abs=2e-5)


# Which adapter answers


async def test_the_requested_adapter_answers(learner, versions):
    host = await started()
    asked = {"v1": versions[1], "v2": versions[2], "v3": versions[3], BASE: BASE_REF}
    answered = await asyncio.gather(*(ask_all(host, adapter) for adapter in asked.values()))
    for (name, adapter), responses in zip(asked.items(), answered, strict=True):
        assert_drawn_from(learner, name, responses)
        assert {response.policy_version for response in responses} == {adapter.version}
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_drawn_from(learner, "v2", answered[0])
    assert_drawn_from(learner, BASE, await ask_all(host, versions[0]))


async def test_scores_are_those_of_the_requested_adapter(learner, versions):
    host = await started()
    engine = EmbeddedEngine(learner)
    for version in (1, 2):
        engine.publish(f"v{version}", f"v{version}", version)
        expected = await engine.score(text_prompt("ab"), ["yes", "no"], model=f"v{version}")
        scores = await host.score(versions[version], text_prompt("ab"), ["yes", "no"])
        assert scores == pytest.approx(expected, abs=1e-4)


# Loading and dropping


async def test_a_loaded_adapter_answers_without_its_files_under_any_name(learner, versions):
    host = await started()
    same = AdapterRef("ckpt-1", 1, versions[1].path)
    await asyncio.gather(*(ask(host, adapter) for adapter in (versions[1], same, versions[2])))
    assert host.stats()["adapters"] == 2
    for adapter in (versions[1], same):
        with taken_away(adapter):
            assert_drawn_from(learner, "v1", await ask_all(host, adapter))


async def test_the_least_recently_used_adapter_is_evicted_and_can_be_loaded_again(learner, versions):
    host = await started(max_adapters=2)
    for version in (1, 2, 1, 3):
        assert_drawn_from(learner, f"v{version}", await ask_all(host, versions[version]))
    assert host.stats()["adapters"] == 2
    with taken_away(versions[1]):
        assert_drawn_from(learner, "v1", await ask_all(host, versions[1]))
    with taken_away(versions[2]), pytest.raises(SparringError, match="default version 2 is not at"):
        await ask(host, versions[2])
    assert_drawn_from(learner, "v2", await ask_all(host, versions[2]))


async def test_an_adapter_with_a_request_in_progress_is_not_dropped(learner, versions):
    host = await started(max_adapters=1)
    old = asyncio.create_task(ask_all(host, versions[1], max_tokens=60))
    while not host.stats()["running"]:
        await asyncio.sleep(0)
    new = await ask_all(host, versions[2])
    assert old.done()
    assert_drawn_from(learner, "v1", await old)
    assert_drawn_from(learner, "v2", new)


# Checks of adapters


async def test_a_tampered_file_is_not_served_and_other_adapters_still_are(learner, versions):
    host = await started(max_adapters=2)
    await ask(host, versions[1])
    weights = Path(versions[2].path) / "adapter_model.safetensors"
    genuine = weights.read_bytes()
    weights.write_bytes(genuine[:-1] + bytes([genuine[-1] ^ 1]))
    found = await asyncio.gather(*(ask(host, versions[2]) for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in found} == {DeliveryError}
    assert "default version 2 was not delivered: the weights in" in str(found[0])
    assert "\n" not in str(found[0])
    assert_drawn_from(learner, "v1", await ask_all(host, versions[1]))
    weights.write_bytes(genuine)
    assert_drawn_from(learner, "v2", await ask_all(host, versions[2]))


def say(adapter: AdapterRef, **changed) -> None:
    file = Path(adapter.path) / DELIVERY_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


async def test_an_adapter_whose_canary_differs_from_the_learners_is_not_served(versions):
    host = await started()
    say(versions[2], canary=-1.234)
    with pytest.raises(DeliveryError, match="default version 2 was not delivered: the canary's") as caught:
        await ask(host, versions[2])
    assert "-1.2340" in str(caught.value)
    assert host.stats()["adapters"] == 0


def rescale(adapter: AdapterRef, a: float, b: float) -> None:
    """Multiply the weights of A and B, and delete the learner's description."""
    file = Path(adapter.path) / "adapter_model.safetensors"
    factors = {"lora_A": a, "lora_B": b}
    scaled = {key: value * factors[key.split(".")[-2]] for key, value in load_file(file).items()}
    save_file(scaled, file)
    (Path(adapter.path) / DELIVERY_FILE).unlink(missing_ok=True)
    seal(file.parent)


async def test_weights_without_an_effect_are_detected_without_a_description(learner, versions):
    host = await started()
    rescale(versions[1], 0, 1)
    with pytest.raises(DeliveryError, match="version 1 was not delivered: it answers exactly like the base"):
        await ask(host, versions[1])
    (Path(versions[2].path) / DELIVERY_FILE).unlink()
    assert_drawn_from(learner, "v2", [await ask(host, versions[2])])
    save_adapter(Path(versions[3].path), learner, "tiny", "v2")
    rescale(versions[3], 2, 0.5)  # other numbers, the same product
    with pytest.raises(DeliveryError, match=r"version 3 was not delivered.* exactly like version 2"):
        await ask(host, versions[3])


async def test_a_missing_damaged_or_foreign_adapter_is_rejected_in_one_line(versions, tmp_path):
    host = await started(max_adapters=1)
    with pytest.raises(SparringError, match="ckpt-9 version 9 is not at"):
        await ask(host, AdapterRef("ckpt-9", 9, str(tmp_path / "000009")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        await ask(host, AdapterRef("default", 5, str(tmp_path / "empty")))
    (Path(versions[1].path) / DELIVERY_FILE).write_text("{")
    with pytest.raises(InputError, match=r"delivery\.json is damaged"):
        await ask(host, versions[1])
    await ask(host, versions[2])  # the only slot is free


async def test_an_adapter_of_another_shape_answers_with_its_own_rank_and_scale(tmp_path):
    other = PolicyModel(str(tiny_model("llama")), LoraSettings(8, 16.0, ["q_proj"]))
    perturb_adapter(other, "default", seed=5)
    save_adapter(tmp_path / "other", other, "tiny")
    host = await started()
    assert_drawn_from(other, "default", await ask_all(host, AdapterRef("o", 1, str(tmp_path / "other"))))


async def test_an_adapter_that_was_trained_on_another_base_model_is_rejected(tmp_path):
    other = PolicyModel(str(tiny_model("llama", seed=3)), LoraSettings(4, 8.0))
    perturb_adapter(other, "default", seed=5)
    save_adapter(tmp_path / "other", other, "tiny")
    with pytest.raises(InputError, match="was trained on another base model"):
        await ask(await started(), AdapterRef("other", 1, str(tmp_path / "other")))


# The host


async def test_a_host_answers_neither_before_its_start_nor_after_it_is_closed(versions):
    host = build_host()
    with pytest.raises(SparringError, match="the engine is not running"):
        await ask(host, BASE_REF)
    await host.close()
    await host.start()
    under_way = [
        asyncio.create_task(ask(host, adapter, max_tokens=200)) for adapter in (BASE_REF, versions[1])
    ]
    while not host.stats()["running"]:
        await asyncio.sleep(0)
    loading = asyncio.create_task(ask(host, versions[2]))
    await asyncio.sleep(0)
    await host.close()
    found = await asyncio.gather(*under_way, loading, return_exceptions=True)
    # The engine ended the submitted requests; the host ended the one that still waited for its adapter.
    assert type(found[0]) is TransientError
    assert {type(error) for error in found} <= {TransientError, SparringError}
    with pytest.raises(SparringError, match="the engine is not running"):
        await ask(host, versions[1])


async def test_statistics_count_requests_in_progress_and_finished_work(versions):
    host = await started()
    assert host.stats()["idle_share"] == 1
    asked = asyncio.create_task(ask_all(host, versions[1], max_tokens=40))
    while not (waiting := host.stats())["queued"]:
        await asyncio.sleep(0)
    assert (waiting["queued"], waiting["running"], waiting["adapters"]) == (3 * len(PROMPTS), 0, 0)
    while not host.stats()["running"]:
        await asyncio.sleep(0)
    running = host.stats()
    assert running["queued"] + running["running"] == 3 * len(PROMPTS)
    responses = await asked
    stats = host.stats()
    assert stats["generated_tokens"] == sum(len(response.completion_token_ids) for response in responses)
    assert stats["tok_s"] > 0
    assert (stats["queued"], stats["running"], stats["adapters"]) == (0, 0, 1)
    assert 0 <= stats["idle_share"] < 1


def test_a_host_without_a_slot_for_an_adapter_is_rejected():
    with pytest.raises(InputError, match="max_adapters: 0 leaves no room"):
        build_host(max_adapters=0)


def test_the_classes_of_all_actors_load_no_model_library_and_no_games():
    code = (
        "import sys, sparring.cluster.actor_classes, sparring.compat.unstable; "
        "sys.exit(not sys.modules.keys().isdisjoint({'torch', 'transformers', 'textarena', 'pyspiel'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ResidentAdapters alone


class Slots:
    """Slots for adapters that check how they are used."""

    def __init__(self, number: int, failing: frozenset[int] = frozenset()) -> None:
        self.held: dict[str, int] = {}
        self.failing = failing
        self.loads: Counter[int] = Counter()
        self.adapters = ResidentAdapters([f"slot {index}" for index in range(number)], self.load, self.drop)

    async def load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        assert slot not in self.held
        assert adapter.version not in self.held.values()
        assert before is None or before.name == adapter.name
        self.loads[adapter.version] += 1
        for _ in range(3):
            await asyncio.sleep(0)
        if adapter.version in self.failing:
            raise DeliveryError(adapter.name, adapter.version, "it fails")
        self.held[slot] = adapter.version
        return Delivery(adapter.name, adapter.version, "", ())

    async def drop(self, slot: str) -> None:
        await asyncio.sleep(0)
        del self.held[slot]

    async def use(self, version: int, rounds: int) -> None:
        async with self.adapters.use(AdapterRef("default", version, str(version))) as slot:
            for _ in range(rounds):
                assert self.held[slot] == version
                await asyncio.sleep(0)
            assert self.held[slot] == version


async def test_fifty_uses_at_once_load_an_adapter_once():
    held = Slots(2)
    first = asyncio.create_task(held.use(1, 3))
    while not held.loads:
        await asyncio.sleep(0)
    others = [asyncio.create_task(held.use(1, 3)) for _ in range(49)]
    first.cancel()
    await asyncio.gather(*others)
    assert first.cancelled()
    assert held.loads == {1: 1}


uses = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 9)), max_size=30)


@settings(deadline=None)
@given(uses, st.integers(1, 4), st.frozensets(st.integers(0, 5), max_size=2), st.sets(st.integers(0, 29)))
@example([(0, 0, 0), (0, 0, 0), (1, 0, 8)], 1, frozenset(), {2})  # cancelled while it frees a slot
def test_every_request_gets_its_own_adapter_and_none_waits_forever(asked, slots, failing, cancelled):
    async def run() -> None:
        held = Slots(slots, failing)
        tasks: list[asyncio.Task[None]] = []
        for version, rounds, pause in asked:
            tasks.append(asyncio.create_task(held.use(version, rounds)))
            for _ in range(pause):
                await asyncio.sleep(0)
        for index in cancelled & set(range(len(tasks))):
            tasks[index].cancel()
        async with asyncio.timeout(20):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        await held.adapters.settle()
        for index, (error, (version, _, _)) in enumerate(zip(found, asked, strict=True)):
            if isinstance(error, asyncio.CancelledError):
                assert index in cancelled
            elif version in failing:
                assert isinstance(error, DeliveryError)
            else:
                assert error is None
        assert len(held.held) == len(held.adapters) <= slots

    asyncio.run(run())


async def test_an_adapter_is_not_starved_by_continuous_requests_for_another():
    held, served = Slots(1), asyncio.Event()

    async def keep_asking() -> None:
        while not served.is_set():
            await held.use(1, 5)

    async def newcomer() -> None:
        await held.use(2, 1)
        served.set()

    async with asyncio.timeout(20):
        await asyncio.gather(*(keep_asking() for _ in range(3)), newcomer())
    assert held.loads[2] == 1


# LoadWindow


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30), st.integers(0, 9000))
def test_the_idle_share_covers_the_last_five_seconds(events, last):
    """The test counts time in milliseconds."""
    milliseconds: list[bool] = []  # whether a request was in progress
    load = LoadWindow(lambda: len(milliseconds) / 1000)
    under_way = []
    for pause, begins in events:
        milliseconds += [bool(under_way)] * pause
        if begins:
            under_way.append(load.request())
            under_way[-1].__enter__()
        elif under_way:
            under_way.pop().__exit__(None, None, None)
    milliseconds += [bool(under_way)] * last
    window = milliseconds[-int(WINDOW_SECONDS * 1000) :]
    expected = window.count(False) / len(window) if window else 1.0
    assert load.idle_share() == pytest.approx(expected, abs=1e-6)


def test_tokens_per_second_cover_the_last_five_seconds():
    now = [0.0]
    load = LoadWindow(lambda: now[0])
    assert load.tokens_per_second(0) == 0
    rates = []
    for second in range(1, 12):
        now[0] = float(second)
        rates.append(load.tokens_per_second(10 * second if second <= 4 else 40))
    assert rates == [10, 10, 10, 10, 8, 6, 4, 2, 0, 0, 0]
