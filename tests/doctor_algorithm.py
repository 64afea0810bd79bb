"""An algorithm whose learner has other weights than the engine that played: each update begins with noise."""

import torch

from sparring.learn.algorithms import Reinforce


class Noisy(Reinforce):
    """Changes the weights before it learns, so that it does not know what was drawn."""

    def begin(self, records, version):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for one in self.policy.adapter_parameters(self.adapter):
                one.add_(0.02 * torch.randn(one.shape, generator=generator))
        super().begin(records, version)
