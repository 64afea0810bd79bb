"""Whole runs in one process, with a tiny model and real games."""

import asyncio
import io
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from peft import PeftModel
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from file_limits import files_no_longer_than
from game_runs import FEWER_GAMES, MAGNET, SMALL, configure, cut_back, metrics_of, resumed, run
from kill_resume import accounts_balance, differences, fingerprint
from matrices import first_of
from sparring.collection import BatchLog
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.manifest import seal
from sparring.learn.learner import Learner
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import build_trainer, resume, train


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run of four updates, and what it printed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    return path, run(configure(model, evaluation__nash_conv="true"), path)


@pytest.fixture
def copied(finished: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def test_a_run_writes_all_promised_files_and_figures(finished):
    path, said = finished
    assert [line["step"] for line in metrics_of(path)] == [1, 2, 3, 4]
    assert accounts_balance(path)
    for name in ("config.toml", "report.html", "rollouts/step-000001.jsonl", "checkpoints/step-000004"):
        assert (path / name).exists()
    evaluated = {file.name for file in (path / "evaluation").iterdir()}
    assert "step-000000-kuhn_poker-random.json" in evaluated
    assert "step-000004-kuhn_poker-nash-conv.json" in evaluated
    for promised in ("Before", "After", "adapter:", "report:", "next:", "32 started = 32 finished"):
        assert promised in said


def test_the_adapter_loads_in_plain_peft(model, finished):
    base = AutoModelForCausalLM.from_pretrained(model)
    loaded = PeftModel.from_pretrained(base, finished[0] / "checkpoints" / "step-000004")
    moved = [p.abs().max().item() for name, p in loaded.named_parameters() if "lora_B" in name]
    assert min(moved) > 0


ALL_ACTIONS = {"learning__algorithm": '{type = "all_actions"}'}
TREE = {
    "learning__algorithm": '{type = "all_actions", values = "tree"}',
    "envs__0__explore": "0.5",
    "inference__max_tokens": "6",
}
SEVERAL_STEPS = {
    "learning__algorithm": '{type = "ppo", regulariser = "uniform"}',
    "learning__epochs": "2",
    "learning__minibatches": "2",
}
CRITIC = {"learning__algorithm": '{type = "a2c", regulariser = "uniform"}', "learning__critic": "{}"}


SEVERAL_ANSWERS = {
    "envs": f'[{{id = "kuhn_poker", answers_per_turn = 2}}, {{id = "tic_tac_toe", answers_per_turn = 2, '
    f'template = "{Path(__file__).with_name("lenient_templates.py")}:cells"}}]',
    "rewards__sampling": '[{type = "normalize_rewards_by_turn", z_score = true}]',
    "collection__curriculum": "true",
    "learning__algorithm": '{type = "reinforce"}',
}


RESUMED = [
    ("meta-nash", {"population__payoff_games": "2", "population__max_active_lora": "3"} | CRITIC),
    ("mirror", SEVERAL_ANSWERS),
    pytest.param("lagged", MAGNET, marks=pytest.mark.slow),
    pytest.param("historical", {"population__mirror_share": "0.5"} | SEVERAL_STEPS, marks=pytest.mark.slow),
    pytest.param("mirror", {}, marks=pytest.mark.slow),
    pytest.param("mirror", TREE, marks=pytest.mark.slow),
    pytest.param("pfsp", ALL_ACTIONS, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mode", "learning"), RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one(model, tmp_path, mode, learning):
    config = configure(
        model,
        **learning,
        population__sample_mode=mode,
        population__add_every="1",
        learning__steps="3",
        learning__average_decay="0.9",
        evaluation__every="0",
        run__save_every="2",
        **FEWER_GAMES,
    )
    run(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    resume(tmp_path / "cut", Console(file=io.StringIO()))
    assert metrics_of(tmp_path / "whole")[-1]["accounts/failed"] == 0
    assert accounts_balance(tmp_path / "cut")
    assert differences(fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "cut")) == []


def copies_of(path: Path) -> list[int]:
    """Return the updates of which a frozen copy is on disk."""
    return sorted(int(copy.name.removeprefix("ckpt-")) for copy in (path / "population").glob("ckpt-*"))


@pytest.mark.parametrize("mode", first_of(["random", "ts-dist"]))
def test_copies_that_cannot_be_sampled_again_are_deleted_and_every_checkpoint_can_be_resumed(
    model, tmp_path, mode
):
    config = configure(
        model,
        population__sample_mode=mode,
        population__add_every="1",
        population__max_active_lora="2",
        learning__steps="6",
        evaluation__every="0",
        run__save_every="2",
        run__keep_checkpoints="2",
        **FEWER_GAMES,
    )
    run(config, tmp_path / "whole")
    kept = copies_of(tmp_path / "whole")
    assert set(range(4, 7)) <= set(kept), "update 4 can be resumed, so all later copies are needed"
    assert len(kept) <= 3 + 2
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=4)
    resume(tmp_path / "cut", Console(file=io.StringIO()))
    assert differences(fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "cut")) == []


@pytest.mark.parametrize("later", [-1, 1])
def test_a_run_of_another_version_is_rejected_in_one_line(copied, tmp_path, later):
    """None of its files are changed."""
    (copied / "report.html").unlink()
    for saved in (copied / "checkpoints").glob("step-*/state.json"):
        state = json.loads(saved.read_text())
        saved.write_text(json.dumps(state | {"format": state["format"] + later}))
        seal(saved.parent)
    before = metrics_of(copied), sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="step-000004 was saved by another version of sparring") as caught:
        resume(copied, Console(file=io.StringIO()))
    assert "\n" not in str(caught.value)
    assert (metrics_of(copied), sorted(tmp_path.rglob("*"))) == before


def test_matches_of_the_averaged_policy_count_for_the_rating_of_the_average(finished):
    games = {
        name.split("/")[1]: value
        for line in metrics_of(finished[0])
        for name, value in line.items()
        if name.startswith("model-pool/") and name.endswith("/games")
    }
    assert games["average"] == games["fixed-random"] > 0
    assert games["default"] == 32, "the games of self-play"


def test_concurrency_does_not_change_the_games(model, finished, tmp_path):
    run(configure(model, collection__concurrency="2"), tmp_path / "two")
    two, many = fingerprint(tmp_path / "two"), fingerprint(finished[0])
    texts = [
        [
            [step["completion"] for line in lines for step in line["rollout"]["steps"]]
            for lines in part.values()
        ]
        for part in (two["rollouts"], many["rollouts"])
    ]
    assert texts[0] == texts[1]


def test_overlap_never_trains_on_steps_that_are_too_old(model, tmp_path):
    config = configure(
        model,
        collection__max_staleness="1",
        collection__concurrency="6",
        buffer__batch_size="6",
    )
    run(config, tmp_path / "run")
    for number in range(1, 5):
        versions = [line["policy_version"] for line in BatchLog(tmp_path / "run" / "batches").read(number)]
        assert versions
        assert all(number - 2 <= version <= number - 1 for version in versions)
    last = metrics_of(tmp_path / "run")[-1]
    assert last["accounts/started"] >= last["accounts/finished"] + last["accounts/failed"]


@pytest.mark.parametrize("mode", first_of(["meta-nash", "lagged"]))
def test_games_in_flight_that_finish_before_a_copy_is_frozen_are_logged_with_the_others(
    model, tmp_path, mode
):
    config = configure(
        model,
        collection__max_staleness="1",
        collection__concurrency="6",
        population__sample_mode=mode,
        population__add_every="2",
        tracking__games_logged="1000",
    )
    run(config, tmp_path / "run")
    accounts = metrics_of(tmp_path / "run")[-1]
    logged = [rollout.id for _, rollout in RolloutLog(tmp_path / "run" / "rollouts")]
    # ckpt-0 and ckpt-2 play after update 2. After update 4, the last, there is nobody to draw for.
    assert accounts["accounts/payoff_finished"] == (64 if mode == "meta-nash" else 0)
    assert len(set(logged)) == len(logged) == accounts["accounts/finished"] == accounts["accounts/started"]


async def test_games_in_flight_that_fail_before_a_copy_is_frozen_are_logged_and_stop_the_run(
    model, tmp_path, monkeypatch
):
    calls = []
    dead = asyncio.Event()

    async def dying(*args, **options):
        calls.append(args)
        if len(calls) <= 24:
            return await complete(*args, **options)
        await dead.wait()
        raise ConnectionError("the line went dead")

    config = configure(
        model,
        collection__max_staleness="1",
        collection__concurrency="64",
        population__sample_mode="lagged",
        population__add_every="1",
    )
    console = Console(file=io.StringIO())
    started = build_trainer(config, RunDirectory.create(tmp_path / "run"), console)
    engine, source = started.source.serving.engine, started.source
    complete = engine.complete
    monkeypatch.setattr(engine, "complete", dying)
    saved = await started.learners.saved()
    await source.begin(saved, {})
    await source.publish(saved)
    with RunProgress(console, 1, "games", None) as progress:
        await source.play(saved, progress)
    dead.set()
    with pytest.raises(SparringError, match=r"games failed; the last: .*the line went dead"):
        await source.publish(replace(saved, step=1))
    started.directory.unlock()
    log = RolloutLog(tmp_path / "run" / "rollouts")
    failed = [rollout for rollout in log.read(1) if rollout.error is not None]
    assert len(failed) >= 40


async def test_overlapping_games_that_all_fail_are_logged_and_stop_the_run_with_their_reason(
    model, tmp_path, monkeypatch
):
    async def dead(*args, **options):
        raise ConnectionError("the line went dead")

    config = configure(
        model,
        buffer__batch_size="8",
        collection__max_staleness="1",
        collection__concurrency="1",
        collection__retries="0",
    )
    console = Console(file=io.StringIO())
    started = build_trainer(config, RunDirectory.create(tmp_path / "run"), console)
    monkeypatch.setattr(started.source.serving.engine, "complete", dead)
    saved = await started.learners.saved()
    await started.source.begin(saved, {})
    await started.source.publish(saved)
    with (
        RunProgress(console, 1, "games", None) as progress,
        pytest.raises(SparringError, match=r"(\d+) of \1 games failed; the last: .*the line went dead"),
    ):
        await started.source.play(saved, progress)
    started.directory.unlock()
    assert len(RolloutLog(tmp_path / "run" / "rollouts").read(1)) > 100


@pytest.mark.parametrize(
    ("env_id", "players"), [("GuessTheNumber-v0-train", 1), ("ThreePlayerGOPS-v0-train", 3)]
)
def test_games_with_one_or_three_players_can_be_trained(model, tmp_path, env_id, players):
    config = configure(
        model,
        envs__0__id=env_id,
        envs__0__num_players=str(players),
        evaluation__nash_conv="false",
        evaluation__opponents="[]",
        learning__steps="1",
    )
    run(config, tmp_path / "run")
    assert metrics_of(tmp_path / "run")[-1]["accounts/finished"] == 8


@pytest.mark.parametrize(
    "env_id", first_of(["LiarsDice-v0-small-train", "IteratedPrisonersDilemma-v0-train"])
)
def test_an_environment_that_does_not_list_its_legal_moves_trains_with_the_defaults(model, tmp_path, env_id):
    (tmp_path / "mine.toml").write_text(f'[[envs]]\nid = "{env_id}"\n')
    small = {name: value for name, value in SMALL.items() if name != "evaluation.opponents"}
    small |= {"model.name": str(model), "learning.steps": "1", "collection.games_per_step": "2"}
    run(load_config(str(tmp_path / "mine.toml"), small), tmp_path / "run")
    evaluated = {path.name for path in (tmp_path / "run" / "evaluation").glob("*.json")}
    assert f"step-000001-{env_id}-base.json" in evaluated


def test_a_failed_resume_deletes_nothing(model, copied, tmp_path):
    shutil.rmtree(copied / "checkpoints")
    (copied / "checkpoints").mkdir()
    config = copied / "config.toml"
    config.write_text(config.read_text().replace(str(model), str(tmp_path / "gone")))
    with pytest.raises(InputError, match="is not a directory"):
        resume(copied, Console(file=io.StringIO()))
    assert (copied / "metrics.jsonl").exists()


def test_a_resume_with_other_transforms_is_rejected_and_deletes_nothing(copied):
    (copied / "report.html").unlink()
    config = copied / "config.toml"
    config.write_text(re.sub(r"sampling = \[[^]]*\]", "sampling = []", config.read_text()))
    before = contents(copied)
    with pytest.raises(InputError, match=r"rewards\.sampling.* in config\.toml, but the run"):
        resume(copied, Console(file=io.StringIO()))
    after = contents(copied)
    assert {path for path in before if after.get(path) != before[path]} <= {".epoch"}


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_run_whose_model_cannot_be_loaded_does_not_occupy_its_name(tmp_path):
    (tmp_path / "other").mkdir()
    config = configure(tmp_path / "gone")
    for path in (tmp_path / "run", tmp_path / "other"):
        with pytest.raises(InputError, match="is not a directory"):
            run(config, path)
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "other").exists()


def test_a_resume_deletes_everything_written_after_its_checkpoint(copied):
    cut_back(copied, to=2)
    for kind in ("rollouts", "batches", "evaluation"):
        for path in list((copied / kind).glob("*-000004*")):
            shutil.copy(path, path.with_name(path.name.replace("-000004", "-000009")))
    assert "continuing from update 2 of 4" in resumed(copied)
    for kind in ("rollouts", "batches", "evaluation"):
        names = [path.name for path in (copied / kind).iterdir()]
        assert any("-000004" in name for name in names)
        assert [name for name in names if "-000009" in name] == []
    assert [line["step"] for line in metrics_of(copied)] == [1, 2, 3, 4]


def test_a_run_is_not_made_shorter_by_hand(copied):
    cut_back(copied, to=2)
    config = copied / "config.toml"
    config.write_text(config.read_text().replace("\nsteps = 4\n", "\nsteps = 3\n"))
    with pytest.raises(InputError, match="is 3, but the run has 4 updates"):
        resume(copied, Console(file=io.StringIO()))


def test_the_newest_checkpoints_are_kept_and_a_resumed_run_ends_with_the_same_accounts(model, tmp_path):
    config = configure(model, run__keep_checkpoints="2", evaluation__every="0")
    said = run(config, tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").saved_steps() == [2, 4]
    cut_back(tmp_path / "run", to=2)
    again = resumed(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").saved_steps() == [2, 4]
    accounts = re.findall(r"^(?:trained on:|games: \d+ started|answers:).*", said, flags=re.M)
    assert len(accounts) == 3
    assert [line for line in accounts if line not in again] == []


class InterruptedAt(io.StringIO):
    """A file that sends this process a signal whenever one of these texts is written."""

    def __init__(self, *texts: str, asked_by: signal.Signals = signal.SIGINT) -> None:
        super().__init__()
        self.texts = texts
        self.asked_by = asked_by

    def write(self, written: str) -> int:
        if any(text in written for text in self.texts):
            os.kill(os.getpid(), self.asked_by)
        return super().write(written)


@pytest.mark.parametrize("asked_by", first_of([signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_run_finishes_its_update_and_continues_as_if_uninterrupted(
    model, finished, tmp_path, asked_by
):
    text = InterruptedAt("update    1/", asked_by=asked_by)
    train(configure(model, run__save_every="4"), tmp_path / "run", Console(file=text, width=100))
    said = " ".join(text.getvalue().split())
    assert said.count("finishing this update, then saving; press Ctrl-C again to stop at once") == 1
    (saved,) = [step for step in RunDirectory.open(tmp_path / "run").saved_steps() if step]
    assert f"stopped after update {saved} of 4; saved" in said
    assert "look at it with: sparring report /" in said
    assert said.count("run directory: /") == 1
    assert 1 <= saved < 4
    resumed(tmp_path / "run")
    once, again = (
        load_file(path / "checkpoints" / "step-000004" / "adapter_model.safetensors")
        for path in (finished[0], tmp_path / "run")
    )
    assert once.keys() == again.keys() != set()
    assert all((once[name] == again[name]).all() for name in once)


def test_a_second_interrupt_stops_at_once(model, tmp_path):
    text = InterruptedAt("update    1/", "finishing this update")
    with pytest.raises(KeyboardInterrupt):
        train(configure(model, run__save_every="4"), tmp_path / "run", Console(file=text, width=100))
    assert RunDirectory.open(tmp_path / "run").saved_steps() == [0]


def test_a_run_in_use_is_rejected(copied):
    holder = RunDirectory.open(copied)
    holder.lock()
    with pytest.raises(InputError, match="in use"):
        resume(copied, Console(file=io.StringIO()))
    holder.unlock()


def test_the_lock_is_private_to_its_owner_and_not_executable(tmp_path):
    RunDirectory.create(tmp_path / "run").unlock()
    assert (tmp_path / "run" / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_reported_in_one_line_and_the_run_can_continue(copied):
    cut_back(copied, to=2)
    with (
        files_no_longer_than(20_000),
        pytest.raises(SparringError, match=r"cannot be written .* sparring train --resume"),
    ):
        resume(copied, Console(file=io.StringIO()))
    resume(copied, Console(file=io.StringIO()))
    assert (copied / "report.html").exists()


def test_a_run_that_fails_before_its_first_checkpoint_does_not_occupy_its_name(model, tmp_path):
    with (
        files_no_longer_than(8_000),
        pytest.raises(SparringError, match=r"cannot be written .*: free the disk") as raised,
    ):
        run(configure(model), tmp_path / "disk")
    assert "--resume" not in str(raised.value)
    with pytest.raises(SparringError, match=r"exceed the context of 100.*, so nothing is kept$"):
        run(
            configure(model, inference__max_context="100", evaluation__nash_conv="true"), tmp_path / "context"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["games.shutdown", "standings_log.close"])
async def test_no_calls_are_sent_after_a_run_that_could_not_end_play_or_close_a_file(
    model, tmp_path, monkeypatch, failing
):
    closed = []

    def fail():
        raise OSError("the disk is gone")

    async def close():
        closed.append(True)

    started = build_trainer(
        configure(model), RunDirectory.create(tmp_path / "run"), Console(file=io.StringIO())
    )
    part, method = failing.split(".")
    monkeypatch.setattr(getattr(started.source, part), method, fail)
    monkeypatch.setattr(started.source.serving, "close", close)
    with pytest.raises(OSError, match="the disk is gone"):
        await started.source.shutdown()
    started.directory.unlock()
    assert closed == [True]


def test_a_run_that_fails_after_its_first_checkpoint_keeps_it_and_says_how_to_continue(model, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(SparringError, match="engine and learner disagree") as raised:
        run(configure(model, learning__max_mismatch="1e-9"), path)
    assert str(raised.value).endswith(
        f". No update is saved yet; continue with: sparring train --resume {path}"
    )
    assert RunDirectory.open(path).saved_steps() == [0]


def test_a_note_on_the_model_is_printed_once_also_if_an_update_adds_it(tmp_path, model, monkeypatch):
    first_update = Learner.update

    def update(self, records):
        if self.version == 0:
            self.policy.use_runs("a kernel too many")
        return first_update(self, records)

    monkeypatch.setattr(Learner, "update", update)
    console = Console(file=io.StringIO(), width=200)
    config = configure(model, learning__steps="2", evaluation__every="0", **FEWER_GAMES)
    train(config, tmp_path / "run", console)
    assert console.file.getvalue().count("a kernel too many") == 1


def test_games_that_end_in_their_random_opening_count_and_teach_nothing(model, tmp_path):
    changes = {"envs__0__random_opening": "3", "evaluation__nash_conv": "false", "learning__steps": "2"}
    run(configure(model, tracking__games_logged="8", **changes), tmp_path / "run")
    games = [rollout for _, rollout in RolloutLog(tmp_path / "run" / "rollouts")]
    assert len(games) == 2 * 8
    without_steps = [game for game in games if not game.steps]
    assert 0 < len(without_steps) < len(games)
