"""PureTextMaltTrainer: MALT. Agents learn by DPO which of two responses to a prefix led to more reward.

Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training" (arXiv 2412.01928). The first
iterations may be expert iteration.
"""

from collections.abc import Iterable
from statistics import fmean

from sparring.core import Rollout
from sparring.finetune.expert_iteration import PureTextEiTrainer
from sparring.finetune.scenario import PureTextEnvironment, Row
from sparring.finetune.trees import TREE, TreeEpisode, check_kind, dpo_examples, select_pairs
from sparring.programs.proofs.state import ProofState


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
        for group in self.shared_model_groups.values():
            if group.freeze_agent or (only_failed and not await group.fine_tune_job_failed()):
                continue
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
