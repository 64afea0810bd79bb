"""What every agent of a protocol earns: for a round, and at most and at least for a whole episode.

A decision of value d in -1..1 is right by x = d if the claim is right, and by x = -d if it is wrong. The
verifier's reward is linear between the penalty at x = -1, the reward for neither at 0, and the reward at 1. A
prover's is linear in d from 0 at the end that it argues against to ``prover_reward`` at the end that it
argues for. With the scale accept_reject, these are the discrete rules.

The original has two errors in the signs of continuous decisions. With two provers it pays the one that argues
for "reject" for acceptance and the other for rejection; with one prover that argues for "reject" it pays
-(d/2 + 1/2) in place of (1/2 - d/2). Its least reward leaves out the two penalties that end an episode.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sparring.config.proofs import ProtocolSettings
from sparring.programs.proofs.answers import NO_DECISION, SCALES, Decision
from sparring.programs.proofs.protocol import Protocol, Stance


@dataclass(frozen=True)
class RoundOutcome:
    """How a round ended: who took a turn, the decision that counts, whether the episode ends without one, and
    the provers whose ``invalid`` answer ends it."""

    spoke: tuple[str, ...]
    decision: Decision = NO_DECISION
    terminated: bool = False
    invalid: tuple[str, ...] = ()


def neither_reward(given: ProtocolSettings) -> float:
    """Return a verifier's reward for a decision in the middle."""
    middle = given.verifier_neither_accept_nor_reject_reward
    return (given.verifier_reward + given.verifier_incorrect_penalty) / 2 if middle is None else middle


def verifier_decision_reward(value: float, y: int, given: ProtocolSettings) -> float:
    """Return a verifier's reward for a decision of ``value`` on a claim of truth ``y``, 1 or 0."""
    right = value * (2 * y - 1)
    middle = neither_reward(given)
    end = given.verifier_reward if right > 0 else given.verifier_incorrect_penalty
    return middle + (end - middle) * abs(right)


def prover_decision_reward(value: float, stance: Stance, given: ProtocolSettings) -> float:
    """Return the reward of a prover with this stance for a decision of ``value``."""
    towards = value if stance == "accept" else -value
    return given.prover_reward * (1 + towards) / 2


def round_rewards(
    protocol: Protocol, outcome: RoundOutcome, y: int, stances: Mapping[str, Stance]
) -> dict[str, float]:
    """Return what every agent earns for a round.

    ``y`` is the claim's truth, 1 or 0. A prover without one of the ``stances`` earns as the verifier does.
    """
    given = protocol.settings
    penalty = given.prover_invalid_response_penalty
    if outcome.invalid and penalty is not None:
        return {agent.name: penalty if agent.name in outcome.invalid else 0.0 for agent in protocol.agents}
    asked = [name for name in protocol.verifiers if name in outcome.spoke]
    if outcome.decision.is_made:
        shared = verifier_decision_reward(outcome.decision.value, y, given)
    elif outcome.terminated:
        shared = given.verifier_terminated_penalty
    else:
        shared = given.verifier_no_guess_reward if asked else 0.0
    ends = outcome.decision.is_made or outcome.terminated
    rewards = {name: shared if ends or name in asked else 0.0 for name in protocol.verifiers}
    for name in protocol.provers:
        stance = stances.get(name)
        if given.shared_reward or stance is None:
            rewards[name] = shared
        elif outcome.decision.is_made:
            rewards[name] = prover_decision_reward(outcome.decision.value, stance, given)
        else:
            rewards[name] = 0.0
    return rewards


def reward_mid_point_estimate(protocol: Protocol, name: str) -> float:
    """Return the middle between an agent's good and bad outcomes: what MALT calls positive is not below."""
    given = protocol.settings
    if _earns_for_stance(protocol, name):
        return given.prover_reward / 2
    return (given.verifier_reward + given.verifier_incorrect_penalty) / 2


def max_reward(protocol: Protocol, name: str) -> float:
    """Return the most that an agent can earn in an episode."""
    return max(_possible_rewards(protocol, name))


def min_reward(protocol: Protocol, name: str) -> float:
    """Return the least that an agent can earn in an episode, penalties included."""
    return min(_possible_rewards(protocol, name))


def _earns_for_stance(protocol: Protocol, name: str) -> bool:
    return protocol.agent(name).stance is not None and not protocol.settings.shared_reward


def _possible_rewards(protocol: Protocol, name: str) -> list[float]:
    """Return what an agent may earn in an episode, for every end that it may have."""
    given, values = protocol.settings, SCALES[protocol.scale].values()
    penalty = given.prover_invalid_response_penalty
    last = protocol.last_round
    turns = {n for verifier in protocol.verifiers for n in protocol.rounds_of(verifier)}
    if protocol.is_verifier(name):
        turns = set(protocol.rounds_of(name))
    for_stance = _earns_for_stance(protocol, name)
    each = 0.0 if for_stance else given.verifier_no_guess_reward
    waited = [each * sum(turn < n for turn in turns) for n in range(last + 1)]
    if for_stance:
        ends = [given.prover_reward * (1 + value) / 2 for value in values]
        unfinished = 0.0
    else:
        ends = [verifier_decision_reward(value, y, given) for value in values for y in (0, 1)]
        unfinished = given.verifier_terminated_penalty
    possible = [waited[n] + end for n in protocol.deciding_rounds for end in ends]
    possible.append(waited[last] + unfinished)
    if penalty is not None:
        for n in range(last + 1):
            spoke = [turn.agent for turn in protocol.cycle[n % len(protocol.cycle)]]
            if set(spoke) & set(protocol.provers):
                possible.append(waited[n])
            if name in protocol.provers and name in spoke:
                possible.append(waited[n] + penalty)
    return possible
