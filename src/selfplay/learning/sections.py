"""Sections: the parts of a plan that go through the model one after the other.

A section is a run of neighbouring nodes. Its tokens see each other and the ancestors of its first node, whose
keys and values an earlier section has computed: every token is fed once, wherever the plan is cut, also in
the middle of a sequence.
"""

from dataclasses import dataclass

import numpy as np

from selfplay.learning.trie import IntArray, TreePlan, ancestors


@dataclass(frozen=True)
class Section:
    """The nodes ``start .. stop-1`` of a plan, and the K nodes before them that they see, root first."""

    start: int
    stop: int
    above_K: IntArray

    @property
    def size(self) -> int:
        """Number of its own tokens."""
        return self.stop - self.start


def whole(plan: TreePlan) -> Section:
    """Return the section that contains all nodes."""
    return Section(0, plan.num_tokens, np.empty(0, dtype=np.int64))


def sections_of(plan: TreePlan, max_tokens: int) -> list[Section]:
    """Cut a plan into sections of at most ``max_tokens`` tokens.

    A section ends at the branch with the fewest ancestors in its second half, because the ancestors' keys and
    values have to be kept. If there is no branch, it ends in the middle of a sequence.
    """
    starts = plan.branch_starts
    sections, start = [], 0
    while start < plan.num_tokens:
        stop = min(start + max_tokens, plan.num_tokens)
        if stop < plan.num_tokens:
            low, high = np.searchsorted(starts, [start + max_tokens // 2 + 1, stop + 1])
            if low < high:
                stop = int(starts[low + plan.depths_T[starts[low:high]].argmin()])
        sections.append(Section(start, stop, ancestors(plan, start)))
        start = stop
    return sections
