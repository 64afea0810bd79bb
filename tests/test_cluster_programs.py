"""Programs on Ray: two policies on a tiny model, even while parts of the run are killed."""

import io
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from game_runs import metrics_of, quiet
from program_files import write_program
from program_leagues import BUNDLED, league_of
from program_runs import OPPONENTS, PROOFS, SMALL, adapter, configure, uids_of
from ray_faults import SPARRING, Command, Faults, alive, pid_of
from sparring.cluster.run import train
from sparring.cluster.view import ClusterSource
from sparring.collection.tracker import is_wall_clock
from sparring.commands.programs import evaluate_program
from sparring.config import load_config
from sparring.evaluation.match import Progress
from sparring.run.single_process import train as train_locally
from tiny_models import roomy_model

FAST = {"learning__average_decay": "0.5", "learning__learning_rate": "0.01"}


@pytest.fixture(scope="module")
def faults(tmp_path_factory, model, joined) -> Iterator[Faults]:
    faults = Faults(tmp_path_factory.mktemp("faults"), model, random.Random(0), address=joined)
    yield faults
    faults.end_commands()


def same(lines: list[dict[str, float]], others: list[dict[str, float]]) -> bool:
    """Return whether metrics are the same up to rounding, which depends on engines' batches."""
    return all(
        line == pytest.approx(there, rel=1e-3, abs=1e-4) for line, there in zip(lines, others, strict=True)
    )


def timeless(run: Path) -> list[dict[str, float]]:
    """Return the metrics without wall-clock times and without those of engines, which differ on Ray."""
    return [
        {k: v for k, v in line.items() if not (is_wall_clock(k) or k.startswith("inference/"))}
        for line in metrics_of(run)
    ]


def settings_of(faults: Faults) -> dict[str, str]:
    """Return the settings of these runs."""
    return SMALL | {
        "model.name": str(faults.model),
        "learning.steps": "8",
        "learning.average_decay": "0.5",
        "learning.learning_rate": "0.01",
        "run.directory": str(faults.directory),
    }


def write_configuration(faults: Faults) -> Path:
    program = write_program(faults.directory)
    file = faults.directory / "program.toml"
    file.write_text(f'[program]\ntype = "python"\npath = "{program}:HideAndSeek"\n')
    return file


def start(faults: Faults, name: str, *more: str) -> Command:
    given = {option.partition("=")[0].removeprefix("--") for option in more}
    settings = {field: value for field, value in settings_of(faults).items() if field not in given}
    options = [f"--{field}={value}" for field, value in settings.items()]
    where = [f"--address={faults.address}", "--runtime=ray", "--ray.collectors=2", f"--name={name}"]
    command = [*SPARRING, "train", str(write_configuration(faults)), *options, *where, *more]
    return faults.start(command, faults.directory / name)


@pytest.fixture(scope="module")
def whole(faults) -> Path:
    """The run in one process, where nothing disturbs it."""
    config = load_config(str(write_configuration(faults)), settings_of(faults))
    train_locally(config, faults.directory / "whole", quiet())
    return faults.directory / "whole"


def kill_actors_and_command(command: Command) -> None:
    """Kill actors of a run one after the other, then its command, after a step that is measured and kept."""
    for name in ("Collector-0", "Engine-0", "Learner", "Collector-1"):
        before = command.saved()
        if not command.wait_until(lambda before=before: command.saved() > before):
            pytest.fail(command.end())
        os.kill(pid_of(command, name), signal.SIGKILL)
    before, writers = command.saved(), [pid_of(command, name) for name in ("Learner", "Tracker")]
    assert command.wait_until(lambda: any(step > before for step in kept(command.directory)))
    command.process.kill()
    command.process.wait()
    for _ in range(1200):
        if not any(alive(pid) for pid in writers):
            return
        time.sleep(0.05)
    pytest.fail("actors outlive their command")


def kept(run: Path) -> set[int]:
    """Return the steps that have a checkpoint for users."""
    return {int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")}


def evaluated(run: Path) -> set[str]:
    return {path.name for path in (run / "evaluation").glob("*.json")}


def damage_the_last_step(run: Path, last: int) -> None:
    """Leave of the last step what a damaged and half-written one may leave."""
    (run / "learner" / f"{last:06d}" / "state.json").write_text("{")
    shutil.rmtree(run / "checkpoints" / f"step-{last:06d}", ignore_errors=True)
    shutil.rmtree(run / "state" / "tracker")
    (run / "report.html").unlink(missing_ok=True)
    for path in (run / "evaluation").glob(f"step-{last:06d}-*"):
        path.unlink()


@pytest.mark.slow  # test_cluster_seats shows it of games, and test_cluster_program_copies without Ray
def test_roles_that_meet_copies_learn_the_same_on_ray_as_in_one_process(model, tmp_path, cluster):
    given = {"lora__target_modules": "['q_proj', 'v_proj']", "run__keep_best": "smallest odd letters"}
    learning = {"learning__average_decay": "0.5", "learning__learning_rate": "0.003"}
    own = {"learning__policies__hider": '{algorithm = {type = "ppo", regulariser = "none"}, momentum = 0.5}'}
    some = OPPONENTS | given | learning | own
    here = configure(model, tmp_path, **some)
    said_here, said = io.StringIO(), io.StringIO()
    train_locally(here, tmp_path / "here", Console(file=said_here, width=100))
    spread = {"ray__engines": "2", "ray__learners": "2", "ray__collectors": "2"}
    there = configure(model, tmp_path, run__runtime="ray", ray__address=cluster, **spread, **some)
    train(there, tmp_path / "there", Console(file=said, width=100))
    for policy in ("hider", "seeker"):
        one, other = (adapter(tmp_path / name, 4, policy) for name in ("here", "there"))
        untrained = adapter(tmp_path / "there", 0, policy)
        assert any((one[name] != untrained[name]).any() for name in one)
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    bests = [sorted((tmp_path / name / "best").rglob("adapter_*")) for name in ("here", "there")]
    assert len(bests[0]) >= 4
    assert [path.parts[-3:] for path in bests[0]] == [path.parts[-3:] for path in bests[1]]
    assert [list(line) for line in timeless(tmp_path / "there")] == [
        list(line) for line in timeless(tmp_path / "here")
    ]
    last = metrics_of(tmp_path / "there")[-1]
    assert "learner/hider/clip_fraction" in last
    assert "learner/seeker/clip_fraction" not in last
    assert "inference/Engine-1/generated_tokens" in last
    assert "inference/Engine-1/spelled_control_tokens" in last
    assert "48 started = 48 finished + 0 failed" in said.getvalue()
    (note,) = [line for line in said_here.getvalue().splitlines() if line.startswith("LoRA adapts")]
    assert said.getvalue().count(note) == 1
    assert uids_of(tmp_path / "here") == uids_of(tmp_path / "there")
    names = sorted(path.name for path in (tmp_path / "there" / "evaluation").glob("*.json"))
    assert names == sorted(path.name for path in (tmp_path / "here" / "evaluation").glob("*.json"))


@pytest.mark.slow  # test_cluster_program_league shows it of the services without Ray
@pytest.mark.parametrize("kind", ["own", *BUNDLED])
def test_a_league_of_a_program_learns_the_same_on_ray_as_in_one_process(model, tmp_path, cluster, kind):
    changes = {"learning__steps": "3", "learning__average_decay": "0.5"}
    spread = {"run__runtime": "ray", "ray__address": cluster, "ray__collectors": "2"}
    here, there = (league_of(kind, model, tmp_path, **changes, **more) for more in ({}, spread))
    train_locally(here, tmp_path / "here", quiet())
    train(there, tmp_path / "there", quiet())
    for player in here.league.players:
        for step in range(4):
            one, other = (adapter(tmp_path / name, step, player) for name in ("here", "there"))
            assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one), (player, step)
    assert uids_of(tmp_path / "here") == uids_of(tmp_path / "there")
    lines = [
        [{name: one for name, one in line.items() if name.startswith("league/")} for line in metrics_of(run)]
        for run in (tmp_path / "here", tmp_path / "there")
    ]
    assert lines[0] == lines[1]
    assert lines[0][-1]


@pytest.mark.slow  # test_run_program_overlap shows it in one process, test_cluster_overlap of games
def test_a_program_plays_on_ray_while_its_policies_learn_from_a_buffer(model, tmp_path, cluster):
    changes = {
        "run__runtime": "ray",
        "ray__address": cluster,
        "collection__max_staleness": "1",
        "learning__steps": "6",
    }
    learning = {"buffer__max_size": "500", "credit__type": "rae"}
    train(configure(model, tmp_path, **FAST | OPPONENTS | changes | learning), tmp_path / "run", quiet())
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert any(line.get("overlap/staleness_1", 0.0) > 0 for line in lines)
    assert all(line.get("overlap/staleness_2", 0.0) == 0 for line in lines)
    assert lines[-1]["accounts/started"] == lines[-1]["accounts/finished"] == 72
    assert lines[-1]["accounts/steps sampled"] > 0
    measures = evaluate_program(str(tmp_path / "run"), {"Hider": "base"}, None, Progress())
    assert len(measures["odd letters"].values) == 3


@pytest.mark.slow
def test_a_run_whose_parts_are_killed_and_whose_last_step_is_damaged_learns_the_same_as_in_one_process(
    faults, whole
):
    command = start(faults, "killed")
    kill_actors_and_command(command)
    run, last = command.directory, command.saved()
    damage_the_last_step(run, last)
    resumed = faults.resume(run)
    said = resumed.end()
    assert resumed.process.returncode == 0, said
    assert "Traceback" not in said
    assert f"continuing from {last - 1:06d}" in said.replace("\n", "")
    assert same(timeless(run), timeless(whole))
    assert evaluated(run) == evaluated(whole)
    assert kept(run) == kept(whole)
    for policy in ("hider", "seeker"):
        one, other = (adapter(of, 8, policy) for of in (whole, run))
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


# By default, test_cluster_faults watches a run of games at its cluster, test_run_local ends one by SIGTERM,
# and test_cluster_program_collectors plays a program on Ray.
@pytest.mark.slow
def test_a_program_is_watched_at_its_cluster_and_saved_when_it_is_asked_to_end(faults):
    command = start(faults, "stopped", "--learning.steps=100000")
    assert command.wait_until(lambda: command.saved() > 0)
    source = ClusterSource(faults.address, command.directory.name)
    actors = {"Learner", "Engine-0", "Collector-0", "Collector-1"}
    assert command.wait_until(lambda: actors <= source.read().actors.keys())
    assert source.read().step > 0
    source.close()
    command.process.send_signal(signal.SIGTERM)
    said = command.end()
    assert command.process.returncode == 0, said
    assert "saved continue with: sparring train --resume" in " ".join(said.split())
    saved = command.saved()
    assert (command.directory / "checkpoints" / f"step-{saved:06d}").exists()
    assert len(metrics_of(command.directory)) == saved


@pytest.mark.slow  # programs on Ray are tested by default above, and proofs in one process
@pytest.mark.parametrize("preset", ["nip", "debate-proof"])
def test_the_presets_of_proofs_learn_the_same_on_ray_as_in_one_process(faults, preset):
    settings = SMALL | PROOFS | {"model.name": str(roomy_model()), "run.directory": str(faults.directory)}
    options = [f"--{field}={value}" for field, value in settings.items()]
    options += ["--runtime=ray", f"--address={faults.address}", "--ray.cpus_per_collector=0"]
    command = faults.start(
        [*SPARRING, "train", preset, f"--name={preset}", *options], faults.directory / preset
    )
    alone = faults.directory / f"{preset}-alone"
    train_locally(load_config(preset, settings), alone, quiet())
    said = command.end()
    assert command.process.returncode == 0, said
    for policy in ("prover", "verifier"):
        one, other = (adapter(run, 2, policy) for run in (alone, command.directory))
        untrained = adapter(alone, 0, policy)
        assert any((one[name] != untrained[name]).any() for name in one)
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert all(line["learner/verifier/legal_mass"] > 0 for line in metrics_of(command.directory)[1:])
    assert same(timeless(command.directory), timeless(alone))
