"""Trees of responses, in which every prefix is continued several times; pairs (MALT), and transcripts."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, NotRequired, TypedDict, cast

from sparring.config.finetune import PureTextMaltParameters
from sparring.core import Arena, Episode, EpisodeState, InputError, Rollout, Rubric, Step, derive_seed
from sparring.core.concurrency import all_results
from sparring.programs.proofs.episode import ProofEpisode, seed_of
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.rewards import max_reward, min_reward, reward_mid_point_estimate
from sparring.programs.proofs.state import ProofState, Round, total_rewards

Transcript = dict[str, Any]
Datapoint = Callable[[ProofState], dict[str, Any]]
"""Returns what an episode is about."""


class PromptMessage(TypedDict):
    """A message of a prompt. Prompts of proofs have no ``name``: their text says who spoke."""

    content: str
    role: str
    name: NotRequired[str]


Prompts = list[dict[str, list[PromptMessage]]]
"""The prompts of one proof: for each round, that of each agent that spoke."""


def raw_transcripts(rollouts: list[Rollout], datapoint: Datapoint) -> list[Transcript]:
    """Return, for each proof, its claim, its rewards and ``transcript``: the texts of each round by agent."""
    return [_transcript(state, datapoint, _raw) for _, state in proofs(rollouts)]


def processed_transcripts(rollouts: list[Rollout], datapoint: Datapoint) -> list[Transcript]:
    """Return the same with each message as ``agent@channel`` and each decision as ``agent.decision``."""
    return [_transcript(state, datapoint, _processed) for _, state in proofs(rollouts)]


def prompts_of(rollouts: list[Rollout]) -> list[Prompts]:
    """Return the prompts of each proof."""
    return [proof_prompts(rollout, state) for rollout, state in proofs(rollouts)]


def proof_prompts(rollout: Rollout, state: ProofState) -> Prompts:
    """Return the prompts of a proof of a rollout."""
    names = _node_names(rollout, state)
    rounds: Prompts = [{} for _ in names]
    for step in rollout.steps:
        place = step.info.get("node", step.info["round"])
        if place in names:
            rounds[names.index(place)][step.role_id] = cast(list[PromptMessage], step.prompt)
    return rounds


def _node_names(rollout: Rollout, state: ProofState) -> list[str | int]:
    """Return the marks of a proof's steps: its rounds, or in a tree the nodes on the way to its end."""
    return list(path_of(state)) if "nodes" in rollout.extras else list(range(len(state["rounds"])))


def proofs(rollouts: list[Rollout]) -> Iterator[tuple[Rollout, ProofState]]:
    """Yield each proof with its rollout: one, or in a tree one for each end. Failed rollouts have none."""
    for rollout in rollouts:
        if rollout.error is None:
            for state in ends_of(rollout):
                yield rollout, state


def _transcript(
    state: ProofState, datapoint: Datapoint, of_round: Callable[[Round], dict[str, str]]
) -> Transcript:
    return {
        **datapoint(state),
        "reward": total_rewards(state),
        "transcript": [of_round(one) for one in state["rounds"]],
    }


def _raw(played: Round) -> dict[str, str]:
    return {name: answer["raw"] for name, answer in played["answers"].items()}


def _processed(played: Round) -> dict[str, str]:
    said: dict[str, str] = {}
    for name, answer in played["answers"].items():
        decision = answer["decision"]
        if decision["verdict"] != "none":
            said[f"{name}.decision"] = f"{decision['raw']} ({decision['value']:g})"
        said |= {f"{name}@{channel}": text for channel, text in answer["messages"].items()}
    return said


TREE = "proof_tree"
Pair = tuple[str, str]
"""The nodes of the preferred and of the other response."""


class Node(TypedDict):
    """One round after a prefix. ``id`` spells the branches that lead to it: ``0.1.0``; a first round has no
    parent."""

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
    """Continue ``start`` to its ends in all branches; return nodes and steps, parents first. ``info["node"]``
    of a step is its node's id. Seeds follow from the branches, so the result does not depend on who answers
    first.
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
    """Return, by node and agent, what an agent earns in the node's round and, as a mean over the children,
    after it. (The original divides the sum over the branches with the node's own reward added once, which is
    wrong if a round that does not end the episode pays.)
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


class TreeEpisode(Episode):
    """The tree of responses to a claim: the steps of all nodes, once each. ``extras`` are the state before
    the first round and ``nodes``; a role's reward is the mean over the ends. ``branching`` says how many
    responses follow a state.
    """

    episode_type = TREE

    def __init__(self, proof: ProofEpisode, branching: Branching) -> None:
        self.proof = proof
        self.branching = branching
        self._rubric = Rubric([mean_rewards])

    @property
    def rubric(self) -> Rubric:
        """What each agent earns, as a mean over the ends."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Play all branches to their ends."""
        state = state or EpisodeState()
        start = self.proof.begin(artifact, seed_of(arena, artifact))
        nodes, state.trajectory = await play_tree(arena, self.proof, start, self.branching)
        state.data["tree"] = {**start, "nodes": nodes}
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the tree."""
        return dict(state.data["tree"])


def mean_rewards(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Return what each agent that spoke earned, as a mean over the tree's ends."""
    ends = [total_rewards(end) for end in ends_of(rollout)]
    spoke = {step.role_id for step in rollout.steps}
    return {name: fmean(end[name] for end in ends) for name in sorted(spoke)}


def ends_of(rollout: Rollout) -> list[ProofState]:
    """Return the final states of a rollout: one, or those of all branches of a tree."""
    state: Mapping[str, Any] = rollout.extras
    if "nodes" not in state:
        return [cast(ProofState, state)]
    start = {name: value for name, value in state.items() if name != "nodes"}
    return leaves(cast(ProofState, start), state["nodes"])


def check_kind(rollouts: Iterable[Rollout], *, trees: bool) -> None:
    """Check that all rollouts are trees, or that none is. Raises InputError: the run's algorithm was changed
    after they were sampled."""
    if any(("nodes" in one.extras) != trees for one in rollouts if one.error is None):
        kinds = ("single proofs", "trees of responses")
        raise InputError(
            "finetune",
            f"the rollouts are {kinds[not trees]}, but this algorithm learns from {kinds[trees]}",
            "Restore finetune.trainer and finetune.pure_text_malt.num_initial_ei_iterations",
        )


def select_pairs(
    protocol: Protocol, nodes: list[Node], agent: str, parameters: PureTextMaltParameters, seed: int
) -> list[Pair]:
    """Return at most one pair for each prefix after which an agent spoke; equal texts are no pair.

    ``positive_negative`` draws one response whose expected reward is at least the middle of the agent's
    rewards and one below it; ``interval`` draws two whose difference is more than a share of the range of its
    rewards.
    """
    expected = expected_rewards(nodes)
    least = parameters.interval_threshold_proportion * (
        max_reward(protocol, agent) - min_reward(protocol, agent)
    )
    middle = reward_mid_point_estimate(protocol, agent)
    by_prefix: dict[str | None, list[Node]] = {}
    for node in nodes:
        if _acted(node, agent):
            by_prefix.setdefault(node["parent"], []).append(node)
    found = []
    for prefix, siblings in by_prefix.items():
        possible = []
        for one in siblings:
            for other in siblings:
                high, low = expected[one["id"]][agent], expected[other["id"]][agent]
                if parameters.pair_selection_method == "interval":
                    fits = high - low > least
                else:
                    fits = high >= middle > low
                if fits and _text(one, agent) != _text(other, agent):
                    possible.append((one["id"], other["id"]))
        if possible:
            found.append(random.Random(derive_seed(seed, "pair", prefix or "", agent)).choice(possible))
    return found


def dpo_examples(rollout: Rollout, pairs: list[Pair], agent: str) -> list[dict[str, Any]]:
    """Return pairs in OpenAI's format: the conversation, and the agent's two answers to it."""
    steps = {step.info["node"]: step for step in rollout.steps if step.role_id == agent}
    return [
        {
            "input": {"messages": steps[preferred].prompt},
            "preferred_output": _answer(steps[preferred]),
            "non_preferred_output": _answer(steps[other]),
        }
        for preferred, other in pairs
    ]


def _answer(step: Step) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": step.written}]


def _acted(node: Node, agent: str) -> bool:
    answer = node["round"]["answers"].get(agent)
    return answer is not None and (bool(answer["messages"]) or answer["decision"]["verdict"] != "none")


def _text(node: Node, agent: str) -> str:
    return node["round"]["answers"][agent]["raw"]
