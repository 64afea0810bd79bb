"""Programs whose roles meet frozen versions of the policies from the pool."""

import json
import shutil

import pytest

from game_runs import cut_back, metrics_of, resumed
from matrices import first_of
from program_runs import OPPONENTS, adapter, configure, logged, run, uids_of
from sparring.collection import read_metrics
from sparring.core import InputError
from sparring.run.run_directory import RunDirectory


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run whose roles are trained in turns against copies of each other."""
    path = tmp_path_factory.mktemp("opponents")
    said = run(configure(model, path, **OPPONENTS), path / "run")
    return path / "run", said


def test_in_each_episode_one_role_is_trained_and_a_member_of_the_pool_plays_the_other(finished):
    path, _ = finished
    trained = set()
    roots = uids_of(path)
    for rollout in logged(path):
        uids = roots[rollout.id.partition(".")[0]]
        (frozen,) = rollout.agents
        assert rollout.agents[frozen].model in (uids[frozen], "base")
        assert uids[frozen].startswith(f"{frozen.lower()}-ckpt-")
        for step in rollout.steps:
            assert (step.policy == "") == (step.role_id == frozen)
            assert (step.completion_token_ids is None) == (step.role_id == frozen)
        trained |= {"Hider", "Seeker"} - {frozen}
    assert trained == {"Hider", "Seeker"}


def test_only_the_trained_role_is_learned_from(finished):
    path, _ = finished
    for line in metrics_of(path):
        hiders = line.get("learner/hider/records", 0)
        seekers = line.get("learner/seeker/records", 0)
        assert hiders + seekers / 2 == 4, "four episodes, with one hider or two seekers to learn from"


def test_copies_join_the_pool_and_are_rated_by_their_own_games(finished):
    path, _ = finished
    state = json.loads((path / "checkpoints" / "step-000004" / "state.json").read_text())
    members = {one["uid"]: one for one in state["source"]["pool"]["models"]}
    assert members.keys() >= {"hider", "seeker", "hider-ckpt-0", "seeker-ckpt-3"}
    active = [uid for uid, one in members.items() if one["active"]]
    assert len(active) == 4, "two of each policy"
    games = sum(one["games"] for one in members.values())
    assert games == 2 * 2 * 4 * 4, "both members of two meetings in four episodes of four updates"
    assert metrics_of(path)[-1]["model-pool/hider/games"] == members["hider"]["games"] > 0
    copy = RunDirectory.open(path).population / "hider-ckpt-3" / "adapter_model.safetensors"
    assert copy.exists()


def test_who_beats_whom_is_logged_after_each_update(finished):
    path, _ = finished
    lines = read_metrics(path / "standings.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    first = lines[0]["pairs"]
    assert {(one[0], one[1]) for one in first} <= {("hider", "seeker-ckpt-0"), ("seeker", "hider-ckpt-0")}
    assert sum(one[-1] for one in first) == 2 * 4, "two meetings in each of four episodes"


@pytest.mark.slow  # test_run_local resumes runs with opponents, test_run_programs those of programs
def test_a_resumed_run_meets_the_same_opponents(finished, tmp_path):
    path, _ = finished
    shutil.copytree(path, tmp_path / "run")
    cut_back(tmp_path / "run", to=2)
    resumed(tmp_path / "run")
    for policy in ("hider", "seeker"):
        once, again = adapter(path, 4, policy), adapter(tmp_path / "run", 4, policy)
        assert once.keys() == again.keys() != set()
        assert all((once[name] == again[name]).all() for name in once)
    assert uids_of(path) == uids_of(tmp_path / "run")
    alone, again = ((one / "standings.jsonl").read_bytes() for one in (path, tmp_path / "run"))
    assert alone == again


def test_episodes_of_a_group_have_the_same_opponents(model, tmp_path):
    config = configure(model, tmp_path, "Grouped", **OPPONENTS | {"learning__steps": "2"})
    run(config, tmp_path / "run")
    seen = {}
    for rollout in logged(tmp_path / "run"):
        if "uids" in rollout.meta:
            key = (rollout.meta["step"], rollout.meta["group"])
            seen.setdefault(key, set()).add(json.dumps(rollout.meta["uids"]))
    assert len(seen) == 4
    assert all(len(uids) == 1 for uids in seen.values())


def test_roles_that_are_not_configured_always_train(model, tmp_path):
    roles = {"population__roles": "['Seeker']", "learning__steps": "1"}
    run(configure(model, tmp_path, **OPPONENTS | roles), tmp_path / "run")
    (line,) = metrics_of(tmp_path / "run")
    assert (line["learner/hider/records"], line["learner/seeker/records"]) == (4, 8)


def test_every_role_is_trained_in_a_share_of_the_groups(model, tmp_path):
    run(configure(model, tmp_path, **OPPONENTS, population__mirror_share="0.5"), tmp_path / "run")
    trained = {}
    for one in logged(tmp_path / "run"):
        policies = trained.setdefault(one.id.partition(".")[0], set())
        policies |= {step.policy for step in one.steps} - {""}
    met = uids_of(tmp_path / "run").keys()
    assert {len(trained[name]) for name in met} == {1}
    assert {len(trained[name]) for name in trained.keys() - met} == {2}


@pytest.mark.parametrize("opponent", first_of(["teacher", "base"]))
def test_the_base_model_or_a_frozen_adapter_can_be_the_only_opponent(model, finished, tmp_path, opponent):
    fixed = {"population__sample_mode": "fixed", "population__fixed_opponents": f"['{opponent}']"}
    if opponent == "teacher":
        fixed["frozen__teacher"] = str(finished[0] / "checkpoints" / "step-000004" / "seeker")
    config = configure(model, tmp_path, **fixed, learning__steps="1", tracking__games_logged="9")
    run(config, tmp_path / "run")
    frozen = [agent.model for rollout in logged(tmp_path / "run") for agent in rollout.agents.values()]
    assert set(frozen) == {opponent}


@pytest.mark.slow  # test_population_payoff_games has the mixtures
def test_the_mixture_of_each_role_is_known_from_games_between_the_copies_of_both(model, tmp_path):
    mode = {"population__sample_mode": "meta-nash", "population__payoff_games": "2"}
    changes = OPPONENTS | mode | {"population__add_every": "2", "population__fixed_opponents": "['base']"}
    said = run(configure(model, tmp_path, **changes | {"learning__steps": "3"}), tmp_path / "run")
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-000003" / "state.json").read_text())
    payoffs = state["source"]["pool"]["payoffs"]
    assert payoffs["waiting"] == [], "they were played before the next update"
    met = {tuple(one["seating"]): one["games"] for one in payoffs["table"]["payoffs"]}
    fixed = {(h, s) for h in ("hider-ckpt-0", "fixed-base") for s in ("seeker-ckpt-0", "fixed-base")}
    assert met.keys() >= fixed | {("hider-ckpt-2", "seeker-ckpt-0"), ("hider-ckpt-0", "seeker-ckpt-2")}
    assert all(seating[0].startswith(("hider", "fixed")) for seating in met)
    assert all(seating[1].startswith(("seeker", "fixed")) for seating in met)
    assert {*met.values()} == {2}
    assert f"games between frozen members, for their payoffs: {2 * len(met)} finished" in said
    assert said.count("warning: what Hider and Seeker earn together varies") == 1


@pytest.mark.slow
def test_a_resumed_run_knows_the_same_mixtures(model, tmp_path):
    mode = {"population__sample_mode": "meta-nash", "population__payoff_games": "2"}
    run(configure(model, tmp_path, **OPPONENTS | mode), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    cut_back(tmp_path / "again", to=2)
    resumed(tmp_path / "again")
    assert uids_of(tmp_path / "run") == uids_of(tmp_path / "again")
    both = [(one / "standings.jsonl").read_bytes() for one in (tmp_path / "run", tmp_path / "again")]
    assert both[0] == both[1]


@pytest.mark.slow
def test_with_one_policy_in_both_roles_copies_meet_in_both_orders(model, tmp_path):
    mode = {"population__sample_mode": "meta-nash", "population__payoff_games": "2", "learning__steps": "2"}
    changes = OPPONENTS | mode | {"roles__Seeker__policy": "hider"}
    run(configure(model, tmp_path, **changes), tmp_path / "run")
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-000002" / "state.json").read_text())
    met = {tuple(one["seating"]) for one in state["source"]["pool"]["payoffs"]["table"]["payoffs"]}
    assert met == {("hider-ckpt-0", "hider-ckpt-1"), ("hider-ckpt-1", "hider-ckpt-0")}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"population__roles": "['Finder']"}, "population.roles: the program has no role Finder"),
        (
            {"population__roles": "['Hider', 'Seeker']", "roles__Seeker__policy": "base"},
            "population.roles: Seeker plays base, which is not trained. Name roles that are trained",
        ),
        ({"population__fixed_opponents": "['random']"}, "random cannot play a role of a program"),
    ],
)
def test_impossible_opponents_are_one_line(model, tmp_path, changes, line):
    with pytest.raises(InputError, match=line):
        run(configure(model, tmp_path, **changes), tmp_path / "run")
