from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.learn import trie
from sparring.learn.tree_attention import sections_of
from sparring.learn.trie import TreePlan, ancestors, build_plan, plans_of, samples_of

token = st.integers(0, 2)
samples = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=6), st.lists(token, max_size=4)), min_size=1, max_size=10
)
handy_tokens = st.sampled_from([1, 3, 512])


def plan_of(pairs: list[tuple[list[int], list[int]]]) -> TreePlan:
    return build_plan([prompt for prompt, _ in pairs], [completion for _, completion in pairs])


def parts_of(pairs: list[tuple[list[int], list[int]]]) -> list[TreePlan]:
    return plans_of(samples_of([prompt for prompt, _ in pairs], [completion for _, completion in pairs]))


def context(plan: TreePlan, node: int) -> tuple[int, ...]:
    return tuple(plan.tokens_T[[*ancestors(plan, node), node]].tolist())


def predictions(plan: TreePlan) -> set[tuple[int, int, tuple[int, ...], int]]:
    """Return (sample, offset, context, token) of every completion token in ``plan``."""
    node_S = plan.predict_node_C[plan.prediction_S]
    token_S = plan.predict_token_C[plan.prediction_S]
    return {
        (int(sample), int(offset), context(plan, int(node)), int(token))
        for sample, offset, node, token in zip(plan.sample_S, plan.offset_S, node_S, token_S, strict=True)
    }


def expected_predictions(
    pairs: list[tuple[list[int], list[int]]],
) -> set[tuple[int, int, tuple[int, ...], int]]:
    return {
        (sample, offset, tuple(prompt + completion[:offset]), token)
        for sample, (prompt, completion) in enumerate(pairs)
        for offset, token in enumerate(completion)
    }


@settings(deadline=None)
@given(samples)
def test_every_fed_context_is_one_node_and_every_node_is_needed(pairs):
    plan = plan_of(pairs)
    contexts = [context(plan, node) for node in range(plan.num_tokens)]
    needed = {
        tuple((prompt + completion)[:end])
        for prompt, completion in pairs
        for end in range(1, len(prompt) + max(len(completion), 1))
    }
    assert len(contexts) == len(set(contexts))
    assert set(contexts) == needed


@settings(deadline=None)
@given(samples)
def test_nodes_are_in_preorder_with_consistent_parents_depths_and_ends(pairs):
    plan = plan_of(pairs)
    for node in range(plan.num_tokens):
        parent = plan.parents_T[node]
        assert parent < node
        assert plan.depths_T[node] == (0 if parent < 0 else plan.depths_T[parent] + 1)
        descendants = [other for other in range(plan.num_tokens) if node in ancestors(plan, other)]
        assert descendants == list(range(node + 1, plan.end_T[node]))


@settings(deadline=None)
@given(samples)
def test_every_completion_token_is_predicted_from_its_context(pairs):
    assert predictions(plan_of(pairs)) == expected_predictions(pairs)


@settings(deadline=None)
@given(samples)
def test_equal_continuations_of_a_context_are_one_prediction(pairs):
    plan = plan_of(pairs)
    distinct = {(context, token) for _, _, context, token in expected_predictions(pairs)}
    assert len(plan.predict_node_C) == len(plan.predict_token_C) == len(distinct)
    assert len(plan.prediction_S) == sum(len(completion) for _, completion in pairs)


@settings(deadline=None)
@given(samples)
def test_branches_start_where_a_node_does_not_continue_the_one_before_it(pairs):
    plan = plan_of(pairs)
    expected = [node for node in range(1, plan.num_tokens) if plan.parents_T[node] != node - 1]
    assert plan.branch_starts.tolist() == expected


@settings(deadline=None)
@given(samples, handy_tokens)
def test_parts_hold_every_prediction_exactly_once(pairs, handy):
    with patch.object(trie, "HANDY_TOKENS", handy):
        parts = parts_of(pairs)
    assert sum(len(part.prediction_S) for part in parts) == sum(len(completion) for _, completion in pairs)
    assert set().union(*map(predictions, parts)) == expected_predictions(pairs)


@given(samples, handy_tokens)
def test_parts_are_trees_in_preorder_without_repeated_contexts(pairs, handy):
    with patch.object(trie, "HANDY_TOKENS", handy), patch.object(trie, "REPEAT_SHARE", 1):
        parts = parts_of(pairs)
    for part in parts:
        contexts = [context(part, node) for node in range(part.num_tokens)]
        assert len(contexts) == len(set(contexts))
        for node in range(part.num_tokens):
            below = [other for other in range(part.num_tokens) if node in ancestors(part, other)]
            assert below == list(range(node + 1, part.end_T[node]))
            assert part.depths_T[node] == len(contexts[node]) - 1


@settings(deadline=None)
@given(samples, st.integers(1, 20))
def test_sections_hold_every_token_once_within_the_limit_and_see_only_ancestors(pairs, max_tokens):
    plan = plan_of(pairs)
    sections = sections_of(plan, max_tokens)
    assert [node for one in sections for node in range(one.start, one.stop)] == list(range(plan.num_tokens))
    assert all(1 <= one.size <= max_tokens for one in sections)
    for section in sections:
        assert section.above_K.tolist() == ancestors(plan, section.start).tolist()
        for node in range(section.start, section.stop):
            above = [one for one in ancestors(plan, node).tolist() if one < section.start]
            assert above == section.above_K[: len(above)].tolist()


def test_the_plan_does_not_depend_on_the_order_of_the_samples():
    prompts, completions = [[5, 1], [2], [5, 1], [5]], [[3, 4], [9], [3, 4], [1, 3]]
    plan, reverse = build_plan(prompts, completions), build_plan(prompts[::-1], completions[::-1])
    for name in ("tokens_T", "parents_T", "end_T", "predict_node_C", "predict_token_C"):
        assert getattr(plan, name).tolist() == getattr(reverse, name).tolist()


def test_shared_prompts_and_repeated_answers_cost_only_their_distinct_tokens():
    prompt = list(range(100))
    plan = build_plan([prompt] * 50, [[7, 8, 9]] * 25 + [[7, 5, 9]] * 25)
    assert plan.num_tokens == 100 + 1 + 2  # the prompt, 7, then 8 or 5; last tokens are not fed
    assert len(plan.predict_node_C) == 5


def test_samples_that_share_nothing_are_separated_at_a_handy_size_but_others_are_not():
    unshared = parts_of([([first] * trie.HANDY_TOKENS, [1, 2]) for first in range(3)])
    assert [plan.num_tokens for plan in unshared] == [trie.HANDY_TOKENS + 1] * 3
    assert len(parts_of([([0] * trie.HANDY_TOKENS, [first, 7, 8]) for first in range(3)])) == 1


def test_a_long_path_is_cut_in_the_middle():
    plan = build_plan([list(range(9))], [[1, 2]])
    assert [(one.start, one.stop) for one in sections_of(plan, 4)] == [(0, 4), (4, 8), (8, 10)]


def test_a_section_ends_at_the_branch_that_keeps_the_fewest_tokens():
    plan = build_plan([[1, 2, 3, 4], [1, 2, 3, 5], [1, 6, 7, 8]], [[9, 9]] * 3)
    assert plan.tokens_T.tolist() == [1, 2, 3, 4, 9, 5, 9, 6, 7, 8, 9]
    assert [(one.start, one.stop) for one in sections_of(plan, 8)] == [(0, 7), (7, 11)]
    assert [(one.start, one.stop) for one in sections_of(plan, 6)] == [(0, 5), (5, 11)]
