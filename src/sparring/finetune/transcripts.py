"""Transcripts of proofs: what the models wrote, what the agents said in each channel, and the prompts."""

from collections.abc import Callable, Iterator
from typing import Any, NotRequired, TypedDict, cast

from sparring.core import Rollout
from sparring.finetune.trees import ends_of, path_of
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
