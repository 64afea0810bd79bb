"""PureTextEiTrainer: expert iteration. Agents imitate their own conversations that were rewarded.

A share of a verifier's conversations may get the true verdict instead of its own, whatever they earned; the
others are selected by reward.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

from sparring.config.finetune import PureTextEiParameters
from sparring.core import Rollout, derive_seed
from sparring.finetune.model_groups import Example
from sparring.finetune.trainer import PureTextRlTrainer
from sparring.finetune.trees import check_kind
from sparring.programs.proofs.answers import decision_text


class PureTextEiTrainer(PureTextRlTrainer):
    """Makes jobs of the conversations that earned most."""

    async def _stage_create_fine_tune_jobs(self, rollouts: list[Rollout], only_failed: bool = False) -> None:
        check_kind(rollouts, trees=False)
        for group in self.shared_model_groups.values():
            if group.freeze_agent or (only_failed and not await group.fine_tune_job_failed()):
                continue
            examples = [one for name in group.agent_names for one in self._examples(rollouts, name)]
            await group.create_supervised_fine_tune_job(examples, self._get_fine_tune_job_name(group))

    def _examples(self, rollouts: list[Rollout], agent: str) -> list[Example]:
        spoken = [one for one in rollouts if one.error is None and one.extras["rounds"]]
        spoken = [one for one in spoken if any(step.role_id == agent for step in one.steps)]
        replaced: list[Rollout] = []
        seed = derive_seed(self.hyper_params.seed, "selection", self.state.iteration, agent)
        if self.protocol_handler.is_verifier(agent):
            share = self._get_verifier_guess_replacement_proportion(self.state.iteration)
            order = random.Random(seed).sample(spoken, len(spoken))
            count = int(share * len(order))
            replaced, spoken = order[:count], order[count:]
        rewards = [rollout.extras["rewards"][agent] for rollout in spoken]
        chosen = [spoken[index] for index in select(rewards, self.hyper_params.pure_text_ei, seed)]
        own = [conversation(one, agent) for one in chosen if _validity(one, agent)[-1]]
        return [self._with_true_verdict(one, agent) for one in replaced] + own

    def _with_true_verdict(self, rollout: Rollout, agent: str) -> Example:
        example = conversation(rollout, agent)
        value = 1.0 if rollout.extras["y"] else -1.0
        verdict = decision_text(self.protocol_handler.scale, value)
        example["messages"] = [*example["messages"][:-1], {"role": "assistant", "content": verdict}]
        return example


def conversation(rollout: Rollout, agent: str) -> dict[str, Any]:
    """Return an agent's conversation up to its last answer, in OpenAI's format. The answers of examples and
    earlier invalid answers have weight 0: they are not imitated."""
    last = [step for step in rollout.steps if step.role_id == agent][-1]
    messages: list[dict[str, Any]] = [dict(message) for message in last.prompt]
    messages.append({"role": "assistant", "content": last.completion_text})
    valid = _validity(rollout, agent)
    answers = [message for message in messages if message["role"] == "assistant"]
    imitated = [False] * (len(answers) - len(valid)) + valid[:-1]
    for answer, is_imitated in zip(answers, imitated, strict=False):
        if not is_imitated:
            answer["weight"] = 0
    return {"messages": messages}


def _validity(rollout: Rollout, agent: str) -> list[bool]:
    rounds = [played["answers"] for played in rollout.extras["rounds"]]
    return [answers[agent]["valid"] for answers in rounds if agent in answers]


def select(rewards: Sequence[float], parameters: PureTextEiParameters, seed: int) -> list[int]:
    """Return the indices of the rollouts to imitate, ascending.

    ``threshold``: those with at least ``reward_threshold``. ``weighted_sampling``: a draw of round(N
    ``weighting_sample_size_factor``) with weights (max(r, min) - min) / sum + epsilon / N, where min is
    ``weighting_minimum`` or the least reward; if all rewards are min, the weights are equal.
    """
    if parameters.rollout_selection_method == "threshold":
        return [index for index, reward in enumerate(rewards) if reward >= parameters.reward_threshold]
    if not rewards:
        return []
    least = min(rewards) if parameters.weighting_minimum is None else parameters.weighting_minimum
    above = [max(reward, least) - least for reward in rewards]
    total = math.fsum(above)
    uniform = parameters.weighting_epsilon / len(rewards)
    weights = [one / total + uniform for one in above] if total else [1.0] * len(above)
    count = round(len(rewards) * parameters.weighting_sample_size_factor)
    drawn = random.Random(seed)
    if parameters.weighting_use_replacement:
        return sorted(drawn.choices(range(len(weights)), weights, k=count))
    # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted draw without replacement.
    keys = [math.log(drawn.random()) / weight if weight else -math.inf for weight in weights]
    return sorted(sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[: min(count, len(keys))])
