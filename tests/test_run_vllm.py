"""A run in one process that starts vLLM; the embedded engine stands in for it. tests/with_vllm has vLLM."""

import shutil
from itertools import groupby

import pytest

import program_runs
from game_runs import FEWER_GAMES, configure, cut_back, metrics_of, resumed, run
from kill_resume import accounts_balance, differences, fingerprint
from sparring.core import InputError, SparringError
from sparring.learn.learner import Learner
from sparring.run.adapter_versions import KEPT_VERSIONS, AdapterVersions
from stand_in_vllm import StandInVLLM

VLLM = {"inference__engine": "vllm"}
OPPONENTS = {
    "population__sample_mode": "lagged",
    "population__add_every": "1",
    "learning__average_decay": "0.9",
    "evaluation__every": "0",
    "run__save_every": "2",
    "evaluation__nash_conv": "false",
} | FEWER_GAMES


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr("sparring.engine.vllm_engine.VLLMEngine", StandInVLLM)


def without_logprobs(rollouts):
    """Return rollouts without the numbers that another order of a sum rounds differently."""
    if isinstance(rollouts, dict):
        return {k: without_logprobs(v) for k, v in rollouts.items() if "logprob" not in k}
    return [without_logprobs(one) for one in rollouts] if isinstance(rollouts, list) else rollouts


def test_it_plays_and_learns_as_with_the_embedded_engine(model, tmp_path):
    """Opponents are frozen copies of the average, which evaluations play as well."""
    run(configure(model, **OPPONENTS), tmp_path / "embedded")
    run(configure(model, **OPPONENTS | VLLM), tmp_path / "vllm")
    ours, theirs = fingerprint(tmp_path / "embedded"), fingerprint(tmp_path / "vllm")
    assert accounts_balance(tmp_path / "vllm")
    assert ours["evaluations"] == theirs["evaluations"]
    assert without_logprobs(ours["rollouts"]) == without_logprobs(theirs["rollouts"])
    for with_embedded, with_vllm in zip(ours["metrics"], theirs["metrics"], strict=True):
        shared = with_vllm.keys()
        assert with_embedded.keys() - shared == {"inference/computed_tokens", "inference/forward_passes"}
        assert with_vllm == pytest.approx({name: with_embedded[name] for name in shared}, rel=1e-4, abs=1e-5)
        assert with_vllm["inference/generated_tokens"] > 0


@pytest.mark.slow  # runs with the embedded engine do so by default
def test_a_resumed_run_equals_an_uninterrupted_one(model, tmp_path):
    run(configure(model, **OPPONENTS | VLLM, learning__steps="3"), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    resumed(tmp_path / "cut")
    assert differences(fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "cut")) == []


@pytest.mark.slow  # test_cluster_going_back shows it by default
def test_a_run_that_goes_back_keeps_the_files_of_what_plays(model, tmp_path):
    """Those of later updates are still there, and more than are kept."""
    steps = str(2 + KEPT_VERSIONS + 1)
    run(configure(model, **OPPONENTS | VLLM, learning__steps=steps), tmp_path / "run")
    cut_back(tmp_path / "run", to=2)
    resumed(tmp_path / "run")
    assert accounts_balance(tmp_path / "run")
    assert len([*(tmp_path / "run" / "versions").iterdir()]) == KEPT_VERSIONS


def test_it_sleeps_while_the_learner_learns_and_is_awake_before_anything_is_asked(model, tmp_path):
    options = OPPONENTS | VLLM | {"learning__steps": "2", "inference__sleep": "1"}
    run(configure(model, **options), tmp_path / "run")
    events, turn = StandInVLLM.events, ["play", "sleep", "wake"]
    assert events[:2] == ["built to sleep: True", "start"]
    calls = [event for event in events if event in (*turn, "close")]
    in_order = [event for event, _ in groupby(calls)]  # between two answers an opponent may be published
    assert in_order == [*turn, *turn, "play", "close"]
    for version in (1, 2):
        published = events.index(f"publish versions/{version:06}")
        assert events[published - 1] == "wake"


def test_without_the_setting_it_stays_awake(model, tmp_path):
    run(configure(model, **OPPONENTS | VLLM, learning__steps="1"), tmp_path / "run")
    assert StandInVLLM.events[0] == "built to sleep: False"
    assert not {"sleep", "wake"} & set(StandInVLLM.events)


def test_a_program_with_two_policies_sleeps_too_and_old_versions_are_deleted(model, tmp_path):
    steps = KEPT_VERSIONS + 2
    options = {"learning__steps": str(steps), "inference__sleep": "1", "evaluation__every": "0"}
    config = program_runs.configure(model, tmp_path, "HideAndSeek", **options | VLLM)
    program_runs.run(config, tmp_path / "run")
    assert StandInVLLM.events.count("sleep") == StandInVLLM.events.count("wake") == steps
    policies = sorted(path.name for path in (tmp_path / "run" / "versions").iterdir())
    assert len(policies) == 2
    for policy in policies:
        kept = sorted((tmp_path / "run" / "versions" / policy).iterdir())
        assert len(kept) == KEPT_VERSIONS


def test_an_adapter_that_is_not_the_one_that_was_written_ends_the_run(model, tmp_path, monkeypatch):
    write = AdapterVersions.write

    def tampered(self, policy):
        """Put the file of version 1 in the place of version 2."""
        write(self, policy)
        if self.learners[policy].version == 2:
            place = tmp_path / "run" / "versions"
            shutil.copy(place / "000001" / "adapter_model.safetensors", place / "000002")

    monkeypatch.setattr(AdapterVersions, "write", tampered)
    with pytest.raises(
        SparringError, match=r"version 2 was not delivered: the weights in .* have hash"
    ) as caught:
        run(configure(model, **OPPONENTS | VLLM), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1]
    assert StandInVLLM.events[-1] == "close"


def test_a_damaged_opponent_ends_the_run(model, tmp_path, monkeypatch):
    publish = StandInVLLM.publish

    async def damaged(self, name, path, version, **options):
        if path is not None and path.parent.name == "population":
            shutil.copy(path.parents[1] / "versions/000001/adapter_model.safetensors", path)
        return await publish(self, name, path, version, **options)

    monkeypatch.setattr(StandInVLLM, "publish", damaged)
    with pytest.raises(SparringError, match=r"ckpt-\d version \d was not delivered"):
        run(configure(model, **OPPONENTS | VLLM), tmp_path / "run")
    assert StandInVLLM.events[-1] == "close"


def test_it_is_closed_when_an_update_fails(model, tmp_path, monkeypatch):
    def failing(self, records):
        raise SparringError("the loss is not finite")

    monkeypatch.setattr(Learner, "update", failing)
    with pytest.raises(SparringError, match="the loss is not finite"):
        run(configure(model, **OPPONENTS | VLLM), tmp_path / "run")
    assert StandInVLLM.events[-1] == "close"


def test_one_that_cannot_start_ends_the_run_in_one_line(model, tmp_path, monkeypatch):
    async def failing(self):
        raise SparringError("vLLM did not start: no memory")

    monkeypatch.setattr(StandInVLLM, "start", failing)
    with pytest.raises(SparringError, match=r"vLLM did not start: no memory\. No update is saved yet"):
        run(configure(model, **OPPONENTS | VLLM), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_that_died_is_named_as_the_reason(model, tmp_path, monkeypatch):
    async def dying(self, call):
        self.has_died = True
        raise SparringError("vLLM failed")

    monkeypatch.setattr(StandInVLLM, "answer", dying)
    with pytest.raises(SparringError, match="vLLM's process has ended"):
        run(configure(model, **OPPONENTS | VLLM), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"collection__max_staleness": "1"}, "vLLM cannot sleep while games go on"),
        ({"run__runtime": "ray"}, "vLLM sleeps in a run of one process only"),
        ({"inference__engine": "embedded"}, "has no effect"),
        ({"inference__sleep": "2"}, "must be at most 1"),
    ],
)
def test_sleep_that_is_impossible_is_refused(model, changes, problem):
    with pytest.raises(InputError, match=f"inference.sleep: .*{problem}"):
        configure(model, **VLLM | {"inference__sleep": "1"} | changes)
