"""Programs whose policies learn from all legal answers, such as the verdicts of a verifier."""

import pytest

from game_runs import metrics_of
from program_runs import PROOFS, SMALL, adapter, run
from sparring.config import load_config
from sparring.core import InputError
from sparring.run.checks import check_config

ALGORITHMS = ['{type = "magnet"}', '{type = "all_actions"}', '{type = "magnet", values = "tree"}']
VERIFIER, PROVER = "learning.policies.verifier.algorithm", "learning.policies.prover.algorithm"


def refused(preset, changes):
    with pytest.raises(InputError) as raised:
        check_config(load_config(preset, changes))
    return str(raised.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur"])
def test_in_a_proof_the_policy_of_the_verifier_alone_has_legal_answers(protocol, algorithm):
    proof = {"program.protocol": protocol}
    assert check_config(load_config("nip", proof | {VERIFIER: algorithm}))
    assert check_config(
        load_config("nip", proof | {VERIFIER: algorithm, "program.prover_policy": "verifier"})
    )
    for field in (PROVER, "learning.algorithm"):
        said = refused("nip", proof | {field: algorithm})
        assert said.startswith(f"{field}: ")
        assert said.endswith(f"and the roles of prover have none. Set {VERIFIER} instead")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_verifier_that_is_alone_or_frozen_is_told_from_one_that_learns(algorithm):
    alone = {"program.protocol": "solo_verifier", "program.max_message_rounds": "1"}
    assert check_config(load_config("nip", alone | {"learning.algorithm": algorithm}))
    frozen = {"roles.verifier.policy": "base", "learning.algorithm": algorithm}
    assert refused("nip", frozen).endswith("have none. Choose another algorithm, such as reinforce")


@pytest.mark.parametrize("field", ["inference.stop", "roles.verifier.stop"])
def test_a_verdict_that_a_text_ends_is_no_legal_answer(field):
    said = refused("nip", {VERIFIER: ALGORITHMS[0], field: '["."]'})
    assert said.startswith(f"{VERIFIER}: needs answers that a model ends by itself, and verifier has stop")


@pytest.mark.parametrize("preset", ["debate", "proposer-solver"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_programs_in_which_any_text_will_do_are_refused(preset, algorithm):
    said = refused(preset, {"learning.algorithm": algorithm})
    assert "have none. Choose another algorithm, such as reinforce" in said


@pytest.mark.parametrize("algorithm", [ALGORITHMS[0], pytest.param(ALGORITHMS[2], marks=pytest.mark.slow)])
def test_a_verifier_learns_from_all_verdicts(model, tmp_path, algorithm):
    changes = SMALL | PROOFS | {"model.name": str(model), VERIFIER: algorithm}
    run(load_config("nip", changes), tmp_path / "run")
    for line in metrics_of(tmp_path / "run")[1:]:
        assert 0 < line["learner/verifier/listed_share"] <= 1
        assert "learner/prover/listed_share" not in line
    before, after = (adapter(tmp_path / "run", step, "verifier") for step in (0, 2))
    assert any((before[name] != after[name]).any() for name in after)
