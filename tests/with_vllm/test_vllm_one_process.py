"""Runs in one process that start vLLM: what they learn and refuse, and that no process outlives them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from game_runs import FEWER_GAMES, configure, cut_back, metrics_of, resumed, run
from kill_resume import accounts_balance, fingerprint
from small_models import small_model
from sparring.config.loading import dump_config
from sparring.core import InputError, SparringError
from sparring.engine.vllm_engine import VLLMEngine
from sparring.run.adapter_versions import AdapterVersions
from sparring.run.checks import check_config

SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]
CLOSE = 1e-3
SECONDS = 600
OPTIONS = {
    "inference__engine": "vllm",
    "lora__rank": "8",
    "population__sample_mode": "lagged",
    "population__add_every": "1",
    "learning__average_decay": "0.9",
    "evaluation__every": "0",
    "evaluation__nash_conv": "false",
    "run__save_every": "1",
} | FEWER_GAMES


@pytest.fixture(scope="module")
def model() -> Path:
    """A model that vLLM takes, whose context has room for the prompts of games."""
    return small_model(16384)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    """A run of three updates, with frozen copies of the average as opponents."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run(configure(model, **OPTIONS, learning__steps="3"), path)
    assert no_engine_is_left()
    return path


def no_engine_is_left() -> bool:
    """Return whether this process has no child that runs but Python's own, which tracks shared memory."""
    children = psutil.Process().children(recursive=True)
    running = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return all("resource_tracker" in " ".join(child.cmdline()) for child in running)


def test_the_log_probabilities_are_the_learners_and_every_game_is_accounted_for(whole):
    assert accounts_balance(whole)
    lines = metrics_of(whole)
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["learner/mismatch"] < 1e-5
        assert line["accounts/failed"] == 0
        assert line["inference/generated_tokens"] > 0


def test_a_resumed_run_equals_an_uninterrupted_one_up_to_rounding(whole, tmp_path):
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    cut_back(cut, to=2)
    resumed(cut)
    ours, theirs = fingerprint(whole), fingerprint(cut)
    assert answers(ours["rollouts"]) == answers(theirs["rollouts"])
    assert ours["evaluations"].keys() == theirs["evaluations"].keys()
    place = Path("checkpoints/step-000003/adapter_model.safetensors")
    weights, again = load_file(whole / place), load_file(cut / place)
    for name, tensor in weights.items():
        assert (tensor - again[name]).abs().max() < CLOSE, name


def answers(rollouts: dict) -> list[list[list[int]]]:
    """Return the token ids of all answers, without log-probabilities, which are rounded."""
    return [
        [step["completion_token_ids"] for step in line["rollout"]["steps"]]
        for name in sorted(rollouts)
        for line in rollouts[name]
    ]


def test_a_tampered_adapter_ends_the_run(model, tmp_path, monkeypatch):
    write = AdapterVersions.write

    def tampered(self, policy):
        """Put the file of version 1 in the place of version 2."""
        write(self, policy)
        if self.learners[policy].version == 2:
            place = tmp_path / "run" / "versions"
            shutil.copy(place / "000001" / "adapter_model.safetensors", place / "000002")

    monkeypatch.setattr(AdapterVersions, "write", tampered)
    wrong = r"default version 2 was not delivered: the weights in .* have hash"
    with pytest.raises(SparringError, match=wrong):
        run(configure(model, **OPTIONS, learning__steps="3"), tmp_path / "run")
    assert no_engine_is_left()


async def test_sleep_is_refused_where_vllm_has_none(model):
    sleeping = configure(model, **OPTIONS, inference__sleep="1", model__device="cpu")
    with pytest.raises(
        InputError, match=r"inference.sleep: vLLM sleeps on CUDA GPUs only, and the run uses cpu"
    ):
        check_config(sleeping)
    engine = VLLMEngine(str(model), dtype="float32", sleeps=True)
    with pytest.raises(InputError, match=r"inference.sleep: this vLLM cannot sleep on this machine"):
        await engine.start()


async def test_a_call_ends_with_the_process_that_it_waits_for(model):
    """vLLM itself would wait for ever."""
    engine = VLLMEngine(str(model), dtype="float32")
    await engine.start()
    children = psutil.Process().children(recursive=True)
    try:
        for child in children:
            child.suspend()
        forgetting = asyncio.create_task(engine.forget_contexts())
        await asyncio.sleep(0)  # it has been sent
        assert not forgetting.done()
        for child in children:
            child.kill()
        with pytest.raises(SparringError, match="vLLM"):
            await asyncio.wait_for(forgetting, SECONDS)
        assert engine.has_died
    finally:
        await engine.close()


@contextmanager
def training(model: Path, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A run without an end, in a group of processes of its own."""
    config = configure(model, **OPTIONS, learning__steps="100000", run__directory=str(directory))
    (directory / "endless.toml").write_text(dump_config(config))
    process = subprocess.Popen(
        [*SPARRING, "train", str(directory / "endless.toml"), "--name=run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_until(process: subprocess.Popen[str], done: Callable[[str], bool]) -> None:
    """Read what a run prints until it is ``done`` with a line."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if done(line):
            return
    raise AssertionError(f"it ended too early: {seen}")


def has_learned(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait for the first update of a run; return its processes."""
    read_until(process, lambda line: "update    1/" in line)
    return psutil.Process(process.pid).children(recursive=True)


def is_starting(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait for vLLM's process while a run says that it starts; return the run's processes."""
    family: list[psutil.Process] = []

    def there(line: str) -> bool:
        family[:] = psutil.Process(process.pid).children(recursive=True)
        return "starting vLLM:" in line and any("spawn_main" in " ".join(one.cmdline()) for one in family)

    read_until(process, there)
    return family


Wait = Callable[[subprocess.Popen[str]], list[psutil.Process]]


def ends(process: subprocess.Popen[str], wait: Wait, signals: list[int]) -> tuple[int, str]:
    """Send signals once ``wait`` returns, SIGINT to all processes as a terminal does; return how it ended.

    Its processes must end too.
    """
    family = wait(process)
    assert len(family) > 1  # vLLM's, and Python's own
    for number, following in zip_longest(signals, signals[1:]):
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        if following is not None:
            read_until(process, lambda line: "finishing this update" in line)
    rest = process.communicate(timeout=SECONDS)[0]
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    assert alive == []
    return process.returncode, rest


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_run_that_is_asked_to_end_saves_its_update_and_leaves_no_process(model, tmp_path, ending):
    with training(model, tmp_path) as process:
        code, rest = ends(process, has_learned, [ending])
    assert code == 0, rest
    assert "finishing this update, then saving" in rest
    assert "--resume" in rest
    assert metrics_of(tmp_path / "run")[-1]["accounts/failed"] == 0


@pytest.mark.parametrize(
    ("wait", "ending"),
    [
        (has_learned, [signal.SIGKILL]),
        (has_learned, [signal.SIGINT, signal.SIGINT]),
        (is_starting, [signal.SIGTERM]),
        (is_starting, [signal.SIGINT]),
    ],
    ids=["a kill", "Ctrl-C twice", "SIGTERM while it starts", "Ctrl-C while it starts"],
)
def test_however_a_run_ends_no_process_is_left(model, tmp_path, wait, ending):
    with training(model, tmp_path) as process:
        ends(process, wait, ending)
