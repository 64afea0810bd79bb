"""The actors of UnstableBaselines 0.1 under their own names: ``import sparring.compat.unstable as unstable``.

Each name is started like a class of Ray's own: ``Tracker.options(name="Tracker").remote(...)``.
"""

from typing import Any

from sparring.cluster.connect import import_ray

import_ray(silent=False)

from sparring.cluster.actor_classes import (  # noqa: E402
    BufferActor,
    CollectorActor,
    ModelPoolActor,
    TrackerActor,
)
from sparring.compat.unstable import reward_transformations  # noqa: E402
from sparring.compat.unstable.actors import (  # noqa: E402
    LearnerArguments,
    LoopActor,
    PromptActor,
    VLLMArguments,
)
from sparring.compat.unstable.collector import CollectorArguments  # noqa: E402
from sparring.compat.unstable.forms import (  # noqa: E402
    EpisodeBufferArguments,
    Form,
    ModelPoolArguments,
    StepBufferArguments,
    TerminalInterface,
    TrackerArguments,
)

Tracker = Form(TrackerActor, TrackerArguments)
StepBuffer = Form(BufferActor, StepBufferArguments)
EpisodeBuffer = Form(BufferActor, EpisodeBufferArguments)
ModelPool = Form(ModelPoolActor, ModelPoolArguments)
Collector = Form(CollectorActor, CollectorArguments)
StandardLearner = Form(LoopActor, LearnerArguments)
VLLMActor = Form(PromptActor, VLLMArguments, max_task_retries=0)

__all__ = [
    "Collector",
    "EpisodeBuffer",
    "ModelPool",
    "StandardLearner",
    "StepBuffer",
    "TerminalInterface",
    "Tracker",
    "VLLMActor",
    "algorithms",
    "reward_transformations",
]


def __getattr__(name: str) -> Any:
    """Load the algorithms, and torch with them, when they are asked for: a collector imports this too."""
    if name == "algorithms":
        from sparring.learn import algorithms

        return algorithms
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
