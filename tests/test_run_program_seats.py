"""What the pool learns from an episode of a program: who met whom, and what each role earned."""

import pytest

from sparring.core import Arena, GenerateResult, MockInferenceClient, Role, Rollout
from sparring.population import ModelPool
from sparring.run.program_seats import rate_members


class Trial(Arena):
    """A judge is paid, and two parties are paid and compete."""

    def __init__(self):
        super().__init__(MockInferenceClient(lambda messages, seed: ""))
        for role in ("judge", "first", "second"):
            self.add_role(Role(role, policy=role))

    def outcomes(self, result):
        won = result.rollout.rewards["first"]
        return [{"first": won, "second": 1 - won}] if won != 0.5 else []


@pytest.fixture
def pool():
    pool = ModelPool("random", 2)
    for policy in ("judge", "first", "second"):
        pool.add_policy(policy)
    return pool


def played(rewards, **meta):
    children = [GenerateResult(Rollout(episode_type="appeal", rewards={"judge": one})) for one in (2.0, 5.0)]
    return GenerateResult(Rollout(episode_type="trial", rewards=rewards, meta=meta), children)


UIDS = {"judge": "judge", "first": "first", "second": "second"}


def test_every_role_has_the_same_seat_in_the_payoffs_whoever_had_a_match(pool):
    for won in (1.0, 0.5):
        rate_members(pool, Trial(), played({"first": won, "second": -3.0}), UIDS)
    (seating, payoff), *others = pool.played.items()
    assert (seating, others) == (("judge", "first", "second"), [])
    means = [payoff.mean(seat) for seat in range(3)]
    assert means == [3.5, 0.75, -3.0], "rewards, on average over the episode and its sub-episodes"


def test_members_are_rated_by_outcomes_and_not_by_rewards(pool):
    rate_members(pool, Trial(), played({"first": 0.0, "second": -3.0}), UIDS)
    rating = {one.uid: one.rating[0] for one in pool.opponents()}
    assert rating["first"] < rating["judge"] < rating["second"], "the second wins, who earned less"


def test_an_episode_that_failed_counts_as_such(pool):
    rate_members(pool, Trial(), played({"first": 0.5}, error="it failed"), UIDS)
    assert pool.played.payoff("judge", "first", "second").failed == 1
