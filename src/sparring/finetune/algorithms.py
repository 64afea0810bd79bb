"""Expert iteration and MALT: what agents learn from.

In expert iteration, agents imitate their own conversations that were rewarded. A share of a verifier's may
get the true verdict instead of its own, whatever they earned; the others are selected by reward. In MALT,
agents learn by DPO which of two responses to a prefix led to more reward; its first iterations may be expert
iteration. Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training" (arXiv 2412.01928).
"""

import math
import random
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from sparring.config.finetune import PureTextEiParameters
from sparring.core import Rollout, derive_seed
from sparring.finetune.model_groups import Example
from sparring.finetune.scenario import PureTextEnvironment, Row
from sparring.finetune.trainer import PureTextRlTrainer
from sparring.finetune.trees import TREE, TreeEpisode, check_kind, dpo_examples, select_pairs
from sparring.programs.proofs.answers import decision_text
from sparring.programs.proofs.state import ProofState


class PureTextEiTrainer(PureTextRlTrainer):
    """Makes jobs of the conversations that earned most."""

    async def _stage_create_fine_tune_jobs(self, rollouts: list[Rollout], only_failed: bool = False) -> None:
        check_kind(rollouts, trees=False)
        for group in await self._groups_to_train(only_failed):
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
    messages.append({"role": "assistant", "content": last.written})
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


class PureTextMaltTrainer(PureTextEiTrainer):
    """Makes jobs of pairs of responses; the first iterations may imitate."""

    async def _sample_rollouts_for_single_environment(
        self, environment: PureTextEnvironment, data_batch: Row | None = None
    ) -> Rollout:
        """Sample the tree of responses to a claim; for a test or an imitation, one proof."""
        if not environment.train or self._imitates:
            return await super()._sample_rollouts_for_single_environment(environment, data_batch)
        if TREE not in environment.arena.episodes:
            tree = TreeEpisode(self.scenario_instance.episode, self._branching)
            environment.arena.add_episode(TREE, tree)
        return await environment.play(self.state.iteration, data_batch or environment.draw(), TREE)

    @property
    def _imitates(self) -> bool:
        return self.state.iteration < self.hyper_params.pure_text_malt.num_initial_ei_iterations

    def _branching(self, state: ProofState) -> int:
        malt = self.hyper_params.pure_text_malt
        turns = self.protocol_handler.turns(len(state["rounds"]), state["seed"])
        frozen = all(self.scenario_instance.group_of(turn.agent).freeze_agent for turn in turns)
        return 1 if frozen and malt.frozen_agents_generate_one_response else malt.num_responses_per_timestep

    async def _stage_create_fine_tune_jobs(self, rollouts: list[Rollout], only_failed: bool = False) -> None:
        if self._imitates:
            await super()._stage_create_fine_tune_jobs(rollouts, only_failed)
            return
        check_kind(rollouts, trees=True)
        for group in await self._groups_to_train(only_failed):
            examples = [
                example
                for name in group.agent_names
                for rollout in rollouts
                if rollout.error is None
                for example in dpo_examples(rollout, self._pairs(rollout, name), name)
            ]
            await group.create_dpo_fine_tune_job(examples, self._get_fine_tune_job_name(group))

    def _pairs(self, rollout: Rollout, agent: str) -> list[tuple[str, str]]:
        return select_pairs(
            self.protocol_handler,
            rollout.extras["nodes"],
            agent,
            self.hyper_params.pure_text_malt,
            rollout.extras["seed"],
        )

    def _previous_compatible_iterations(self) -> Iterable[int]:
        """Return the earlier iterations of the same kind: trees and single proofs do not mix."""
        if self._imitates:
            return super()._previous_compatible_iterations()
        return range(self.hyper_params.pure_text_malt.num_initial_ei_iterations, self.state.iteration)

    def _get_iteration_begin_message(self) -> str:
        initial = self.hyper_params.pure_text_malt.num_initial_ei_iterations
        if self._imitates:
            return f"initial expert iteration {self.state.iteration + 1} of {initial} begins"
        return f"MALT {super()._get_iteration_begin_message()}"

    def _get_log_stats(self, rollouts: list[Rollout], *, train: bool = True) -> dict[str, float]:
        stats = super()._get_log_stats(rollouts, train=train)
        trees = [one for one in rollouts if one.error is None and "nodes" in one.extras]
        if not trees:
            return stats
        stats["mean_malt_nodes"] = fmean(len(one.extras["nodes"]) for one in trees)
        inner = [{node["parent"] for node in one.extras["nodes"]} - {None} for one in trees]
        stats["mean_non_terminal_malt_nodes"] = fmean(map(len, inner))
        for name in self.agent_names:
            pairs = [len(self._pairs(one, name)) for one in trees]
            spoke = [sum(step.role_id == name for step in one.steps) for one in trees]
            stats[f"{name}.mean_malt_pairs"] = fmean(pairs)
            if sum(spoke):
                stats[f"{name}.malt_pair_proportion"] = 2 * sum(pairs) / sum(spoke)
        return stats
