"""Runs whose settings change between two starts, and answers that are not valid."""

import json

import pytest

from finetune_runs import Jobs, Killed, Stages, files_of, guesses, make_trainer, plain, run
from matrices import first_of
from proof_scripts import Script
from sparring.config.finetune import PureTextEiParameters, PureTextMaltParameters, RlParameters
from sparring.core import InputError, SparringError
from sparring.finetune.algorithms import PureTextEiTrainer, PureTextMaltTrainer

ACCEPTED = {"accept_changes": True}
FIRST_JOBS = 3
"""The number of the stage that makes the jobs of the first iteration."""


class Away(Jobs):
    """A provider that takes files and is away when jobs are made."""

    async def create(self, request, file):
        raise SparringError("the API is away")


def test_a_job_that_was_not_made_yet_is_made_from_other_examples_after_a_change(tmp_path):
    provider = Jobs()
    with pytest.raises(SparringError, match="the API is away"):
        run(PureTextEiTrainer, tmp_path / "run", Away())
    selection = PureTextEiParameters(reward_threshold=-10.0)
    changed = {"pure_text_ei": selection, "settings": ACCEPTED}
    run(PureTextEiTrainer, tmp_path / "run", provider, **changed)
    whole = Jobs()
    run(PureTextEiTrainer, tmp_path / "whole" / "run", whole, pure_text_ei=selection)
    assert provider.files == whole.files
    assert [one.name for one in provider.requests] == [one.name for one in whole.requests]


def test_a_run_that_does_not_load_its_checkpoint_takes_nothing_from_an_earlier_one(tmp_path):
    with pytest.raises(Killed):
        run(PureTextEiTrainer, tmp_path / "run", Jobs(), Stages(killed_at=FIRST_JOBS + 1))
    growing = tmp_path / "run" / "rollouts" / "growing-train-000000.jsonl"
    growing.write_text("of the earlier run\n")
    provider, whole = Jobs(), Jobs()
    anew = {"seed": 1, "settings": {"do_not_load_checkpoint": True}}
    run(PureTextEiTrainer, tmp_path / "run", provider, **anew)
    run(PureTextEiTrainer, tmp_path / "whole" / "run", whole, seed=1)
    assert provider.files == whole.files
    jobs = {
        plain(name): json.loads(text)
        for name, text in files_of(tmp_path / "run" / "jobs").items()
        if name.endswith(".json")
    }
    assert len(jobs) == 4


@pytest.mark.parametrize(
    "kinds", first_of([(PureTextEiTrainer, PureTextMaltTrainer), (PureTextMaltTrainer, PureTextEiTrainer)])
)
def test_rollouts_of_another_algorithm_are_refused_in_one_line(tmp_path, kinds):
    first, second = kinds
    with pytest.raises(Killed):
        run(first, tmp_path / "run", Jobs(), Stages(killed_at=FIRST_JOBS))
    with pytest.raises(InputError, match="but this algorithm learns from"):
        run(second, tmp_path / "run", Jobs(), settings=ACCEPTED)
    run(first, tmp_path / "run", Jobs(), settings=ACCEPTED)


def test_fewer_initial_iterations_than_were_played_are_refused_in_one_line(tmp_path):
    two, one = (PureTextMaltParameters(num_initial_ei_iterations=number) for number in (2, 1))
    with pytest.raises(Killed):
        run(
            PureTextMaltTrainer,
            tmp_path / "run",
            Jobs(),
            Stages(killed_at=5 + FIRST_JOBS),
            pure_text_malt=two,
        )
    with pytest.raises(InputError, match="the rollouts are single proofs"):
        run(PureTextMaltTrainer, tmp_path / "run", Jobs(), pure_text_malt=one, settings=ACCEPTED)


def test_both_methods_of_a_run_have_hyperparameters_of_their_own(tmp_path):
    provider = Jobs()
    trainer = make_trainer(
        PureTextMaltTrainer,
        guesses(),
        tmp_path / "run",
        provider,
        rl=RlParameters(num_iterations=3),
        pure_text_malt=PureTextMaltParameters(num_initial_ei_iterations=1),
        pure_text_ei=PureTextEiParameters(reward_threshold=-10.0),
    )
    group = trainer.shared_model_groups["verifier"]
    group.hyperparameters = {"n_epochs": 1, "supervised": {"seed": 3}, "dpo": {"n_epochs": 2, "seed": 4}}
    group.dpo_beta = 0.5
    trainer.train()
    asked = [(one.method, one.hyperparameters) for one in provider.requests if "verifier" in one.name]
    assert asked == [
        ("supervised", {"n_epochs": 1, "seed": 3}),
        ("dpo", {"n_epochs": 2, "seed": 4, "beta": 0.5}),
    ]


def examples_of(tmp_path, **lines):
    provider = Jobs()
    trainer = make_trainer(
        PureTextEiTrainer,
        Script(**lines),
        tmp_path / "run",
        provider,
        rl=RlParameters(num_iterations=2),
        pure_text_ei=PureTextEiParameters(reward_threshold=-10.0),
    )
    trainer.train()
    return {
        plain(name).rpartition("_")[2]: [json.loads(line)["messages"] for line in content.splitlines()]
        for name, content in provider.files.items()
    }


def test_answers_that_were_not_valid_are_not_imitated(tmp_path):
    def decide(messages, seed):
        spoken = sum(message["role"] == "assistant" for message in messages)
        return ["", "Why?", "Decision: accept"][min(spoken, 2)]

    examples = examples_of(tmp_path, verifier=decide, prover=["Because."])
    for messages in examples["verifier"]:
        answers = [one for one in messages if one["role"] == "assistant"]
        assert [one["content"] for one in answers] == ["...", "Why?", "Decision: accept"]
        assert [one.get("weight", 1) for one in answers] == [0, 1, 1]


def test_a_conversation_that_ends_without_a_valid_answer_is_not_imitated(tmp_path):
    examples = examples_of(tmp_path, verifier=["Decision: perhaps"], prover=["Because."])
    assert examples.get("verifier", []) == []
    assert examples["prover"]
