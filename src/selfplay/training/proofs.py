"""Build the arena of interactive proofs from its configuration."""

from dataclasses import fields

from selfplay.config.programs import ProofsSettings
from selfplay.config.proofs import ArithmeticClaims, Claims, ColumnSettings, FileClaims, ProtocolSettings
from selfplay.config.proofs import CodeClaims as CodeClaimsSettings
from selfplay.core import InferenceClient
from selfplay.programs.proofs.arena import ProofArena
from selfplay.programs.proofs.arithmetic_claims import arithmetic_claims
from selfplay.programs.proofs.claim_files import Columns, claims_of_dataset, claims_of_file, code_claims
from selfplay.programs.proofs.claims import Claim, split
from selfplay.programs.proofs.parameters import ProtocolParameters, RewardParameters
from selfplay.programs.proofs.protocols import build_protocol


def build_proofs(settings: ProofsSettings, client: InferenceClient, seed: int) -> ProofArena:
    """Return the arena.

    Raises:
        InputError: the protocol or the claims are wrong.
    """
    claims, held_out = split(claims_of(settings.claims), settings.claims.test_size, settings.claims.seed)
    return ProofArena(
        client,
        build_protocol(settings.protocol, protocol_parameters(settings)),
        claims,
        held_out,
        batch_size=settings.batch_size,
        proofs_per_claim=settings.proofs_per_claim,
        max_response_words=settings.max_response_words,
        max_tokens_per_message=settings.max_tokens_per_message,
        num_invalid_generation_retries=settings.num_invalid_generation_retries,
        examples=settings.examples,
        verifier_policy=settings.verifier_policy,
        prover_policy=settings.prover_policy,
        evaluation_claims=settings.evaluation_claims,
        evaluation_proofs=settings.evaluation_proofs,
        seed=seed,
    )


def protocol_parameters(settings: ProtocolSettings) -> ProtocolParameters:
    """Return the parameters of a protocol."""
    rewards = RewardParameters(**{one.name: getattr(settings, one.name) for one in fields(RewardParameters)})
    own = [one.name for one in fields(ProtocolParameters) if one.name != "rewards"]
    return ProtocolParameters(rewards=rewards, **{name: getattr(settings, name) for name in own})


def claims_of(settings: Claims) -> list[Claim]:
    """Return all claims, before they are split.

    Raises:
        InputError: they cannot be read or made.
    """
    if isinstance(settings, ArithmeticClaims):
        return arithmetic_claims(settings.count, settings.difficulty, settings.seed)
    if isinstance(settings, CodeClaimsSettings):
        return code_claims()
    columns = None if settings.columns is None else columns_of(settings.columns)
    if isinstance(settings, FileClaims):
        return claims_of_file(settings.path, columns)
    return claims_of_dataset(settings.name, settings.split, columns)


def columns_of(settings: ColumnSettings) -> Columns:
    """Return the columns."""
    return Columns(**settings.model_dump())
