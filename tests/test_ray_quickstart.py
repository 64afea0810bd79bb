"""The actors of ``sparring.compat.unstable`` on a real cluster: a whole program, and each actor by itself."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
import torch

import sparring.compat.unstable as unstable
import sparring.compat.unstable.collector
from cluster_overlaps import run_on_virtual_time
from live_server import TOKEN, engine_over, running
from ray_quick_start import BATCH_SIZE, NAMES, TAK, Demo, train_on_tak
from ray_simulation import SimulatedHost
from sparring.cluster.collector import CollectorService
from sparring.cluster.engines.service import EngineService
from sparring.collection.buffer import BufferService
from sparring.collection.buffer_state import Demand
from sparring.collection.buffers import StepBuffer
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.collection.sinks import read_metrics
from sparring.compat.unstable.actors import PromptActor, VLLMArguments
from sparring.compat.unstable.collector import CollectorArguments
from sparring.compat.unstable.forms import Form
from sparring.core import InputError, SparringError
from sparring.engine.server import create_app
from sparring.learn.checkpoints import load_adapter, save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import perturb_adapter, tiny_model

UPDATES = 2
CAP = 3
LORA = {"lora_rank": 2, "lora_alpha": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The directory in which the cluster runs."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def model(place) -> str:
    """A tiny model whose context is long enough for these prompts in bytes."""
    directory = place / "tiny"
    shutil.copytree(tiny_model("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.fixture(scope="module")
def adapter(model, place) -> str:
    """An adapter of another player."""
    policy = PolicyModel(model, LoraSettings(2, 4.0))
    perturb_adapter(policy, seed=5)
    save_adapter(place / "other-player", policy, model)
    return str(place / "other-player")


@pytest.fixture(scope="module")
def demo(joined, model) -> Demo:
    return train_on_tak(model, "random", UPDATES, engines=1, max_tokens=8, max_model_len=8192)


def engine_config(model: str) -> dict[str, object]:
    return {"model_name": model, "max_tokens": 4, "max_model_len": 8192, "lora_config": LORA}


def games_against(snapshot: dict, uid: str) -> dict[str, int]:
    """Games of each checkpoint against a model that is not trained."""
    matches = snapshot["matches"]
    return {me: sides[uid]["games"] for me, sides in matches.items() if uid in sides and me != uid}


def error_of(form: Form, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        form.remote(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The quick start


def check_that_it_trained_and_evaluated(demo: Demo, updates: int) -> None:
    lines = read_metrics(demo.directory / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, updates + 1))
    assert all(line["learner/records"] == BATCH_SIZE for line in lines)
    assert set(demo.snapshot["models"]) >= {"ckpt--1", *(f"ckpt-{step + 1}" for step in range(updates))}
    assert demo.snapshot["current_uid"] == f"ckpt-{updates}"
    assert demo.snapshot["models"]["fixed-random"]["mu"] != 25.0
    evaluated = games_against(demo.snapshot, "fixed-random")
    assert sum(evaluated.values()) == demo.accounts["eval_finished"] > 0
    assert all(games <= 32 * 2 for games in evaluated.values())  # in each of two environments
    assert demo.accounts["failed"] == demo.accounts["eval_failed"] == 0
    assert demo.steps["sampled"] == updates * BATCH_SIZE


def test_the_quick_start_ends_with_a_better_known_model(demo):
    check_that_it_trained_and_evaluated(demo, UPDATES)


def test_the_quick_start_changed_the_weights(demo):
    first, last = (load_adapter(demo.directory / "versions" / f"{step:06d}")[0] for step in (1, UPDATES))
    moved = [name for name in first if "lora_B" in name and first[name].abs().max() > 0]
    assert len(moved) == len(first) / 2
    assert any(not torch.equal(first[name], last[name]) for name in first)
    assert (demo.directory / "checkpoints" / f"step-{UPDATES:06d}" / "adapter_model.safetensors").is_file()


def test_the_actors_are_found_by_their_names(demo):
    assert demo.named == list(NAMES)


def test_weights_and_biases_gets_the_run_without_a_network(demo):
    assert list((demo.directory / "wandb").glob("offline-run-*/*.wandb"))


def test_the_tracker_gives_interfaces_its_statistics(demo):
    assert demo.info["metrics"]["step"] == UPDATES
    assert "ckpt--1" in demo.info["ratings"]


def test_the_page_on_run_directories_names_the_files_of_a_run_on_ray(demo):
    page = (Path(__file__).parents[1] / "docs" / "run-directory.md").read_text()
    there = {path.name for path in demo.directory.iterdir()} - {"wandb"}
    assert there >= {"versions", "learner", "state"}
    assert [name for name in there if f"  {name}" not in page] == []


@pytest.mark.slow
def test_the_quick_start_with_a_real_model(joined):
    """smollm2-135m must be there already, as after any training."""
    demo = train_on_tak("smollm2-135m", "random", UPDATES, engines=2, max_tokens=32, max_model_len=2048)
    check_that_it_trained_and_evaluated(demo, UPDATES)


# Its parts


def wait_for(condition: Callable[[], bool], playing: ray.ObjectRef | None = None) -> None:
    """Wait for it, while a collector plays."""
    for _ in range(6000):
        if condition():
            return
        if playing is None:
            time.sleep(0.1)
        else:
            assert not ray.wait([playing], timeout=0.1)[0], ray.get(playing)
    raise AssertionError("it did not come about")


def evaluated(pool: object) -> int:
    """Evaluation games that are over."""
    accounts = ray.get(pool.accounts.remote())
    assert accounts["eval_failed"] == 0
    return accounts["eval_finished"]


@pytest.mark.slow
def test_every_checkpoint_plays_its_evaluation_games_and_no_more(joined, model, adapter):
    """Against a script, an adapter and a model behind an API: three games each."""
    engine = engine_over(PolicyModel(model, LoraSettings(2, 4.0)), max_tokens=4)
    with running(create_app(engine, token=TOKEN), engine) as live:
        api = f"tiny@{live.url}/v1"
        opponents = ["random", adapter, api]
        tracker = unstable.Tracker.remote("evaluation")
        buffer = unstable.EpisodeBuffer.remote(100, tracker)
        pool = unstable.ModelPool.remote("mirror", 3, tracker)
        ray.get(pool.add_checkpoint.remote(None, -1))
        collector = unstable.Collector.options(max_restarts=1).remote(
            1,
            buffer,
            pool,
            tracker,
            engine_config(model),
            training_envs=[("kuhn_poker", 2, "qwen3-zs")],
            evaluation_envs=[("kuhn_poker", 2, "qwen3-zs")] * len(opponents),
            evaluation_opponent=opponents,
            max_eval_games_per_ckpt=CAP,
        )
        playing = collector.collect.remote(num_workers=2, num_eval_workers=4)
        for finished in (9, 18):
            wait_for(lambda number=finished: evaluated(pool) == number, playing)
            ray.get(pool.add_checkpoint.remote(adapter, finished))
        wait_for(lambda: ray.get(buffer.games.remote()) >= 20, playing)
        ray.get([pool.stop.remote(), buffer.stop.remote()])
        ray.get(playing)
        snapshot, accounts = ray.get([pool.snapshot.remote(), pool.accounts.remote()])
        for opponent in opponents:
            played = games_against(snapshot, f"fixed-{opponent}")
            assert [played["ckpt--1"], played["ckpt-9"]] == [CAP, CAP]
            assert played.get("ckpt-18", 0) <= CAP
        assert accounts["eval_failed"] == 0
    steps = ray.get(buffer.counts.remote())["stored"]
    drawn = ray.get(buffer.draw.remote(1, Demand(2, entries=2)))
    assert len({(step.info["rollout_id"], step.pid) for step in drawn.steps}) == 2, "whole episodes"
    assert all(step.completion_token_ids for step in drawn.steps)
    assert ray.get(buffer.size.remote()) == steps - len(drawn.steps)
    assert not ray.get(buffer.continue_collection.remote())


class EnginesHere:
    """Starts the engines of a collector in this process; their answers are no valid moves."""

    @staticmethod
    def remote(*_: object) -> LocalHandle:
        return LocalHandle(EngineService(SimulatedHost(1.0)))


@pytest.mark.parametrize("left_out", [True, False])
def test_games_that_an_opponents_invalid_move_decided_can_be_left_out(joined, monkeypatch, left_out):
    """The collector is the one that its actor would build. Whoever moves first loses."""
    monkeypatch.setattr(sparring.compat.unstable.collector, "restarting", lambda *_, **__: EnginesHere)
    pool, buffer = PoolService("fixed", 3), BufferService(StepBuffer(100))
    pool.add_fixed("base")
    pool.add_checkpoint(None, -1)
    handles, options = (LocalHandle(buffer), LocalHandle(pool), None), {"filter_opponent_invalid": left_out}
    arguments = CollectorArguments(1, *handles, engine_config("none"), [TAK], **options)
    collector = arguments.for_actor()["build"]()
    assert isinstance(collector, CollectorService)

    async def play_games() -> None:
        playing = asyncio.create_task(collector.collect(4, 0))
        while buffer.games() < 12:
            assert not playing.done(), playing.result()
            await asyncio.sleep(1.0)
        pool.stop()
        buffer.stop()
        await playing

    run_on_virtual_time(play_games())
    lost_by_opponents = buffer.games() - buffer.counts()["added"]  # the policy made no move in them
    assert lost_by_opponents > 0
    assert pool.accounts()["filtered"] == (lost_by_opponents if left_out else 0)


def start_here(*arguments: object) -> LocalHandle:
    """Start in this process what an inference actor is."""
    return LocalHandle(PromptActor(**VLLMArguments(*arguments).for_actor()))


@pytest.mark.parametrize(
    "start",  # by default, the quick start has an engine on Ray
    [start_here, pytest.param(unstable.VLLMActor.remote, marks=pytest.mark.slow)],
    ids=["here", "on Ray"],
)
async def test_an_inference_actor_answers_prompts(joined, model, adapter, start):
    actor = start(engine_config(model), None, "alone")
    assert isinstance(await actor.submit_prompt.remote("Your move:"), str)
    assert isinstance(await actor.submit_prompt.remote("Your move:", adapter), str)
    assert (await actor.load.remote())["adapters"] == 1
    with pytest.raises(SparringError, match="is not at /nowhere"):
        await actor.submit_prompt.remote("Your move:", "/nowhere")


# Arguments that are rejected before anything is started


def test_an_api_opponent_without_its_key_is_rejected_with_the_local_alternatives(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    error = error_of(unstable.Collector, 1, None, None, None, engine_config("m"), [TAK], [TAK])
    assert error.startswith("evaluation_opponent: google/gemini-2.0-flash-lite-001 needs OPENROUTER_API_KEY")
    assert "random or base" in error


def test_gpus_that_no_node_has_are_rejected(joined):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    error = error_of(unstable.StandardLearner.options(num_gpus=1), "m", None, None, None, 1, 1, 1)
    assert error == "num_gpus: 1 GPU is requested and the cluster has 0. Request fewer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_actors": 0}, "num_actors: 0 is not positive"),
        ({"training_envs": []}, "training_envs: is empty"),
        ({"training_envs": [("SimpleTalk-v0-train", 2, "qwen3-zs")]}, "env.id: TextArena has no environment"),
        ({"training_envs": [("SimpleTak-v0-train", 2, "qwen4")]}, "env.template: no template 'qwen4'"),
        ({"evaluation_opponent": "rnadom"}, "evaluation_opponent: there is no opponent 'rnadom'"),
        ({"action_extraction": "judge"}, "action_extraction: there is no 'judge'"),
        ({"vllm_config": {"model_name": "m", "top_p": 0.95}}, "vllm_config.top_p: must be 1"),
        ({"vllm_config": {"model_name": "m", "max_loars": 8}}, "vllm_config: there is no 'max_loars'"),
        ({"vllm_config": {"max_tokens": 8}}, "vllm_config: model_name is missing"),
        (
            {"vllm_config": {"model_name": "m", "max_parallel_seq": 0}},
            "vllm_config.max_parallel_seq: must be at least 1 (got 0)",
        ),
        (
            {"vllm_config": {"model_name": "m", "lora_config": {"lora_rank": "8"}}},
            'lora_config.lora_rank: must be a whole number (got "8")',
        ),
        (
            {"vllm_config": {"model_name": "m", "lora_config": {"lora_dropout": 0.1}}},
            "lora_config.lora_dropout: must be 0",
        ),
    ],
)
def test_a_collector_that_cannot_work_is_not_started(changes, complaint):
    arguments = {
        "num_actors": 1,
        "step_buffer": None,
        "model_pool": None,
        "tracker": None,
        "vllm_config": {"model_name": "m"},
        "training_envs": [TAK],
        "evaluation_envs": [TAK],
        "evaluation_opponent": "random",
    }
    assert error_of(unstable.Collector, **(arguments | changes)).startswith(complaint)
