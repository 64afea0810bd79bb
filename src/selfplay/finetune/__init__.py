"""Training through fine-tuning jobs: stages, providers, expert iteration, MALT."""

from selfplay.finetune.analysers import PureTextRolloutAnalyser
from selfplay.finetune.expert_iteration import PureTextEiTrainer
from selfplay.finetune.hyper_params import ExperimentSettings, HyperParameters
from selfplay.finetune.jobs import FineTuneJobError
from selfplay.finetune.malt import PureTextMaltTrainer
from selfplay.finetune.model_groups import PureTextSharedModelGroup
from selfplay.finetune.run_files import CheckPointNotFoundError
from selfplay.finetune.scenario import PureTextEnvironment, ScenarioInstance
from selfplay.finetune.trainer import PureTextRlTrainer
from selfplay.finetune.transcripts import PromptMessage

__all__ = [
    "CheckPointNotFoundError",
    "ExperimentSettings",
    "FineTuneJobError",
    "HyperParameters",
    "PromptMessage",
    "PureTextEiTrainer",
    "PureTextEnvironment",
    "PureTextMaltTrainer",
    "PureTextRlTrainer",
    "PureTextRolloutAnalyser",
    "PureTextSharedModelGroup",
    "ScenarioInstance",
]
