"""ProofArena: interactive proofs of drawn claims, and the verifier's accuracy on held-out ones."""

import math
from typing import Any, cast

from sparring.config.programs import ProofsSettings
from sparring.core import (
    Artifact,
    EpisodeRequest,
    GenerateResult,
    InputError,
    Role,
)
from sparring.programs.program_arena import ProgramArena
from sparring.programs.proofs.claim_files import claims_of
from sparring.programs.proofs.claims import split
from sparring.programs.proofs.episode import ProofEpisode
from sparring.programs.proofs.protocols import build_protocol
from sparring.programs.proofs.state import ProofState, measures_of

TOKENS_PER_WORD = 1.5


class ProofArena(ProgramArena[ProofsSettings]):
    """Interactive proofs of the claims of the store ``claims``, which holds their ids.

    Each agent of the protocol is a role. The proofs of one claim in a step are compared with each other
    (``meta["group"]``). A token learner sees only the answers that are kept. With
    ``num_invalid_generation_retries`` it never sees the invalid ones, so it cannot learn to avoid them: set
    it to 0 for training by tokens.
    """

    def set_up(self) -> None:
        settings = self.settings
        self.protocol = build_protocol(settings.protocol, settings)
        given = settings.claims
        claims, self.held_out = split(claims_of(given), given.test_size, given.seed)
        self.claims = {claim.id: claim for claim in claims}
        words = settings.max_response_words
        tokens = settings.max_tokens_per_message or math.ceil(TOKENS_PER_WORD * words)
        for agent in self.protocol.agents:
            policy = settings.verifier_policy if agent.kind == "verifier" else settings.prover_policy
            self.add_role(Role(agent.name, max_tokens=tokens, policy=policy))
        episode = ProofEpisode(
            self.protocol,
            max_response_words=words,
            num_invalid_generation_retries=settings.num_invalid_generation_retries,
            examples=settings.examples,
        )
        self.add_episode("proof", episode)
        store = self.add_store("claims")
        for claim in claims:
            store.add(Artifact(None, claim.id))

    def get_batch(self) -> list[EpisodeRequest]:
        settings, store = self.settings, self.stores["claims"]
        drawn = store.sample_shared(settings.batch_size, settings.proofs_per_claim)
        claims = [self.claims[one.id] for one in drawn]
        return [EpisodeRequest("proof", claim.to_dict(), {"group": claim.id}) for claim in claims]

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return the match of provers with opposite stances; a verifier and its provers play no match."""
        rollout = result.rollout
        stances = rollout.extras.get("stances", {})
        rewards = {name: reward for name, reward in rollout.rewards.items() if name in stances}
        return [rewards] if len({stances[name] for name in rewards}) > 1 else []

    async def evaluate(self) -> dict[str, list[float]]:
        """Judge held-out claims, each several times, with seeds of their own; failed episodes are left
        out."""
        requests = [
            self.evaluation_request("proof", claim.to_dict(), index, proof)
            for index, claim in enumerate(self.held_out[: self.settings.evaluation_claims])
            for proof in range(self.settings.evaluation_proofs)
        ]
        return measures_of([cast(ProofState, one.extras) for one in await self.finished(requests)])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; other claims raise an InputError."""
        super().load_state_dict(state)
        unknown = [one.id for one in self.stores["claims"].all() if one.id not in self.claims]
        if unknown:
            raise InputError(
                "claims", f"there is no claim {unknown[0]!r} any more", "Give the run's own claims"
            )
