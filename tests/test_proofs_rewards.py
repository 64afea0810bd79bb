"""Rewards: every agent, by decision, truth and stance; continuous decisions; the ends without a decision."""

import pytest

from sparring.config.proofs import ProtocolSettings
from sparring.programs.proofs.answers import NO_DECISION, Decision
from sparring.programs.proofs.protocols import build_protocol
from sparring.programs.proofs.rewards import (
    RoundOutcome,
    max_reward,
    min_reward,
    reward_mid_point_estimate,
    round_rewards,
)

REJECT, ACCEPT = Decision("reject", -1.0, "reject"), Decision("accept", 1.0, "accept")
NEITHER, NONE = Decision("neither", 0.0, "5"), NO_DECISION
EVERYBODY = ("prover", "prover0", "prover1", "verifier")


def earned(
    protocol, decision, y, stances=None, *, spoke=EVERYBODY, terminated=False, invalid=(), order=None, **given
):
    parameters = ProtocolSettings(**given, **(order or {}))
    table = build_protocol(protocol, parameters)
    own = {agent.name: agent.stance for agent in table.agents if agent.stance}
    outcome = RoundOutcome(spoke, decision, terminated, invalid)
    rewards = round_rewards(table, outcome, y, own | (stances or {}))
    return [rewards[agent.name] for agent in table.agents]


# What the agents of a protocol earn for (reject, accept, neither, none), by truth and by the stance of its
# one prover, with the default rewards. A verifier earns 1 for a right verdict, -1 for a wrong one and the
# mean of both for neither; a prover earns 1 if the verdict takes its side, half of it for neither. The agents
# are in the protocol's order, the verifier last.
ONE_PROVER = {
    (1, "accept"): ([0, -1], [1, 1], [0.5, 0], [0, 0]),
    (0, "accept"): ([0, 1], [1, -1], [0.5, 0], [0, 0]),
    (1, "reject"): ([1, -1], [0, 1], [0.5, 0], [0, 0]),
    (0, "reject"): ([1, 1], [0, -1], [0.5, 0], [0, 0]),
    (1, None): ([0, -1], [1, 1], [0.5, 0], [0, 0]),
    (0, None): ([0, 1], [1, -1], [0.5, 0], [0, 0]),
}
ONE_FOR_EACH_SIDE = {
    (1, None): ([1, 0, -1], [0, 1, 1], [0.5, 0.5, 0], [0, 0, 0]),
    (0, None): ([1, 0, 1], [0, 1, -1], [0.5, 0.5, 0], [0, 0, 0]),
}
BOTH_FOR_ACCEPTANCE = {
    (1, None): ([0, 0, -1], [1, 1, 1], [0.5, 0.5, 0], [0, 0, 0]),
    (0, None): ([0, 0, 1], [1, 1, -1], [0.5, 0.5, 0], [0, 0, 0]),
}
NOBODY = {
    (1, None): ([-1], [1], [0], [0]),
    (0, None): ([1], [-1], [0], [0]),
}
EARNED = {
    "nip": ONE_PROVER,
    "adp": ONE_PROVER,
    "debate": ONE_FOR_EACH_SIDE,
    "mnip": BOTH_FOR_ACCEPTANCE,
    "merlin_arthur": ONE_FOR_EACH_SIDE,
    "solo_verifier": NOBODY,
}
TABLE = [
    pytest.param(protocol, decision, y, stance, rewards, id=f"{protocol}-{decision.verdict}-{y}-{stance}")
    for protocol, cells in EARNED.items()
    for (y, stance), row in cells.items()
    for decision, rewards in zip((REJECT, ACCEPT, NEITHER, NONE), row, strict=True)
]


@pytest.mark.parametrize(("protocol", "decision", "y", "stance", "rewards"), TABLE)
def test_every_agent_earns_by_decision_truth_and_stance(protocol, decision, y, stance, rewards):
    assert earned(protocol, decision, y, {"prover": stance} if stance else None) == rewards


# In the last round, a decision that is not made costs the verifier its penalty, and provers nothing.
@pytest.mark.parametrize("protocol", EARNED)
@pytest.mark.parametrize("y", [0, 1])
def test_without_a_decision_at_the_end_the_verifier_alone_loses(protocol, y):
    provers = [0] * {"nip": 1, "adp": 1, "solo_verifier": 0}.get(protocol, 2)
    for stance in ("accept", "reject"):
        assert earned(protocol, NONE, y, {"prover": stance}, terminated=True) == [*provers, -1]


# value of the decision, truth -> verifier; stance -> prover
@pytest.mark.parametrize(
    ("value", "y", "verifier"),
    [
        (0.5, 1, 1.0),
        (0.5, 0, -1.0),
        (-0.5, 1, -1.0),
        (-0.5, 0, 1.0),
        (0.0, 1, 0.0),
        (1.0, 1, 2.0),
        (1.0, 0, -2.0),
    ],
)
def test_a_verifier_earns_in_proportion_to_how_right_it_is(value, y, verifier):
    given = {"verifier_reward": 2.0, "verifier_incorrect_penalty": -2.0}
    assert earned("solo_verifier", Decision("accept", value), y, **given) == [verifier]


def test_the_middle_of_the_scale_has_a_reward_of_its_own():
    given = {"verifier_reward": 3.0, "verifier_incorrect_penalty": -1.0}
    assert earned("solo_verifier", NEITHER, 1, **given) == [1.0]
    middle = given | {"verifier_neither_accept_nor_reject_reward": -0.5}
    assert earned("solo_verifier", NEITHER, 0, **middle) == [-0.5]
    assert earned("solo_verifier", Decision("accept", 0.5), 1, **middle) == [1.25]
    assert earned("solo_verifier", Decision("accept", 0.5), 0, **middle) == [-0.75]


@pytest.mark.parametrize("value", [-1.0, -0.5, 0.0, 0.2, 1.0])
def test_a_prover_earns_in_proportion_to_how_far_the_decision_agrees_with_its_stance(value):
    for_reject, for_accept, _ = earned("debate", Decision("accept", value), 1, prover_reward=2.0)
    assert (for_reject, for_accept) == (pytest.approx(1 - value), pytest.approx(1 + value))
    assert (
        earned("nip", Decision("accept", value), 1, {"prover": "reject"}, prover_reward=2.0)[0] == for_reject
    )
    assert min(for_reject, for_accept) >= 0


def test_a_turn_without_a_decision_earns_the_verifier_that_took_it():
    given = {"verifier_no_guess_reward": -0.1}
    assert earned("nip", NONE, 1, spoke=("verifier",), **given) == [0, -0.1]
    assert earned("nip", NONE, 1, spoke=("prover",), **given) == [0, 0]


def test_provers_may_share_the_verifiers_reward():
    given = {"shared_reward": True, "verifier_no_guess_reward": -0.1, "prover_reward": 9.0}
    assert earned("debate", ACCEPT, 0, **given) == [-1, -1, -1]
    assert earned("debate", NONE, 1, terminated=True, **given) == [-1, -1, -1]
    assert earned("debate", NONE, 1, spoke=("verifier",), **given) == [-0.1] * 3
    assert earned("debate", NONE, 1, spoke=("prover0", "prover1"), **given) == [0, 0, 0]


def test_an_invalid_answer_costs_its_prover_only_and_only_if_that_is_set():
    ended = {"terminated": True, "invalid": ("prover1",)}
    assert earned("debate", NONE, 1, prover_invalid_response_penalty=-0.7, **ended) == [0, -0.7, 0]
    assert earned("debate", NONE, 1, spoke=("prover0", "prover1"), invalid=("prover1",)) == [0, 0, 0]


def bounds(protocol, name, parameters=None, **given):
    table = build_protocol(protocol, ProtocolSettings(**given, **(parameters or {})))
    return min_reward(table, name), reward_mid_point_estimate(table, name), max_reward(table, name)


def test_the_bounds_of_an_episode_hold_its_penalties():
    assert bounds("nip", "verifier") == (-1, 0, 1)
    assert bounds("nip", "prover") == (0, 0.5, 1)
    assert bounds("nip", "verifier", verifier_terminated_penalty=-5.0) == (-5, 0, 1)
    assert bounds("nip", "prover", prover_invalid_response_penalty=-2.0) == (-2, 0.5, 1)
    assert bounds("nip", "prover", shared_reward=True, verifier_reward=3.0) == (-1, 1, 3)
    assert bounds("debate", "prover0", prover_reward=2.0) == (0, 1, 2)


def test_the_bounds_of_an_episode_hold_its_turns_without_a_decision():
    four_turns = {"max_message_rounds": 8}
    assert bounds("nip", "verifier", four_turns, verifier_no_guess_reward=-0.5) == (-2.5, 0, 1)
    assert bounds("nip", "verifier", four_turns, verifier_no_guess_reward=0.5) == (-1, 0, 2.5)
    late = {"max_message_rounds": 8, "min_message_rounds": 5}
    assert bounds("nip", "verifier", late, verifier_no_guess_reward=-0.5) == (-2.5, 0, 0)
