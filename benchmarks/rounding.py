"""How much of a policy is rounding: the log-odds of its answers while its weights move a little.

The adapter's weights go in eleven equal steps from those of one checkpoint half of the way to those of the
next one. In exact arithmetic, the log-odds of two answers follow a smooth curve. What remains of it after
second differences is rounding: it changes at random with every update, so no policy can be trained to less.

The table gives, over all positions of Kuhn poker and in nats of log-odds, for each type of the base model:

- change: by how much the last policy differs from the first one;
- rounding: the standard deviation of the rounding of one policy, which is the root mean square of the second
  differences divided by sqrt(6);
- difference: root mean square of the difference to float32.

Command:  python benchmarks/rounding.py RUN       (a run of the preset quickstart with two checkpoints)
Needs:    this package. Three minutes on one core.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from measuring import pin_one_thread, print_table
from sparring.config.play import DEFAULT_TEMPLATE
from sparring.core import Messages
from sparring.core.adapters import BUNDLED_MODEL, TRAINED
from sparring.envs.openspiel_game import information_states
from sparring.envs.templates import get_template
from sparring.evaluation.nash_conv import prompt_of
from sparring.learn.checkpoints import load_checkpoint
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.learn.trie import build_plan

GAME, STEPS = "kuhn_poker", 11
Question = tuple[Messages, list[str]]


def trained_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Return the weights that play, under PEFT's names."""
    tensors = load_checkpoint(checkpoint).learners[TRAINED]
    return {key.removeprefix("weights."): v for key, v in tensors.items() if key.startswith("weights.")}


def log_odds(policy: PolicyModel, questions: list[Question]) -> Tensor:
    """Return log p(first answer) - log p(second answer) for each question, each answer computed alone."""
    found = []
    with torch.no_grad(), policy.adapter(TRAINED):
        for prompt, answers in questions:
            ids = policy.render(prompt)
            plans = [build_plan([ids], [policy.encode_answer(prompt, text)]) for text in answers]
            first, second = (plan_logprobs(policy, plan).double().sum() for plan in plans)
            found.append(first - second)
    return torch.stack(found)


def along_the_way(dtype: torch.dtype, ends: list[dict[str, Tensor]], questions: list[Question]) -> Tensor:
    """Return the log-odds at each step, [steps, questions]."""
    policy = PolicyModel(resolve_model(BUNDLED_MODEL, print), LoraSettings(), dtype=dtype)
    rows = []
    for share in torch.linspace(0, 0.5, STEPS).tolist():
        weights = {key: torch.lerp(ends[0][key], ends[1][key], share) for key in ends[0]}
        policy.load_adapter_state(weights, TRAINED)
        rows.append(log_odds(policy, questions))
    return torch.stack(rows)


def root_mean_square(values: Tensor) -> float:
    """Return the root mean square of all values."""
    return float(values.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    arguments = parser.parse_args()
    pin_one_thread()
    ends = [trained_weights(path) for path in sorted((arguments.run / "checkpoints").glob("step-*"))[-2:]]
    template = get_template(DEFAULT_TEMPLATE)
    questions = [
        (prompt_of(GAME, template, state), [template.answer(action) for action in state.legal_actions])
        for state in information_states(GAME)
    ]
    curves = {dtype: along_the_way(dtype, ends, questions) for dtype in (torch.float32, torch.bfloat16)}
    exact = curves[torch.float32]
    print_table(
        ["type", "change", "rounding", "difference"],
        [
            [
                str(dtype).removeprefix("torch."),
                f"{root_mean_square(curve[-1] - curve[0]):.3f}",
                f"{root_mean_square(curve.diff(n=2, dim=0)) / 6**0.5:.4f}",
                f"{root_mean_square(curve - exact):.3f}",
            ]
            for dtype, curve in curves.items()
        ],
    )


if __name__ == "__main__":
    main()
