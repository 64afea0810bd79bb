"""Children of adapters: two adapters crossed, and noise; as in PopuLoRA (arXiv 2605.16727).

A layer with an adapter computes B A x more than the base model's. A and B cannot be averaged apart: the
products of two pairs are the same if A and B are turned against each other, and their averages' product is
not. So :func:`interpolated` mixes the products.

Letters: R is the rank, I a layer's inputs, O its outputs.
"""

import random
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sparring.core import InputError, derive_seed
from sparring.learn.adapter_weights import FACTORS, layer_of

Adapter = Mapping[str, Tensor]
"""An adapter's weights by PEFT's names."""


def check_crossable(shapes: Mapping[str, tuple[int, ...]], rank: int) -> None:
    """Raise an InputError unless an adapter is two matrices of this rank for each layer, and nothing else.

    Experts that share a parameter share two matrices of a higher rank, whose product mixes them.
    """
    for name, shape in shapes.items():
        of_rank = name.endswith(FACTORS) and len(shape) == 2 and shape[name.endswith(FACTORS[1])] == rank
        if not of_rank:
            problem = f"adapters of {layer_of(name)} cannot be crossed: they are more than two matrices"
            raise InputError("league.evolution", problem, "Leave it out")


def child_of(parents: Sequence[Adapter], noise: float, seed: int) -> dict[str, Tensor]:
    """Return the child of one adapter or of two of the same shape.

    Two are crossed: by :func:`interpolated` with a share for each layer, or by :func:`exchanged` with half of
    the layers, on average. Then comes :func:`noisy`. The same seed gives the same child.
    """
    rng = random.Random(derive_seed(seed, "crossing"))
    first, *others = parents
    child = dict(first)
    for second in others[:1]:
        shares = {layer: rng.random() for layer in layers_of(first)}
        if rng.random() < 0.5:
            child = interpolated(first, second, shares)
        else:
            child = exchanged(first, second, [layer for layer, share in shares.items() if share < 0.5])
    return noisy(child, noise, derive_seed(seed, "noise"))


def layers_of(adapter: Adapter) -> list[str]:
    """Return the layers that have an adapter, by the beginnings of their weights' names, in order."""
    return sorted({name.removesuffix(FACTORS[0]) for name in adapter if name.endswith(FACTORS[0])})


def interpolated(first: Adapter, second: Adapter, shares: Mapping[str, float]) -> dict[str, Tensor]:
    """Return an adapter that computes (1 - s) B1 A1 + s B2 A2, with the share s of each layer.

    That has up to twice the rank. The child is the nearest of the adapters' rank, in the Frobenius norm.
    """
    child = dict(first)
    for layer, share in shares.items():
        a, b = (layer + factor for factor in FACTORS)
        pairs = (first[a], first[b]), (second[a], second[b])
        child[a], child[b] = _nearest(*pairs, share)
    return child


def exchanged(first: Adapter, second: Adapter, layers: Collection[str]) -> dict[str, Tensor]:
    """Return the first adapter with these whole layers of the second."""
    return {**first, **{layer + factor: second[layer + factor] for layer in layers for factor in FACTORS}}


def noisy(adapter: Adapter, noise: float, seed: int) -> dict[str, Tensor]:
    """Return an adapter with normal noise in each matrix, ``noise`` times the matrix's root mean square."""
    rng = np.random.default_rng(seed)
    child = {}
    for name in sorted(adapter):
        weights = adapter[name]
        drawn = torch.from_numpy(rng.standard_normal(weights.shape, dtype=np.float32))
        child[name] = weights + noise * weights.square().mean().sqrt() * drawn
    return child


def _nearest(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], share: float
) -> tuple[Tensor, Tensor]:
    """Return the A_RI and B_OR whose product is nearest to the mixture of two.

    Their scales are those with which adapters begin and learn: rows of A are as long as the parents', on
    average, and B has the rest. Rows that the product does not need are there all the same, with zeros in B.
    """
    (a1_RI, b1_OR), (a2_RI, b2_OR) = ((a.double(), b.double()) for a, b in (first, second))
    rank = len(a1_RI)
    outer, outer_core = torch.linalg.qr(torch.cat([(1 - share) * b1_OR, share * b2_OR], dim=1))
    inner, inner_core = torch.linalg.qr(torch.cat([a1_RI, a2_RI]).T)
    left, sizes, right = torch.linalg.svd(outer_core @ inner_core.T, full_matrices=False)
    length = (torch.cat([a1_RI, a2_RI]).square().sum() / (2 * rank)).sqrt().clamp(min=1e-12)
    a_RI, b_OR = (right @ inner.T)[:rank] * length, ((outer @ left) * (sizes / length))[:, :rank]
    signs = a_RI.gather(1, a_RI.abs().argmax(1, keepdim=True)).sign()  # else the library chooses them
    a_RI, b_OR = a_RI * signs, b_OR * signs.T
    found = len(a_RI)  # less than the rank if a layer is narrower
    a_RI = torch.cat([a_RI, a1_RI[found:]])
    b_OR = torch.nn.functional.pad(b_OR, (0, rank - found))
    return a_RI.to(first[0].dtype).contiguous(), b_OR.to(first[1].dtype).contiguous()
