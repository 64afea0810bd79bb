"""The learners that a learner actor runs: how they are built there, and in its workers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.cluster.engines.settings import say_nothing
from sparring.cluster.node_cores import Sharing, cores_here
from sparring.config import Config
from sparring.core.adapters import TRAINED

if TYPE_CHECKING:
    from sparring.learn.learner import Learner


def learners_from_config(config: Config, policies: Sequence[str] = (TRAINED,)) -> "dict[str, Learner]":
    """Build the learners that a configuration describes, by policy; they share one model.

    If it does not give the number of threads, they compute on their share of their node.

    Raises:
        InputError: an adapter of ``[start]`` or ``[frozen]`` cannot be used.
    """
    from sparring.run.assembly import build_learner, build_policy
    from sparring.run.given_adapters import load_given

    threads = config.model.threads or cores_here(Sharing.of(config))
    settings = config.model.model_copy(update={"threads": threads})
    model = build_policy(
        settings, config.lora, config.seed, say_nothing, policies, shard_base=config.ray.shard_base
    )
    load_given(config, model, policies)
    return {policy: build_learner(config, model, policy) for policy in policies}
