"""The trainers of nip: those of ``sparring.finetune``, with all the names that nip's have.

Of a run that keeps nothing, the paths are ``None``.
"""

from typing import Any

from sparring import finetune
from sparring.finetune.hyper_params import metadata
from sparring.programs.proofs.episode import ProofEpisode


def _path(name: str) -> property:
    return property(lambda trainer: getattr(trainer.files, name) if trainer.files else None)


class PureTextRlTrainer(finetune.PureTextRlTrainer):
    """See :class:`sparring.finetune.PureTextRlTrainer`."""

    trainer_type = "rl"
    checkpoint_base_dir = _path("root")
    checkpoint_state_path = _path("state")
    checkpoint_params_path = _path("params")
    checkpoint_metadata_path = _path("metadata")
    checkpoint_rollouts_dir = _path("rollouts")
    checkpoint_analysis_dir = _path("analysis")
    raw_transcripts_dir = _path("raw_transcripts")
    processed_transcripts_dir = _path("processed_transcripts")
    prompts_dir = _path("prompts")

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return len(self.agent_names)

    @property
    def agent_wholes(self) -> dict[str, finetune.PureTextSharedModelGroup]:
        """The model of each agent."""
        return {name: self.scenario_instance.group_of(name) for name in self.agent_names}

    @property
    def combined_agent(self) -> ProofEpisode:
        """What lets all agents of a round speak."""
        return self.scenario_instance.episode

    @property
    def max_message_rounds(self) -> int:
        """The greatest number of rounds."""
        return self.protocol_handler.max_rounds

    def get_total_num_iterations(self) -> int:
        """Return the number of iterations."""
        return self.hyper_params.rl.num_iterations

    def _get_metadata(self) -> dict[str, Any]:
        return metadata()


class PureTextEiTrainer(finetune.PureTextEiTrainer, PureTextRlTrainer):
    """Expert iteration."""


class PureTextMaltTrainer(finetune.PureTextMaltTrainer, PureTextRlTrainer):
    """MALT."""
