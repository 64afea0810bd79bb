"""Stages of a trainer over fine-tuning jobs: their order, kills between them, jobs that fail."""

import json
import re
import shutil
from asyncio import CancelledError

import pytest

from finetune_runs import Jobs, Killed, Mortal, Stages, files_of, guesses, make_trainer, run, without_clocks
from matrices import first_of
from proof_scripts import Script
from sparring.config.finetune import RlParameters, TextRlParameters
from sparring.core import Arena, InputError, MockInferenceClient, Role, SparringError
from sparring.finetune.algorithms import PureTextEiTrainer, PureTextMaltTrainer
from sparring.finetune.providers import FineTuneJobError
from sparring.finetune.scenario import answers_kept


@pytest.mark.parametrize("kind", [PureTextEiTrainer, PureTextMaltTrainer])
def test_three_iterations_sample_three_times_and_train_twice(tmp_path, kind):
    provider, view = Jobs(), Stages()
    trainer = run(kind, tmp_path / "run", provider, view)
    once = [
        "sample_rollouts",
        "log_stats",
        "test_during_training",
        "create_fine_tune_jobs",
        "await_fine_tune_jobs",
    ]
    expected = [(n, stage) for n in range(3) for stage in once][:-2]
    assert view.stages == expected
    assert [request.name for request in provider.requests] == [
        f"run_iter_{n}_{agent}" for n in range(2) for agent in ("prover", "verifier")
    ]
    assert trainer.state.train_loop_stage == "done"
    assert trainer.state.iteration == 3
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_1_verifier"
    assert len(view.logged) == 3


@pytest.mark.parametrize("kind", first_of([PureTextEiTrainer, PureTextMaltTrainer]))
def test_a_run_killed_before_any_stage_ends_as_if_it_had_not_been(tmp_path, kind):
    whole = Jobs()
    run(kind, tmp_path / "whole" / "run", whole)
    expected = without_clocks(files_of(tmp_path / "whole" / "run"))
    for number in range(13):
        directory, provider = tmp_path / str(number) / "run", Jobs()
        with pytest.raises(Killed):
            run(kind, directory, provider, Stages(killed_at=number))
        run(kind, directory, provider)
        assert without_clocks(files_of(directory)) == expected
        assert provider.requests == whole.requests
        assert provider.files == whole.files


def test_a_job_that_fails_is_made_again_under_another_name_and_the_others_are_not(tmp_path):
    provider = Jobs("succeeded", "failed")
    trainer = run(PureTextEiTrainer, tmp_path / "run", provider, settings={"recreate_failed_jobs": 1})
    assert [request.name for request in provider.requests][:3] == [
        "run_iter_0_prover",
        "run_iter_0_verifier",
        "run_iter_0_verifier_try_2",
    ]
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_1_verifier"


@pytest.mark.parametrize("end", ["failed", "cancelled", "not_found"])
def test_a_job_that_ends_without_a_model_ends_the_run_in_a_clear_state(tmp_path, end):
    with pytest.raises(ExceptionGroup) as ended:
        run(PureTextEiTrainer, tmp_path / "run", Jobs("succeeded", end))
    (problem,) = ended.value.exceptions
    assert isinstance(problem, FineTuneJobError)
    assert "verifier" in str(problem)
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["train_loop_stage"] == "await_fine_tune_jobs"


def test_a_frozen_group_has_no_jobs_and_keeps_its_model(tmp_path):
    provider = Jobs()
    trainer = run(PureTextMaltTrainer, tmp_path / "run", provider, frozen=["prover"])
    assert {request.name.rpartition("_")[2] for request in provider.requests} == {"verifier"}
    assert trainer.shared_model_groups["prover"].model_name == "base-prover"


def test_changed_parameters_are_refused_unless_they_are_accepted(tmp_path):
    run(PureTextEiTrainer, tmp_path / "run", Jobs())
    with pytest.raises(InputError, match="seed: 6198 -> 1"):
        run(PureTextEiTrainer, tmp_path / "run", Jobs(), seed=1)
    run(PureTextEiTrainer, tmp_path / "run", Jobs(), seed=1, settings={"accept_changes": True})


@pytest.mark.parametrize(
    ("annealing", "iteration", "share"),
    [("none", 7, 0.5), ("linear", 2, 0.3), ("linear", 7, 0.0), ("exponential", 2, 0.405)],
)
def test_the_share_of_replaced_verdicts_falls_as_configured(tmp_path, annealing, iteration, share):
    text_rl = TextRlParameters(
        verifier_guess_replacement_proportion=0.5, verifier_guess_replacement_annealing=annealing
    )
    trainer = make_trainer(PureTextEiTrainer, guesses(), tmp_path / "run", text_rl=text_rl)
    assert trainer._get_verifier_guess_replacement_proportion(iteration) == pytest.approx(share)


def test_turns_of_examples_are_not_imitated(tmp_path):
    provider = Jobs()
    run(PureTextEiTrainer, tmp_path / "run", provider, examples=True)
    lines = provider.files["run_iter_0_verifier"].splitlines()
    assert lines
    for line in lines:
        messages = json.loads(line)["messages"]
        answers = [one for one in messages if one["role"] == "assistant"]
        assert [one.get("weight", 1) for one in answers] == [0] * (len(answers) - 1) + [1]


@pytest.mark.parametrize("kind", [PureTextEiTrainer, PureTextMaltTrainer])
def test_what_is_imitated_or_preferred_has_its_thought(tmp_path, kind):
    def thinking(line):
        return lambda messages, seed: f"<think>I say {seed % 97}</think>{line(messages, seed)}"

    provider = Jobs()
    client = Script(**{agent: thinking(line) for agent, line in guesses().lines.items()})
    run(kind, tmp_path / "run", provider, client=client)
    lines = [json.loads(line) for file in provider.files.values() for line in file.splitlines()]
    answers = [one["messages"][-1] for one in lines if "messages" in one]
    for name in ("preferred_output", "non_preferred_output"):
        answers += [answer for one in lines for answer in one.get(name, [])]
    assert answers
    assert all(re.fullmatch(r"<think>I say \d+</think>.+", one["content"]) for one in answers)


class OfOnesOwn(MockInferenceClient):
    """A client that knows nothing of thoughts."""

    async def complete(self, messages, temperature=1.0, max_tokens=None, *args, model=None, seed=None):
        return await super().complete(messages, temperature, max_tokens, *args, model=model, seed=seed)


@pytest.mark.parametrize("kind", [MockInferenceClient, OfOnesOwn])
async def test_an_answer_that_is_read_otherwise_is_another_answer(kind, tmp_path):
    def answers(messages, seed):
        return "<plan>so</plan>Yes"

    client, ask = kind(answers), [{"role": "user", "content": "Is it?"}]
    for _ in range(2):
        arena = Arena(client)
        for number, tags in enumerate(("auto", "none", ("<plan>", "</plan>"))):
            arena.add_role(Role(str(number), reasoning=tags))
        with answers_kept(arena, tmp_path / "answers.jsonl"):
            said = [(await arena.call_model(ask, str(number), seed=1)).text for number in range(3)]
        assert said == ["<plan>so</plan>Yes", "<plan>so</plan>Yes", "Yes"]
        assert client.calls == 3


def test_a_kill_between_rollouts_and_state_costs_no_rollout(tmp_path):
    class KilledOnceSaved(PureTextEiTrainer):
        def _save_rollouts(self, *args):
            super()._save_rollouts(*args)
            raise Killed

    first, second, whole = guesses(), guesses(), guesses()
    with pytest.raises(Killed):
        run(KilledOnceSaved, tmp_path / "run", Jobs(), client=first)
    run(PureTextEiTrainer, tmp_path / "run", Jobs(), client=second)
    run(PureTextEiTrainer, tmp_path / "whole", Jobs(), client=whole)
    assert len(first.prompts) > 0
    assert len(first.prompts) + len(second.prompts) == len(whole.prompts)


def test_a_test_run_goes_through_all_stages_and_writes_nothing(tmp_path):
    class Noted(PureTextEiTrainer):
        extracted = 0

        def _extract_transcripts_and_prompts(self, *args):
            self.extracted += 1
            return super()._extract_transcripts_and_prompts(*args)

    trainer = run(Noted, tmp_path / "run", Jobs(), settings={"test_run": True}, frozen=["prover", "verifier"])
    assert trainer.state.train_loop_stage == "done"
    assert trainer.extracted == 3
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [1, 4, 64])
@pytest.mark.parametrize("kind", [PureTextEiTrainer, PureTextMaltTrainer])
def test_a_kill_costs_no_answer_however_many_rollouts_are_in_flight(tmp_path, kind, workers):
    once = {"rl": RlParameters(num_iterations=1), "settings": {"num_rollout_workers": workers}}
    whole = Mortal()
    run(kind, tmp_path / "whole" / "run", Jobs(), client=whole, **once)
    first, second = Mortal(last=whole.answered * 6 // 10), Mortal()
    with pytest.raises(CancelledError):
        run(kind, tmp_path / "run", Jobs(), client=first, **once)
    run(kind, tmp_path / "run", Jobs(), client=second, **once)
    assert first.answered + second.answered == whole.answered
    expected = without_clocks(files_of(tmp_path / "whole" / "run"))
    assert without_clocks(files_of(tmp_path / "run")) == expected


def test_when_answers_can_no_longer_be_kept_the_run_ends_and_no_failed_rollout_counts(tmp_path):
    directory = tmp_path / "run"

    class Blocked(Mortal):
        async def complete(self, *args, **kwargs):
            response = await super().complete(*args, **kwargs)
            if self.answered == 14:
                shutil.rmtree(directory / "answers")
                (directory / "answers").write_text("in the way")
            return response

    with pytest.raises(SparringError, match=r"^\S*answers/train-000000\.jsonl cannot be written"):
        run(PureTextEiTrainer, directory, Jobs(), client=Blocked())
    (directory / "answers").unlink()
    run(PureTextEiTrainer, directory, Jobs())
    run(PureTextEiTrainer, tmp_path / "whole" / "run", Jobs())
    expected = without_clocks(files_of(tmp_path / "whole" / "run"))
    assert without_clocks(files_of(directory)) == expected
