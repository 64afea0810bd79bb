"""Transcripts of proofs: what the models wrote, what the agents said in each channel, and the prompts.

Messages are by agent in raw transcripts, by agent and channel in processed ones. The transcript of a tree is
that of each of its ends.
"""

from collections.abc import Iterator
from typing import Any

from selfplay.core import Rollout
from selfplay.finetune.tree_episode import ends_of
from selfplay.programs.proofs.state import ProofState, Round, total_rewards

Transcript = dict[str, Any]
PromptMessage = dict[str, str]
"""A message of a prompt: ``role`` and ``content``."""


def raw_transcripts(rollouts: list[Rollout]) -> list[Transcript]:
    """Return, for each proof, its claim, its rewards and ``transcript``: the texts of each round by agent."""
    return [_transcript(state, _raw) for _, state in _proofs(rollouts)]


def processed_transcripts(rollouts: list[Rollout]) -> list[Transcript]:
    """Return the same with each message as ``agent@channel`` and each decision as ``agent.decision``."""
    return [_transcript(state, _processed) for _, state in _proofs(rollouts)]


def prompts_of(rollouts: list[Rollout]) -> list[list[dict[str, list[PromptMessage]]]]:
    """Return, for each proof and round, the prompt of each agent that spoke."""
    found = []
    for rollout, state in _proofs(rollouts):
        names = _node_names(rollout, state)
        rounds: list[dict[str, list[PromptMessage]]] = [{} for _ in names]
        for step in rollout.steps:
            place = step.info.get("node", step.info["round"])
            if place in names:
                rounds[names.index(place)][step.role_id] = step.prompt
        found.append(rounds)
    return found


def _node_names(rollout: Rollout, state: ProofState) -> list[str | int]:
    """Return the marks of a proof's steps: its rounds, or in a tree the nodes on the way to its end."""
    if "nodes" not in rollout.extras:
        return list(range(len(state["rounds"])))
    branches = [str(branch) for branch in state["branches"]]
    return [".".join(branches[: count + 1]) for count in range(len(branches))]


def _proofs(rollouts: list[Rollout]) -> Iterator[tuple[Rollout, ProofState]]:
    for rollout in rollouts:
        if rollout.error is None:
            for state in ends_of(rollout):
                yield rollout, state


def _transcript(state: ProofState, of_round: Any) -> Transcript:
    return {
        "id": state["id"],
        "question": state["question"],
        "solution": state["claim"],
        "y": state["y"],
        "prover_stance": dict(state["stances"]),
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
