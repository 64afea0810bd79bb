"""The load of a vLLM engine: totals, and what vLLM reports after each of its steps."""

from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any

RATE_SECONDS = 5.0


@dataclass
class VLLMStats:
    """Totals since the start, and the current load: ``queued`` requests wait for a place in the batch, and
    tokens a second are those of the last five seconds."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    spelled_control_tokens: int = 0
    queued: int = 0
    running: int = 0
    tokens_per_second: float = 0.0


class LoadLogger:
    """A logger that receives vLLM's statistics after every step of its scheduler."""

    def __init__(self) -> None:
        self.queued = 0
        self.running = 0
        self._steps: deque[tuple[float, int]] = deque()

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        """Called by vLLM."""
        if scheduler_stats is not None:
            self.queued = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.running = scheduler_stats.num_running_reqs
        if iteration_stats is not None:
            self._steps.append((monotonic(), iteration_stats.num_generation_tokens))
            self._forget_old_steps()

    def tokens_per_second(self) -> float:
        """Return the generated tokens per second over the last ``RATE_SECONDS``."""
        self._forget_old_steps()
        return sum(tokens for _, tokens in self._steps) / RATE_SECONDS

    def _forget_old_steps(self) -> None:
        while self._steps and self._steps[0][0] < monotonic() - RATE_SECONDS:
            self._steps.popleft()

    def log_engine_initialized(self) -> None:
        """Called by vLLM; logs nothing."""

    def log(self) -> None:
        """Called by vLLM; logs nothing."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Called by vLLM."""
