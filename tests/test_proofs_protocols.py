"""The six protocols: who speaks when, to which channels, and who sees what; tables of one's own."""

import dataclasses

import pytest

from sparring.config.proofs import ProtocolSettings
from sparring.core import InputError
from sparring.programs.proofs.protocol import Agent, Channel, Protocol, Turn
from sparring.programs.proofs.protocols import PROTOCOLS, build_protocol

V = {"verifier": ("main",)}
P = {"prover": ("main",)}
V2 = {"verifier": ("prover0_channel", "prover1_channel")}
P0 = {"prover0": ("prover0_channel",)}
P1 = {"prover1": ("prover1_channel",)}
BOTH = P0 | P1
ALL = ["prover0_channel", "prover1_channel"]
MAIN = ["main"]

# Rounds 0 to 5 by protocol, verifier_first and sequential.
ROUNDS = {
    ("nip", True, False): [V, P, V, P, V, P],
    ("nip", True, True): [V, P, V, P, V, P],
    ("nip", False, False): [P, V, P, V, P, V],
    ("nip", False, True): [P, V, P, V, P, V],
    ("debate", True, False): [V2, BOTH, V2, BOTH, V2, BOTH],
    ("debate", True, True): [V2, P0, P1, V2, P0, P1],
    ("debate", False, False): [BOTH, V2, BOTH, V2, BOTH, V2],
    ("debate", False, True): [P0, P1, V2, P0, P1, V2],
    ("mnip", True, False): [V2, BOTH, V2, BOTH, V2, BOTH],
    ("mnip", True, True): [V2, P0, P1, V2, P0, P1],
    ("mnip", False, False): [BOTH, V2, BOTH, V2, BOTH, V2],
    ("mnip", False, True): [P0, P1, V2, P0, P1, V2],
} | {
    (name, first, sequential): rounds
    for first in (True, False)
    for sequential in (True, False)
    for name, rounds in (
        ("adp", [P, V]),
        ("merlin_arthur", [{"prover0": ("main",)}, V]),
        ("solo_verifier", [V]),
    )
}
SEEN = {
    "nip": {"prover": MAIN, "verifier": MAIN},
    "adp": {"prover": MAIN, "verifier": MAIN},
    "debate": {"prover0": ALL, "prover1": ALL, "verifier": ALL},
    "mnip": {"prover0": ALL[:1], "prover1": ALL[1:], "verifier": ALL},
    "merlin_arthur": {"prover0": MAIN, "prover1": MAIN, "verifier": MAIN},
    "solo_verifier": {"verifier": MAIN},
}
STANCES = {
    "nip": {"prover": "accept"},
    "adp": {"prover": "accept"},
    "debate": {"prover0": "reject", "prover1": "accept"},
    "mnip": {"prover0": "accept", "prover1": "accept"},
    "merlin_arthur": {"prover0": "reject", "prover1": "accept"},
    "solo_verifier": {},
}


def rounds_of(protocol, seed=0):
    return [
        {turn.agent: turn.channels for turn in protocol.turns(n, seed)}
        for n in range(min(protocol.max_rounds, 6))
    ]


@pytest.mark.parametrize(("name", "first", "sequential"), ROUNDS, ids=str)
def test_each_round_has_its_agents_and_channels(name, first, sequential):
    protocol = build_protocol(name, ProtocolSettings(verifier_first=first, sequential=sequential))
    assert rounds_of(protocol) == ROUNDS[name, first, sequential]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_agent_sees_its_channels_and_argues_for_its_stance(name):
    protocol = build_protocol(name)
    assert {agent.name: protocol.seen_by(agent.name) for agent in protocol.agents} == SEEN[name]
    stances = {agent.name: agent.stance for agent in protocol.agents if agent.kind == "prover"}
    assert stances == STANCES[name]
    assert protocol.verifiers == ["verifier"]
    assert protocol.anonymous == (name == "merlin_arthur")


@pytest.mark.parametrize("first", [True, False])
def test_prover1_may_begin_where_the_provers_speak_in_turn(first):
    given = ProtocolSettings(sequential=True, prover0_first=False, verifier_first=first)
    expected = [V2, P1, P0] if first else [P1, P0, V2]
    assert rounds_of(build_protocol("debate", given))[:3] == expected


def test_the_coin_of_merlin_arthur_is_the_seed():
    protocol = build_protocol("merlin_arthur")
    for seed in range(6):
        speaks = "prover0" if seed % 2 == 0 else "prover1"
        assert rounds_of(protocol, seed) == [{speaks: ("main",)}, V]


@pytest.mark.parametrize(
    ("name", "first", "rounds", "questions", "last"),
    [
        ("nip", True, 8, 4, 6),
        ("nip", True, 9, 5, 8),
        ("nip", False, 8, 4, 7),
        ("nip", False, 9, 4, 7),
        ("debate", True, 9, 5, 8),
        ("adp", True, 8, 1, 1),
        ("merlin_arthur", True, 8, 1, 1),
        ("solo_verifier", True, 8, 1, 0),
    ],
)
def test_a_verifier_has_half_of_the_rounds_and_ends_the_episode_in_its_last(
    name, first, rounds, questions, last
):
    protocol = build_protocol(name, ProtocolSettings(verifier_first=first, max_message_rounds=rounds))
    assert protocol.max_verifier_questions == questions
    assert protocol.last_round == last


def test_decisions_count_from_the_least_number_of_rounds():
    given = ProtocolSettings(min_message_rounds=4, max_message_rounds=7)
    assert build_protocol("nip", given).deciding_rounds == [4, 6]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_stances_are_drawn_where_the_protocol_allows_it(name):
    drawn = build_protocol(name, ProtocolSettings(randomize_prover_stance=True)).random_stance
    assert drawn == (name in ("nip", "adp", "mnip"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_message_rounds": 9}, "9 rounds are more than max_message_rounds, 8"),
        ({"verifier_first": False, "max_message_rounds": 1}, "leaves the verifier of nip no turn to decide"),
        ({"min_message_rounds": 8, "verifier_first": True}, "leaves the verifier of nip no turn to decide"),
    ],
)
def test_parameters_that_leave_no_decision_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        build_protocol("nip", ProtocolSettings(**given))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nipp", "there is no protocol nipp. Use one of nip, adp"),
        ("zero_knowledge", "is not possible with text"),
        ("missing.py:court", "there is no file missing.py"),
    ],
)
def test_protocols_that_there_are_not_are_refused_in_one_line(name, words):
    with pytest.raises(InputError, match=words) as refused:
        build_protocol(name)
    assert "\n" not in str(refused.value)


AGENTS = (Agent("ann", "prover", "accept"), Agent("bob", "verifier"))
TABLE = Protocol(
    "court",
    AGENTS,
    (Channel("room", ("ann", "bob")),),
    ((Turn("ann", ("room",)),), (Turn("bob", ("room",)),)),
    2,
)


def test_names_say_nothing_about_who_proves():
    assert (TABLE.provers, TABLE.verifiers) == (["ann"], ["bob"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agents": AGENTS[:1]}, "has no verifier"),
        ({"agents": (*AGENTS, AGENTS[0])}, "two agents named ann"),
        ({"agents": (AGENTS[0], Agent("bob", "verifier", "accept"))}, "gives a verifier a stance"),
        ({"channels": TABLE.channels * 2}, "two channels named room"),
        ({"channels": (Channel("room", ("ann", "eve")),)}, "names eve, which is not an agent"),
        ({"channels": (Channel("room", ("ann",)),)}, "lets bob write to room, which it does not see"),
        ({"cycle": ()}, "has no round"),
        ({"cycle": ((Turn("bob", ()),),)}, "lets bob speak to no channel"),
        ({"cycle": ((Turn("bob", ("room",)), Turn("bob", ("room",))),)}, "lets an agent speak twice"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(TABLE, **change)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("court = 3", "has no function named 'court'"),
        ("def court(given): return 3", "returns 3. Return a Protocol"),
        ("def court(given): return 1 / 0", "failed: ZeroDivisionError"),
        ("import nowhere_at_all", "cannot be imported"),
    ],
)
def test_a_protocol_of_ones_own_that_is_none_is_refused(source, words, tmp_path):
    (tmp_path / "court.py").write_text(source)
    with pytest.raises(InputError, match=words):
        build_protocol(f"{tmp_path}/court.py:court")
