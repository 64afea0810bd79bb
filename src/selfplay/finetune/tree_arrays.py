"""What arrays of trees have in addition: how their rows share nodes, and which of these MALT pairs.

B, R and A as in :mod:`selfplay.finetune.arrays`:

- ``("_node_id",)``, ``("_parent_node_id",)`` BR: the node of a round and the one before it, unique in all
  rollouts. The parent of a first round is the rollout's id. Padding has neither.
- ``("agents", "expected_reward")`` BRA: what an agent earns from this round on, as a mean over the branches.
- ``("agents", "is_pair_positive")``, ``("agents", "is_pair_negative")`` BRA, only with MALT's parameters: the
  response is the preferred one, or the other one, of a pair.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay.config.finetune import PureTextMaltParameters
from selfplay.core import Rollout
from selfplay.finetune.pairs import select_pairs
from selfplay.finetune.tree import expected_rewards, path_of
from selfplay.finetune.tree_episode import ends_of
from selfplay.programs.proofs.protocol import Protocol

Arrays = dict[tuple[str, ...], NDArray[Any]]
TEXT = np.dtypes.StringDType(na_object=None)
"""Texts of any length; ``None`` stands for no text."""


def tree_arrays(protocol: Protocol, rollouts: list[Rollout], malt: PureTextMaltParameters | None) -> Arrays:
    """Return the arrays that the module's docstring lists; all is padding in rows that are of no tree."""
    agents = [agent.name for agent in protocol.agents]
    played = [one for one in rollouts if one.error is None]
    each = (sum(len(ends_of(one)) for one in played), protocol.max_rounds)
    by_agent = (*each, len(agents))
    arrays: Arrays = {
        ("_node_id",): np.full(each, None, TEXT),
        ("_parent_node_id",): np.full(each, None, TEXT),
        ("agents", "expected_reward"): np.zeros(by_agent),
    }
    if malt is not None:
        for side in ("is_pair_positive", "is_pair_negative"):
            arrays["agents", side] = np.zeros(by_agent, bool)
    row = 0
    for tree in played:
        nodes = tree.extras.get("nodes", [])
        expected = expected_rewards(nodes)
        pairs: dict[str, list[tuple[str, str]]] = {}
        if malt is not None:
            seed = tree.extras["seed"]
            pairs = {name: select_pairs(protocol, nodes, name, malt, seed) for name in agents}
        for end in ends_of(tree):
            parent = tree.id
            for place, node in enumerate(path_of(end) if nodes else []):
                arrays[("_node_id",)][row, place] = f"{tree.id}/{node}"
                arrays[("_parent_node_id",)][row, place] = parent
                parent = f"{tree.id}/{node}"
                for number, name in enumerate(agents):
                    arrays["agents", "expected_reward"][row, place, number] = expected[node][name]
                    for high, low in pairs.get(name, []):
                        arrays["agents", "is_pair_positive"][row, place, number] |= node == high
                        arrays["agents", "is_pair_negative"][row, place, number] |= node == low
            row += 1
    return arrays
