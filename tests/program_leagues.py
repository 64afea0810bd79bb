"""Leagues of programs with a tiny model."""

from pathlib import Path

from game_runs import resumed
from kill_resume import differences, fingerprint
from league_runs import learner_of, same
from program_runs import PROOFS, SMALL
from program_runs import configure as configure_own
from sparring.config import Config, load_config

SEEKERS = """{
    hider = {role = "main"},
    seeker = {role = "main"},
    attacker = {role = "main_exploiter", seats = ["Hider"]},
    finder = {role = "league_exploiter"}
}""".replace("\n", "")
SPEAKERS = '{default = {role = "main"}, attacker = {role = "main_exploiter"}}'
ASKERS = '{proposer = {role = "main"}, solver = {role = "main"}, finder = {role = "league_exploiter"}}'
PROVERS = """{
    prover = {role = "main"},
    verifier = {role = "main"},
    liar = {role = "main_exploiter", seats = ["prover"]}
}""".replace("\n", "")

LEAGUE = {
    "league.snapshot_updates": "2",
    "learning.steps": "5",
    "learning.learning_rate": "0.003",
    "population.add_every": "2",
    "population.max_active_lora": "2",
    "evaluation.every": "0",
    "run.save_every": "1",
    "run.keep_checkpoints": "8",
    "tracking.games_logged": "1000",
}
"""Exploiters are frozen after updates 2 and 4."""

BUNDLED = {
    "debate": {
        "league.players": SPEAKERS,
        "program.topics": '["Zoos", "Cars"]',
        "program.batch_size": "4",
        "program.debates_per_topic": "2",
        "program.num_rounds": "1",
        "program.evaluation_debates": "1",
        "program.evaluation_topics": '["Books"]',
    },
    "proposer-solver": {
        "league.players": ASKERS,
        "program.batch_size": "8",
        "program.proposals_per_prompt": "2",
        "program.solver_rollouts": "2",
        "program.examples": "2",
        "program.evaluation_proposals": "1",
    },
    "nip": PROOFS | {"league.players": PROVERS},
}
"""Settings of the bundled programs that train two roles, by preset."""


def league_of(kind: str, model: Path, directory: Path, **changes: str) -> Config:
    """Return the configuration of a league of a bundled program, or of a user's ``own``."""
    if kind == "own":
        some = {name.replace(".", "__"): one for name, one in LEAGUE.items()}
        return configure_own(model, directory, **{"league__players": SEEKERS} | some | changes)
    more = {name.replace("__", "."): one for name, one in changes.items()}
    given = SMALL | BUNDLED[kind] | LEAGUE | {"model.name": str(model)} | more
    return load_config(kind, given)


def resume_and_compare(path: Path, whole: Path) -> None:
    """Continue a run that was killed; it must end as the whole one."""
    assert not (path / "report.html").exists()
    resumed(path)
    assert differences(fingerprint(whole), fingerprint(path)) == []
    assert (whole / "standings.jsonl").read_bytes() == (path / "standings.jsonl").read_bytes()
    last = max((whole / "checkpoints").iterdir())
    for file in last.glob("*/learner.safetensors"):
        step = int(last.name.removeprefix("step-"))
        once, again = (learner_of(one, step, file.parent.name) for one in (whole, path))
        assert once.keys() == again.keys()
        assert same(once, again)
