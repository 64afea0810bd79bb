"""What a job trains on at a service with Tinker's API, step by step.

A job is that of ``sparring serve --jobs`` (``learn/fine_tuning/job.py``): the same order of examples, loss,
learning rates and AdamW.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sparring.core import TrainingRecord
from sparring.core.records import joined
from sparring.finetune.jobs.schema import read_conversations
from sparring.learn.algorithms.sft import Sft
from sparring.learn.fine_tuning.examples import Renderer, families, opening
from sparring.learn.fine_tuning.job import LEARNING
from sparring.learn.fine_tuning.settings import (
    LEARNING_RATES,
    WARM_UP,
    Hyperparameters,
    JobSettings,
)
from sparring.learn.schedules import Schedule

ADAM_EPS = 1e-8
"""torch's default, with which the server's own jobs are trained."""


@dataclass(frozen=True)
class TinkerPlan:
    """The conversations of a job, each of as few records as its prompts allow, so that no token is paid for
    twice; their families; the job's numbers."""

    conversations: Sequence[Sequence[TrainingRecord]]
    families: Sequence[int]
    numbers: Hyperparameters
    seed: int

    @classmethod
    def of(cls, content: bytes, renderer: Renderer, settings: JobSettings) -> Self:
        """Return the plan for a file of conversations. Raises WrongLine: one cannot be trained on."""
        talks = read_conversations(content)
        answers = (renderer.conversation(one) for one in talks)
        conversations = [joined([replace(one, rollout_id="one") for one in talk]) for talk in answers]
        numbers = settings.resolved(len(talks))
        return cls(conversations, families([opening(one.messages) for one in talks]), numbers, settings.seed)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.numbers.n_epochs * self.numbers.steps_per_epoch(len(self.conversations))

    def data(self, step: int, types: Any) -> list[Any]:
        """Return the data of a step, as ``types`` of the SDK: weights are 0 on what the model did not say,
        and sum to 1."""
        chosen = self.numbers.batch(self.families, self.seed, step)
        records = [record for one in chosen for record in self.conversations[one]]
        weight = 1 / sum(sum(one.action_mask) for one in records)
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(one.input_ids[:-1]),
                loss_fn_inputs={
                    "target_tokens": one.input_ids[1:],
                    "weights": [weight * said for said in one.action_mask[1:]],
                },
            )
            for one in records
        ]

    def adam(self, step: int, types: Any) -> Any:
        """Return the values of a step of AdamW, as one of the ``types`` of the SDK."""
        rate = LEARNING_RATES["supervised"] * self.numbers.learning_rate_multiplier
        return types.AdamParams(
            learning_rate=Schedule(rate, 0.0, self.steps, self.steps // WARM_UP, linear=True).at(step),
            beta1=LEARNING.momentum,
            beta2=Sft.squares_decay,
            eps=ADAM_EPS,
            grad_clip_norm=LEARNING.grad_clip,
        )
