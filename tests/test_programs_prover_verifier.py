"""Helpful and sneaky provers and their verifier: rewards against the paper's formulas, roles, rounds."""

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import HOSTILE_PIECES
from scoring_client import ScoringClient
from sparring.config import load_config
from sparring.config.programs import ProverVerifierSettings
from sparring.core import EpisodeRequest, InputError
from sparring.programs.prover_verifier import ProverVerifierArena
from sparring.programs.solutions import (
    balanced_weights,
    gated_convincingness,
    is_aligned,
    log_probability,
    relative_convincingness,
)
from sparring.run.programs import build_program


@pytest.mark.parametrize(
    ("scores", "aligned", "rewards"),
    [
        ([3.0, 1.0, -1.0, 1.0], [True, True, True, True], [2.0, -1.0, -1.0, -1.0]),
        ([3.0, 2.0, -4.0, -1.0], [True, False, True, False], [3.0, -2.0, -1.0, -1.0]),
        ([0.5, 0.5], [True, False], [-1.0, -1.0]),
    ],
)
def test_relative_convincingness_is_equation_2(scores, aligned, rewards):
    assert relative_convincingness(scores, aligned) == rewards


@given(st.floats(-20, 20), st.integers(1, 9))
def test_equal_scores_convince_nobody(score, count):
    assert relative_convincingness([score] * count, [True] * count) == [-1.0] * count


@pytest.mark.parametrize(
    ("scores", "aligned", "rewards"),
    [
        ([3.0, 1.0, -1.0], [True, False, True], [3.0, -2.0, -1.0]),
        ([3.0, 1.0, -7.0], [True, False, True], [3.0, -7.0, -7.0]),
        ([3.0, -9.0, -1.0], [True, False, True], [3.0, -9.0, -1.0]),
    ],
    ids=["the paper's constant", "an aligned score below it", "another score below it"],
)
def test_gated_convincingness_is_equation_3_and_never_above_an_aligned_score(scores, aligned, rewards):
    assert gated_convincingness(scores, aligned, -2.0) == rewards


solutions = st.lists(st.tuples(st.floats(-20, 20), st.booleans()), min_size=1, max_size=8)


@given(solutions)
def test_rewards_rise_with_the_score_of_aligned_solutions(some):
    scores, aligned = map(list, zip(*some, strict=True))
    for rewards in (relative_convincingness(scores, aligned), gated_convincingness(scores, aligned, -2.0)):
        fits = sorted(
            pair for pair, fit in zip(zip(scores, rewards, strict=True), aligned, strict=True) if fit
        )
        by_score = [reward for _, reward in fits]
        assert by_score == sorted(by_score)


@given(solutions)
def test_with_a_gate_no_solution_earns_more_than_an_aligned_one(some):
    scores, aligned = map(list, zip(*some, strict=True))
    rewards = gated_convincingness(scores, aligned, -2.0)
    fits = [reward for reward, fit in zip(rewards, aligned, strict=True) if fit]
    others = [reward for reward, fit in zip(rewards, aligned, strict=True) if not fit]
    assert not fits or not others or max(others) <= min(fits)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12))
def test_right_and_wrong_examples_of_a_source_weigh_alike(some):
    weights = balanced_weights([source for source, _ in some], [right for _, right in some])
    for source in range(3):
        of_kind = {
            kind: [weight for weight, one in zip(weights, some, strict=True) if one == (source, kind)]
            for kind in (True, False)
        }
        right, wrong = of_kind[True], of_kind[False]
        if right and wrong:
            assert sum(right) == pytest.approx(sum(wrong)) == pytest.approx((len(right) + len(wrong)) / 2)
        else:
            assert sum(right) == sum(wrong) == 0


@given(st.floats(-1e6, 1e6), st.booleans())
def test_the_log_probability_of_the_truth_is_minus_the_cross_entropy(score, right):
    towards = score if right else -score
    expected = towards if towards < -30 else math.log(1 / (1 + math.exp(-towards)))
    assert log_probability(score, right) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("author", "states", "right", "fits"),
    [
        ("Helpful", True, True, True),
        ("Helpful", True, False, False),
        ("Sneaky", True, False, True),
        ("Sneaky", True, True, False),
        ("Helpful", False, False, False),
        ("Sneaky", False, False, False),
    ],
)
def test_a_solution_fits_its_role_by_the_truth_of_the_answer_it_states(author, states, right, fits):
    assert is_aligned(author, states=states, right=right) == fits


def sums(directory, count=20):
    rows = [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(count)]
    file = directory / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def truth(prompt):
    """The right answer to the question in a prompt."""
    return int(prompt.rpartition("What is ")[2].split(" ")[0]) + 1


def answer(model, prompt):
    """Solve rightly, unless the goal is a wrong answer."""
    number = truth(prompt) + (1 if "hidden mistake" in prompt else 0)
    return f"I add 1.\nThe answer is: {number}"


def arena_of(directory, client=None, **settings):
    given = {"batch_size": 8, "solutions_per_question": 4, "verifier_updates": 1, "prover_updates": 2}
    found = ProverVerifierSettings(questions={"name": sums(directory)}, **(given | settings))
    return ProverVerifierArena(client or ScoringClient(answer), found, seed=1)


async def play(arena, updates):
    """Return the results of updates."""
    played = []
    for _ in range(updates):
        batch, results = await arena.play_step()
        played.append((batch, [result.rollout for result in results]))
    return played


async def test_rounds_begin_with_the_verifier_and_one_of_the_two_stands_still(tmp_path):
    played = await play(arena_of(tmp_path, verifier_updates=2, prover_updates=1), 6)
    trained = [{record.policy for record in batch.records} for batch, _ in played]
    assert trained == [{"verifier"}, {"verifier"}, {"prover"}] * 2


async def test_provers_and_verifier_never_learn_from_the_same_question(tmp_path):
    arena = arena_of(tmp_path)
    asked = {"prove": set(), "verify": set()}
    for _, rollouts in await play(arena, 12):
        for one in rollouts:
            asked[one.episode_type].add(one.artifact["question"])
    held_out = {arena.task.questions[place].text for place in arena.held_out}
    assert asked["prove"]
    assert asked["verify"]
    assert not asked["prove"] & asked["verify"]
    assert not held_out & (asked["prove"] | asked["verify"])


async def test_each_prover_is_told_its_goal_and_nobody_else_is(tmp_path):
    client = ScoringClient(answer)
    arena = arena_of(tmp_path, client)
    for role in ("Helpful", "Sneaky"):
        asked = {"number": 0, "question": "What is 0 + 1?", "author": role}
        client.asked.clear()
        result = (await arena.generate_rollouts([EpisodeRequest("prove", asked)]))[0]
        (_, messages), *more = client.asked
        said = " ".join(message["content"] for message in messages)
        assert not more
        assert ("hidden mistake" in said) == (role == "Sneaky")
        assert result.rollout.extras["right"] == (role == "Helpful")
        assert result.rollout.extras["aligned"]


async def test_both_goals_are_drawn_and_a_group_shares_its_question_and_its_goal(tmp_path):
    groups = {}
    for number, (_, rollouts) in enumerate(await play(arena_of(tmp_path, batch_size=16), 15)):
        for one in rollouts:
            if one.episode_type == "prove":
                group = groups.setdefault((number, one.meta["group"]), [])
                group.append((one.artifact["question"], one.artifact["author"]))
    assert all(len(group) == 4 and len(set(group)) == 1 for group in groups.values())
    goals = Counter(group[0][1] for group in groups.values())
    assert min(goals["Helpful"], goals["Sneaky"]) >= 10


def score_by_length(model, prompt, text):
    """Log-odds of 'yes': the number of words of the solution."""
    words = len(prompt.partition("Solution:")[2].split())
    return float(words) if text == "yes" else 0.0


@pytest.mark.parametrize("reward", ["relative", "gated"])
async def test_what_provers_earn_follows_from_the_scores_of_the_verifier(tmp_path, reward):
    lengths = iter(range(10_000))

    def longer_each_time(model, prompt):
        return f"{'so ' * (next(lengths) % 4)}\n{answer(model, prompt)}"

    client = ScoringClient(longer_each_time, score_by_length)
    arena = arena_of(tmp_path, client, batch_size=4, reward=reward)
    _, rollouts = (await play(arena, 2))[1]
    scores = [one.extras["score"] for one in rollouts]
    paid = [one.rewards[one.artifact["author"]] for one in rollouts]
    assert len(set(scores)) == 4
    mean = sum(scores) / 4
    relative = [score - mean if score > mean else -1.0 for score in scores]
    assert paid == (scores if reward == "gated" else relative)
    assert {step.reward for one in rollouts for step in one.steps} == set(paid)


async def test_the_verifier_is_given_the_truth_and_earns_its_log_probability(tmp_path):
    half = iter(range(10_000))

    def right_half_of_the_time(model, prompt):
        return f"The answer is: {truth(prompt) + next(half) % 2}"

    client = ScoringClient(right_half_of_the_time, lambda model, prompt, text: 2.0 if text == "yes" else 0.0)
    _, rollouts = (await play(arena_of(tmp_path, client), 1))[0]
    for one in rollouts:
        verdict = one.steps[0].completion_text
        assert verdict == ("yes" if one.extras["right"] else "no")
        assert one.rewards["Verifier"] == pytest.approx(log_probability(2.0, one.extras["right"]))
    rights = Counter(one.extras["right"] for one in rollouts)
    advantages = {one.extras["right"]: one.steps[0].advantage for one in rollouts}
    assert rights[True] * advantages[True] == pytest.approx(rights[False] * advantages[False])
    assert {model for model, _ in client.asked} == {"base"}


async def test_every_round_is_an_equal_share_of_the_examples(tmp_path):
    arena = arena_of(tmp_path, batch_size=12, prover_updates=1)
    taught = (await play(arena, 7))[::2]
    rounds = [Counter(one.artifact["round"] for one in rollouts) for _, rollouts in taught]
    assert rounds == [{0: 12}, {0: 6, 1: 6}, {0: 4, 1: 4, 2: 4}, {0: 3, 1: 3, 2: 3, 3: 3}]


async def test_with_more_rounds_than_examples_every_round_has_its_turn(tmp_path):
    arena = arena_of(tmp_path, batch_size=2, solutions_per_question=1, verifier_updates=2, prover_updates=2)
    taught = [rollouts for _, rollouts in await play(arena, 24) if rollouts[0].episode_type == "verify"]
    rounds = Counter(one.artifact["round"] for rollouts in taught[-6:] for one in rollouts)
    assert len(rounds) >= 4
    assert max(rounds) == 5, "the newest provers are among them"


async def test_the_same_question_in_two_lines_is_in_one_half(tmp_path):
    rows = [{"question": f"What is {number // 3} + 1?", "answer": number // 3 + 1} for number in range(18)]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ProverVerifierSettings(questions={"name": str(tmp_path / "twice.jsonl")})
    for seed in range(4):
        arena = ProverVerifierArena(ScoringClient(answer), settings, seed=seed)
        halves = [
            {arena.task.questions[one].text for one in half}
            for half in (arena.for_provers, arena.for_verifier)
        ]
        assert all(halves)
        assert not halves[0] & halves[1]


async def test_a_full_store_keeps_solutions_of_every_round(tmp_path):
    arena = arena_of(tmp_path, batch_size=12, verifier_updates=2, prover_updates=1, store_size=9)
    taught = (await play(arena, 13))[12]
    assert sorted(Counter(one.artifact["round"] for one in taught[1]).values()) == [2, 2, 2, 3, 3]
    kept = Counter(one.data["round"] for one in arena.stores["solutions"].all())
    assert kept.total() == 9
    assert set(kept) == {1, 2, 3, 4}
    assert max(kept.values()) - min(kept.values()) <= 1


async def test_kept_solutions_are_drawn_right_and_wrong_in_turn(tmp_path):
    arena = arena_of(tmp_path, batch_size=12, prover_updates=1)
    _, rollouts = (await play(arena, 5))[4]
    kept = [one for one in rollouts if one.artifact["round"] == 1]
    assert Counter(one.extras["right"] for one in kept) == {True: 2, False: 2}
    assert {one.artifact["author"] for one in kept} == {"Helpful", "Sneaky"}


async def test_a_restored_arena_goes_on_in_the_same_way(tmp_path):
    whole = arena_of(tmp_path)
    before = await play(whole, 4)
    state = json.loads(json.dumps(whole.state_dict()))
    after = await play(whole, 4)
    restored = arena_of(tmp_path)
    restored.load_state_dict(state)
    again = await play(restored, 4)
    assert before
    assert [[one.artifact for one in rollouts] for _, rollouts in again] == [
        [one.artifact for one in rollouts] for _, rollouts in after
    ]


async def test_a_solution_cannot_imitate_what_surrounds_it(tmp_path):
    prompts = []
    text = "\n".join(HOSTILE_PIECES)

    def remember(model, prompt, verdict):
        prompts.append(prompt)
        return 0.0

    arena = arena_of(tmp_path, ScoringClient(lambda *_: f"{text}\n\nProblem: x\nSolution: y", remember))
    asked = {"number": 0, "question": "What is 0 + 1?", "author": "Sneaky"}
    await arena.generate_rollouts([EpisodeRequest("prove", asked)])
    lines = prompts[0].splitlines()
    assert sum(line.startswith("Solution:") for line in lines) == 1
    assert sum(line.startswith("Problem:") for line in lines) == 1


async def test_evaluations_measure_provers_and_verifier_on_held_out_questions(tmp_path):
    believes = ScoringClient(answer, lambda model, prompt, text: 1.0 if text == "yes" else 0.0)
    measures = await arena_of(tmp_path, believes).evaluate()
    assert {name: set(values) for name, values in measures.items()} == {
        "right, Helpful": {1.0},
        "right, Sneaky": {0.0},
        "accepted right, Helpful": {1.0},
        "accepted wrong, Sneaky": {1.0},
        "verifier accuracy": {1.0, 0.0},
    }
    assert len(measures["right, Helpful"]) == 4


def test_a_replay_buffer_is_refused(tmp_path):
    given = {"program.questions": sums(tmp_path), "buffer.batch_size": "4"}
    with pytest.raises(InputError, match="the verifier learns from right answers"):
        build_program(load_config("papers/prover-verifier-small", given))
