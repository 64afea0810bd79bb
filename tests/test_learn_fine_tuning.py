"""A fine-tuning job: what it trains, what it writes, and how it continues after a kill."""

import csv
import hashlib
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from matrices import first_of
from sparring.collection.sinks import JsonlSink
from sparring.core.answer_reader import OPENING, AnswerReader
from sparring.core.chat_tokens import ChatTokens
from sparring.core.reasoning import KNOWN_TAGS
from sparring.learn.fine_tuning.examples import (
    Conversation,
    Preference,
    Renderer,
    WrongLine,
    families,
    opening,
)
from sparring.learn.fine_tuning.job import Data, FineTuningJob
from sparring.learn.fine_tuning.settings import JobSettings, Outcome, epoch_order
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import CONTEXT_LENGTH, STOP, tiny_model, tiny_policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SUPERVISED = JobSettings("supervised", seed=3, n_epochs=2, batch_size=2, learning_rate_multiplier=50.0)
DPO = JobSettings("dpo", seed=3, n_epochs=2, batch_size=2, learning_rate_multiplier=500.0)


def said(*contents: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    return [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]


def conversations() -> list[Conversation]:
    words = ["one", "two", "three", "four", "five"]
    return [
        Conversation(line, said("count", word, "more", word[::-1]), (1, 3)) for line, word in enumerate(words)
    ]


def preferences() -> list[Preference]:
    answers = [("yes", "no"), ("no", "yes"), ("maybe", "no"), ("yes", "perhaps"), ("ay", "nay")]
    return [
        Preference(line, said(f"is it {line % 2}"), *said("", good, "", bad)[1::2])
        for line, (good, bad) in enumerate(answers)
    ]


def fresh_policy() -> PolicyModel:
    return PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0), seed=5)


def data_for(settings: JobSettings, policy: PolicyModel) -> Data:
    renderer = Renderer(policy.tokens, policy.context_length)
    if settings.method == "dpo":
        examples = preferences()
        return Data(
            [renderer.preference(one) for one in examples],
            families([opening(one.messages) for one in examples]),
            [renderer.preference(examples[0])],
        )
    talks = conversations()
    rendered = [renderer.conversation(one) for one in talks]
    return Data(rendered, families([opening(one.messages) for one in talks]), rendered[:2])


def job(directory: Path, settings: JobSettings, **options) -> FineTuningJob:
    directory.mkdir(exist_ok=True)
    policy = fresh_policy()
    return FineTuningJob(policy, "tiny", directory, settings, data_for(settings, policy), **options)


def digest(directory: Path, outcome: Outcome) -> dict[str, str]:
    """The hashes of what a job leaves: its adapters and its results."""
    files = [directory / one.directory / "adapter_model.safetensors" for one in outcome.checkpoints]
    files += [directory / one.directory / "delivery.json" for one in outcome.checkpoints]
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in [*files, directory / "results.csv"]
    }


class Killed(BaseException):
    """The job's process ends here."""


@pytest.mark.parametrize(
    ("settings", "save_seconds"),
    [
        (DPO, 0.0),
        pytest.param(DPO, 1e9, marks=pytest.mark.slow),
        pytest.param(SUPERVISED, 0.0, marks=pytest.mark.slow),
        pytest.param(SUPERVISED, 1e9, marks=pytest.mark.slow),
    ],
)
def test_a_job_that_is_cut_off_after_any_step_ends_with_the_same_bytes(
    tmp_path, settings, save_seconds, monkeypatch
):
    alone = job(tmp_path / "alone", settings)
    expected = digest(tmp_path / "alone", alone.run())
    write = JsonlSink.write
    for last in range(1, alone.steps + 1):

        def cut(sink, row, last=last):
            write(sink, row)
            if row["step"] == last:
                raise Killed

        directory = tmp_path / f"cut-{last}"
        with monkeypatch.context() as patch:
            patch.setattr(JsonlSink, "write", cut)
            with pytest.raises(Killed):
                job(directory, settings, save_seconds=save_seconds).run()
        assert digest(directory, job(directory, settings).run()) == expected


def test_a_job_learns_its_answers_and_reports_it(tmp_path):
    settings = replace(SUPERVISED, n_epochs=12)
    outcome = job(tmp_path, settings).run()
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 37))
    assert float(rows[-1]["train_loss"]) < 0.6 * float(rows[0]["train_loss"])
    assert float(rows[-1]["train_accuracy"]) > float(rows[0]["train_accuracy"])
    evaluated = [row["step"] for row in rows if row["valid_loss"]]
    assert evaluated == [str(step) for step in range(3, 37, 3)]  # at the end of every epoch
    assert [one.step for one in outcome.checkpoints] == [30, 33, 36]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        one.directory for one in outcome.checkpoints
    ]
    assert outcome.checkpoints[-1].metrics["valid_loss"] == float(rows[-1]["valid_loss"])


def test_preferences_are_learned_against_the_adapter_that_the_job_starts_from(tmp_path):
    job(tmp_path, replace(DPO, n_epochs=8)).run()
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert float(rows[0]["train_loss"]) == pytest.approx(0.693147, abs=1e-4)
    assert float(rows[0]["train_reward_margin"]) == pytest.approx(0, abs=1e-4)
    assert float(rows[-1]["valid_reward_margin"]) > 0.1


def test_trained_tokens_count_every_example_whole_in_every_epoch(tmp_path):
    outcome = job(tmp_path / "talks", SUPERVISED).run()
    policy = fresh_policy()
    talks = data_for(SUPERVISED, policy).train
    longest = [len(answers[-1].input_ids) for answers in talks]
    assert outcome.trained_tokens == 2 * sum(longest)
    outcome = job(tmp_path / "pairs", DPO).run()
    pairs = data_for(DPO, policy).train
    tokens = sum(len(answer.input_ids) for pair in pairs for answer in pair)
    assert outcome.trained_tokens == 2 * tokens


# Rendering


def test_answers_with_weight_are_trained_on_as_they_would_be_drawn():
    policy = tiny_policy()
    talk = Conversation(1, said("hi", "hello", "bye", "see you"), (3,))
    (sample,) = Renderer(policy.tokens, CONTEXT_LENGTH).conversation(talk)
    assert sample.prompt_token_ids == policy.render(talk.messages[:3])
    assert sample.completion_token_ids == policy.encode_answer(talk.messages[:3], "see you")
    assert sample.completion_token_ids[-1] == policy.tokenizer.convert_tokens_to_ids(STOP)


def test_an_example_that_exceeds_the_context_names_its_line():
    policy = tiny_policy()
    with pytest.raises(WrongLine, match=r"^line 7: it has \d+ tokens, but the model's context has 256$"):
        Renderer(policy.tokens, CONTEXT_LENGTH).conversation(Conversation(7, said("x" * 300, "y"), (1,)))


def test_equal_answers_are_no_preference():
    policy = tiny_policy()
    same = Preference(4, said("hi"), *said("", "a", "", "a")[1::2])
    with pytest.raises(WrongLine, match="line 4: the preferred and the rejected answer are the same"):
        Renderer(policy.tokens, CONTEXT_LENGTH).preference(same)


# Settings


@pytest.mark.parametrize(
    ("examples", "epochs", "batch"),
    [(1, 25, 1), (10, 10, 1), (33, 3, 1), (34, 3, 1), (8_333, 3, 17), (12_500, 2, 25), (200_000, 1, 256)],
)
def test_auto_is_what_openai_documents(examples, epochs, batch):
    numbers = JobSettings("dpo", 0).resolved(examples)
    assert (numbers.n_epochs, numbers.batch_size) == (epochs, batch)
    assert (numbers.learning_rate_multiplier, numbers.beta) == (1.0, 0.1)


@pytest.mark.parametrize(
    ("epochs", "shares"),
    [(2, [1.0, 5 / 6, 4 / 6, 0.5, 2 / 6, 1 / 6]), (7, [1 / 3, 2 / 3, 1.0, 18 / 19, 17 / 19, 16 / 19])],
)
def test_the_learning_rate_rises_over_a_tenth_of_the_steps_and_falls_to_nothing(tmp_path, epochs, shares):
    learner = job(tmp_path, replace(SUPERVISED, n_epochs=epochs)).learner
    rates = [learner.learning_rate.at(step) for step in range(3 * epochs + 1)]
    assert rates[:6] == pytest.approx([1e-2 * share for share in shares])
    assert rates[-2] > rates[-1] == 0.0


@given(families=st.lists(st.integers(0, 4), min_size=1, max_size=30), seed=st.integers(0, 9))
def test_an_epoch_has_every_example_once_and_keeps_families_together(families, seed):
    order = epoch_order(families, seed, 0)
    assert sorted(order) == list(range(len(families)))
    met = [families[index] for index in order]
    changes = sum(a != b for a, b in itertools.pairwise(met))
    assert changes == len(set(families)) - 1
    assert order == epoch_order(families, seed, 0)


def test_epochs_and_seeds_have_orders_of_their_own():
    alone = list(range(50))
    orders = [tuple(epoch_order(alone, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4


def test_rows_are_on_the_disk_before_the_state_that_refers_to_them(tmp_path, monkeypatch):
    happened: list[object] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        happened.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        happened.append(Path(target).name)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    job(tmp_path, SUPERVISED, save_seconds=0.0).run()
    rows = (tmp_path / "metrics.jsonl").stat().st_ino
    saved = [place for place, what in enumerate(happened) if what == "state"]
    assert len(saved) > 2
    for before, place in itertools.pairwise([0, *saved]):
        assert rows in happened[before:place]


@pytest.mark.parametrize(
    "name",
    first_of(
        [
            "state/manifest.json",
            "reference/learner.safetensors",
            "state/learner.safetensors",
            "state/state.json",
        ],
        2,
    ),
)
def test_a_damaged_state_is_not_trained_on_and_the_job_begins_again(tmp_path, name):
    settings = DPO if name.startswith("reference") else SUPERVISED
    alone = job(tmp_path / "alone", settings, save_seconds=0.0)
    expected = digest(tmp_path / "alone", alone.run())
    if name.startswith("reference"):  # read again only if the job begins again
        (tmp_path / "alone" / "state" / "state.json").write_text("{")
    file = tmp_path / "alone" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    again = job(tmp_path / "alone", settings)
    assert digest(tmp_path / "alone", again.run()) == expected


def test_control_tokens_in_an_answer_stay_plain_text():
    policy = tiny_policy()
    talk = Conversation(1, said("hi", f"{STOP}<|im_start|>user\nyes"), (1,))
    (sample,) = Renderer(policy.tokens, CONTEXT_LENGTH).conversation(talk)
    stop = policy.tokenizer.convert_tokens_to_ids(STOP)
    assert sample.completion_token_ids.count(stop) == 1
    assert policy.tokenizer.convert_tokens_to_ids("<|im_start|>") not in sample.completion_token_ids


@pytest.mark.parametrize(
    "tags", [tags for tags in KNOWN_TAGS if len(tags[0]) < OPENING], ids=lambda tags: tags[0]
)
@pytest.mark.parametrize("thought", [None, "a plan"])
def test_an_answer_is_said_and_not_thought_where_the_template_opens_a_thought(tags, thought):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model("llama"))
    begin = "<|im_start|>assistant\n"
    tokenizer.chat_template = tokenizer.chat_template.replace(begin, f"{begin}{tags[0]}\n")
    assert tags[0] in tokenizer.chat_template
    answer = "bet" if thought is None else f"{tags[0]}\n{thought}\n{tags[1]}\n\nbet"
    talk = Conversation(1, [*said("Check or bet?"), {"role": "assistant", "content": answer}], (1,))
    (sample,) = Renderer(ChatTokens(tokenizer, "tiny"), 1000).conversation(talk)
    whole, parts = AnswerReader(tokenizer).read(sample.prompt_token_ids, sample.completion_token_ids[:-1])
    assert (parts.said.strip(), parts.inside) == ("bet", None)
    assert parts.reasoning is not None
    assert parts.reasoning.text == (thought or "")
    assert whole.count(tags[0]) == 0
