"""The actors of UnstableBaselines under their own names: ``import selfplay.ray as unstable``.

Each actor is a class that is started like Ray's own: ``Tracker.options(name="Tracker").remote(...)``.
"""

from selfplay.cluster.ray_import import import_ray

import_ray(silent=False)

from selfplay.ray import algorithms, forms, reward_transformations  # noqa: E402
from selfplay.ray.build import EvalEnvSpec, Run, TrainEnvSpec, build  # noqa: E402
from selfplay.ray.terminal_interface import TerminalInterface  # noqa: E402

Tracker = forms.Tracker()
StepBuffer = forms.StepBuffer()
EpisodeBuffer = forms.EpisodeBuffer()
ModelPool = forms.ModelPool()
Collector = forms.Collector()
StandardLearner = forms.StandardLearner()
VLLMActor = forms.VLLMActor()

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
