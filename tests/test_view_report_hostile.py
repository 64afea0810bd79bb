"""Hostile text in the report stays text, and could do nothing even if it got through the escaping."""

import base64
import hashlib
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings

from hostile_text import hostile_text
from report_pages import Page, build, write_run
from report_programs import a_rollout, step_of, write_log
from sparring.view.report.page import build_report, report_html
from sparring.view.whole_run import load_run


def hostile_page(text: str) -> str:
    """Build the page of a program's run in which every name and word is ``text``."""
    transcript = [{"author": text, "to": "", "text": text}, {"author": "", "to": text, "text": text}]
    whole = a_rollout(
        text,
        {"topic": text, text: text},
        {"error": text, text: text},
        id="1",
        steps=[step_of(text, text)],
        extras={"transcript": transcript, text: text},
        rewards={text: 1.0},
    )
    without = a_rollout("solve", text, {"parent_id": "1"}, id="2", steps=[step_of("Solver", text)])
    with TemporaryDirectory() as directory:
        write_log(Path(directory), 1, [whole, without])
        return report_html(load_run(Path(directory)))


@settings(max_examples=40, deadline=None)
@given(text=hostile_text(whole_characters=True))
def test_hostile_text_stays_text(text):
    page = Page(hostile_page(text))
    harmless = Page(hostile_page("x"))
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
