"""What analysers found: the share of Yes among the answers, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from selfplay.core.confidence_intervals import Interval, wilson_interval
from selfplay.finetune.analysers.runner import SPLITS, answers_file
from selfplay.finetune.run_files import RunFiles


@dataclass(frozen=True)
class YesShare:
    """The answers of an analyser about one agent's messages in an iteration.

    ``by_text`` counts the answers that the text gave, ``unanswered`` the messages about which the model
    (``models``) said neither Yes nor No.
    """

    analyser: str
    split: str
    iteration: int
    agent: str
    yes: int
    no: int
    by_text: int
    unanswered: int
    models: tuple[str, ...]

    @property
    def interval(self) -> Interval:
        """The share of Yes among the answers, with its Wilson interval."""
        return wilson_interval(self.yes, self.yes + self.no)


def yes_shares(files: RunFiles, analysers: Sequence[str], iterations: int) -> list[YesShare]:
    """Return what analysers found in a run: training before test, by iteration and agent.

    Raises:
        InputError: answers are damaged.
    """
    found = []
    for name in analysers:
        for split in SPLITS:
            for iteration in range(iterations):
                answers = answers_file(files, name, split, iteration).read()
                for agent in sorted({one.agent for one in answers}):
                    own = [one for one in answers if one.agent == agent]
                    given = [one.answer for one in own]
                    found.append(
                        YesShare(
                            *(name, split, iteration, agent),
                            yes=given.count(True),
                            no=given.count(False),
                            by_text=sum(one.by == "text" for one in own),
                            unanswered=given.count(None),
                            models=tuple(sorted({one.model for one in own} - {""})),
                        )
                    )
    return found
