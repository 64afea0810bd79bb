"""How well a verifier judges: accuracy and its kin, from finished proofs."""

from collections.abc import Sequence

from selfplay.programs.proofs.state import ProofState, is_right


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
