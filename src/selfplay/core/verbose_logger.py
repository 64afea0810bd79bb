"""VerboseLogger: what happens in an arena, as text for people."""

import sys
from pathlib import Path
from time import strftime
from types import TracebackType
from typing import Any, TextIO

from selfplay.core.context import current_episode
from selfplay.core.episode import GenerateResult
from selfplay.core.types import Messages, TrainingRecord

_LONGEST_ARTIFACT = 300


class VerboseLogger:
    """Writes a line or a paragraph for each event, with the time of day.

    Args:
        log_path: the file to write (it is replaced); standard error if not given.
    """

    def __init__(self, log_path: str | Path | None = None) -> None:
        self._file: TextIO | None = None
        if log_path is not None:
            self._file = Path(log_path).open("w", encoding="utf-8")  # noqa: SIM115 - close() and __exit__ do

    def __enter__(self) -> "VerboseLogger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def log_run_start(self, config: dict[str, Any]) -> None:
        """A run begins with these settings."""
        self._write("run: " + ", ".join(f"{key}={value}" for key, value in config.items()))

    def log_step_start(self, step_num: int, num_requests: int) -> None:
        """A step begins."""
        self._write(f"step {step_num}: {num_requests} requests")

    def log_step_end(self, step_num: int, batch_meta: dict[str, Any]) -> None:
        """A step ended with this batch."""
        self._write(f"step {step_num} done: " + ", ".join(f"{k}={_short(v)}" for k, v in batch_meta.items()))

    def log_episode_start(self, episode_type: str, artifact: Any, rollout_id: str) -> None:
        """An episode begins."""
        shown = " ".join(str(artifact).split())[:_LONGEST_ARTIFACT]
        self._write(f"{episode_type} {rollout_id} begins: {shown}")

    def log_episode_end(
        self,
        episode_type: str,
        rollout_id: str,
        rewards: dict[str, float],
        num_steps: int,
        *,
        error: str | None = None,
    ) -> None:
        """An episode ended, or failed with ``error``."""
        scored = ", ".join(f"{role} {reward:+.3f}" for role, reward in rewards.items()) or "no rewards"
        outcome = f"failed: {error}" if error is not None else f"{num_steps} steps, {scored}"
        self._write(f"{episode_type} {rollout_id} ended: {outcome}")

    def log_model_call(self, role_id: str, messages: Messages, response_text: str, has_tokens: bool) -> None:
        """A model answered; the line says in which episode, as calls of many stand between each other."""
        asked = "\n".join(f"{one['role']}> {one['content']}" for one in messages)
        episode = current_episode.get()
        where = f" in {episode.rollout_id}" if episode is not None else ""
        tokens = "" if has_tokens else " (text only)"
        self._write(f"call for {role_id}{where}{tokens}", f"{asked}\n{role_id}< {response_text}")

    def log_result(self, result: GenerateResult, depth: int = 0) -> None:
        """A result with its steps, and its children below it."""
        rollout = result.rollout
        trained = "" if result.is_trainable else ", not trained on"
        lines = [
            f"{step.role_id} (reward {step.reward:+.3f}, advantage {step.advantage:+.3f}): "
            f"{step.completion_text}"
            for step in rollout.steps
        ]
        lines += [f"failed: {rollout.error}"] if rollout.error is not None else []
        self._write(f"{rollout.episode_type} {rollout.id}{trained}", "\n".join(lines), depth)
        for child in result.children:
            self.log_result(child, depth + 1)

    def log_batch_summary(self, results: list[GenerateResult]) -> None:
        """How many episodes of each type there were, and their mean rewards."""
        rollouts = [rollout for result in results for rollout in result.all_rollouts()]
        for episode_type in dict.fromkeys(rollout.episode_type for rollout in rollouts):
            of_type = [rollout for rollout in rollouts if rollout.episode_type == episode_type]
            failed = sum(rollout.error is not None for rollout in of_type)
            roles = dict.fromkeys(role for rollout in of_type for role in rollout.rewards)
            means = []
            for role in roles:
                rewards = [rollout.rewards[role] for rollout in of_type if role in rollout.rewards]
                means.append(f"{role} {sum(rewards) / len(rewards):+.3f}")
            counts = f"{len(of_type)} episodes, {failed} failed"
            self._write(f"{episode_type}: {counts}; mean rewards: {', '.join(means) or 'none'}")

    def log_training_records(self, records: list[TrainingRecord]) -> None:
        """How much there is to train on."""
        tokens = sum(len(record.completion_token_ids) for record in records)
        self._write(f"{len(records)} records, {tokens} sampled tokens")

    def _write(self, headline: str, text: str = "", depth: int = 0) -> None:
        indent = "    " * depth
        body = "".join(f"{indent}    {line}\n" for line in text.splitlines())
        out = self._file if self._file is not None else sys.stderr
        out.write(f"{indent}{strftime('%H:%M:%S')} {headline}\n{body}")
        out.flush()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
