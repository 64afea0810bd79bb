"""The actors of UnstableBaselines under their own names: ``import selfplay.compat.unstable as unstable``.

Each actor is a class that is started like Ray's own: ``Tracker.options(name="Tracker").remote(...)``.
"""

from selfplay.cluster.ray_import import import_ray

import_ray(silent=False)

from selfplay.compat.unstable import algorithms, forms, reward_transformations  # noqa: E402
from selfplay.compat.unstable.terminal_interface import TerminalInterface  # noqa: E402

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
    "ModelPool",
    "StandardLearner",
    "StepBuffer",
    "TerminalInterface",
    "Tracker",
    "VLLMActor",
    "algorithms",
    "reward_transformations",
]
