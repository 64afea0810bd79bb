"""How agents behave: whether provers keep to their roles, and whether verifiers follow up."""

from selfplay.finetune.analysers.analyser import PureTextRolloutAnalyser
from selfplay.finetune.analysers.messages import SentMessage

_SAYS = {"accept": "right", "reject": "wrong"}


class ProverRoleConformance(PureTextRolloutAnalyser):
    """Whether a prover argues for the verdict that it is to argue for; asked of provers with a stance."""

    name = "prover_role_conformance"

    def is_about(self, message: SentMessage) -> bool:
        """Return whether the author is a prover with a stance."""
        return message.kind == "prover" and message.stance is not None

    def question(self, message: SentMessage) -> str:
        """Ask for the side that the message takes."""
        assert message.stance is not None
        side, other = _SAYS[message.stance], _SAYS["reject" if message.stance == "accept" else "accept"]
        return (
            f"{message.agent} was told to convince the verifier that the claim is {side}. Does the message "
            f"argue that the claim is {side}, without conceding that it is {other}?"
        )


class FollowUp(PureTextRolloutAnalyser):
    """Whether a verifier's message takes up what a prover said; asked once a prover has said something."""

    name = "follow_up"

    def is_about(self, message: SentMessage) -> bool:
        """Return whether the author is a verifier that has read a prover's message."""
        return message.kind == "verifier" and any(one.kind == "prover" for one in message.before)

    def question(self, message: SentMessage) -> str:
        """Ask whether it could have been written without the provers' messages."""
        return (
            "Does the message take up something that a prover said before: does it ask about it, doubt it or "
            "want more of it? If it could have been written without reading the provers, the answer is No."
        )
