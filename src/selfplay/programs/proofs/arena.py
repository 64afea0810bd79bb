"""ProofArena: interactive proofs of drawn claims, and the verifier's accuracy on held-out ones."""

import math
from typing import Any, cast

from selfplay.core import (
    Arena,
    Artifact,
    ArtifactStore,
    CreditAssigner,
    EpisodeRequest,
    GenerateResult,
    InferenceClient,
    InputError,
    Role,
    VerboseLogger,
    derive_seed,
)
from selfplay.programs.proofs.claims import Claim
from selfplay.programs.proofs.episode import ProofEpisode
from selfplay.programs.proofs.measures import measures_of
from selfplay.programs.proofs.protocol import Protocol
from selfplay.programs.proofs.state import ProofState

TOKENS_PER_WORD = 1.5


class ProofArena(Arena):
    """Interactive proofs of the claims of the store ``claims``, which holds their ids.

    Each agent of the protocol is a role. The proofs of one claim in a step are compared with each other
    (``meta["group"]``).

    A token learner sees only the answers that are kept. With ``num_invalid_generation_retries`` it never sees
    the invalid ones, so it cannot learn to avoid them: set it to 0 for training by tokens.

    Args:
        client: answers for all agents.
        protocol: who speaks when, and what they earn.
        claims: what is judged in training.
        held_out: what is judged in tests; it shares no question with ``claims``.
        batch_size: number of proofs per step.
        proofs_per_claim: number of proofs per step that share a claim and are compared with each other.
        max_response_words: the word limit that agents are told.
        max_tokens_per_message: token limit of an answer; one and a half times the words if not given.
        num_invalid_generation_retries: how often an invalid answer is asked for again.
        examples: whether prompts begin with two short proofs, which show small models the form.
        verifier_policy: the policy of verifiers.
        prover_policy: the policy of provers.
        evaluation_claims: number of held-out claims that :meth:`evaluate` judges, always the same; all
            if there are fewer.
        evaluation_proofs: number of proofs of each of them.
        seed: seed of episodes and draws.
        credit_assigner, verbose, logger: see Arena.

    Raises:
        InputError: there are no claims, or a number is outside its range.
    """

    def __init__(
        self,
        client: InferenceClient,
        protocol: Protocol,
        claims: list[Claim],
        held_out: list[Claim],
        *,
        batch_size: int = 32,
        proofs_per_claim: int = 4,
        max_response_words: int = 150,
        max_tokens_per_message: int | None = None,
        num_invalid_generation_retries: int = 20,
        examples: bool = True,
        verifier_policy: str = "verifier",
        prover_policy: str = "prover",
        evaluation_claims: int = 64,
        evaluation_proofs: int = 2,
        seed: int = 0,
        credit_assigner: CreditAssigner | None = None,
        verbose: bool = False,
        logger: VerboseLogger | None = None,
    ) -> None:
        super().__init__(client, credit_assigner, verbose, seed=seed, logger=logger)
        _check(claims, batch_size=batch_size, proofs_per_claim=proofs_per_claim)
        self.protocol = protocol
        self.claims = {claim.id: claim for claim in claims}
        self.held_out = held_out
        self.evaluation_claims = evaluation_claims
        self.batch_size = batch_size
        self.proofs_per_claim = proofs_per_claim
        self.evaluation_proofs = evaluation_proofs
        tokens = max_tokens_per_message or math.ceil(TOKENS_PER_WORD * max_response_words)
        for agent in protocol.agents:
            policy = verifier_policy if agent.kind == "verifier" else prover_policy
            self.add_role(Role(agent.name, max_tokens=tokens, policy=policy))
        episode = ProofEpisode(
            protocol,
            max_response_words=max_response_words,
            num_invalid_generation_retries=num_invalid_generation_retries,
            examples=examples,
        )
        self.add_episode("proof", episode)
        store = self.add_store("claims", ArtifactStore(seed=derive_seed(seed, "claims")))
        for claim in claims:
            store.add(Artifact(None, claim.id))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return requests for ``batch_size`` proofs of claims drawn from the store."""
        drawn = self.stores["claims"].sample(math.ceil(self.batch_size / self.proofs_per_claim))
        claims = [self.claims[drawn[index % len(drawn)].id] for index in range(self.batch_size)]
        return [EpisodeRequest("proof", claim.to_dict(), {"group": claim.id}) for claim in claims]

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return the match of provers with opposite stances; a verifier and its provers play no match."""
        rollout = result.rollout
        stances = rollout.extras.get("stances", {})
        rewards = {name: reward for name, reward in rollout.rewards.items() if name in stances}
        return [rewards] if len({stances[name] for name in rewards}) > 1 else []

    async def evaluate(self) -> dict[str, list[float]]:
        """Judge held-out claims, each several times, with seeds of their own.

        See :func:`selfplay.programs.proofs.measures.measures_of`. Failed episodes are left out.
        """
        requests = [
            EpisodeRequest(
                "proof",
                claim.to_dict(),
                {
                    "seed": derive_seed(self.seed, "evaluation", index, proof),
                    "rollout_id": f"evaluation-{index:05d}-{proof:02d}",
                },
                is_trainable=False,
            )
            for index, claim in enumerate(self.held_out[: self.evaluation_claims])
            for proof in range(self.evaluation_proofs)
        ]
        rollouts = [result.rollout for result in await self.generate_rollouts(requests)]
        return measures_of([cast(ProofState, one.extras) for one in rollouts if one.error is None])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            InputError: the state was saved with other claims.
        """
        super().load_state_dict(state)
        unknown = [one.id for one in self.stores["claims"].all() if one.id not in self.claims]
        if unknown:
            raise InputError(
                "claims", f"there is no claim {unknown[0]!r} any more", "Give the run's own claims"
            )


def _check(claims: list[Claim], **numbers: int) -> None:
    if not claims:
        raise InputError("claims", "there is nothing to judge", "Give at least one claim")
    if len({claim.id for claim in claims}) < len(claims):
        raise InputError("claims", "two claims have the same id", "Give each its own")
    for name, number in numbers.items():
        if number < 1:
            raise InputError(name, f"{number} is too few", "Give 1 or more")
