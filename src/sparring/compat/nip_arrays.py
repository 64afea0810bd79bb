"""Rollouts as numpy arrays under the keys of Neural Interactive Proofs, for analyses that expect them.

Every array begins with the dimensions B and R. B: proofs, one for each end of a tree; failed rollouts have
none. R: rounds, the protocol's greatest number; those that were not played are padding. A: agents. C:
channels. M: messages of the longest prompt. F: the fields of a message.

Shapes and contents by key:

- ``("agents", "message")`` BRAC: the message to each channel; ``None`` if there is none, as for all texts.
- ``("agents", "raw_message")`` BRA: the text as the model wrote it.
- ``("agents", "prompt")`` BRAMF: ``content``, ``role`` and ``name`` of each message of the prompt.
- ``("agents", "decision")`` BRA: 0 reject, 1 accept, 2 none, 3 neither.
- ``("agents", "continuous_decision")`` BRA: from -1 (reject) to 1 (accept), 0 if there is none.
- ``("agents", "raw_decision")`` BRA: the entry of the scale.
- ``("agents", "reward")`` BRA: what the round paid.
- ``("agents", "valid_response")`` BRA: false for an invalid answer.
- ``("agents", "retry_count")``, ``("agents", "token_limit")`` BRAC: invalid answers before this one, and
  whether the token limit cut it, in each channel that the agent could write to.
- ``("agents", "done")`` BRA, ``("done",)`` BR: the proof is over after this round.
- ``("terminated",)`` BR: it is over without a decision. ``("padding",)`` BR: the round was not played.
- ``("round",)``, ``("seed",)``, ``("y",)``, ``("datapoint_id",)``, ``("question",)``, ``("solution",)`` BR.
- ``("prover_stance",)`` BR: 0 reject, 1 accept, -1 if the provers' stances differ or they have none.
- ``("message_history",)``, ``("message_agent_id",)`` BRRC, ``("raw_message_history",)`` BRRA: what was said
  in the rounds before, and the number of the agent who said it, -1 for nobody.

Trees of responses have some more; all is padding in rows that are of no tree:

- ``("_node_id",)``, ``("_parent_node_id",)`` BR: the node of a round and the one before it, unique in all
  rollouts. The parent of a first round is the rollout's id. Padding has neither.
- ``("agents", "expected_reward")`` BRA: what an agent earns from this round on, as a mean over the branches.
- ``("agents", "is_pair_positive")``, ``("agents", "is_pair_negative")`` BRA, only with MALT's parameters: the
  response is the preferred one, or the other one, of a pair.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring.config.finetune import PureTextMaltParameters
from sparring.core import InputError, Rollout
from sparring.finetune.trees import (
    Prompts,
    ends_of,
    expected_rewards,
    path_of,
    proof_prompts,
    proofs,
    select_pairs,
)
from sparring.programs.proofs.answers import VERDICT_NUMBERS
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.state import ProofState

FIELDS = ("content", "role", "name")
Arrays = dict[tuple[str, ...], NDArray[Any]]
TEXT = np.dtypes.StringDType(na_object=None)
"""Texts of any length; ``None`` stands for no text."""


def rollout_arrays(
    protocol: Protocol, rollouts: list[Rollout], malt: PureTextMaltParameters | None = None
) -> Arrays:
    """Return the arrays that the module's docstring lists.

    Args:
        malt: with these parameters, the pairs of trees are marked.

    Raises:
        InputError: two agents wrote to one channel in the same round.
    """
    played = list(proofs(rollouts))
    prompts = [proof_prompts(rollout, state) for rollout, state in played]
    longest = max((len(one) for proof in prompts for spoke in proof for one in spoke.values()), default=0)
    arrays = _empty(protocol, len(played), longest)
    for number, (_, state) in enumerate(played):
        _fill_proof(arrays, number, state)
        _fill_rounds(arrays, number, protocol, state, prompts[number])
    arrays |= _histories(arrays)
    is_tree = any("nodes" in rollout.extras for rollout, _ in played)
    return arrays | _tree_arrays(protocol, rollouts, malt) if is_tree else arrays


def _empty(protocol: Protocol, count: int, longest_prompt: int) -> Arrays:
    each = (count, protocol.max_rounds)
    by_agent = (*each, len(protocol.agents))
    by_channel = (*by_agent, len(protocol.channels))
    texts = {
        ("question",): each,
        ("solution",): each,
        ("datapoint_id",): each,
        ("agents", "message"): by_channel,
        ("agents", "raw_message"): by_agent,
        ("agents", "raw_decision"): by_agent,
        ("agents", "prompt"): (*by_agent, longest_prompt, len(FIELDS)),
    }
    flags = {
        ("done",): each,
        ("terminated",): each,
        ("padding",): each,
        ("agents", "done"): by_agent,
        ("agents", "token_limit"): by_channel,
    }
    numbers = {("y",): each, ("seed",): each, ("agents", "retry_count"): by_channel}
    arrays: Arrays = {key: np.full(shape, None, TEXT) for key, shape in texts.items()}
    arrays |= {key: np.zeros(shape, bool) for key, shape in flags.items()}
    arrays |= {key: np.zeros(shape, np.int64) for key, shape in numbers.items()}
    return arrays | {
        ("round",): np.broadcast_to(np.arange(protocol.max_rounds), each).copy(),
        ("prover_stance",): np.full(each, -1),
        ("agents", "decision"): np.full(by_agent, VERDICT_NUMBERS["none"]),
        ("agents", "continuous_decision"): np.zeros(by_agent),
        ("agents", "reward"): np.zeros(by_agent),
        ("agents", "valid_response"): np.ones(by_agent, bool),
    }


def _fill_proof(arrays: Arrays, number: int, state: ProofState) -> None:
    """Write what is the same in all rounds, and where the proof ends."""
    constant: dict[str, Any] = {
        "question": state["question"],
        "solution": state["claim"],
        "datapoint_id": state["id"],
        "y": state["y"],
        "seed": state["seed"],
    }
    stances = set(state["stances"].values())
    if len(stances) == 1:
        constant["prover_stance"] = int(stances == {"accept"})
    for name, value in constant.items():
        arrays[(name,)][number] = value
    last = len(state["rounds"]) - 1
    arrays[("done",)][number, last:] = True
    arrays["agents", "done"][number, last:] = True
    arrays[("terminated",)][number, last:] = state["terminated"]
    arrays[("padding",)][number, last + 1 :] = True


def _fill_rounds(
    arrays: Arrays, number: int, protocol: Protocol, state: ProofState, prompts: Prompts
) -> None:
    agents = [agent.name for agent in protocol.agents]
    channels = [channel.name for channel in protocol.channels]
    for place, played in enumerate(state["rounds"]):
        for name, reward in played["rewards"].items():
            arrays["agents", "reward"][number, place, agents.index(name)] = reward
        open_to = {turn.agent: turn.channels for turn in protocol.turns(place, state["seed"])}
        for name, answer in played["answers"].items():
            at = (number, place, agents.index(name))
            decision = answer["decision"]
            arrays["agents", "raw_message"][at] = answer["raw"]
            arrays["agents", "valid_response"][at] = answer["valid"]
            arrays["agents", "decision"][at] = VERDICT_NUMBERS[decision["verdict"]]
            arrays["agents", "continuous_decision"][at] = decision["value"]
            arrays["agents", "raw_decision"][at] = decision["raw"] or None
            for channel, text in answer["messages"].items():
                arrays["agents", "message"][(*at, channels.index(channel))] = text
            for channel in open_to[name]:
                arrays["agents", "retry_count"][(*at, channels.index(channel))] = answer["retries"]
                arrays["agents", "token_limit"][(*at, channels.index(channel))] = answer["cut"]
            for row, message in enumerate(prompts[place].get(name, [])):
                arrays["agents", "prompt"][(*at, row)] = [message.get(field) for field in FIELDS]


def _histories(arrays: Arrays) -> Arrays:
    """Return what was said before each round."""
    message_BRAC, raw_BRA = arrays["agents", "message"], arrays["agents", "raw_message"]
    said_BRAC = message_BRAC.astype(object) != np.array(None)
    if (said_BRAC.sum(axis=2) > 1).any():
        raise InputError(
            "rollouts",
            "two agents wrote to one channel in the same round, for which message_history has one place",
            "Read the rollouts themselves",
        )
    text_BRC = np.full(said_BRAC.shape[:2] + said_BRAC.shape[3:], None, TEXT)
    for proof, place, agent, channel in zip(*said_BRAC.nonzero(), strict=True):
        text_BRC[proof, place, channel] = message_BRAC[proof, place, agent, channel]
    author_BRC = np.where(said_BRAC.any(axis=2), said_BRAC.argmax(axis=2), -1)
    return {
        ("message_history",): _before(text_BRC, None),
        ("message_agent_id",): _before(author_BRC, -1),
        ("raw_message_history",): _before(raw_BRA, None),
    }


def _before(values_BRX: NDArray[Any], nothing: int | None) -> NDArray[Any]:
    """Return, for each round, the values of the rounds before it, and ``nothing`` for the others."""
    count, rounds, wide = values_BRX.shape
    before_BRRX = np.full((count, rounds, rounds, wide), nothing, values_BRX.dtype)
    for place in range(rounds):
        before_BRRX[:, place, :place] = values_BRX[:, :place]
    return before_BRRX


def _tree_arrays(protocol: Protocol, rollouts: list[Rollout], malt: PureTextMaltParameters | None) -> Arrays:
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
