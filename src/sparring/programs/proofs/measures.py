"""The rubric of interactive proofs, and how well a verifier judges: accuracy and its kin."""

from collections.abc import Iterable, Sequence
from typing import cast

from sparring.core import Arena, Rollout, Rubric
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.state import ProofState, RoundAnswer, is_right


def measures_of(proofs: Sequence[ProofState]) -> dict[str, list[float]]:
    """Return lists of values by name of the measure; a measure without a value is left out, so none is NaN.

    The values of most measures are by claim, because proofs of one claim are not independent: the mean over
    its proofs. A proof without a verdict is not right.

    - ``accuracy``; ``accuracy on right claims`` and ``accuracy on wrong claims``;
    - ``no decision``: the share of proofs that ended without one;
    - ``always wrong``: 1 if no proof of the claim is right;
    - ``precision``: for each proof with the verdict "accept", whether the claim is right;
    - ``recall``: for each proof of a right claim, whether the verdict is "accept".
    """
    by_claim: dict[str, list[ProofState]] = {}
    for proof in proofs:
        by_claim.setdefault(proof["id"], []).append(proof)
    right = {claim: _mean([is_right(one) for one in made]) for claim, made in by_claim.items()}
    truths = {claim: made[0]["y"] for claim, made in by_claim.items()}
    measures = {
        "accuracy": list(right.values()),
        "accuracy on right claims": [right[claim] for claim, y in truths.items() if y == 1],
        "accuracy on wrong claims": [right[claim] for claim, y in truths.items() if y == 0],
        "no decision": [_mean([one["decided_by"] is None for one in made]) for made in by_claim.values()],
        "always wrong": [float(share == 0) for share in right.values()],
        "precision": [float(one["y"]) for one in proofs if one["decision"]["verdict"] == "accept"],
        "recall": [float(is_right(one)) for one in proofs if one["y"] == 1],
    }
    return {name: values for name, values in measures.items() if values}


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
        value = float(is_right(cast(ProofState, rollout.extras)))
        return {name: value for name in _answers_of(rollout) if protocol.is_verifier(name)}

    def undecided(rollout: Rollout, arena: Arena) -> dict[str, float]:
        value = float(rollout.extras["decided_by"] is None)
        return {name: value for name in _answers_of(rollout) if protocol.is_verifier(name)}

    def invalid(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _count(not one["valid"] for one in said) for name, said in _answers_of(rollout).items()}

    def cut(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _count(one["cut"] for one in said) for name, said in _answers_of(rollout).items()}

    def retries(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {name: _count(one["retries"] for one in said) for name, said in _answers_of(rollout).items()}

    return Rubric([earned, right, undecided, invalid, cut, retries], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])


def _answers_of(rollout: Rollout) -> dict[str, list[RoundAnswer]]:
    """Return the answers of each agent that spoke."""
    answers: dict[str, list[RoundAnswer]] = {}
    for played in rollout.extras["rounds"]:
        for name, answer in played["answers"].items():
            answers.setdefault(name, []).append(answer)
    return answers


def _count(numbers: Iterable[int]) -> float:
    return float(sum(numbers))
