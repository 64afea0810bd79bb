"""The state of an episode as plain JSON values, its rubric, and how well a verifier judges: accuracy and its
kin."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from sparring.core import Arena, Rollout, Rubric
from sparring.programs.proofs.protocol import Protocol, Stance


class RoundAnswer(TypedDict):
    """What an agent said in a round.

    ``messages`` are by channel; there are none in a decision or an invalid answer. ``raw`` is the whole text.
    ``decision`` has the fields of a Decision. ``retries`` counts the invalid answers that were asked for
    again and are not kept. ``cut``: the token limit ended the answer. ``token_ids`` are those with which it
    was drawn, if they are known, and ``written`` the whole answer of an agent that thought before it spoke;
    its own later prompts contain them, and extras do not.
    """

    messages: dict[str, str]
    raw: str
    decision: dict[str, Any]
    valid: bool
    retries: int
    cut: bool
    token_ids: NotRequired[list[int]]
    written: NotRequired[str]


class Round(TypedDict):
    """The answers of one round by agent, in the order of the table, and what every agent earned."""

    answers: dict[str, RoundAnswer]
    rewards: dict[str, float]


class ProofState(TypedDict):
    """An episode after some rounds.

    ``y`` is the claim's truth, 1 or 0. ``branches`` has a number for each round; rounds that begin alike and
    differ in it are drawn independently. ``decision`` is the one that counts, and ``decided_by`` its
    verifier; ``terminated``: the episode ended without one.
    """

    protocol: str
    question: str
    claim: str
    y: int
    id: str
    seed: int
    stances: dict[str, Stance]
    branches: list[int]
    rounds: list[Round]
    decision: dict[str, Any]
    decided_by: str | None
    terminated: bool


def first_state(
    protocol: str, claim: Mapping[str, Any], seed: int, stances: Mapping[str, Stance]
) -> ProofState:
    """Return the state of an episode before its first round."""
    return {
        "protocol": protocol,
        "question": claim["question"],
        "claim": claim["claim"],
        "y": claim["y"],
        "id": claim["id"],
        "seed": seed,
        "stances": dict(stances),
        "branches": [],
        "rounds": [],
        "decision": {"verdict": "none", "value": 0.0, "raw": ""},
        "decided_by": None,
        "terminated": False,
    }


def without_token_ids(state: ProofState) -> ProofState:
    """Return the state as it is kept: the rollout's steps have the token ids."""

    def as_text(answer: RoundAnswer) -> RoundAnswer:
        answer = answer.copy()
        answer.pop("token_ids", None)
        answer.pop("written", None)
        return answer

    def round_as_text(one: Round) -> Round:
        return {**one, "answers": {name: as_text(answer) for name, answer in one["answers"].items()}}

    return {**state, "rounds": [round_as_text(one) for one in state["rounds"]]}


def total_rewards(state: ProofState) -> dict[str, float]:
    """Return what every agent has earned in all rounds."""
    totals: dict[str, float] = {}
    for one in state["rounds"]:
        for name, reward in one["rewards"].items():
            totals[name] = totals.get(name, 0.0) + reward
    return totals


def is_right(state: ProofState) -> bool:
    """Return whether the verdict is the truth; an episode without a verdict is not right."""
    return str(state["decision"]["verdict"]) == ("accept" if state["y"] else "reject")


def measures_of(proofs: Sequence[ProofState]) -> dict[str, list[float]]:
    """Return lists of values by name of the measure; a list is empty if there is no value.

    Values are by claim, the mean over its proofs, because these are not independent. A proof without a
    verdict is not right.

    - ``accuracy``; ``accuracy on right claims`` and ``accuracy on wrong claims``;
    - ``no decision``: the share of proofs that ended without one;
    - ``always wrong``: 1 if no proof of the claim is right;
    - ``precision``: how many of the proofs with the verdict "accept" are of right claims. A value of each
      claim that was ever accepted, such that mean and interval are those of a ratio of two sums over claims
      (W. G. Cochran, Sampling Techniques, 3rd ed., 1977, 2.11): it may be below 0 or above 1;
    - ``recall``: the share of proofs of a right claim with the verdict "accept".
    """
    by_claim: dict[str, list[ProofState]] = {}
    for proof in proofs:
        by_claim.setdefault(proof["id"], []).append(proof)
    right = {claim: _mean([is_right(one) for one in made]) for claim, made in by_claim.items()}
    truths = {claim: made[0]["y"] for claim, made in by_claim.items()}
    return {
        "accuracy": list(right.values()),
        "accuracy on right claims": [right[claim] for claim, y in truths.items() if y == 1],
        "accuracy on wrong claims": [right[claim] for claim, y in truths.items() if y == 0],
        "no decision": [_mean([one["decided_by"] is None for one in made]) for made in by_claim.values()],
        "always wrong": [float(share == 0) for share in right.values()],
        "precision": _precision(proofs),
        "recall": [right[claim] for claim, y in truths.items() if y == 1],
    }


def _precision(proofs: Sequence[ProofState]) -> list[float]:
    """Return p + a n (y - p) / A of each claim: its truth is y, it was accepted a times, all n claims A
    times, and p is the precision."""
    accepted = [(proof["id"], proof["y"]) for proof in proofs if proof["decision"]["verdict"] == "accept"]
    counts, total = Counter(accepted), len(accepted)
    precision = sum(y for _, y in accepted) / max(total, 1)
    weights = [(y, count * len(counts) / total) for (_, y), count in counts.items()]
    return [y * weight + precision * (1 - weight) for y, weight in weights]


def _mean(values: list[bool]) -> float:
    return sum(values) / len(values)


def make_proof_rubric(protocol: Protocol) -> Rubric:
    """Return a rubric that gives every agent that spoke what it earned in all rounds.

    Metrics without a reward: ``right`` and ``undecided`` (1 or 0) of verifiers, and how many answers of each
    agent were ``invalid``, ``cut`` at the token limit, or asked for again (``retries``).
    """

    def earned(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: rollout.extras["rewards"][name] for name in _answers_of(rollout)}

    def right(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return _of_verifiers(rollout, is_right(cast(ProofState, rollout.extras)))

    def undecided(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return _of_verifiers(rollout, rollout.extras["decided_by"] is None)

    def _of_verifiers(rollout: Rollout, value: bool) -> dict[str, float]:
        return {name: float(value) for name in _answers_of(rollout) if protocol.is_verifier(name)}

    def invalid(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _sum(not one["valid"] for one in said) for name, said in _answers_of(rollout).items()}

    def cut(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _sum(one["cut"] for one in said) for name, said in _answers_of(rollout).items()}

    def retries(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _sum(one["retries"] for one in said) for name, said in _answers_of(rollout).items()}

    return Rubric([earned, right, undecided, invalid, cut, retries], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])


def _answers_of(rollout: Rollout) -> dict[str, list[RoundAnswer]]:
    answers: dict[str, list[RoundAnswer]] = {}
    for played in rollout.extras["rounds"]:
        for name, answer in played["answers"].items():
            answers.setdefault(name, []).append(answer)
    return answers


def _sum(numbers: Iterable[int]) -> float:
    return float(sum(numbers))
