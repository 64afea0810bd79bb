"""ProofArena: batches, measures and state; a whole run with a tiny model, in one process."""

import io
import json
import shutil
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from matrices import first_of
from proof_scripts import Script
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config
from sparring.config.loading import dump_config
from sparring.config.programs import ProofsSettings
from sparring.config.proofs import ArithmeticClaims
from sparring.core import InputError
from sparring.evaluation.results import MeasureResult, read_evaluation
from sparring.programs.proofs.arena import ProofArena
from sparring.programs.proofs.state import ProofState, measures_of
from sparring.run.programs import build_program, check_first_batch, policies_of
from sparring.run.single_process import resume, train
from tiny_models import roomy_model

ACCEPT, REJECT = "Decision: accept", "Decision: reject"


def make_arena(client=None, name="nip", *, claims=None, seed=0, **options):
    client = client or Script(verifier=[ACCEPT], prover=["Yes."])
    defaults = {"batch_size": 8, "proofs_per_claim": 4, "evaluation_claims": 6, "evaluation_proofs": 3}
    claims = claims or ArithmeticClaims(count=24, test_size=1 / 3)
    settings = ProofsSettings(**{"protocol": name, "claims": claims, "examples": False} | defaults | options)
    return ProofArena(client, settings, seed=seed)


def test_a_batch_has_several_proofs_of_each_claim():
    requests = make_arena().get_batch()
    groups = [request.meta["group"] for request in requests]
    assert len(requests) == 8
    assert {groups.count(group) for group in groups} == {4}
    assert all(request.artifact["id"] == group for request, group in zip(requests, groups, strict=True))
    assert make_arena().get_batch() == requests
    assert make_arena(seed=1).get_batch() != requests


def test_agents_are_roles_of_the_policies_of_their_kind():
    assert policies_of(make_arena(name="debate")) == ["prover", "verifier"]
    arena = make_arena(name="debate", prover_policy="one", verifier_policy="two", max_response_words=9)
    assert {role.id: role.policy for role in arena.roles.values()} == {
        "prover0": "one",
        "prover1": "one",
        "verifier": "two",
    }
    assert {role.max_tokens for role in arena.roles.values()} == {14}
    assert make_arena(max_tokens_per_message=5).roles["prover"].max_tokens == 5


async def test_a_step_compares_the_proofs_of_a_claim():
    def verdict(messages, seed):
        return ACCEPT if seed % 2 else REJECT

    batch = await make_arena(Script(verifier=verdict), batch_size=16, proofs_per_claim=8).step()
    by_claim = {}
    for record in batch.records:
        by_claim.setdefault(record.meta["group"], []).append(record)
    assert len(by_claim) == 2
    for records in by_claim.values():
        assert len({record.reward for record in records}) == 2
        assert sum(record.advantage for record in records) == pytest.approx(0)
    assert 0 < batch.meta["metric/proof/right/verifier"] < 1


async def test_opponents_are_provers_of_opposite_stances_only():
    lines = {
        "verifier": ["prover0_channel: a\nprover1_channel: b", ACCEPT],
        "prover0": ["No."],
        "prover1": ["Yes."],
    }
    matches = {"debate": [{"prover0": 0.0, "prover1": 1.0}], "mnip": [], "merlin_arthur": [], "nip": []}
    for name, expected in matches.items():
        arena = make_arena(Script(prover=["Yes."], **lines), name)
        (result,) = await arena.generate_rollouts(arena.get_batch()[:1])
        assert arena.outcomes(result) == expected


async def test_the_verifier_is_measured_on_held_out_claims():
    arena = make_arena()
    measured = await arena.evaluate()
    truths = [claim.y for claim in arena.held_out[:6]]
    assert len(arena.held_out) > 6
    assert measured == {
        "accuracy": [float(y) for y in truths],
        "accuracy on right claims": [1.0] * sum(truths),
        "accuracy on wrong claims": [0.0] * (6 - sum(truths)),
        "no decision": [0.0] * 6,
        "always wrong": [float(1 - y) for y in truths],
        "precision": [float(y) for y in truths],
        "recall": [1.0] * sum(truths),
    }
    assert await arena.evaluate() == measured
    assert not {claim.id for claim in arena.held_out} & {
        request.meta["group"] for request in arena.get_batch()
    }


def proof(claim, y, verdict) -> ProofState:
    decided_by = None if verdict == "none" else "verifier"
    return {"id": claim, "y": y, "decision": {"verdict": verdict}, "decided_by": decided_by}


def test_measures_are_means_over_the_proofs_of_a_claim():
    verdicts = [("a", 1, "accept"), ("a", 1, "reject"), ("b", 0, "accept"), ("b", 0, "none")]
    verdicts += [("c", 0, "reject"), ("c", 0, "neither")]
    measured = measures_of([proof(*one) for one in verdicts])
    assert measured["accuracy"] == [0.5, 0.0, 0.5]
    assert measured["no decision"] == [0.0, 0.5, 0.0]
    assert measured["always wrong"] == [0.0, 1.0, 0.0]
    assert measured["precision"] == [1.0, 0.0]
    assert measured["recall"] == [0.5]
    rejected = measures_of([proof("a", 0, "reject")])
    assert rejected["precision"] == rejected["recall"] == []
    assert measures_of([]) == {name: [] for name in measured}


VERDICTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["accept", "reject"])), max_size=60)


@given(VERDICTS)
def test_measures_of_proofs_have_one_value_a_claim_and_precision_is_that_of_all_proofs(verdicts):
    measured = measures_of([proof(str(claim), claim % 2, verdict) for claim, verdict in verdicts])
    accepted = [claim for claim, verdict in verdicts if verdict == "accept"]
    if accepted:
        assert len(measured["precision"]) == len({*accepted})
        precision = sum(claim % 2 for claim in accepted) / len(accepted)
        assert statistics.fmean(measured["precision"]) == pytest.approx(precision)
    assert all(len(values) <= len({claim for claim, _ in verdicts}) for values in measured.values())


def test_more_proofs_of_the_same_claims_make_no_precision_surer():
    once = [proof(str(claim), claim % 3 > 0, "accept") for claim in range(9)]
    few, many = (MeasureResult("precision", measures_of(proofs)["precision"]) for proofs in (once, once * 8))
    assert few.interval == many.interval
    assert few.is_share


def test_a_state_continues_the_draws_and_needs_the_same_claims():
    whole, cut = make_arena(), make_arena()
    whole.get_batch()
    cut.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert cut.get_batch() == whole.get_batch()
    other = make_arena(claims=ArithmeticClaims(count=24, seed=5))
    with pytest.raises(InputError, match=r"there is no claim .* any more"):
        other.load_state_dict(whole.state_dict())


CONFIG = """
[program]
type = "proofs"
protocol = "{protocol}"
max_message_rounds = 3
max_response_words = 4
num_invalid_generation_retries = 1
batch_size = 4
evaluation_claims = 4
evaluation_proofs = 1
force_guess = {force}
[program.claims]
type = "arithmetic_claims"
count = 40
difficulty = 1
[lora]
rank = 2
[inference]
max_tokens = 6
[learning]
steps = 2
[learning.algorithm]
regulariser = "none"
[evaluation]
every = 0
[run]
save_every = 1
"""


def configured(directory: Path, protocol="nip", force='"one"', **changes):
    file = directory / f"{protocol}.toml"
    file.write_text(CONFIG.format(protocol=protocol, force=force))
    return load_config(str(file), {"model.name": str(roomy_model()), "model.threads": "1"} | changes)


@pytest.mark.parametrize("protocol", first_of(["nip", "debate"]))
def test_a_whole_run_trains_verifier_and_provers_and_measures_them(protocol, tmp_path):
    train(configured(tmp_path, protocol, **{"program.min_message_rounds": "3"}), tmp_path / "run", console())
    rollouts = [one for step in (1, 2) for one in RolloutLog(tmp_path / "run" / "rollouts").read(step)]
    assert len(rollouts) == 8
    for rollout in rollouts:
        assert rollout.error is None
        assert rollout.extras["decision"]["verdict"] == "accept"
        assert rollout.rewards["verifier"] == (1.0 if rollout.extras["y"] else -1.0)
    assert {path.name for path in (tmp_path / "run" / "checkpoints" / "step-000002").iterdir()} >= {
        "prover",
        "verifier",
    }
    files = (tmp_path / "run" / "evaluation").glob("step-000002-*.json")
    measures = {one.name: one.interval[1] for _, one in map(read_evaluation, files)}
    assert measures["no decision"] == 0
    assert measures["recall"] == 1
    assert measures["accuracy"] == measures["precision"] == 0.5


@pytest.mark.slow  # test_run_programs resumes programs
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    train(configured(tmp_path, "nip"), tmp_path / "whole", console())
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000002")
    resume(tmp_path / "cut", console())
    for policy in ("prover", "verifier"):
        files = [
            tmp_path / name / "checkpoints" / "step-000002" / policy / "adapter_model.safetensors"
            for name in ("whole", "cut")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()


def console():
    return Console(file=io.StringIO())


@pytest.mark.parametrize("preset", ["nip", "debate-proof"])
def test_presets_have_a_first_batch_and_load_again_as_they_are(preset, tmp_path):
    config = load_config(preset, {})
    arena = build_program(config)
    check_first_batch(arena)
    assert policies_of(arena) == ["prover", "verifier"]
    (tmp_path / "again.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "again.toml"), {}) == config


def test_paths_of_a_configuration_are_relative_to_its_file(tmp_path, monkeypatch):
    rows = [{"question": f"q{n}", "claim": f"c{n}{y}", "y": y} for n in range(20) for y in (0, 1)]
    (tmp_path / "claims.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "court.py").write_text(
        "from sparring.programs.proofs.protocols import adp\ndef court(given):\n    return adp(given)\n"
    )
    (tmp_path / "court.toml").write_text(
        '[program]\ntype = "proofs"\nprotocol = "court.py:court"\n'
        '[program.claims]\ntype = "file"\npath = "claims.jsonl"\n'
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config("../court.toml", {"program.verifier_decision_spectrum": "out_of_10"})
    arena = build_program(config)
    assert arena.protocol.name == "adp"
    assert arena.protocol.scale == "out_of_10"
    assert len(arena.claims) + len(arena.held_out) == 40
    assert config.play.names == ["court"]
