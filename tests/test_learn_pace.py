"""The pace: a learning rate that falls until a step goes a share of the way to its target."""

import numpy as np
import pytest
import torch

from magnet_records import (
    LEGAL,
    MAYBE,
    NO,
    RECORDS,
    UNIFORM,
    YES,
    answer_logprobs,
    learner_with,
    magnet_of,
    magnet_policy,
)
from sparring.config import load_config
from sparring.core import InputError
from sparring.core.adapters import reference_of
from sparring.learn.action_values import ActionValues
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.learner import Learner
from sparring.learn.legal_answers import LegalAnswers, Position
from sparring.learn.pace import SPEED, Pace, Stride
from sparring.learn.policy import TRAINED
from sparring.learn.trie import bytes_of
from tiny_models import algorithm_of

PAYOFF = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""Rock, paper, scissors: what the row earns against the column."""


def unsettled(pace: float | None, seed: int) -> float:
    """What a best response gains from the average at most, in the last third of 60 updates of two steps.

    Three numbers learn as the magnet has a language model learn, by steps of Adam, from 1,024 mirror games.
    """
    generator, last = np.random.default_rng(seed), None
    policy = torch.log(torch.tensor([0.1, 0.25, 0.65])).requires_grad_()
    reference, average, pacer, gains = policy.detach().clone(), policy.detach().clone(), Pace(), []
    adam = torch.optim.Adam([policy], betas=(0.5, 0.99))
    for number in range(1, 61):
        chances = torch.softmax(policy.detach().double(), dim=0).numpy()
        worth = torch.from_numpy(PAYOFF @ generator.multinomial(1024, chances) / 1024 / 0.8)
        magnet = 0.98 * torch.softmax(reference, dim=0) + 0.02 / 3
        target, last = torch.softmax(torch.log(magnet) + worth / 0.5, dim=0), None
        for _ in range(2):
            own = torch.softmax(policy, dim=0)
            now = own.detach().double().numpy()
            if last is not None and pace is not None:
                pacer.follow(last.share(now), pace)
            last = Stride(now, target.double().numpy(), np.ones(3))
            adam.zero_grad()
            (-(target * torch.log(own)).sum()).backward()
            adam.param_groups[0]["lr"] = 0.5 * pacer.factor
            adam.step()
        reference.lerp_(policy.detach(), max(0.2, 1 / (number + 1)))
        average.lerp_(policy.detach(), max(0.05, 9 / (number + 9)))
        gains.append(float((PAYOFF @ torch.softmax(average.double(), dim=0).numpy()).max()))
    return max(gains[40:])


@pytest.mark.parametrize("seed", range(5))
def test_play_that_goes_round_settles_with_a_pace(seed):
    assert unsettled(0.2, seed) < 0.7 * unsettled(None, seed)


def test_progress_is_the_share_of_the_way_to_the_target_that_the_first_step_went():
    prompts = (([1, 2, 3], LEGAL, 3), ([9, 8], [YES, NO, MAYBE], 2))
    before, target = [], []
    policy = magnet_policy()
    values = ActionValues.of(RECORDS)
    with torch.no_grad():
        for prompt, legal, _ in prompts:
            given = LegalAnswers.collect([Position(bytes_of(prompt), legal, 1.0)])
            worth = torch.from_numpy(values.of_answers(given))
            magnet = magnet_of(answer_logprobs(policy, reference_of(TRAINED), prompt, legal)).double()
            target.append(torch.softmax(torch.log(magnet) + worth / 0.5, dim=0))
            own = answer_logprobs(policy, TRAINED, prompt, legal).double()
            before.append(torch.softmax(own, dim=0))

    def magnet_with(pace: float | None) -> Magnet:
        return algorithm_of(Magnet, alpha=0.5, uniform=UNIFORM, pace=pace)

    def after(learner: Learner) -> tuple[list[torch.Tensor], dict[str, float]]:
        # The learner's reference begins as its policy; it shall be that of the targets above.
        learner.policy.load_adapter_state(policy.adapter_state(reference_of(TRAINED)), reference_of(TRAINED))
        found = learner.update(RECORDS)
        with torch.no_grad():
            own = [answer_logprobs(learner.policy, TRAINED, *one[:2]).double() for one in prompts]
        return [torch.softmax(one, dim=0) for one in own], found

    one_step, _ = after(learner_with(1, magnet_with(None), max_mismatch=1e6))
    _, metrics = after(learner_with(2, magnet_with(0.3), max_mismatch=1e6))
    moved = wanted = 0.0
    for (_, _, visits), start, end, aim in zip(prompts, before, one_step, target, strict=True):
        moved += visits**0.5 * float((aim - start) @ (end - start))
        wanted += visits**0.5 * float((aim - start) @ (aim - start))
    assert abs(moved / wanted) > 0.01
    assert metrics["progress"] == pytest.approx(moved / wanted, rel=1e-4)


def rate_after(pace: float, updates: int) -> float:
    learner = learner_with(2, algorithm_of(Magnet, pace=pace, memory=0.0), max_mismatch=1e6)
    for _ in range(updates):
        metrics = learner.update(RECORDS)
    return metrics["learning_rate"]


def test_the_rate_falls_by_a_step_that_goes_too_far_and_never_exceeds_what_was_set():
    assert rate_after(0.001, 1) == pytest.approx(0.1 * np.exp(-SPEED))
    assert rate_after(1.0, 3) == pytest.approx(0.1)


def test_a_learner_goes_on_at_its_pace_after_a_restart():
    first, second = (learner_with(2, algorithm_of(Magnet, pace=0.001), max_mismatch=1e6) for _ in range(2))
    untrained = first.tensors()
    first.update(RECORDS)
    second.load_tensors(first.tensors(), 1, 6)
    rates = [one.update(RECORDS)["learning_rate"] for one in (first, second)]
    paces = [one.tensors()["algorithm.pace"].tolist() for one in (first, second)]
    assert rates[0] == rates[1]
    assert paces[0] == paces[1]
    assert paces[0][-1] == 2
    second.start_again(untrained)
    assert not [name for name in second.tensors() if name.startswith("algorithm.")]


@pytest.mark.parametrize("owner", ["learning", "learning.policies.default"])
def test_a_pace_that_nothing_measures_is_an_error(owner):
    with pytest.raises(InputError, match=rf"^learning\.algorithm\.pace: .* {owner}\.epochs is 1"):
        load_config("kuhn", {"learning.algorithm.pace": "0.2", f"{owner}.epochs": "1"})
