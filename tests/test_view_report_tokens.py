"""Answers by token in the report: texts, figures and thoughts are those of the log, whatever was written."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from transformers import AutoTokenizer

from hostile_text import hostile_text
from report_pages import Page, build
from report_programs import write_log
from sparring.core import Rollout, Step
from sparring.view.report import tokens as by_token
from tiny_models import roomy_model

TOKENIZER = AutoTokenizer.from_pretrained(roomy_model())


def step_of(written: str, thought: str = "", role: str = "A") -> Step:
    """Make a call whose answer has the ids of the tiny model, the stop token included."""
    ids = [*TOKENIZER(thought + written, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id]
    message = {"role": "assistant", "content": written}
    message |= {"reasoning": thought, "written": thought + written} if thought else {}
    logprobs = [-0.1234 - place for place in range(len(ids))]
    step = Step(role, [{"role": "user", "content": "q"}], [message], [1], ids, logprobs, 1.0, 0.5)
    if thought:
        step.info["reasoning"] = {"tokens": len(TOKENIZER(thought).input_ids), "ended": True}
    return step


def page_of(directory: Path, steps: list[Step], model: str | None = None) -> str:
    write_log(directory, 1, [Rollout(episode_type="talk", artifact="x", id="1", steps=steps)])
    config = f'[model]\nname = "{model or roomy_model()}"\n\n[program]\ntype = "proposer_solver"\n'
    (directory / "config.toml").write_text(config)
    return build(directory)


def answers_in(html: str) -> list[dict]:
    return json.loads(html.split('id="answers" type="application/json">')[1].split("</script>")[0])


@given(text=hostile_text(whole_characters=True))
def test_the_tokens_of_any_text_are_its_letters_and_stay_data(text):
    with TemporaryDirectory() as directory:
        html = page_of(Path(directory), [step_of(text)])
    page = Page(html)
    assert page.open == []
    assert "<" not in html.split('id="answers" type="application/json">')[1].split("</script>")[0]
    (answer,) = answers_in(html)
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert len(answer["texts"]) == len(answer["logprobs"]) == len(ids) + 1
    assert "".join(answer["texts"]) == TOKENIZER.decode([*ids, TOKENIZER.eos_token_id])


def test_an_answer_has_its_log_probabilities_its_advantage_and_its_thought(tmp_path):
    html = page_of(tmp_path, [step_of("so", "<think>é</think>"), step_of("ok")])
    thinking, other = answers_in(html)
    assert "".join(thinking["texts"][: thinking["thought"]]) == "<think>é</think>"
    assert "".join(thinking["texts"][thinking["thought"] : -1]) == "so"
    assert thinking["logprobs"][:2] == [-0.123, -1.123]
    assert (thinking["advantage"], other["thought"], other["more"]) == (0.5, 0, 0)
    places = [attrs["data-answer"] for _, attrs in Page(html).elements if "data-answer" in attrs]
    assert places == ["0", "1"]
    assert "colour tokens by" in html


def test_a_thought_without_an_end_is_all_thought(tmp_path):
    step = step_of("", "<think>and")
    step.info["reasoning"] = {"tokens": None, "ended": False}
    (answer,) = answers_in(page_of(tmp_path, [step]))
    assert answer["thought"] == len(answer["texts"])


def test_an_evaluation_has_no_advantages(tmp_path):
    page_of(tmp_path, [step_of("ok")])
    (tmp_path / "evaluation").mkdir()
    log = next((tmp_path / "rollouts").iterdir())
    (tmp_path / "evaluation" / "step-000001-conversations.jsonl").write_bytes(log.read_bytes())
    html = build(tmp_path)
    assert [one["advantage"] for one in answers_in(html)] == [None, 0.5]


def test_what_is_not_of_this_tokenizer_is_shown_as_text_alone(tmp_path):
    different, unknown, without = step_of("yes"), step_of("no"), step_of("so")
    different.completion[0]["content"] = "another answer"
    unknown.completion_token_ids[0] = 10**6
    without.completion_logprobs = None
    assert answers_in(page_of(tmp_path, [different, unknown, without])) == []
    for model in ("vendor/never-downloaded", str(tmp_path / "missing"), ""):
        html = page_of(tmp_path, [step_of("yes")], model or "-")
        assert answers_in(html) == []
        assert "colour tokens by" not in html
        assert '<div class="said">yes</div>' in html


def test_the_page_holds_so_many_tokens_and_says_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(by_token, "MAX_ANSWER", 10)
    monkeypatch.setattr(by_token, "MAX_PAGE", 25)
    answers = answers_in(page_of(tmp_path, [step_of("a" * 30) for _ in range(5)]))
    assert [(len(one["texts"]), len(one["logprobs"]), one["more"]) for one in answers] == [(10, 10, 21)] * 2


CRITICS = ("\n[learning]\ncritic = {}\n", "\n[learning.policies.default]\ncritic = {}\n")


@pytest.mark.parametrize("learning", CRITICS, ids=["of all", "of the policy"])
def test_a_policy_with_a_critic_and_one_that_nobody_trains_have_no_advantage_here(tmp_path, learning):
    steps = [step_of("mine"), step_of("other")]
    steps[1].policy = ""
    page_of(tmp_path, steps)
    assert [one["advantage"] for one in answers_in(build(tmp_path))] == [0.5, None]
    config = tmp_path / "config.toml"
    config.write_text(config.read_text() + learning)
    html = build(tmp_path)
    assert [one["advantage"] for one in answers_in(html)] == [None, None]
    assert not any("advantage" in text for text in Page(html).text)


def test_a_program_that_logs_no_batches_shows_no_advantage_that_a_buffer_may_have_changed(tmp_path):
    page_of(tmp_path, [step_of("mine")])
    config = tmp_path / "config.toml"
    config.write_text(config.read_text() + "\n[buffer]\nlog_batches = false\n")
    assert [one["advantage"] for one in answers_in(build(tmp_path))] == [None]
