"""VerboseLogger: a readable log of the events in an arena."""

import sys
from pathlib import Path
from time import strftime
from types import TracebackType
from typing import Any, TextIO

from sparring.core.current_episode import current_episode
from sparring.core.messages import Messages
from sparring.core.text import one_line, printable
from sparring.core.types import GenerateResult, TrainingRecord

_LONGEST_ARTIFACT = 300


class VerboseLogger:
    """Writes a line or a paragraph for each event, with the time of day, in text that a terminal can show.

    ``log_path`` is a file to write, in place of an existing one; standard error if not given.
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
        """Log the start of a run and its settings."""
        self._write("run: " + ", ".join(f"{key}={value}" for key, value in config.items()))

    def log_step_start(self, step_num: int, num_requests: int) -> None:
        """Log the start of a step."""
        self._write(f"step {step_num}: {num_requests} requests")

    def log_step_end(self, step_num: int, batch_meta: dict[str, Any]) -> None:
        """Log the end of a step and the ``meta`` of its batch."""
        self._write(f"step {step_num} done: " + ", ".join(f"{k}={_short(v)}" for k, v in batch_meta.items()))

    def log_episode_start(self, episode_type: str, artifact: Any, rollout_id: str) -> None:
        """Log the start of an episode."""
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
        """Log the end of an episode, or its failure with ``error``."""
        scored = ", ".join(f"{role} {reward:+.3f}" for role, reward in rewards.items()) or "no rewards"
        outcome = f"failed: {error}" if error is not None else f"{num_steps} steps, {scored}"
        self._write(f"{episode_type} {rollout_id} ended: {outcome}")

    def log_model_call(self, role_id: str, messages: Messages, response_text: str, has_tokens: bool) -> None:
        """Log a model call with the id of its episode, because calls of many episodes are interleaved."""
        asked = "\n".join(f"{one['role']}> {one['content']}" for one in messages)
        episode = current_episode.get()
        where = f" in {episode.rollout_id}" if episode is not None else ""
        tokens = "" if has_tokens else " (text only)"
        self._write(f"call for {role_id}{where}{tokens}", f"{asked}\n{role_id}< {response_text}")

    def log_result(self, result: GenerateResult, depth: int = 0) -> None:
        """Log a result with its steps, followed by its children, indented."""
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
        """Log the number of episodes of each type and their mean rewards."""
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
        """Log the numbers of training records, of their answers and of sampled tokens."""
        lengths = [len(answer.completion_token_ids) for record in records for answer in record.answers]
        self._write(f"{len(records)} records, {len(lengths)} answers, {sum(lengths)} sampled tokens")

    def _write(self, headline: str, text: str = "", depth: int = 0) -> None:
        indent = "    " * depth
        body = "".join(f"{indent}    {line}\n" for line in printable(text).splitlines())
        out = self._file if self._file is not None else sys.stderr
        out.write(f"{indent}{strftime('%H:%M:%S')} {one_line(headline)}\n{body}")
        out.flush()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
