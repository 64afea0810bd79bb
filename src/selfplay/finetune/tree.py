"""Trees of responses: every prefix of an episode is continued several times (MALT).

Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training" (arXiv 2412.01928).
"""

from collections.abc import Callable
from statistics import fmean
from typing import Any, TypedDict

from selfplay.core import Arena, Step
from selfplay.core.gather import all_results
from selfplay.programs.proofs.episode import ProofEpisode
from selfplay.programs.proofs.state import ProofState, Round


class Node(TypedDict):
    """One round after a prefix. ``id`` spells the branches that lead to it: ``0.1.0``.

    A first round has no parent.
    """

    id: str
    parent: str | None
    round: Round
    decision: dict[str, Any]
    decided_by: str | None
    terminated: bool


Branching = Callable[[ProofState], int]
"""Returns how many responses follow a state."""


async def play_tree(
    arena: Arena, episode: ProofEpisode, start: ProofState, branching: Branching
) -> tuple[list[Node], list[Step]]:
    """Continue ``start`` to its ends in all branches; return nodes and steps, parents first.

    A step's ``info["node"]`` is the id of the node that it belongs to. The rounds of a level are played at
    the same time; seeds follow from the branches, so the result does not depend on who answers first.
    """
    nodes: list[Node] = []
    steps: list[Step] = []
    level = [(start, "")]
    while level:
        branches = [(state, parent, branch) for state, parent in level for branch in range(branching(state))]
        played = await all_results(episode.play_round(arena, state, branch) for state, _, branch in branches)
        level = []
        for (_, parent, branch), (after, made) in zip(branches, played, strict=True):
            node = _node(after, f"{parent}.{branch}" if parent else str(branch), parent or None)
            nodes.append(node)
            for step in made:
                step.info["node"] = node["id"]
            steps += made
            if not episode.is_over(after):
                level.append((after, node["id"]))
    return nodes, steps


def _node(state: ProofState, name: str, parent: str | None) -> Node:
    return {
        "id": name,
        "parent": parent,
        "round": state["rounds"][-1],
        "decision": state["decision"],
        "decided_by": state["decided_by"],
        "terminated": state["terminated"],
    }


def leaves(start: ProofState, nodes: list[Node]) -> list[ProofState]:
    """Return the final states of all branches, in the order of the nodes."""
    by_id = {node["id"]: node for node in nodes}
    parents = {node["parent"] for node in nodes}
    ends = []
    for node in nodes:
        if node["id"] in parents:
            continue
        path = [node]
        while (parent := path[-1]["parent"]) is not None:
            path.append(by_id[parent])
        path.reverse()
        end: ProofState = {
            **start,
            "branches": [int(one["id"].rpartition(".")[2]) for one in path],
            "rounds": [one["round"] for one in path],
            "decision": node["decision"],
            "decided_by": node["decided_by"],
            "terminated": node["terminated"],
        }
        ends.append(end)
    return ends


def path_of(end: ProofState) -> list[str]:
    """Return the ids of the nodes on the way to an end of a tree, first round first."""
    branches = [str(branch) for branch in end["branches"]]
    return [".".join(branches[: count + 1]) for count in range(len(branches))]


def expected_rewards(nodes: list[Node]) -> dict[str, dict[str, float]]:
    """Return, by node and agent, what an agent earns in the node's round and is expected to earn after it.

    What follows is the mean over the node's children. (In the original, the sum over a node's branches is
    divided by their number with the node's own reward added once, which is wrong if a round that does not
    end the episode pays.)
    """
    children: dict[str, list[str]] = {}
    for node in nodes:
        if node["parent"] is not None:
            children.setdefault(node["parent"], []).append(node["id"])
    expected: dict[str, dict[str, float]] = {}
    for node in reversed(nodes):
        below = [expected[child] for child in children.get(node["id"], [])]
        expected[node["id"]] = {
            name: own + (fmean(one[name] for one in below) if below else 0.0)
            for name, own in node["round"]["rewards"].items()
        }
    return expected
