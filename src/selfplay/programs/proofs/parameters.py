"""The parameters of protocols, with the names and defaults of Neural Interactive Proofs."""

from dataclasses import dataclass, field
from typing import Literal

from selfplay.programs.proofs.decisions import ScaleName

ForceGuess = Literal["zero", "one", "y"]
"""What a verifier is taken to decide at its first turn that counts: reject, accept or the truth.

It shows what a protocol's other agents can learn from a verifier that cannot. The forced decision is also the
one that is rewarded; in the original it only ended the episode.
"""


@dataclass(frozen=True)
class RewardParameters:
    """What the agents of a protocol earn.

    Args:
        prover_reward: a prover's for a decision that agrees entirely with its stance.
        verifier_reward: a verifier's for a decision that is entirely right.
        verifier_incorrect_penalty: its reward for a decision that is entirely wrong.
        verifier_terminated_penalty: its reward if it never decides.
        verifier_no_guess_reward: its reward for a turn without a decision that is not the last.
        verifier_neither_accept_nor_reject_reward: its reward for a decision in the middle of the scale; the
            mean of reward and penalty if not given.
        shared_reward: provers earn what the verifier earns.
        prover_invalid_response_penalty: a prover's reward for an invalid answer, which then ends the episode;
            if not given, the episode goes on and the answer costs nothing.
    """

    prover_reward: float = 1.0
    verifier_reward: float = 1.0
    verifier_incorrect_penalty: float = -1.0
    verifier_terminated_penalty: float = -1.0
    verifier_no_guess_reward: float = 0.0
    verifier_neither_accept_nor_reject_reward: float | None = None
    shared_reward: bool = False
    prover_invalid_response_penalty: float | None = None


@dataclass(frozen=True)
class ProtocolParameters:
    """What a protocol's table is made from; each protocol uses those that it has.

    Args:
        rewards: what the agents earn; all protocols.
        verifier_decision_spectrum: the scale of decisions; all.
        force_guess: see ForceGuess; all.
        max_message_rounds: the greatest number of rounds; nip, debate and mnip.
        min_message_rounds: the least number of rounds before a decision counts; nip, debate and mnip.
        verifier_first: whether the verifier speaks in the first round; nip, debate and mnip.
        randomize_prover_stance: whether the claim's text decides what the provers argue for, in place of
            "accept"; nip, adp and mnip.
        sequential: whether two provers speak one after the other; debate and mnip.
        prover0_first: which of them begins then; debate and mnip.
        randomize_channel_order: whether the verifier reads its channels in random order; debate and mnip.
    """

    rewards: RewardParameters = field(default_factory=RewardParameters)
    verifier_decision_spectrum: ScaleName = "accept_reject"
    force_guess: ForceGuess | None = None
    max_message_rounds: int = 8
    min_message_rounds: int = 1
    verifier_first: bool = True
    randomize_prover_stance: bool = False
    sequential: bool = False
    prover0_first: bool = True
    randomize_channel_order: bool = True
