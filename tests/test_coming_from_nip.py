"""What nip's trainers do, under nip's names (specified_names.toml)."""

import asyncio
import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from finetune_runs import CLAIMS, THREE, Jobs, guesses, make_trainer, run
from proof_scripts import CLAIM, Script, play
from sparring.compat.nip import PureTextEiTrainer, PureTextMaltTrainer, PureTextRlTrainer
from sparring.config.finetune import (
    PureTextEiParameters,
    PureTextMaltParameters,
    RlParameters,
    TextRlParameters,
)
from sparring.core import InputError
from sparring.finetune.algorithms import select
from sparring.finetune.run_files import INSUFFICIENT_DATA_JOB, GroupState, State
from sparring.finetune.trees import expected_rewards

# The trainer


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The trainer of a finished run of three iterations."""
    return run(PureTextEiTrainer, tmp_path_factory.mktemp("nip") / "run", Jobs())


def fresh(tmp_path, kind=PureTextEiTrainer, **changes):
    return make_trainer(kind, guesses(), tmp_path / "run", **{"rl": THREE} | changes)


def test_a_trainer_continues_what_is_saved_and_begins_otherwise(done, tmp_path):
    directory = done.checkpoint_base_dir
    again = make_trainer(PureTextEiTrainer, guesses(), directory, rl=THREE)
    assert again.state == done.state
    assert again.state.train_loop_stage == "done"
    settings = {"do_not_load_checkpoint": True}
    assert make_trainer(PureTextEiTrainer, guesses(), directory, rl=THREE, settings=settings).state == State(
        shared_model_groups={"prover": GroupState(), "verifier": GroupState()}
    )
    assert fresh(tmp_path).state.train_loop_stage == "sample_rollouts"
    with pytest.raises(TypeError, match="abstract"):
        PureTextRlTrainer(done.hyper_params, done.scenario_instance, done.settings)


def test_properties_are_those_of_the_scenario(done):
    scenario = done.scenario_instance
    assert done.agent_names == ["prover", "verifier"]
    assert done.num_agents == 2
    assert done.agent_wholes == done.shared_model_groups == scenario.shared_model_groups
    assert [group.agent_names for group in done.agent_wholes.values()] == [("prover",), ("verifier",)]
    assert done.combined_agent is scenario.episode
    assert done.protocol_handler is scenario.protocol_handler
    assert done.max_message_rounds == 8
    assert (done.train_environment.train, done.test_environment.train) == (True, False)
    assert done.get_total_num_iterations() == 3


def test_the_state_has_that_of_the_groups(done, tmp_path):
    trainer = fresh(tmp_path)
    assert trainer.trainer_type == "rl"
    trainer.shared_model_groups["verifier"].state.fine_tuned_model_name = "better"
    assert trainer.state.shared_model_groups["verifier"].fine_tuned_model_name == "better"
    trainer.state = done.state
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_1_verifier"
    with pytest.raises(InputError, match="there is no group judge"):
        trainer.state = State(shared_model_groups={"judge": GroupState()})


def test_a_run_has_its_files_where_the_paths_say(done, tmp_path):
    names = [name for name in dir(PureTextRlTrainer) if name.endswith(("_dir", "_path"))]
    assert len(names) == 9
    root = done.checkpoint_base_dir
    for name in names:
        path = getattr(done, name)
        assert path == root / "analysis" if name == "checkpoint_analysis_dir" else path.exists(), name
    assert (done.raw_transcripts_dir / "raw_0.yaml").exists()
    nothing = fresh(tmp_path, settings={"test_run": True})
    assert [getattr(nothing, name) for name in names] == [None] * 9


def test_a_run_is_found_by_its_name_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    find = PureTextRlTrainer.get_checkpoint_base_dir_from_run_id
    assert find("proofs") == Path("runs/proofs")
    assert find(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"


def test_metadata_name_the_package_and_need_no_repository(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert done._get_metadata()["package_name"] == "sparring"
    assert json.loads(done.checkpoint_metadata_path.read_text()) == done._get_metadata()


@pytest.mark.parametrize(
    ("scheme", "tested"),
    [("none", []), ("all", [0, 1, 2]), ("last", [2]), ("first_and_last", [0, 2])],
)
def test_the_test_scheme_names_the_iterations_that_are_tested(tmp_path, scheme, tested):
    trainer = run(PureTextEiTrainer, tmp_path / "run", Jobs(), text_rl=TextRlParameters(test_scheme=scheme))
    said = [number for number, stats in trainer.view.logged if "test_mean_accuracy" in stats]
    assert said == tested
    found = sorted(path.name for path in (tmp_path / "run" / "rollouts").glob("test-*"))
    assert found == [f"test-{number:06d}.jsonl" for number in tested]


def test_a_job_is_named_by_run_iteration_and_group(tmp_path):
    trainer = fresh(tmp_path)
    group = trainer.shared_model_groups["prover"]
    assert trainer._get_fine_tune_job_name(group) == "run_iter_0_prover"
    group.state.tries = 1
    trainer.state.iteration = 2
    assert trainer._get_fine_tune_job_name(group) == "run_iter_2_prover_try_2"
    named = fresh(tmp_path, settings={"run_id": "mine"})
    assert named._get_fine_tune_job_name(group) == "mine_iter_0_prover_try_2"


def test_the_beginning_of_an_iteration_says_which_it_is(tmp_path):
    malt = PureTextMaltParameters(num_initial_ei_iterations=2)
    assert fresh(tmp_path)._get_iteration_begin_message() == "iteration 1 of 3 begins"
    trainer = fresh(tmp_path, PureTextMaltTrainer, pure_text_malt=malt)
    assert trainer._get_iteration_begin_message() == "initial expert iteration 1 of 2 begins"
    trainer.state.iteration = 2
    assert trainer._get_iteration_begin_message() == "MALT iteration 3 of 3 begins"


def test_rollouts_are_loaded_by_their_iterations(done):
    assert [one.id for one in done._load_rollouts(1)] == [f"train-000001-{row:05d}" for row in range(8)]
    assert [one.meta["step"] for one in done._load_rollouts([2, 0])] == [2] * 8 + [0] * 8
    with pytest.raises(InputError, match="there are no rollouts of iteration 3"):
        done._load_rollouts([0, 3])


def test_rollouts_of_earlier_iterations_are_learned_from_where_they_fit(tmp_path):
    trainer = fresh(tmp_path)
    trainer.state.iteration = 2
    assert list(trainer._previous_compatible_iterations()) == [0, 1]
    malt = PureTextMaltParameters(num_initial_ei_iterations=2)
    trainer = fresh(tmp_path, PureTextMaltTrainer, pure_text_malt=malt)
    for iteration, earlier in [(1, [0]), (2, []), (5, [2, 3, 4])]:
        trainer.state.iteration = iteration
        assert list(trainer._previous_compatible_iterations()) == earlier
    provider = Jobs()
    run(
        PureTextEiTrainer,
        tmp_path / "all",
        provider,
        text_rl=TextRlParameters(fine_tune_on_all_previous_rollouts=True),
        pure_text_ei=PureTextEiParameters(reward_threshold=-10.0),
    )
    lines = [len(provider.files[f"all_iter_{number}_verifier"].splitlines()) for number in (0, 1)]
    assert lines == [8, 16]


def test_statistics_by_hand(tmp_path):
    other = CLAIM | {"y": 1, "id": "other"}
    ends = [(CLAIM, ["Why?", "Decision: reject"]), (other, ["Decision: accept"])]
    ends += [(other, ["Decision: reject"]), (CLAIM, ["Why?"])]
    played = [asyncio.run(play(Script(verifier=said, prover=["So."]), claim=claim)) for claim, said in ends]
    trainer = fresh(tmp_path)
    stats = trainer._get_log_stats(played)
    expected = {
        "mean_accuracy": 0.5,
        "std_accuracy": 0.5,
        "mean_0_accuracy": 0.5,
        "mean_1_accuracy": 0.5,
        "worst_datapoint_accuracy": 0.5,
        "mean_episode_length": (2 + 0 + 0 + 6) / 4,
        "mean_decision": 1 / 3,
        "no_decision_proportion": 0.25,
        "neither_agree_nor_disagree_proportion": 0.0,
        "verifier_decision_entropy": -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)),
        "precision": 1.0,
        "recall": 0.5,
        "verifier.mean_episode_reward": (1 + 1 - 1 - 1) / 4,
        "verifier.std_episode_reward": 1.0,
        "verifier.retry_proportion": 0.0,
        "verifier.token_limit_proportion": 0.0,
        "prover.mean_episode_reward": 0.25,
    }
    assert {name: stats[name] for name in expected} == pytest.approx(expected)
    tested = trainer._get_log_stats(played, train=False)
    assert tested["test_mean_accuracy"] == 0.5
    assert tested["verifier.test_mean_episode_reward"] == 0.0
    undecided = trainer._get_log_stats(played[3:])
    assert not {"precision", "recall", "mean_decision"} & undecided.keys()
    assert all(math.isfinite(value) for value in undecided.values())


def test_retries_are_counted_by_answer_and_decisions_without_the_middle(tmp_path):
    def says(decision):
        lines = {"verifier": ["Decision: perhaps", "Why?", decision], "prover": ["So."]}

        def verifier(messages, seed):
            turn = sum(one["role"] == "assistant" for one in messages)
            if turn == 0 and not tried:
                tried.append(seed)
                return lines["verifier"][0]
            return lines["verifier"][min(turn + 1, 2)]

        tried = []
        scale = {"verifier_decision_spectrum": "likert_scale_7"}
        return asyncio.run(play(Script(verifier=verifier, prover=["So."]), **scale))

    played = [says(f"Decision: {text}") for text in ("agree", "neither agree nor disagree", "disagree")]
    stats = fresh(tmp_path)._get_log_stats(played)
    assert stats["verifier.retry_proportion"] == pytest.approx(1 / 2)  # one retry, two answers, three rounds
    assert stats["prover.retry_proportion"] == 0
    assert stats["mean_decision"] == pytest.approx(1 / 2)
    assert stats["neither_agree_nor_disagree_proportion"] == pytest.approx(1 / 3)


def test_each_response_to_a_prefix_counts_alike_however_long_its_branch_is():
    def node(name, reward):
        return {
            "id": name,
            "parent": name.rpartition(".")[0] or None,
            "round": {"rewards": {"prover": reward}},
        }

    ends = {"0.0": 0.0, "0.1.0": 1.0, "0.1.1": 1.0}
    nodes = [node("0", 0.0), node("0.0", ends["0.0"]), node("0.1", 0.0)]
    nodes += [node(name, ends[name]) for name in ("0.1.0", "0.1.1")]
    expected = {name: rewards["prover"] for name, rewards in expected_rewards(nodes).items()}
    assert expected == {"0": 0.5, "0.1": 1.0, **ends}


async def test_a_claim_is_drawn_if_none_is_given(tmp_path):
    for kind in (PureTextEiTrainer, PureTextMaltTrainer):
        trainer, again = fresh(tmp_path, kind), fresh(tmp_path, kind)
        environment = trainer.train_environment
        drawn = [await trainer._sample_rollouts_for_single_environment(environment) for _ in range(6)]
        same = await again._sample_rollouts_for_single_environment(again.train_environment, data_batch=None)
        assert drawn[0].id == same.id
        assert drawn[0].extras["id"] == same.extras["id"]
        assert len({one.id for one in drawn}) == 6
        assert len({one.extras["id"] for one in drawn}) > 1
        assert {one.id for one in drawn}.isdisjoint(f"train-000000-{row:05d}" for row in range(8))


# Algorithms and parts


def test_more_iterations_begin_with_the_jobs_that_were_not_made(tmp_path):
    one, two = RlParameters(num_iterations=1), RlParameters(num_iterations=2)
    provider = Jobs()
    run(PureTextEiTrainer, tmp_path / "run", provider, rl=one)
    assert not provider.requests
    assert run(PureTextEiTrainer, tmp_path / "run", provider, rl=two).state.iteration == 1
    assert not provider.requests
    more = {"force_more_iterations": True}
    trainer = run(PureTextEiTrainer, tmp_path / "run", provider, rl=two, settings=more)
    assert [request.name for request in provider.requests] == ["run_iter_0_prover", "run_iter_0_verifier"]
    assert trainer.state.iteration == 2
    assert [number for number, _ in trainer.view.logged] == [1]


def test_rollouts_are_selected_by_threshold_or_by_weight(tmp_path):
    assert select([1.0, 0.0, 0.9, 0.5], PureTextEiParameters(), 0) == [0, 2]

    def drawn(rewards, **more):
        given = {"rollout_selection_method": "weighted_sampling", "weighting_epsilon": 0.0, **more}
        return select(rewards, PureTextEiParameters(**given), 7)

    assert drawn([0.0, 1.0, 0.0, 0.0]) == [1, 1]
    counts = Counter(drawn([0.0, 1.0, 3.0], weighting_sample_size_factor=1000.0))
    assert counts[0] == 0
    assert counts[2] / counts[1] == pytest.approx(3, rel=0.15)
    assert set(drawn([0.0, 1.0, 3.0], weighting_minimum=1.0, weighting_sample_size_factor=9.0)) == {2}
    assert drawn([0.0, 1.0, 3.0], weighting_use_replacement=False, weighting_sample_size_factor=0.67) == [
        1,
        2,
    ]
    provider = Jobs()
    replaced = TextRlParameters(verifier_guess_replacement_proportion=1.0)
    run(PureTextEiTrainer, tmp_path / "run", provider, text_rl=replaced)
    examples = [json.loads(line)["messages"] for line in provider.files["run_iter_0_verifier"].splitlines()]
    assert len(examples) == 8
    for messages in examples:
        claim = re.search(r"Claim: (.*)", messages[1]["content"])[1]
        y = next(one.y for one in CLAIMS if one.claim == claim)
        assert messages[-1]["content"] == ("Decision: accept" if y else "Decision: reject")


def convinced():
    """A verifier that asks once and accepts what is good, and a prover that is good as often as not."""

    def decide(messages, seed):
        asked = any(message["role"] == "assistant" for message in messages)
        good = "good" in messages[-1]["content"]
        return ("Decision: accept" if good else "Decision: reject") if asked else "Why?"

    return Script(verifier=decide, prover=lambda messages, seed: "good" if seed % 2 else "bad")


def test_malt_prefers_the_response_that_led_to_more_reward(tmp_path):
    provider = Jobs()
    trainer = run(PureTextMaltTrainer, tmp_path / "run", provider, client=convinced())
    assert [request.name for request in provider.requests] == ["run_iter_0_prover", "run_iter_1_prover"]
    assert {request.method for request in provider.requests} == {"dpo"}
    examples = [json.loads(line) for line in provider.files["run_iter_0_prover"].splitlines()]
    assert examples
    for one in examples:
        assert one["preferred_output"] == [{"role": "assistant", "content": "good"}]
        assert one["non_preferred_output"] == [{"role": "assistant", "content": "bad"}]
        assert one["input"]["messages"][-1]["role"] == "user"
    (_, stats) = trainer.view.logged[0]
    assert stats["mean_malt_nodes"] == 2 + 4 + 8
    assert stats["mean_non_terminal_malt_nodes"] == 2 + 4
    assert stats["prover.mean_malt_pairs"] == len(examples) / 8
    frozen = run(PureTextMaltTrainer, tmp_path / "frozen", Jobs(), client=convinced(), frozen=["verifier"])
    assert frozen.view.logged[0][1]["mean_malt_nodes"] == 1 + 2 + 2


def test_claims_are_passed_through_from_iteration_to_iteration(tmp_path):
    trainer = fresh(tmp_path)
    train, test = trainer.train_environment, trainer.test_environment
    first = [claim.id for number in (0, 1) for _, claim in train.rows(number)]
    assert sorted(first[:12]) == sorted(claim.id for claim in CLAIMS)
    assert test.rows(0) == test.rows(1)
    other = fresh(tmp_path, seed=1).train_environment
    assert other.rows(0) != train.rows(0) == fresh(tmp_path).train_environment.rows(0)


@pytest.mark.parametrize(
    ("scratch", "models"),
    [(True, ["base-verifier", "base-verifier"]), (False, ["base-verifier", "ft:run_iter_0_verifier"])],
)
def test_jobs_start_from_the_base_model_or_from_the_last(tmp_path, scratch, models):
    provider = Jobs()
    trainer = make_trainer(PureTextEiTrainer, guesses(), tmp_path / "run", provider, rl=THREE)
    trainer.shared_model_groups["verifier"].fine_tune_from_scratch = scratch
    trainer.train()
    asked = [request.model for request in provider.requests if request.name.endswith("verifier")]
    assert asked == models


def test_with_too_few_examples_a_group_keeps_its_model(tmp_path):
    provider = Jobs()
    provider.least_examples = 100
    trainer = run(PureTextEiTrainer, tmp_path / "run", provider, rl=RlParameters(num_iterations=2))
    group = trainer.shared_model_groups["verifier"]
    assert not provider.requests
    assert group.state.fine_tune_job_id == INSUFFICIENT_DATA_JOB
    assert group.model_name == "base-verifier"
    assert not asyncio.run(group.fine_tune_job_failed())
    assert asyncio.run(group.get_fine_tune_job_status()).model == "base-verifier"
