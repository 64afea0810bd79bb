"""PSRO, tournaments and best responses of every kind of program, with as many roles as each trains."""

import json
import math
import statistics
from contextlib import asynccontextmanager

import pytest

from matrices import first_of
from paid_server import paid_server
from program_files import write_program
from program_runs import PROOFS, SMALL, configure
from sparring.commands.answered import AgentQuery
from sparring.commands.exploit import Budget, exploit
from sparring.commands.members import Member
from sparring.commands.psro import psro
from sparring.commands.serving import serving
from sparring.commands.tournament import tournament
from sparring.commands.venues import program_venue
from sparring.config import load_config
from sparring.core import InputError, MockInferenceClient
from sparring.evaluation.match import Progress
from sparring.evaluation.venues import Frozen
from tournaments import few_resamples  # noqa: F401 - a fixture

DEBATE = {"program.num_rounds": "1", "program.max_tokens": "4", "program.evaluation_debates": "2"}
CASES = {
    "own": ("OWN", {"psro.solver": "uniform"}, ("Hider", "Seeker", "Caller")),
    "proposer-solver": (
        "proposer-solver",
        {"program.batch_size": "4", "program.evaluation_proposals": "2", "program.solver_rollouts": "2"},
        ("Proposer", "Solver"),
    ),
    "nip": ("nip", PROOFS, ("prover", "verifier")),
    "debate": ("debate", DEBATE, ("Aff", "Neg")),
    "sides": ("debate", DEBATE | {"program.neg_policy": "neg"}, ("Aff", "Neg")),
    "debated proofs": ("debate-proof", PROOFS, ("prover0", "prover1", "verifier")),
    "mnip": ("debate-proof", PROOFS | {"program.protocol": "mnip"}, ("prover0", "prover1", "verifier")),
    "merlin_arthur": (
        "debate-proof",
        PROOFS | {"program.protocol": "merlin_arthur"},
        ("prover0", "prover1", "verifier"),
    ),
    "adp": ("nip", PROOFS | {"program.protocol": "adp"}, ("prover", "verifier")),
}


def config_of(case, model, folder):
    source, changes, roles = CASES[case]
    if source == "OWN":
        source = str(folder / "program.toml")
        text = f'[program]\ntype = "python"\npath = "{write_program(folder)}:Three"\n'
        (folder / "program.toml").write_text(text)
    short = {"learning.steps": "1", "psro.payoff_games": "4", "psro.iterations": "1"}
    return load_config(source, SMALL | changes | short | {"model.name": str(model)}), roles


@pytest.mark.parametrize("case", first_of([*CASES]))
def test_every_program_has_a_psro_and_its_members_meet(case, model, tmp_path):
    config, roles = config_of(case, model, tmp_path)
    found = psro(config, tmp_path / "psro")
    seats = len(roles)
    assert found.solver in (("uniform",) if case == "own" else ("nash", "prd") if seats == 2 else ("prd",))
    assert found.seats == seats
    least = math.ceil(4 / math.factorial(seats)) * math.factorial(seats)
    assert found.iterations[1].payoff_games == (seats + 1) * least
    gain = found.iterations[1].gain
    assert gain.low <= gain.mid <= gain.high
    member = str(tmp_path / "psro" / "member-001")
    names = [str(tmp_path / "psro"), member, "base"]
    held = tournament(names, None, tmp_path / "out", games=least)
    assert held.failures == {}
    read = json.loads((tmp_path / "out" / "payoffs.json").read_text())
    assert read["rankings"]["seats"] == [*roles]
    for one in read["rankings"]["members"]:
        for seat, (_, mid, _) in enumerate(one["by_seat"]):
            mine = [
                row["mean"]
                for row in read["payoffs"]
                if (row["seat"], row["member"]) == (seat, one["uid"]) and len({*row["seating"]}) > 1
            ]
            assert mid == pytest.approx(statistics.fmean(mine))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES])
def test_every_program_has_best_responses(case, model, tmp_path):
    config, roles = config_of(case, model, tmp_path)
    psro(config, tmp_path / "psro")
    member = str(tmp_path / "psro" / "member-001")
    answered = exploit(AgentQuery(member), tmp_path / "answer", Budget(updates=1, games=2 * len(roles)))
    assert [(one.seat, one.games) for one in answered.seats] == [(role, 2) for role in roles]
    assert answered.failures == {}


async def test_a_model_behind_an_api_has_its_role_in_the_games_of_payoffs(model, tmp_path):
    @asynccontextmanager
    async def serve(adapters):
        yield MockInferenceClient(lambda messages, seed: "from here")

    with paid_server() as server:
        server.text = "from there"
        roles = {"frozen__caller": server.name, "roles__Caller__policy": "caller"}
        venue = program_venue(configure(model, tmp_path, "Three", **roles), "it", "program")
        assert venue.seats == ("Hider", "Seeker")
        async with serving([Member("base", "model", "base")], 0, Progress(), serve, venue.frozen) as client:
            answers = [
                await client.complete([{"role": "user", "content": "?"}], model=one, seed=1)
                for one in ("base", "caller")
            ]
    assert [one.text for one in answers] == ["from here", "from there"]


@pytest.mark.parametrize("kind", ["apis", "adapters"])
async def test_a_member_is_not_mistaken_for_one_that_holds_another_role(kind, tmp_path):
    frozen = Frozen(**{kind: {"caller": tmp_path if kind == "adapters" else "other@http://localhost:1/v1"}})
    members = [Member("caller", "api", "mover@http://localhost:1/v1")]
    with pytest.raises(InputError, match=r"members: caller is also a name in the program's \[frozen\]"):
        async with serving(members, 0, Progress(), frozen=frozen):
            pass
