"""The rubric of interactive proofs: what the agents earned, and metrics of verdicts and answers."""

from collections.abc import Iterable
from typing import cast

from selfplay.core import Arena, Rollout, Rubric
from selfplay.programs.proofs.protocol import Protocol
from selfplay.programs.proofs.state import Answer, ProofState, is_right


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


def _answers_of(rollout: Rollout) -> dict[str, list[Answer]]:
    """Return the answers of each agent that spoke."""
    answers: dict[str, list[Answer]] = {}
    for played in rollout.extras["rounds"]:
        for name, answer in played["answers"].items():
            answers.setdefault(name, []).append(answer)
    return answers


def _count(numbers: Iterable[int]) -> float:
    return float(sum(numbers))
