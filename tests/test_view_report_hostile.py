"""Hostile text in the report stays text, and could do nothing even if it got through the escaping."""

import base64
import hashlib
import json
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from hostile_text import hostile_text
from report_pages import HOSTILE, Page, build, line, make_rollout, write_run
from report_programs import a_rollout, step_of, write_log
from run_files import match, nash
from sparring.collection.rollout_log import write_rollouts
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.evaluation.task_result import TaskResult
from sparring.view.report.page import build_report


def write_metrics(run_dir: Path, text: str) -> None:
    names = [f"learner/{text}/loss", f"model-pool/{text}/mu", f"model-pool/{text}/sigma"]
    names += [f"program/reward/{text}", f"program/metric/{text}", f"answers/cut_share/{text}"]
    lines = [json.dumps({"step": step, **dict.fromkeys(names, 0.4 * step)}) + "\n" for step in (11, 12)]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(lines)


def write_games(run_dir: Path, text: str) -> None:
    """Make a run of games with a text in every field written by a person or a model."""
    write_run(run_dir, steps=10)
    rollouts = [make_rollout(10, number, random.Random(0)) for number in (0, 2)]
    for number, rollout in enumerate(rollouts):
        observation = "\n".join([text] * (1 if number == 0 else 20))
        for turn in rollout["extras"]["turns"]:
            turn.update(text=f"so {text}", action=text, observation=observation, model=text, kind=text)
        for step in rollout["steps"]:
            step["prompt"] = [{"role": text, "content": text}] * 2
        rollout["artifact"] = {"env_id": text, "agents": [{"kind": text, "model": text}]}
        rollout["meta"] = {"error": text}
    rollouts[0]["steps"][0]["info"]["reward_stages"] = {text: text}
    log = "".join(json.dumps(line(rollout, 10)) + "\n" for rollout in rollouts)
    (run_dir / "rollouts" / "step-000010.jsonl").write_text(log)
    (run_dir / "batches" / "batch-000010.jsonl.gz").unlink()
    exact = nash(1.0, env_id=text, policy={text: {text: 1.0}}, observations={text: text})
    write_evaluation(run_dir / "evaluation", 10, "exact", exact)
    hostile = match(2, 4, env_id=text, opponent=text)
    write_evaluation(run_dir / "evaluation", 10, "hostile", hostile).with_suffix(".jsonl").write_text(log)
    write_questions(run_dir, text)
    session = {"started": text, "sparring": text, "python": text, "torch": text}
    session |= {"system": text, "cpus": 2, "gpus": [text]}
    (run_dir / "sessions.json").write_text(json.dumps([session]))
    (run_dir / "config.toml").write_text(f"[model]\nname = '''{text}'''\n")
    write_metrics(run_dir, text)


def write_conversations(run_dir: Path, text: str) -> None:
    """Make a run of a program in which every name and word is a text."""
    transcript = [{"author": text, "to": text, "text": text}, {"author": "", "to": text, "text": text}]
    extras = {"transcript": transcript, text: text, "long": [text] * 20}
    step = step_of(text, text, 1.0)
    step.prompt = [{"role": text, "content": text}] * 2
    meta = {"error": text, "retried": text, "group": text, "policy_version": text, text: text}
    top = a_rollout(text, {"topic": text, text: text}, meta, "1", [step, step], extras, {text: 1.0})
    top.metrics = {f"{text}/x": 2.0}
    child = a_rollout(text, text, {"parent_id": "1"}, f"c{text}", [step], rewards={text: 0.0})
    orphan = a_rollout("solve", None, {"parent_id": f"gone{text}"}, "o", [step_of("Solver", text)])
    write_log(run_dir, 1, [top, child, orphan])
    write_evaluation(run_dir / "evaluation", 1, "x", MeasureResult(text, [0.5, 1.0]))
    write_questions(run_dir, text)
    write_metrics(run_dir, text)


def write_questions(run_dir: Path, text: str) -> None:
    """Ask a task in which every name and word is a text, and nothing could be read."""
    step = step_of(text, text, 0.0)
    step.prompt = [{"role": text, "content": text}]
    asked = {"number": 0, "question": text, "answer": text}
    rollout = a_rollout("task", asked, {"error": text}, f"{text}-0", [step], {"read": text}, {text: 0.0})
    result = TaskResult(task=text, model=text, temperature=0, max_tokens=8, seed=0, scores=[0.0, 0.5, 1.0])
    path = write_evaluation(run_dir / "tasks", 1, "hostile", replace(result, unread=1, cut=1))
    write_rollouts(path.with_suffix(".jsonl"), 1, [rollout])


@pytest.mark.parametrize("write", [write_games, write_conversations])
def test_text_that_tries_to_break_out_of_the_page_is_shown(tmp_path, write):
    run_dir = tmp_path / "<img src=y>"
    write(run_dir, HOSTILE)
    html = build(run_dir)
    page = Page(html)
    assert page.open == []
    assert [tag for tag, _ in page.elements if tag == "img"] == []
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 4
    assert not any("onerror" in attrs for _, attrs in page.elements)
    assert sum(HOSTILE in text for text in page.text) > 10
    # Plotly reads a little HTML in names and labels, so there too everything must be escaped.
    figures = re.search(r'id="figures" type="application/json">(.*)</script>\n', html).group(1)
    assert "&lt;img src=x onerror" in figures
    assert "\\u003cimg" not in figures


@cache
def hostile_page(text: str) -> Page:
    with TemporaryDirectory() as directory:
        write_conversations(Path(directory), text)
        return Page(build(Path(directory)))


@given(text=hostile_text(whole_characters=True))
def test_hostile_text_stays_text(text):
    page, harmless = hostile_page(text), hostile_page("x")
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in harmless.elements} | {"details", "summary"}
    for tag in ("script", "style", "meta", "title"):
        assert sum(one == tag for one, _ in page.elements) == sum(one == tag for one, _ in harmless.elements)
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def policy_of(html: str) -> dict[str, list[str]]:
    found = [
        attributes["content"]
        for tag, attributes in Page(html).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(found) == 1
    return {words[0]: words[1:] for part in found[0].split(";") if (words := part.split())}


def test_the_page_allows_its_own_scripts_and_nothing_else(tmp_path):
    html = build_report(write_run(tmp_path / "run", steps=3)).read_bytes().decode()
    policy = policy_of(html)
    assert html.index("Content-Security-Policy") < html.index("<title>")
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy["script-src"] == [f"'sha256-{one}'" for one in hashes]
    assert not any("\r" in script for script in scripts)


def test_a_page_without_charts_allows_its_script(tmp_path):
    (tmp_path / "run").mkdir()
    assert len(policy_of(build(tmp_path / "run"))["script-src"]) == 2
