"""Training through fine-tuning jobs: stages, providers, expert iteration, MALT."""

from sparring.finetune.algorithms import PureTextEiTrainer, PureTextMaltTrainer
from sparring.finetune.analysers import PureTextRolloutAnalyser
from sparring.finetune.hyper_params import ExperimentSettings, HyperParameters
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.finetune.providers import FineTuneJobError
from sparring.finetune.run_files import CheckPointNotFoundError
from sparring.finetune.scenario import PureTextEnvironment, ScenarioInstance
from sparring.finetune.trainer import PureTextRlTrainer
from sparring.finetune.trees import PromptMessage

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
