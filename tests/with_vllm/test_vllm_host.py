"""VLLMHost on vLLM itself, with a random Llama in float32."""

import asyncio
import json
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from small_models import saved_adapter, small_model, small_policy
from sparring.core import ModelResponse, SparringError
from sparring.core.adapters import DELIVERY_FILE, AdapterRef
from sparring.engine.adapters import DeliveryError
from sparring.engine.answering import EngineCall
from sparring.engine.hosts import EngineRequest, VLLMHost
from sparring.engine.vllm_engine import VLLMEngine
from sparring.learn.checkpoints import write_delivery
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import BASE, TRAINED, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import text_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = ["a", "abc", "rules rules rules: move 1", "rules rules rules: move 2"]
BASE_REF = AdapterRef("base", 0, None)
MAX_ADAPTERS = 2
CLOSE = 1e-4


@pytest.fixture(scope="module")
def learner() -> PolicyModel:
    """A policy with the adapters ``v1`` to ``v4``, which have different weights."""
    return small_policy()


@pytest.fixture(scope="module")
def versions(learner, tmp_path_factory) -> dict[int, AdapterRef]:
    """The adapters on disk; adapter 0 is untrained."""
    root = tmp_path_factory.mktemp("versions")
    for version in range(5):
        directory = saved_adapter(learner, root / f"{version:06}", version or None)
        write_delivery(directory, learner, TRAINED, version)
        learner.load_adapter_state(learner.adapter_state(TRAINED), f"v{version}")
    return {version: AdapterRef("default", version, str(root / f"{version:06}")) for version in range(5)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host():
    def build() -> VLLMEngine:
        return VLLMEngine(str(small_model()), max_tokens=8, max_adapters=MAX_ADAPTERS, dtype="float32")

    host = VLLMHost(build)
    with pytest.raises(SparringError, match="the engine is not running"):
        await ask(host, BASE_REF)
    await host.start()
    yield host
    await host.close()
    with pytest.raises(SparringError, match="the engine is not running"):
        await ask(host, BASE_REF)


async def ask(host, adapter, text="a", seed=0, max_tokens=None) -> ModelResponse:
    call = EngineCall(text_prompt(text), 1.0, max_tokens, seed=seed)
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
        assert response.completion_logprobs == pytest.approx(logprobs, abs=CLOSE)


async def test_base_and_adapters_in_one_batch_each_give_their_own_answers(host, learner, versions):
    asked = {"v1": versions[1], "v2": versions[2], BASE: BASE_REF}
    answered = await asyncio.gather(*(ask_all(host, adapter) for adapter in asked.values()))
    for (name, adapter), responses in zip(asked.items(), answered, strict=True):
        assert_drawn_from(learner, name, responses)
        assert {response.policy_version for response in responses} == {adapter.version}
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_drawn_from(learner, "v2", answered[0])
    assert_drawn_from(learner, BASE, await ask_all(host, versions[0]))


async def test_no_request_is_lost_when_adapters_are_swapped_under_load(host, learner, versions):
    """Twice as many adapters as there are slots are used in turn, and the base as well."""
    asked: list[tuple[AdapterRef, asyncio.Task[list[ModelResponse]]]] = []
    for turn in range(12):
        adapter = versions[1 + turn % 4]
        for one in (adapter, BASE_REF):
            asked.append((one, asyncio.create_task(ask_all(host, one, [turn], max_tokens=1 + 3 * turn))))
        while len(asked) > 4 and not asked[-4][1].done():
            await asyncio.sleep(0.001)
    answered = [(adapter, await task) for adapter, task in asked]
    assert sum(len(responses) for _, responses in answered) == 12 * 2 * len(PROMPTS)
    for adapter, responses in answered:
        assert {response.policy_version for response in responses} == {adapter.version}
        assert_drawn_from(learner, f"v{adapter.version}" if adapter.path else BASE, responses)
    stats = host.stats()
    assert stats["adapters"] == MAX_ADAPTERS
    assert (stats["queued"], stats["running"]) == (0, 0)


async def test_scores_are_those_of_the_requested_adapter(host, learner, versions):
    for version in (1, 2):
        (score,) = await host.score(versions[version], text_prompt("ab"), ["yes"])
        ids, answer = learner.render(text_prompt("ab")), learner.encode_answer(text_prompt("ab"), "yes")
        with torch.no_grad(), learner.adapter(f"v{version}"):
            expected = plan_logprobs(learner, build_plan([ids], [answer])).sum()
        assert score == pytest.approx(float(expected), abs=1e-3)


async def test_an_adapter_that_does_not_match_its_description_is_not_served(
    host, learner, versions, tmp_path
):
    saved_adapter(learner, tmp_path / "other", 3)
    said = json.loads((Path(versions[2].path) / DELIVERY_FILE).read_text())
    wrong = AdapterRef("ckpt-2", 2, str(tmp_path / "other"))
    for what, complaint in (({}, "the weights in .* have hash"), ({"sha256": None}, "the canary's")):
        own = json.loads((Path(versions[3].path) / DELIVERY_FILE).read_text())
        changed = said | {key: own[key] for key in what}
        (tmp_path / "other" / DELIVERY_FILE).write_text(json.dumps(changed))
        with pytest.raises(DeliveryError, match=f"ckpt-2 version 2 was not delivered: {complaint}") as caught:
            await ask(host, wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(SparringError, match="ckpt-9 version 9 is not at"):
        await ask(host, AdapterRef("ckpt-9", 9, str(tmp_path / "000009")))
    for version in (1, 2):  # both slots are free
        assert_drawn_from(learner, f"v{version}", await ask_all(host, versions[version]))
