"""Whole runs of arena programs: two policies on one tiny model."""

import io
import json
import shutil

import pytest
from peft import PeftModel
from rich.console import Console
from transformers import AutoModelForCausalLM

from game_runs import metrics_of
from matrices import first_of
from program_files import write_program
from program_runs import SMALL, adapter, configure, run
from sparring.collection.rollout_log import RolloutLog
from sparring.collection.tracker import is_wall_clock
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.run.single_process import resume


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run of four updates, and what it printed."""
    path = tmp_path_factory.mktemp("finished")
    return path / "run", run(configure(model, path), path / "run")


def test_two_policies_train_two_adapters_that_plain_peft_loads(model, finished):
    path, said = finished
    for policy in ("hider", "seeker"):
        before, after = adapter(path, 0, policy), adapter(path, 4, policy)
        assert any((before[name] != after[name]).any() for name in before)
        directory = path / "checkpoints" / "step-000004" / policy
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), directory)
        assert min(p.abs().max().item() for n, p in loaded.named_parameters() if "lora_B" in n) > 0
        assert f"checkpoints/step-000004/{policy}" in said
    assert "48 started = 48 finished + 0 failed" in said
    assert "trained on: 48 answers" in said
    assert "odd letters" in said


def test_a_role_is_measured_at_a_temperature_of_its_own(model, tmp_path):
    run(configure(model, tmp_path, "Measured", roles__Seeker__test_temperature="0"), tmp_path / "run")
    assert temperatures(tmp_path / "run" / "evaluation") == {("Hider", 1.0), ("Seeker", 0.0)}
    assert temperatures(tmp_path / "run" / "rollouts") == {("Hider", 1.0), ("Seeker", 1.0)}


def temperatures(directory):
    lines = [json.loads(line) for file in directory.glob("*.jsonl") for line in file.open()]
    return {(step["role_id"], step["temperature"]) for line in lines for step in line["rollout"]["steps"]}


def test_each_policy_has_its_own_metrics_and_rating(finished):
    path, _ = finished
    last = metrics_of(path)[-1]
    assert last["learner/hider/records"] == 4
    assert last["learner/seeker/records"] == 8
    assert last["model-pool/hider/mu"] != last["model-pool/seeker/mu"]
    assert last["accounts/started"] == last["accounts/finished"] == 48
    assert -1 <= last["program/reward/Seeker"] <= 0
    assert last["inference/spelled_control_tokens"] >= 0
    state = json.loads((path / "checkpoints" / "step-000004" / "state.json").read_text())
    assert state["versions"] == {"hider": 4, "seeker": 4}


def test_episodes_without_a_verdict_fail_and_are_counted_by_their_reason(model, tmp_path):
    said = run(configure(model, tmp_path, "Disputed", learning__steps="2"), tmp_path / "run")
    last = metrics_of(tmp_path / "run")[-1]
    assert last["accounts/failed"] == last["accounts/failed JudgeError"] == 2
    assert last["accounts/retried"] == 0
    assert last["accounts/dropped"] == 4, "their children"
    assert "failed, by type of error: 2 JudgeError" in said


def test_the_log_keeps_parents_and_children(finished):
    rollouts = RolloutLog(finished[0] / "rollouts").read(2)
    assert [one.episode_type for one in rollouts[:3]] == ["hide", "seek", "seek"]
    assert {one.meta["parent_id"] for one in rollouts[1:3]} == {rollouts[0].id}
    assert {step.policy_version for one in rollouts for step in one.steps} == {1}


@pytest.mark.parametrize("kind", first_of(["Sampled", "HideAndSeek"]))
def test_a_resumed_program_equals_an_uninterrupted_one(model, tmp_path, kind):
    config = configure(model, tmp_path, kind, learning__average_decay="0.9")
    run(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000004")
    (tmp_path / "cut" / "report.html").unlink()
    resume(tmp_path / "cut", Console(file=io.StringIO()))
    for policy in ("hider", "seeker"):
        whole, cut = adapter(tmp_path / "whole", 4, policy), adapter(tmp_path / "cut", 4, policy)
        assert all((whole[name] == cut[name]).all() for name in whole)
    timeless = [
        [{k: v for k, v in line.items() if not is_wall_clock(k)} for line in metrics_of(tmp_path / name)]
        for name in ("whole", "cut")
    ]
    assert timeless[0] == timeless[1]


def test_a_program_with_one_policy_has_the_files_of_a_run_of_games(model, tmp_path):
    file = write_program(tmp_path)
    file.write_text(file.read_text().replace('policy="hider"', 'policy="default"'))
    source = (
        f'[program]\ntype = "python"\npath = "{file}:HideAndSeek"\n[program.options]\nseeker = "default"\n'
    )
    (tmp_path / "one.toml").write_text(source)
    config = load_config(str(tmp_path / "one.toml"), SMALL | {"model.name": str(model)})
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-000004" / "adapter_model.safetensors").exists()
    assert metrics_of(tmp_path / "run")[-1]["learner/records"] == 12


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        ("Nothing", {}, "program.path: .* has no Arena named 'Nothing'"),
        ("NoArena", {}, "program.path: .* has no Arena named 'NoArena'"),
        ("HideAndSeek", {"program__options__colour": "3"}, "program.options: HideAndSeek does not take them"),
        ("Bypassed", {}, "program.path: Bypassed overrides play_step, which training does not call"),
        ("Warm", {}, "temperature: role Hider samples at 0, where nothing can be learned"),
        ("HideAndSeek", {"program__options__seeker": "a b"}, "policy"),
        (
            "HideAndSeek",
            {"learning__policies": "{finder = {momentum = 0.5}}"},
            "learning.policies: .*no policy finder",
        ),
    ],
)
def test_the_error_for_a_program_that_cannot_be_built_is_one_line(model, tmp_path, kind, changes, line):
    with pytest.raises(InputError, match=line):
        run(configure(model, tmp_path, kind, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_policy_may_have_an_algorithm_and_rates_of_its_own_and_resumes_with_them(model, tmp_path):
    own = {
        "learning__warmup_steps": "0",
        "learning__learning_rate_end": "1e-5",
        "learning__policies__hider": '{algorithm = {type = "ppo", regulariser = "none", kl_weight = 0.1}}',
        "learning__policies__seeker": "{learning_rate_end = 1e-4, momentum = 0.8}",
    }
    run(configure(model, tmp_path, **own), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000004")
    resume(tmp_path / "cut", Console(file=io.StringIO()))
    for name in ("whole", "cut"):
        last = metrics_of(tmp_path / name)[-1]
        assert "learner/hider/clip_fraction" in last
        assert "learner/hider/kl_to_base" in last
        assert "learner/seeker/kl_to_base" not in last
        assert last["learner/hider/learning_rate"] == pytest.approx(1e-5)
        assert last["learner/seeker/learning_rate"] == pytest.approx(1e-4)
    for policy in ("hider", "seeker"):
        whole, cut = adapter(tmp_path / "whole", 4, policy), adapter(tmp_path / "cut", 4, policy)
        assert all((whole[name] == cut[name]).all() for name in whole)


def test_a_failed_write_is_reported_in_one_line(model, tmp_path):
    options = {"program__options": f'{{spoils = "{tmp_path / "run" / "rollouts"}"}}'}
    with pytest.raises(SparringError, match=r"cannot be written .*rollouts.* --resume") as failed:
        run(configure(model, tmp_path, "Spoiling", **options), tmp_path / "run")
    assert "\n" not in str(failed.value)


def test_a_program_with_an_empty_batch_stops_with_the_reason(model, tmp_path):
    with pytest.raises(SparringError, match="nothing to play"):
        run(configure(model, tmp_path, "Silent"), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"envs": '[{id = "kuhn_poker"}]'}, "envs: is for games"),
        ({"program.path": "program"}, "program.path: "),
        ({"program.type": "quiz"}, 'program.type: "quiz" is not a valid type'),
        ({"program.colour": "3"}, "program.colour: there is no such field"),
    ],
)
def test_settings_that_do_not_apply_to_a_program_are_rejected(tmp_path, changes, line):
    file = tmp_path / "program.toml"
    file.write_text('[program]\ntype = "python"\npath = "x.py:Y"\n')
    with pytest.raises(InputError, match=line):
        load_config(str(file), changes)
