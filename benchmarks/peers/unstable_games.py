r"""unstable-rl 0.2.2: KuhnPoker games per second of its own game loop, and their memory, with a mock engine.

Run in an environment of its own: torch==2.13.0 (the CPU wheel, installed first), ray==2.60.0,
textarena==0.7.4, transformers, peft, trueskill, psutil, dm-tree, pynvml, wandb and rich, and then
``unstable-rl==0.2.2`` with ``--no-deps``. vllm is not installed.

What runs is the package's own code, wired as its ``build`` does it for mirror self-play without evaluation:
``Collector.collect`` keeps N of its ``run_game`` tasks in flight, and its Tracker, ModelRegistry,
GameScheduler and StepBuffer (with ``build``'s reward transformations) get every game. No file of it is
touched. Two things are replaced:

- ``vllm`` is a stub in a temporary directory on PYTHONPATH with the four names that are imported from it;
- ``unstable.collector.VLLMActor`` is the mock engine below: the same constructor and ``submit_prompt``, and
  an answer at once. The Collector makes one for each GPU, so Ray is told that there is one GPU.

There is no learner, so nothing draws from the buffer; it is large enough that nothing is evicted either.

In the peer's favour: a worker does not import vllm, which would cost it memory and seconds; nothing goes to
W&B; the mock has none of the engine's 20 ms of sleep between steps; and Ray is told of as many CPUs as
games are in flight, so that it keeps as many idle workers. ``build`` leaves it the number of cores
(``--cpus``): with more games than cores Ray then ends idle workers and starts new ones all the time.
Against it: its actors share the cores with the games.

A worker holds about 320 MB by itself, so 64 games need about 23 GB. If less than MIN_FREE_GB are left, the
script says so and ends.

A game counts when the ModelRegistry has rated it: ``games`` of its one policy, two for a game of two seats.
Start-up is not measured as speed: the window opens when 2N games are finished and the number of the game
workers and their resident memory (within 1 %, so all have imported what they import) have not changed for
``--settle`` seconds. Memory is the most that the window's samples show, summed over Ray's worker processes
(games and actors) as PSS, which splits shared pages between their users; Ray's own daemons are given apart.
CPU seconds are those of all processes that Ray has started, without this one.

Ray 2.60 turns token authentication on by itself for a cluster that it starts (unless RAY_AUTH_MODE says
otherwise) and writes the token to the home directory; nothing needs to be done, and the cost is the same on
both sides.

Command:  PYTHON unstable_games.py --games 64 --seconds 60        (prints JSON on its last line)
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ENV_ID = "KuhnPoker-v0-train"
ACTORS = ("Tracker", "ModelRegistry", "GameScheduler", "StepBuffer", "Collector", "MockEngine")
STUB = {
    "vllm/__init__.py": "class EngineArgs: ...\nclass LLMEngine: ...\nclass SamplingParams: ...\n",
    "vllm/lora/__init__.py": "",
    "vllm/lora/request.py": "class LoRARequest: ...\n",
}
EVERY = 5.0  # seconds between samples of the memory
MIN_FREE_GB = 2.0  # with less than this the machine is too small for the games


def prepare(directory: Path) -> None:
    """Write the stub of vllm and put it before all else for this process and Ray's; logs go there as well."""
    for name, text in STUB.items():
        path = directory / "stub" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = [str(directory / "stub"), str(HERE)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTHONWARNINGS"] = "ignore"
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.chdir(directory)  # unstable writes its outputs where it is


@dataclass
class Loop:
    """The actors of a run of unstable-rl."""

    registry: Any
    buffer: Any
    collector: Any

    def finished(self) -> int:
        """Games that have been played and rated."""
        return int(self.wait(self.registry.get_all_models.remote())["base"].games) // 2

    def turns(self) -> int:
        """Turns that have reached the buffer."""
        return int(self.wait(self.buffer.size.remote()))

    def wait(self, answer: Any) -> Any:
        """Get the answer of a busy actor; watch the memory meanwhile."""
        import ray

        while not ray.wait([answer], timeout=0.5)[0]:
            check_room()
        return ray.get(answer)


def mock_engine() -> Any:
    """The actor that stands in for VLLMActor."""
    import ray

    @ray.remote
    class MockEngine:
        def __init__(self, cfg: dict[str, Any], tracker: Any, name: str) -> None:
            from mock_answers import MockAnswers

            self.answers = MockAnswers()

        async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
            return self.answers.answer(prompt)

    return MockEngine


def build() -> Loop:
    """What ``unstable.build`` makes, without its learner."""
    import ray
    import unstable
    import unstable.collector
    import unstable.reward_transformations as rewards
    from unstable.samplers import BaseModelSampler, UniformRandomEnvSampler

    unstable.collector.VLLMActor = mock_engine()
    env = unstable.TrainEnvSpec(env_id=ENV_ID, num_players=2, num_actors=2, prompt_template="qwen3-zs")
    tracker = unstable.Tracker.options(name="Tracker").remote(run_name="benchmark", wandb_project=None)
    registry = unstable.ModelRegistry.options(name="ModelRegistry").remote(tracker=tracker)
    ray.get(registry.add_checkpoint.remote(uid="base", path=None, iteration=0))
    scheduler = unstable.GameScheduler.options(name="GameScheduler").remote(
        model_sampler=BaseModelSampler(model_registry=registry),
        env_sampler=UniformRandomEnvSampler(train_env_specs=[env]),
        logging_dir=ray.get(tracker.get_log_dir.remote()),
    )
    step_rewards = [rewards.RewardForFormat(1.5), rewards.PenaltyForInvalidMove(1.0, -1.0)]
    buffer = unstable.StepBuffer.options(name="Buffer").remote(
        max_buffer_size=10_000_000,
        tracker=tracker,
        final_reward_transformation=rewards.ComposeFinalRewardTransforms(
            [rewards.RoleAdvantageByEnvFormatter()]
        ),
        step_reward_transformation=rewards.ComposeStepRewardTransforms(step_rewards),
        sampling_reward_transformation=rewards.ComposeSamplingRewardTransforms(
            [rewards.NormalizeRewardsByEnv(True)]
        ),
    )
    collector = unstable.Collector.options(name="Collector").remote(
        vllm_config={}, tracker=tracker, buffer=buffer, game_scheduler=scheduler
    )
    return Loop(registry, buffer, collector)


@dataclass
class Sample:
    """The processes that Ray has started: MB of PSS by kind, and their number."""

    mb: dict[str, float] = field(default_factory=lambda: {"game": 0.0, "actor": 0.0, "daemon": 0.0})
    processes: dict[str, int] = field(default_factory=lambda: {"game": 0, "actor": 0, "daemon": 0})

    def workers_mb(self) -> float:
        return self.mb["game"] + self.mb["actor"]


def kind_of(process: psutil.Process) -> str:
    """``game`` for a worker that runs games, ``actor`` for an actor of unstable's, else ``daemon``."""
    title = (process.cmdline() or [""])[0]
    if title == "ray::IDLE" or title.startswith("ray::run_game"):
        return "game"
    return "actor" if title.split(".")[0].removeprefix("ray::") in ACTORS else "daemon"


def take_sample() -> Sample:
    """Look at all of them now."""
    sample = Sample()
    for process in psutil.Process().children(recursive=True):
        try:
            kind, pss = kind_of(process), process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        sample.mb[kind] += pss / 2**20
        sample.processes[kind] += 1
    return sample


def cpu_seconds() -> float:
    """Of all processes that Ray has started, and of those of them that have ended."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and the same of children it has waited for
        except psutil.NoSuchProcess:
            continue
    return total


def check_room() -> None:
    """End the program before the machine runs out of memory."""
    if psutil.virtual_memory().available < MIN_FREE_GB * 2**30:
        sample = take_sample()
        raise SystemExit(
            f"these games do not fit into this machine: the {sample.processes['game']} game processes hold "
            f"{sample.mb['game']:.0f} MB so far, and less than {MIN_FREE_GB} GB are free"
        )


def game_workers() -> tuple[int, int]:
    """Their number and the bytes that they hold, shared ones counted again for each."""
    resident = []
    for process in psutil.Process().children(recursive=True):
        try:
            if kind_of(process) == "game":
                resident.append(process.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return len(resident), sum(resident)


def warm_up(loop: Loop, arguments: argparse.Namespace) -> dict[str, float]:
    """Wait for the steady state; returns the seconds until the first N games were finished, and until now."""
    started = steady_since = perf_counter()
    first, workers = None, (0, 0)
    while True:
        sleep(0.5)
        check_room()
        now, finished = perf_counter(), loop.finished()
        if first is None and finished >= arguments.games:
            first = now - started
        found = game_workers()
        if found[0] != workers[0] or abs(found[1] - workers[1]) > 0.01 * workers[1]:
            workers, steady_since = found, now
        if finished >= 2 * arguments.games and now - steady_since >= arguments.settle:
            return {"first_games_seconds": first or 0.0, "warm_up_seconds": now - started}
        if now - started > arguments.patience:
            raise SystemExit(
                f"no steady state after {arguments.patience:.0f} s: {finished} games, {workers[0]} workers"
            )


def measure(loop: Loop, arguments: argparse.Namespace) -> dict[str, float]:
    """Count games and cost for the given seconds."""
    samples = [take_sample()]
    turns = loop.turns()
    started, cpu, before = perf_counter(), cpu_seconds(), loop.finished()
    while perf_counter() - started < arguments.seconds:
        sleep(min(EVERY, max(0.1, started + arguments.seconds - perf_counter())))
        check_room()
        samples.append(take_sample())
    episodes, seconds, cpu = loop.finished() - before, perf_counter() - started, cpu_seconds() - cpu
    turns = loop.turns() - turns
    most = max(samples, key=Sample.workers_mb)
    return {
        "episodes": episodes,
        "seconds": seconds,
        "episodes_per_second": episodes / seconds,
        "turns_per_episode": turns / max(1, episodes),
        "cpu_seconds": cpu,
        "cpu_seconds_per_episode": cpu / max(1, episodes),
        "workers_mb": most.workers_mb(),
        "games_mb": most.mb["game"],
        "daemons_mb": most.mb["daemon"],
        "game_processes": most.processes["game"],
        "actor_processes": most.processes["actor"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=64, help="in flight")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the window")
    parser.add_argument("--cpus", type=int, help="what Ray is told; by default the games in flight")
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--patience", type=float, default=600.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        import ray

        started = perf_counter()
        ray.init(
            namespace="unstable",
            num_cpus=arguments.cpus or arguments.games,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
        )
        try:
            loop = build()
            setup = perf_counter() - started
            done = loop.collector.collect.remote(num_train_workers=arguments.games)
            result = {"games": arguments.games, "setup_seconds": setup}
            result |= warm_up(loop, arguments) | measure(loop, arguments)
            ray.get(loop.buffer.stop.remote())
            ray.get(done)
        finally:
            ray.shutdown()
            os.chdir(HERE)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
