"""A run of a program without a local model: its learners need text and rewards only.

    python tests/text_and_rewards.py CONFIGURATION RUN

It stands for models behind an API: the client returns no token ids, and what is learned is the best text.
"""

import asyncio
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from sparring.collection.local_handle import LocalHandle
from sparring.collection.metrics_log import MetricsLog
from sparring.config.loading import dump_config, load_config
from sparring.core import MockInferenceClient, ModelResponse
from sparring.run.learners import BatchOf, Saved, State
from sparring.run.metrics import RunMetrics
from sparring.run.program_source import ProgramSource
from sparring.run.programs import build_program, policies_of
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import Serving
from sparring.run.trainer import Trainer


class ApiClient(MockInferenceClient):
    """Answers with text only."""

    async def complete(self, *arguments, **options) -> ModelResponse:
        answer = await super().complete(*arguments, **options)
        return replace(answer, prompt_token_ids=None, completion_token_ids=None, completion_logprobs=None)


@dataclass
class Api(Serving):
    """The models behind the client, which are always the same."""

    results: dict[str, str]
    closed: bool = False

    async def publish(self, saved: Saved) -> None: ...

    async def freeze(self, uid: str, policy: str) -> str | None: ...

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None: ...

    async def close(self) -> None:
        self.closed = True


@dataclass
class BestTexts:
    """Learns by heart what earned most; see sparring.run.learners.Learners."""

    directory: RunDirectory
    policies: list[str]
    step: int = 0
    best: dict[str, tuple[float, str]] = field(default_factory=dict)

    async def saved(self) -> Saved:
        return Saved(self.step, dict.fromkeys(self.policies, self.step), {})

    async def update(self, step: int, batch: BatchOf, state: State) -> Saved:
        for result in batch.results:
            for rollout in result.all_rollouts():
                for one in rollout.steps:
                    earned = (one.reward, one.completion_text)
                    self.best[one.policy] = max(self.best.get(one.policy, earned), earned)
        self.step = step
        return await self.saved()

    async def results(self) -> dict[str, str | None]:
        return {}

    async def write_adapters(self, directory: Path) -> None: ...

    async def keep(self, state: State) -> None:
        checkpoint = self.directory.checkpoint(self.step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(json.dumps({"best": self.best, "run": await state()}))


@dataclass
class TextRun:
    """A run of a program, and its parts."""

    trainer: Trainer
    source: ProgramSource
    serving: Api


def build_run(configuration: str, path: str) -> TextRun:
    config = load_config(configuration, {})
    directory = RunDirectory.create(Path(path))
    directory.write_config(dump_config(config))
    metrics = RunMetrics(LocalHandle(MetricsLog("api", directory.metrics_file)))
    program = build_program(config)
    policies = policies_of(program)
    client = ApiClient(lambda messages, seed: f"{10 + seed % 90} + 3")
    serving = Api({policy: policy for policy in policies})
    learners = BestTexts(directory, policies)
    source = ProgramSource(config, directory, metrics, program, client, serving, learners, 8)
    return TextRun(Trainer(config, directory, source, learners, metrics, Console()), source, serving)


def main(configuration: str, path: str) -> None:
    asyncio.run(build_run(configuration, path).trainer.run())
    print("torch is loaded:", "torch" in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
