"""Training through fine-tuning jobs: stages, providers, expert iteration, MALT."""

from selfplay.finetune.analysers.analyser import PureTextRolloutAnalyser
from selfplay.finetune.environment import PureTextEnvironment
from selfplay.finetune.expert_iteration import PureTextEiTrainer
from selfplay.finetune.hyper_params import ExperimentSettings, HyperParameters
from selfplay.finetune.malt import PureTextMaltTrainer
from selfplay.finetune.model_groups import PureTextSharedModelGroup
from selfplay.finetune.providers.job import FineTuneJobError
from selfplay.finetune.scenario import ScenarioInstance
from selfplay.finetune.state import CheckPointNotFoundError
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
