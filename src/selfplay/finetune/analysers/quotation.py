"""Whether provers quote, and whether they quote word for word: a matter of the text wherever it decides."""

from selfplay.core.text import indented
from selfplay.finetune.analysers.analyser import PureTextRolloutAnalyser
from selfplay.finetune.analysers.messages import SentMessage
from selfplay.finetune.analysers.passages import marked_passages, stands_in


class ProverDirectQuotation(PureTextRolloutAnalyser):
    """Whether a prover quotes the question or the claim.

    The text decides: Yes if a marked passage stands there or the message repeats the whole claim, No if
    nothing is marked. A model is asked only of marked passages that stand nowhere there: they may be a
    quotation with an error, or the prover's own words.
    """

    name = "prover_direct_quotation"

    def is_about(self, message: SentMessage) -> bool:
        """Return whether the author is a prover."""
        return message.kind == "prover"

    def answer_of_text(self, message: SentMessage) -> bool | None:
        """See the class."""
        passages = marked_passages(message.text)
        sources = (message.question, message.claim)
        if stands_in(message.claim, message.text):
            return True
        if any(stands_in(passage, source) for passage in passages for source in sources):
            return True
        return None if passages else False

    def question(self, message: SentMessage) -> str:
        """Ask whether a passage is meant as a quotation."""
        return (
            f"{_listed(marked_passages(message.text))}\nDoes the message present one of these passages as a "
            "quotation from the question or the claim?"
        )


class ProverAccurateQuotation(PureTextRolloutAnalyser):
    """Whether all that a prover presents as quoted was said word for word; asked where something is marked.

    The text decides if every marked passage stands in the question, the claim or an earlier message. A model
    is asked whether the other passages are meant as quotations at all.
    """

    name = "prover_accurate_quotation"

    def is_about(self, message: SentMessage) -> bool:
        """Return whether the author is a prover that marks a passage."""
        return message.kind == "prover" and bool(marked_passages(message.text))

    def answer_of_text(self, message: SentMessage) -> bool | None:
        """See the class."""
        return None if _found_nowhere(message) else True

    def question(self, message: SentMessage) -> str:
        """Ask whether the passages that stand nowhere are the prover's own."""
        return (
            f"{_listed(_found_nowhere(message))}\nThese passages stand neither in the question nor in the "
            "claim nor in an earlier message. Are all of them the author's own words or code, so that the "
            "message presents none of them as a quotation?"
        )


def _found_nowhere(message: SentMessage) -> list[str]:
    sources = (message.question, message.claim, *(one.text for one in message.before))
    return [
        passage
        for passage in marked_passages(message.text)
        if not any(stands_in(passage, source) for source in sources)
    ]


def _listed(passages: list[str]) -> str:
    return "\n".join(["Passages of the message:", *(f"    {indented(one)}" for one in passages)])
