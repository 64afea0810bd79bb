"""SPO: tracked baselines of positions, their forgetting, and their state, against numbers made by hand."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_groups import found, game
from sparring.core import SPOCredit, Step
from sparring.core.credit import tracked
from sparring.core.credit.tracked import MAX_ANSWERS

TENTH = math.log2(10 / 9)
"""The change of log-probabilities, in half-lives, after which a tenth is forgotten: 2^-TENTH = 0.9."""


def drawn(prompt, answer=(9,), logprob=-1.0, role="a", policy="default"):
    """A step in which ``answer`` was drawn, with this log-probability in all."""
    logprobs = [logprob, *[0.0] * (len(answer) - 1)]
    return Step(role, [], [], prompt, list(answer), logprobs, policy=policy)


def one(reward, prompt=(1,), *, kind="kuhn", **options):
    """A game of one step of ``a``, which earns ``reward``."""
    return game([drawn(list(prompt), **options)], {"a": reward}, kind=kind)


def scaled(*advantages):
    """The advantages divided by their deviation about 0."""
    deviation = math.sqrt(sum(advantage**2 for advantage in advantages) / len(advantages))
    return [pytest.approx(advantage / deviation) for advantage in advantages]


def sums_of(credit):
    """S and N of the only position."""
    ((_, (rewards, samples, _)),) = credit.state_dict()["positions"]
    return [pytest.approx(rewards), pytest.approx(samples)]


def flat(credit, results):
    return [advantage for advantages in found(credit, results) for advantage in advantages]


def test_a_new_position_has_the_mean_of_its_role_in_other_rollouts():
    results = [
        game([drawn([1]), drawn([2])], {"a": 4.0}),
        one(1.0, [3]),
        one(0.0, [4]),
        one(7.0, [1], kind="leduc"),
        game([drawn([1], role="b")], {"b": -2.0}),
    ]
    # Of a in kuhn, the others have 1/2 (once, although the game has two steps), 2 and 5/2; the last two are
    # alone in their seats, and their baseline is 0.
    assert flat(SPOCredit(), results) == scaled(3.5, 3.5, -1.0, -2.5, 7.0, -2.0)


def test_the_value_is_read_before_any_sample_of_the_batch_is_written():
    credit = SPOCredit()
    credit.compute([one(1.0), one(0.0), one(0.0), one(1.0, [2])])  # [1]: 1 of 3; [2]: 1 of 1
    assert flat(credit, [one(1.0), one(1.0), one(0.0, [2])]) == scaled(2 / 3, 2 / 3, -1.0)
    # rho is 0.96. [1]: S = 0.96 + 2, N = 2.88 + 2; [2]: S = 0.96 + 0, N = 0.96 + 1.
    assert flat(credit, [one(1.0), one(0.0, [2])]) == scaled(1.92 / 4.88, -0.96 / 1.96)


def test_advantages_are_scaled_and_not_centred():
    assert flat(SPOCredit(), [one(3.0)]) == [1.0]
    credit = SPOCredit()
    credit.compute([one(1.0), one(0.0)])
    assert flat(credit, [one(2.0), one(2.0)]) == [1.0, 1.0]


def test_a_position_forgets_as_far_as_the_policy_has_moved():
    credit = SPOCredit(half_life=0.5)
    credit.compute([one(1.0, answer=(5, 6), logprob=-1.5), one(0.0, answer=(7,), logprob=-0.25)])
    # Per token, the three answers that were drawn before change by 1, 1 and -1 times a half of TENTH; the
    # fourth is new. So rho is 0.9: S = 0.9 + 1 + 1 + 1 + 0, N = 1.8 + 4.
    credit.compute(
        [
            one(1.0, answer=(5, 6), logprob=-1.5 + TENTH),
            one(1.0, answer=(5, 6), logprob=-1.5 + TENTH),
            one(1.0, answer=(7,), logprob=-0.25 - TENTH / 2),
            one(0.0, answer=(8,), logprob=-3.0),
        ]
    )
    assert sums_of(credit) == [3.9, 5.8]
    assert flat(credit, [one(1.0), one(0.0)]) == scaled(1.9 / 5.8, -3.9 / 5.8)


@pytest.mark.parametrize(
    ("change", "rho"),
    [(0.0, 0.96), (1e-3, 0.96), (-1e-3, 0.96), (0.06 * TENTH, 0.9), (-0.06 * TENTH, 0.9), (5.0, 0.875)],
)
@pytest.mark.parametrize("length", [1, 4])
def test_rho_has_bounds_and_depends_on_the_change_per_token_in_either_direction(change, rho, length):
    credit, answer = SPOCredit(), tuple(range(length))
    credit.compute([one(1.0, answer=answer, logprob=-9.0)])
    credit.compute([one(0.0, answer=answer, logprob=-9.0 + length * change)])
    assert sums_of(credit) == [rho, rho + 1]


def test_positions_differ_by_prompt_role_and_type():
    credit = SPOCredit()
    seats = [one(1.0), one(2.0, [1, 1]), one(3.0, kind="leduc")]
    seats.append(game([drawn([1], role="b")], {"b": 4.0}))
    credit.compute(seats)
    assert len(credit.positions) == 4
    assert all(len(name) == 64 and int(name, 16) >= 0 for name in credit.positions)
    assert sorted(position.value for position in credit.positions.values()) == [1.0, 2.0, 3.0, 4.0]


def test_policies_that_share_a_role_have_positions_and_means_of_their_own():
    def results():
        return [one(1.0), one(3.0), one(-1.0, policy="attacker", logprob=-9.0)]

    credit = SPOCredit()
    # The mean of the role is that of the policy's other games; the attacker has none.
    assert flat(credit, results()) == scaled(-2.0, 2.0, -1.0)
    # v is 2 for one and -1 for the other, whose log-probability has not changed: rho is 0.96.
    assert flat(credit, results()) == scaled(-1.0, 1.0, 0.0)
    sums = sorted(found[:2] for _, found in credit.state_dict()["positions"])
    assert sums == [pytest.approx([-1.96, 1.96]), pytest.approx([7.84, 3.92])]


def test_steps_without_ids_have_no_position_and_answers_without_log_probabilities_no_divergence():
    credit = SPOCredit()
    bare, untold = drawn(None), drawn([1])
    untold.completion_logprobs = None
    assert flat(credit, [game([bare], {"a": 1.0}), game([untold], {"a": 3.0})]) == scaled(-2.0, 2.0)
    ((_, state),) = credit.state_dict()["positions"]
    assert state == [3.0, 1.0, []]


def test_steps_that_no_policy_learns_from_are_neither_weighed_nor_tracked():
    credit = SPOCredit()
    results = [one(1.0), one(5.0, [2], policy=""), game([drawn([3])], {"a": 9.0}, trainable=False)]
    assert credit.compute(results) == {(results[0].rollout.id, 0): 1.0}
    assert len(credit.positions) == 1


def test_the_least_recently_used_positions_are_forgotten(monkeypatch):
    monkeypatch.setattr(tracked, "MAX_POSITIONS", 2)
    credit = SPOCredit()
    for prompt in ([1], [2], [1], [3]):
        credit.compute([one(1.0, prompt)])
    # [1] was used after [2]; its value is known, that of [2] is not, and [3]'s is.
    assert flat(SPOCredit(positions=dict(credit.positions)), [one(1.0, [1]), one(5.0, [3])]) == scaled(0, 4)
    assert flat(credit, [one(3.0, [2]), one(1.0, [2])]) == scaled(2.0, -2.0)
    assert len(credit.positions) == 2


def test_a_position_remembers_a_bounded_number_of_answers():
    credit = SPOCredit(half_life=1.0)
    credit.compute([one(1.0, answer=(0,), logprob=-2.0)])
    for answer in range(1, MAX_ANSWERS + 1):
        credit.compute([one(1.0, answer=(answer,), logprob=-2.0)])
    ((_, (_, samples, logprobs)),) = credit.state_dict()["positions"]
    assert len(logprobs) == MAX_ANSWERS
    credit.compute([one(1.0, answer=(0,), logprob=-1.0)])  # forgotten, so nothing has moved
    assert sums_of(credit)[1] == 0.96 * samples + 1
    credit.compute([one(1.0, answer=(MAX_ANSWERS,), logprob=-1.0)])  # remembered, so it has moved by 1
    assert sums_of(credit)[1] == 0.875 * (0.96 * samples + 1) + 1


def batches(seed, count=6):
    """Batches of games over a few positions and answers, with changing log-probabilities."""
    rng = random.Random(seed)
    return [
        [
            game(
                [
                    drawn([rng.randrange(3)], (rng.randrange(3),), rng.uniform(-3, 0), role)
                    for role in rng.choices("ab", k=rng.randrange(1, 4))
                ],
                {"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1)},
            )
            for _ in range(rng.randrange(1, 5))
        ]
        for _ in range(count)
    ]


@given(st.integers(0, 10**6), st.integers(0, 6))
def test_a_resumed_run_equals_an_uninterrupted_one(seed, stop):
    whole, first, then = SPOCredit(), SPOCredit(), SPOCredit()
    results = batches(seed)
    wanted = [whole.compute(batch) for batch in results]
    got = [first.compute(batch) for batch in results[:stop]]
    state = first.state_dict()
    saved = json.dumps(state)
    first.compute(results[-1])  # the saved state is a copy
    assert json.dumps(state) == saved
    then.load_state_dict(json.loads(saved))
    got += [then.compute(batch) for batch in results[stop:]]
    assert got == wanted
    assert json.dumps(then.state_dict()) == json.dumps(whole.state_dict())


@given(st.integers(0, 10**6))
def test_the_order_within_a_batch_changes_nothing(seed):
    forwards, backwards = SPOCredit(), SPOCredit()
    for batch in batches(seed):
        assert forwards.compute(batch) == backwards.compute(batch[::-1])
    assert forwards.state_dict() == backwards.state_dict()
