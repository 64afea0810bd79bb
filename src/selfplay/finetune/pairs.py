"""Pairs of responses to the same prefix, of which one led to more reward: what DPO learns from."""

import random
from typing import Any

from selfplay.config.finetune import PureTextMaltParameters
from selfplay.core import Rollout, Step, derive_seed
from selfplay.finetune.tree import Node, expected_rewards
from selfplay.programs.proofs.protocol import Protocol
from selfplay.programs.proofs.rewards import max_reward, min_reward, reward_mid_point_estimate

Pair = tuple[str, str]
"""The nodes of the preferred and of the other response."""


def select_pairs(
    protocol: Protocol, nodes: list[Node], agent: str, parameters: PureTextMaltParameters, seed: int
) -> list[Pair]:
    """Return at most one pair for each prefix after which an agent spoke.

    ``positive_negative`` draws one response whose expected reward is at least the middle of the agent's
    rewards and one below it; ``interval`` draws two whose difference is more than a share of the range of
    its rewards. Responses with the same text teach nothing and are no pair.
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
    return [{"role": "assistant", "content": step.completion_text}]


def _acted(node: Node, agent: str) -> bool:
    """Return whether an agent said anything that was understood."""
    answer = node["round"]["answers"].get(agent)
    return answer is not None and (bool(answer["messages"]) or answer["decision"]["verdict"] != "none")


def _text(node: Node, agent: str) -> str:
    return node["round"]["answers"][agent]["raw"]
