"""TreeEpisode: an interactive proof in all its branches, as one episode."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, cast

from selfplay.core import Arena, Episode, EpisodeState, InputError, Rollout, Rubric, derive_seed
from selfplay.core.current_episode import current_episode
from selfplay.finetune.tree import Branching, leaves, play_tree
from selfplay.programs.proofs.episode import ProofEpisode
from selfplay.programs.proofs.state import ProofState, total_rewards

TREE = "proof_tree"


class TreeEpisode(Episode):
    """The tree of responses to a claim. The rollout has the steps of all nodes, once each.

    ``extras`` are the state before the first round and ``nodes``; a role's reward is the mean over the ends.

    Args:
        proof: the episode that is played.
        branching: how many responses follow a state.
    """

    episode_type = TREE

    def __init__(self, proof: ProofEpisode, branching: Branching) -> None:
        self.proof = proof
        self.branching = branching
        self._rubric = Rubric([mean_rewards])

    @property
    def rubric(self) -> Rubric:
        """See :func:`mean_rewards`."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Play all branches to their ends."""
        state = state or EpisodeState()
        episode = current_episode.get()
        seed = episode.seed if episode is not None else None
        if seed is None:
            seed = derive_seed(arena.seed, "proof", artifact["id"])
        start = self.proof.begin(artifact, seed)
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
    """Check that all rollouts are trees, or that all are single proofs.

    Raises:
        InputError: some are not, because the run's algorithm was changed after they were sampled.
    """
    if any(("nodes" in one.extras) != trees for one in rollouts if one.error is None):
        kinds = ("single proofs", "trees of responses")
        raise InputError(
            "finetune",
            f"the rollouts are {kinds[not trees]}, but this algorithm learns from {kinds[trees]}",
            "Restore finetune.trainer and finetune.pure_text_malt.num_initial_ei_iterations",
        )
