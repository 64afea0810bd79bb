"""Two short proofs in the form of any protocol, which show small models how to answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparring.programs.proofs.answers import is_last_turn, read_answer
from sparring.programs.proofs.decisions import NO_DECISION, decision_text
from sparring.programs.proofs.protocol import Protocol, Stance, Turn
from sparring.programs.proofs.state import ProofState


@dataclass(frozen=True)
class _Example:
    """A claim, what provers say about it by stance, and how often the verifier asks before it decides."""

    question: str
    claim: str
    y: int
    said: Mapping[Stance, str]
    questions: int


_EXAMPLES = (
    _Example(
        "What is 3 + 4?",
        "3 + 4 = 7.",
        1,
        {
            "accept": "3 and 4 make 7, so the claim is right.",
            "reject": "3 and 4 do not make 7, so the claim is wrong.",
        },
        1,
    ),
    _Example(
        "What is 9 - 5?",
        "9 - 5 = 3.",
        0,
        {
            "accept": "9 less 5 is 3, so the claim is right.",
            "reject": "9 less 5 is 4 and not 3, so the claim is wrong.",
        },
        0,
    ),
)
_QUESTION = "How do you know?"


def example_proofs(protocol: Protocol, agent: str, stances: Mapping[str, Stance]) -> list[ProofState]:
    """Return a proof of a right claim and one of a wrong claim, with the right verdicts.

    The verifier asks once before it decides on the first, if it may, and decides on the second at its first
    turn that counts. An agent that a coin may silence has its turn.
    """
    return [_played(protocol, agent, stances, example, seed) for seed, example in enumerate(_EXAMPLES)]


def _played(
    protocol: Protocol, agent: str, stances: Mapping[str, Stance], example: _Example, seed: int
) -> ProofState:
    if protocol.coin is not None and agent in protocol.coin:
        seed = protocol.coin.index(agent)
    state: ProofState = {
        "protocol": protocol.name,
        "question": example.question,
        "claim": example.claim,
        "y": example.y,
        "id": "example",
        "seed": seed,
        "stances": dict(stances),
        "branches": [],
        "rounds": [],
        "decision": NO_DECISION.to_dict(),
        "decided_by": None,
        "terminated": False,
    }
    asked = 0
    for number in range(protocol.last_round + 1):
        turns = protocol.turns(number, seed)
        texts = {turn.agent: _text(protocol, stances, example, turn, number, asked) for turn in turns}
        answers = {
            turn.agent: read_answer(protocol, turn, number, example.y, texts[turn.agent]) for turn in turns
        }
        state["rounds"].append({"answers": answers, "rewards": {}})
        if any(answer["decision"]["verdict"] != "none" for answer in answers.values()):
            break
        asked += any(protocol.is_verifier(name) for name in answers)
    return state


def _text(
    protocol: Protocol, stances: Mapping[str, Stance], example: _Example, turn: Turn, number: int, asked: int
) -> str:
    if protocol.is_verifier(turn.agent):
        may_decide = number in protocol.deciding_rounds
        if may_decide and (asked >= example.questions or is_last_turn(protocol, turn.agent, number)):
            return decision_text(protocol.scale, 1.0 if example.y else -1.0)
        text = _QUESTION
    else:
        text = example.said[stances.get(turn.agent, "accept" if example.y else "reject")]
    if len(turn.channels) == 1:
        return text
    return "\n".join(f"{channel}: {text}" for channel in turn.channels)
