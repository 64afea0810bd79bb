from itertools import zip_longest
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.core import pass_sizes
from sparring.engine import cached_attention
from sparring.engine.cached_attention import CachedAttention
from sparring.engine.key_store import READ_IN_PLACE, KeyStore
from sparring.engine.tree_cache import ROOT, TreeCache
from sparring.learn.model_attention import DotProduct

token = st.integers(0, 2)
contexts = st.lists(st.lists(token, min_size=1, max_size=7), min_size=1, max_size=8)
LAYERS, HEADS, GROUPS, SIZE, SCALE = 2, 4, 2, 8, 0.3


def tokens_of(cache: TreeCache, node: int) -> list[int]:
    return [cache.tokens[place] for place in cache.path(node)]


class Inputs:
    """Queries, keys and values that depend only on the context, so that results can be compared."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def of(self, context: list[int]) -> list[torch.Tensor]:
        if tuple(context) not in self.known:
            generator = torch.Generator().manual_seed(len(self.known))
            sizes = (LAYERS, HEADS, SIZE), (LAYERS, GROUPS, SIZE), (LAYERS, GROUPS, SIZE)
            self.known[tuple(context)] = [
                torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes
            ]
        return self.known[tuple(context)]

    def attend(self, cache: TreeCache, nodes: list[int], window: int | None = None) -> torch.Tensor:
        """Run every layer of one pass over ``nodes``; returns output_LTHd."""
        return self.attend_all([(cache, nodes)], window)

    def attend_all(self, parts: list[tuple[TreeCache, list[int]]], window: int | None = None) -> torch.Tensor:
        """Run every layer of one pass over nodes of several caches; returns output_LTHd."""
        attend = CachedAttention(parts, torch.float64, torch.device("cpu"))
        values = [self.of(tokens_of(cache, node)) for cache, nodes in parts for node in nodes]
        query_LHTd, key_LGTd, value_LGTd = (torch.stack([v[i] for v in values], dim=2) for i in range(3))
        return torch.stack(
            [
                attend(
                    layer, query_LHTd[layer], key_LGTd[layer], value_LGTd[layer], window, DotProduct(SCALE)
                )
                for layer in range(2)
            ]
        )

    def expected(self, cache: TreeCache, nodes: list[int], window: int | None = None) -> torch.Tensor:
        """Return the same, computed by attention of one token at a time over the end of its own context."""
        outputs = []
        for node in nodes:
            context = tokens_of(cache, node)
            prefixes = [self.of(context[: end + 1]) for end in range(len(context))][-(window or 0) :]
            query_LHd = prefixes[-1][0]
            key_LHTd, value_LHTd = (
                torch.stack([p[i] for p in prefixes], dim=2).repeat_interleave(HEADS // GROUPS, dim=1)
                for i in (1, 2)
            )
            scores_LHT = torch.einsum("lhd,lhtd->lht", query_LHd, key_LHTd) * SCALE
            outputs.append(torch.einsum("lht,lhtd->lhd", torch.softmax(scores_LHT, dim=-1), value_LHTd))
        return torch.stack(outputs, dim=1)


@settings(deadline=None)
@given(contexts)
def test_every_context_is_one_node_and_new_ones_are_pending(ids):
    cache = TreeCache()
    ends = [cache.insert(context) for context in ids]
    assert [tokens_of(cache, node) for node in ends] == ids
    distinct = {tuple(context[:end]) for context in ids for end in range(1, len(context) + 1)}
    assert len(cache) == len(distinct)
    assert cache.pending == list(range(len(cache)))
    assert all(cache.parents[node] < node for node in range(len(cache)))


@settings(deadline=None)
@given(contexts, contexts)
def test_find_returns_the_longest_known_prefix(known, asked):
    cache = TreeCache()
    for context in known:
        cache.insert(context)
    for context in asked:
        node, matched = cache.find(context)
        prefixes = [tuple(context[:end]) for end in range(len(context) + 1)]
        everything = {tuple(c[:end]) for c in known for end in range(len(c) + 1)}
        assert matched == max(len(prefix) for prefix in prefixes if prefix in everything)
        assert (tokens_of(cache, node) if node != ROOT else []) == context[:matched]


@given(
    contexts,
    st.integers(1, 5),
    st.sampled_from([-(10**9), 0, 5, 1500]),
    st.sampled_from([1, 12, 10**9]),
    st.none() | st.integers(1, 8),
    st.sampled_from([frozenset(), READ_IN_PLACE]),
)
def test_attention_in_any_batches_and_groups_equals_each_token_alone(
    ids, batch_size, overhead, read_keys, window, in_place
):
    cache, inputs = TreeCache(), Inputs()
    for context in ids:
        cache.insert(context)
    with (
        patch.object(cached_attention, "OVERHEAD_PAIRS", overhead),
        patch.object(pass_sizes, "READ_KEYS", read_keys),
        patch.object(cached_attention, "READ_IN_PLACE", in_place),
    ):
        for first in range(0, len(cache), batch_size):
            nodes = list(range(first, min(first + batch_size, len(cache))))
            attended = inputs.attend(cache, nodes, window)
            torch.testing.assert_close(attended, inputs.expected(cache, nodes, window))


@given(st.lists(contexts, min_size=2, max_size=5), st.sampled_from([-(10**9), 0, 60, 1500]), st.data())
def test_caches_that_share_a_store_do_not_see_each_other(ids_of_each, overhead, data):
    store, inputs = KeyStore(), Inputs()
    caches = [TreeCache(store) for _ in ids_of_each]
    for ids in zip_longest(*ids_of_each):  # by turns, so that their slots are mixed
        for cache, context in zip(caches, ids, strict=True):
            cache.insert(context or [])
    window = data.draw(st.none() | st.integers(1, 8))
    expected = [inputs.expected(cache, cache.pending, window) for cache in caches]
    with patch.object(cached_attention, "OVERHEAD_PAIRS", overhead):
        attended = inputs.attend_all([(cache, cache.pending) for cache in caches], window)
    torch.testing.assert_close(attended, torch.cat(expected, dim=1))

    first, *others = caches
    first.clear()
    first.insert([2, 1, 0, 2])
    parts = [(cache, [node]) for cache in others for node in range(len(cache))]
    parts.append((first, first.pending))
    for part in parts:
        torch.testing.assert_close(inputs.attend_all([part]), inputs.expected(*part))


def test_a_store_without_contexts_holds_no_memory():
    store, inputs = KeyStore(), Inputs()
    caches = [TreeCache(store), TreeCache(store)]
    for cache in caches:
        cache.insert([1, 2, 0])
        inputs.attend(cache, cache.pending)
    assert store.nbytes > 0
    caches[0].clear()
    assert store.nbytes > 0
    caches[1].clear()
    assert store.nbytes == 0


@given(contexts, contexts, st.data())
def test_a_pruned_cache_keeps_only_the_chosen_contexts(ids, later, data):
    cache, inputs = TreeCache(), Inputs()
    ends = [cache.insert(context) for context in ids]
    computed = data.draw(st.integers(0, len(cache)))
    if computed:
        inputs.attend(cache, cache.pending[:computed])
    cache.pending = cache.pending[computed:]
    cache.next_tokens = {node: f"distribution of {tokens_of(cache, node)}" for node in range(computed)}
    kept = data.draw(st.lists(st.sampled_from(range(len(ids))), unique=True))

    new_id = cache.prune([ends[index] for index in kept])

    assert [tokens_of(cache, new_id[ends[index]]) for index in kept] == [ids[index] for index in kept]
    assert len(cache) == len({tuple(ids[i][:end]) for i in kept for end in range(1, len(ids[i]) + 1)})
    found = cache.next_tokens.items()
    assert all(text == f"distribution of {tokens_of(cache, node)}" for node, text in found)
    for context in later:
        cache.insert(context)
    for nodes in (cache.pending, list(range(len(cache)))):
        if nodes:
            torch.testing.assert_close(inputs.attend(cache, nodes), inputs.expected(cache, nodes))


@pytest.mark.parametrize("computed", [False, True])
def test_a_cleared_cache_is_like_a_new_one(computed):
    cache, inputs = TreeCache(), Inputs()
    cache.insert([1, 2])
    if computed:
        inputs.attend(cache, [0, 1])
    cache.clear()
    assert len(cache) == 0
    assert cache.pending == []
    assert cache.find([1]) == (ROOT, 0)
    cache.insert([2, 1, 0])
    torch.testing.assert_close(inputs.attend(cache, [0, 1, 2]), inputs.expected(cache, [0, 1, 2]))


def test_questions_to_one_shared_context_are_answered_in_one_group():
    cache = TreeCache()
    prompt = cache.insert([1] * 50)
    ends = [cache.insert([answer], prompt) for answer in range(40)]
    attend = CachedAttention([(cache, ends)], torch.float32, torch.device("cpu"))
    assert len(attend.groups) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_contexts_that_share_only_their_beginning_are_separate_groups_where_keys_are_read_in_place(dtype):
    cache = TreeCache()
    ends = [cache.insert([9] * 10 + [first] * 90) for first in range(8)]
    attend = CachedAttention([(cache, ends)], dtype, torch.device("cpu"))
    assert (len(attend.groups) == len(ends)) == (dtype in READ_IN_PLACE)


def test_long_contexts_that_share_nothing_are_separate_groups():
    cache = TreeCache()
    nodes = [cache.insert([first] * 200) for first in range(3)]
    attend = CachedAttention([(cache, list(range(len(cache))))], torch.float32, torch.device("cpu"))
    assert len(attend.groups) == len(nodes)


@given(st.lists(st.tuples(contexts, st.integers(0, 3)), min_size=1, max_size=6), st.randoms())
def test_a_path_is_that_of_the_parents_whatever_was_asked_before(steps, rng):
    cache = TreeCache()
    for inserted, ask in steps:
        leaves = [cache.insert(ids, rng.randrange(-1, len(cache))) for ids in inserted]
        if ask == 0:
            cache.begin_pass()
        if ask == 1:
            cache.prune(rng.sample(leaves, 1))
        for node in rng.sample(range(len(cache)), min(len(cache), 4)):
            expected = []
            while node != ROOT:
                expected.insert(0, node)
                node = cache.parents[node]
            assert cache.path(expected[-1]).tolist() == expected


def test_questions_of_several_caches_are_one_batch():
    store = KeyStore()
    parts = []
    for length in range(20, 30):
        cache = TreeCache(store)
        parts.append((cache, [cache.insert([1] * length)]))
    attend = CachedAttention(parts, torch.float32, torch.device("cpu"))
    assert len(attend.groups) == 10
    assert len(attend.batches) == 1


@pytest.mark.parametrize("queries", [1, 16, 17])
@pytest.mark.parametrize("product", [DotProduct(SCALE), DotProduct(SCALE, 2.0, torch.linspace(-1, 1, HEADS))])
def test_a_batch_of_dot_products_is_that_of_each_alone(product, queries):
    query_BHQd = torch.randn(3, HEADS, queries, SIZE)
    key_BGKd, value_BGKe = torch.randn(3, GROUPS, 20, SIZE), torch.randn(3, GROUPS, 20, SIZE + 1)
    mask_B1QK = torch.randn(3, 1, queries, 20)
    together = product(query_BHQd, key_BGKd, value_BGKe, mask_B1QK)
    for b in range(3):
        alone = product(query_BHQd[b], key_BGKd[b], value_BGKe[b], mask_B1QK[b, 0])
        torch.testing.assert_close(together[b], alone)


@pytest.mark.parametrize("read_keys", [1, 1000, 10**9])
def test_a_batch_of_groups_reads_a_bounded_number_of_keys(read_keys):
    cache = TreeCache()
    ends = [cache.insert([first] * 200) for first in range(12)]
    with (
        patch.object(pass_sizes, "READ_KEYS", read_keys),
        patch.object(cached_attention, "OVERHEAD_PAIRS", 100),
    ):
        attend = CachedAttention([(cache, ends)], torch.float32, torch.device("cpu"))
    assert len(attend.groups) == len(ends)
    assert all(len(batch.slots_BK) == 1 or batch.slots_BK.numel() <= read_keys for batch in attend.batches)
    assert len(attend.batches) == {1: 12, 1000: 3, 10**9: 1}[read_keys]
