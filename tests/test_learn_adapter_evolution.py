"""What children of adapters compute."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import InputError
from sparring.learn.adapter_evolution import (
    check_crossable,
    child_of,
    exchanged,
    interpolated,
    layers_of,
    noisy,
)
from tiny_models import perturb_adapter, tiny_policy

INPUTS, OUTPUTS = 6, 5
LAYERS = ("base_model.model.layers.0.up", "base_model.model.layers.1.up")
SEEDS = st.integers(0, 2**32)
SHARES = st.floats(0, 1)


def adapter(seed, rank=2, scale=1.0):
    """A random adapter of two layers."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {f"{layer}.lora_A.weight": (rank, INPUTS) for layer in LAYERS}
    shapes |= {f"{layer}.lora_B.weight": (OUTPUTS, rank) for layer in LAYERS}
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def product(weights, layer):
    """What a layer's adapter multiplies its inputs by."""
    return weights[f"{layer}.lora_B.weight"].double() @ weights[f"{layer}.lora_A.weight"].double()


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@given(SEEDS, SEEDS, SHARES, st.integers(1, 7))
def test_an_interpolated_child_computes_the_nearest_of_its_rank_to_the_mixture_of_both_products(
    one, other, share, rank
):
    first, second = adapter(one, rank), adapter(other, rank)
    child = interpolated(first, second, dict.fromkeys(LAYERS, share))
    assert {name: value.shape for name, value in child.items()} == {n: v.shape for n, v in first.items()}
    for layer in LAYERS:
        mixture = (1 - share) * product(first, layer) + share * product(second, layer)
        left, sizes, right = torch.linalg.svd(mixture, full_matrices=False)
        nearest = (left[:, :rank] * sizes[:rank]) @ right[:rank]
        # The nearest one is not unique where sizes are equal, but its distance is.
        distance = torch.linalg.norm(mixture - product(child, layer))
        assert distance == pytest.approx(float(torch.linalg.norm(mixture - nearest)), abs=1e-4)


@given(SEEDS, SEEDS, SHARES)
def test_where_parents_share_a_factor_the_child_computes_the_mixture_itself(one, other, share):
    first, second = adapter(one), adapter(other)
    second |= {name: value for name, value in first.items() if "lora_A" in name}
    child = interpolated(first, second, {LAYERS[0]: share})
    mixture = (1 - share) * product(first, LAYERS[0]) + share * product(second, LAYERS[0])
    assert torch.allclose(product(child, LAYERS[0]), mixture, atol=1e-4)
    assert torch.equal(product(child, LAYERS[1]), product(first, LAYERS[1])), "it has no share"


@given(SEEDS, SEEDS)
def test_at_the_ends_an_interpolated_child_computes_what_one_parent_does(one, other):
    first, second = adapter(one), adapter(other)
    for share, parent in ((0.0, first), (1.0, second)):
        child = interpolated(first, second, dict.fromkeys(LAYERS, share))
        for layer in LAYERS:
            assert torch.allclose(product(child, layer), product(parent, layer), atol=1e-4)


@given(SEEDS, SEEDS)
def test_the_rows_of_a_are_as_long_as_the_parents_so_a_child_learns_as_fast(one, other):
    first, second = adapter(one), adapter(other, scale=3.0)
    child = interpolated(first, second, dict.fromkeys(LAYERS, 0.5))
    for layer in LAYERS:
        name = f"{layer}.lora_A.weight"
        sizes = [float(parent[name].square().mean()) for parent in (first, second)]
        assert float(child[name].square().mean()) == pytest.approx(sum(sizes) / 2, rel=1e-4)


def test_children_of_parents_that_have_learned_nothing_can_still_learn():
    first, second = ({n: v * ("lora_A" in n) for n, v in adapter(seed).items()} for seed in (1, 2))
    child = interpolated(first, second, dict.fromkeys(LAYERS, 0.5))
    for layer in LAYERS:
        assert float(product(child, layer).abs().max()) == 0
        assert torch.linalg.matrix_rank(child[f"{layer}.lora_A.weight"]) == 2


@given(SEEDS, SEEDS, st.sets(st.sampled_from(LAYERS)))
def test_an_exchanged_layer_is_the_other_parents_whole(one, other, layers):
    first, second = adapter(one), adapter(other)
    child = exchanged(first, second, layers)
    for name in first:
        parent = second if name.partition(".lora_")[0] in layers else first
        assert torch.equal(child[name], parent[name])


@given(SEEDS, st.floats(0.001, 1))
def test_noise_is_relative_to_each_matrix(seed, noise):
    weights = adapter(1, rank=50)
    weights |= {name: 1000 * value for name, value in weights.items() if "lora_A" in name}
    weights[f"{LAYERS[1]}.lora_B.weight"].zero_()
    child = noisy(weights, noise, seed)
    for name, value in weights.items():
        change = float((child[name] - value).square().mean().sqrt())
        assert change == pytest.approx(noise * float(value.square().mean().sqrt()), rel=0.35, abs=1e-9)


def test_the_same_seed_gives_the_same_child_and_another_seed_another():
    parents = [adapter(1), adapter(2)]
    children = [child_of(parents, 0.1, seed) for seed in range(8)]
    assert all(same(child, child_of(parents, 0.1, seed)) for seed, child in enumerate(children))
    assert not any(same(children[0], child) for child in children[1:])
    assert same(child_of(parents[:1], 0.0, 3), parents[0]), "one parent's child is its copy with noise"


def test_both_ways_of_crossing_occur():
    parents = [adapter(1), adapter(2)]
    own = [{tuple(value.flatten().tolist()) for value in parent.values()} for parent in parents]
    whole = [
        all(tuple(value.flatten().tolist()) in own[0] | own[1] for value in child.values())
        for child in (child_of(parents, 0.0, seed) for seed in range(20))
    ]
    assert 4 < sum(whole) < 16


def test_adapters_of_a_model_can_be_crossed_and_its_policy_takes_the_child():
    policy = tiny_policy()
    first = policy.adapter_state()
    perturb_adapter(policy, seed=2)
    second = policy.adapter_state()
    check_crossable(policy.adapter_shapes(), rank=4)
    child = child_of([first, second], 0.1, 5)
    policy.load_adapter_state(child)
    assert same(policy.adapter_state(), child)
    assert len(layers_of(child)) * 2 == len(child)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("base_model.model.layers.0.up.lora_magnitude_vector", (5,)),
        ("base_model.model.embed_tokens.weight", (9, 5)),
        ("base_model.model.layers.0.mlp.experts.lora_A.weight", (8, 6)),
        ("base_model.model.layers.0.mlp.experts.lora_B.weight", (5, 8)),
    ],
)
def test_what_is_more_than_two_matrices_of_the_rank_is_refused_in_one_line(name, shape):
    shapes = {key: tuple(value.shape) for key, value in adapter(1).items()}
    with pytest.raises(InputError, match="cannot be crossed"):
        check_crossable(shapes | {name: shape}, rank=2)
