"""Roles that the configuration changes, freezes or starts from an adapter of an earlier run."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from game_runs import cut_back, metrics_of, resumed
from program_runs import adapter, configure, run, steps_of
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, MANIFEST_FILE

SHOWN = {"tracking__games_logged": "100", "learning__steps": "2"}


@pytest.fixture(scope="module")
def earlier(model, tmp_path_factory):
    """A finished run."""
    path = tmp_path_factory.mktemp("earlier")
    run(configure(model, path, learning__learning_rate="0.02"), path / "run")
    return path / "run"


def test_roles_have_their_own_temperature_limit_and_stop_strings(model, tmp_path):
    roles = {
        "roles__Hider__temperature": "0.5",
        "roles__Hider__max_tokens": "2",
        "roles__Seeker__stop": "['e', 'a']",
        "roles__Seeker__max_tokens": "16",
    }
    run(configure(model, tmp_path, **roles, **SHOWN), tmp_path / "run")
    hider, seeker = steps_of(tmp_path / "run", "Hider"), steps_of(tmp_path / "run", "Seeker")
    assert {step.temperature for step in hider} == {0.5}
    assert {step.temperature for step in seeker} == {1.0}
    assert max(len(step.completion_token_ids) for step in hider) == 2
    assert max(len(step.completion_token_ids) for step in seeker) > 4
    assert not any("e" in step.completion_text or "a" in step.completion_text for step in seeker)
    mismatches = [line["learner/hider/mismatch"] for line in metrics_of(tmp_path / "run")]
    assert max(mismatches) < 1e-4, "the learner divides by the role's temperature"


def test_a_role_of_the_base_model_plays_and_is_not_trained(model, tmp_path):
    run(configure(model, tmp_path, roles__Seeker__policy="base", **SHOWN), tmp_path / "run")
    assert {step.policy for step in steps_of(tmp_path / "run", "Seeker")} == {""}
    assert metrics_of(tmp_path / "run")[-1]["learner/records"] == 4
    assert not (tmp_path / "run" / "checkpoints" / "step-000002" / "seeker").exists()


def test_a_frozen_adapter_of_an_earlier_run_plays_a_role(model, earlier, tmp_path):
    frozen = {"frozen__teacher": f"{earlier / 'checkpoints' / 'step-000004' / 'seeker'}"}
    changes = frozen | {"roles__Seeker__policy": "teacher"} | SHOWN
    run(configure(model, tmp_path, **changes), tmp_path / "run")
    assert {step.policy for step in steps_of(tmp_path / "run", "Seeker")} == {""}
    others = configure(model, tmp_path, roles__Seeker__policy="base", **SHOWN)
    run(others, tmp_path / "other")
    texts = [
        [step.completion_text for step in steps_of(tmp_path / name, "Seeker")] for name in ("run", "other")
    ]
    assert texts[0] != texts[1], "the teacher answers, and not the base model"


def test_a_policy_starts_from_an_adapter_of_an_earlier_run(model, earlier, tmp_path):
    run(configure(model, tmp_path, start__hider=f"{earlier}@2", **SHOWN), tmp_path / "run")
    given, started = adapter(earlier, 2, "hider"), adapter(tmp_path / "run", 0, "hider")
    assert all((given[name] == started[name]).all() for name in given)
    untrained = adapter(earlier, 0, "seeker")
    assert all((untrained[name] == adapter(tmp_path / "run", 0, "seeker")[name]).all() for name in untrained)
    assert any((started[name] != adapter(tmp_path / "run", 2, "hider")[name]).any() for name in started)
    assert load_file(tmp_path / "run" / "checkpoints" / "step-000000" / "hider" / "adapter_model.safetensors")


def test_a_run_is_resumed_with_the_adapters_it_started_with(model, earlier, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(earlier, source)
    given = {
        "start__hider": f"{source}",
        "frozen__teacher": f"{source / 'checkpoints' / 'step-000004' / 'seeker'}",
        "roles__Seeker__policy": "teacher",
        "tracking__games_logged": "100",
    }
    run(configure(model, tmp_path, **given), tmp_path / "whole")
    started = adapter(tmp_path / "whole", 0, "hider")
    kept = load_file(tmp_path / "whole" / "given" / "hider" / "adapter_model.safetensors")
    assert all((started[name] == kept[name]).all() for name in started)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    shutil.rmtree(source)
    resumed(tmp_path / "cut")
    for role in ("Hider", "Seeker"):
        texts = [
            [step.completion_text for step in steps_of(tmp_path / name, role)] for name in ("whole", "cut")
        ]
        assert texts[0] == texts[1]


def test_a_run_is_resumed_with_the_teacher_it_started_with_though_there_is_a_newer_one(
    model,
    earlier,
    tmp_path,
):
    source = tmp_path / "source"
    shutil.copytree(earlier, source)
    for name in ("step-000002", "step-000004"):
        shutil.rmtree(source / "checkpoints" / name)
    policy = {
        "frozen__seeker": f"{source}",
        "roles__Seeker__policy": "seeker",
        "tracking__games_logged": "100",
    }
    run(configure(model, tmp_path, **policy), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    shutil.copytree(earlier / "checkpoints", source / "checkpoints", dirs_exist_ok=True)
    resumed(tmp_path / "cut")
    answers = [
        [step.completion_text for step in steps_of(tmp_path / name, "Seeker")] for name in ("whole", "cut")
    ]
    assert answers[0] == answers[1]


def test_the_error_for_an_adapter_of_another_shape_names_its_entry(model, earlier, tmp_path):
    config = configure(model, tmp_path, start__hider=f"{earlier}@2", lora__rank="4")
    with pytest.raises(InputError, match=rf"start\.hider: {earlier}/.*its rank is 2, the run's 4"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fault", ["cut weights", "another scale"])
def test_the_error_for_an_adapter_that_cannot_be_loaded_names_the_place_that_was_given(
    fault,
    model,
    earlier,
    tmp_path,
):
    given = Path(shutil.copytree(earlier / "checkpoints" / "step-000002" / "hider", tmp_path / "given"))
    (given / MANIFEST_FILE).unlink()  # as others write adapters
    if fault == "cut weights":
        os.truncate(given / ADAPTER_FILE, 100)
    else:
        config = json.loads((given / ADAPTER_CONFIG).read_text())
        (given / ADAPTER_CONFIG).write_text(json.dumps(config | {"use_rslora": True}))
    with pytest.raises(InputError) as caught:
        run(configure(model, tmp_path, start__hider=str(given)), tmp_path / "run")
    assert caught.value.field == "start.hider"
    assert caught.value.problem.startswith(str(given))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"roles__Finder__max_tokens": "3"}, "roles: the program has no role Finder"),
        ({"roles__Hider__temperature": "0"}, "role Hider samples at 0, where nothing can be learned"),
        ({"start__finder": "/nowhere"}, "start: there is no policy finder. There are: hider, seeker"),
        ({"start__hider": "/nowhere"}, "start.hider: /nowhere is neither an adapter nor a run"),
        ({"roles__Hider__policy": "base", "roles__Seeker__policy": "base"}, "roles: no role trains a policy"),
    ],
)
def test_impossible_roles_are_one_line(model, tmp_path, changes, line):
    with pytest.raises(InputError, match=line):
        run(configure(model, tmp_path, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
