"""Training through fine-tuning jobs: stages, providers, expert iteration, MALT."""

from sparring.finetune.analysers import PureTextRolloutAnalyser
from sparring.finetune.expert_iteration import PureTextEiTrainer
from sparring.finetune.hyper_params import ExperimentSettings, HyperParameters
from sparring.finetune.malt import PureTextMaltTrainer
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.finetune.providers import FineTuneJobError
from sparring.finetune.run_files import CheckPointNotFoundError
from sparring.finetune.scenario import PureTextEnvironment, ScenarioInstance
from sparring.finetune.trainer import PureTextRlTrainer
from sparring.finetune.transcripts import PromptMessage

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
