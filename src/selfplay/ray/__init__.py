"""The actors of UnstableBaselines under their own names: ``import selfplay.ray as unstable``.

Each actor is a class that is started like Ray's own: ``Tracker.options(name="Tracker").remote(...)``.
"""

from selfplay.cluster.actors import (
    ActorForm,
    EpisodeBufferActor,
    ModelPoolActor,
    StepBufferActor,
    TrackerActor,
)
from selfplay.cluster.view import TerminalInterface
from selfplay.ray import algorithms, reward_transformations
from selfplay.ray.actors import (
    CollectorActor,
    StandardLearnerActor,
    check_collector,
)
from selfplay.ray.actors import (
    VLLMActor as _VLLMActor,
)
from selfplay.ray.build import EvalEnvSpec, Run, TrainEnvSpec, build

Tracker = ActorForm(TrackerActor)
StepBuffer = ActorForm(StepBufferActor, in_run=True)
EpisodeBuffer = ActorForm(EpisodeBufferActor, in_run=True)
ModelPool = ActorForm(ModelPoolActor, in_run=True)
Collector = ActorForm(CollectorActor, check_collector)
StandardLearner = ActorForm(StandardLearnerActor, in_run=True)
VLLMActor = ActorForm(_VLLMActor, max_task_retries=0)

__all__ = [
    "Collector",
    "EpisodeBuffer",
    "EvalEnvSpec",
    "ModelPool",
    "Run",
    "StandardLearner",
    "StepBuffer",
    "TerminalInterface",
    "Tracker",
    "TrainEnvSpec",
    "VLLMActor",
    "algorithms",
    "build",
    "reward_transformations",
]
