"""Conversations in the report: dialogues, sub-episodes, selection, hostile text and damaged logs."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_pages import build
from report_programs import CONFIG, a_rollout, play, step_of, text_of, write_log
from sparring.core import EpisodeRequest, Rollout, Step
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.view.cards import dialogue, title_of
from sparring.view.episodes import MAX_DEPTH
from sparring.view.report.page import report_html
from sparring.view.whole_run import load_run


def test_a_debate_reads_as_a_dialogue_with_private_observations(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    play(tmp_path, [1], [EpisodeRequest("debate", {"topic": "Parks"})])
    text = text_of(build(tmp_path))
    assert "Parks Aff +1 Neg -1 debate, 4 answers" in text
    assert "environment to Aff only Topic: Parks You are Aff; only you know fact Aff-7." in text
    assert "environment to Neg only The judge nods at you." in text
    assert "version 0, mean log-prob -0.500, " in text
    assert "reward -1 → advantage 0" in text
    assert "Continues the prompt of turn 1:" in text
    assert "verdict Aff" in text
    # The dialogue, Aff's first prompt and what only Neg's first prompt shows.
    assert text.count("only you know fact Aff-7") == 2


def test_a_failed_episode_and_a_failed_child_say_why(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    bad = EpisodeRequest("solve", {"question": "0 / 0", "ground_truth": "?"})
    play(tmp_path, [1], [bad])
    text = text_of(build(tmp_path))
    assert "0 / 0 solve failed" in text
    assert "nobody can solve this" in text
    meta = {"parent_id": "gone", "error": "lost", "retried": 2}
    write_log(tmp_path, 2, [a_rollout("solve", {"question": "1"}, meta, id="gone.3")])
    text = text_of(build(tmp_path))
    assert "sub-episode of gone, which is not in the log" in text
    assert "failed retried 2×" in text


def test_each_child_has_a_line_below_its_parent(tmp_path):
    answers = [step_of("Solver", text, reward) for text, reward in (("71", 1.0), ("It is\n17.", 0.0))]
    children = [
        a_rollout(
            "solve", {"question": q}, {"parent_id": "p"}, f"p.{n}", [step], rewards={"Solver": step.reward}
        )
        for n, (step, q) in enumerate(zip(answers, ("23 + 48", "40 + 31"), strict=True))
    ]
    failed = a_rollout("solve", {"question": "23 + 48"}, {"parent_id": "p", "error": "cut off"}, "p.2")
    write_log(tmp_path, 1, [a_rollout("propose", None, {}, "p"), *children, failed])
    run = load_run(tmp_path)
    assert [len(one.children) for one in run.episodes] == [3]
    assert run.episodes_in_log == 1
    text = text_of(report_html(run))
    assert "3 sub-episodes with mean reward Solver +0.5" in text
    assert "23 + 48 Solver 71 +1 solve" in text
    assert "40 + 31 Solver It is 17. 0 solve" in text
    assert "23 + 48 solve failed" in text


def logged(role: str, text: str) -> Step:
    """Make one model call, asked by its role's name."""
    return Step(
        role, [{"role": "user", "content": f"asked {role}"}], [{"role": "assistant", "content": text}]
    )


def test_turns_are_matched_with_steps_by_text_and_unmatched_steps_come_before_the_next():
    steps = [
        logged("A", "thinking"),
        logged("B", "hi"),
        logged("A", "yes"),
        logged("A", "raw no"),
        logged("C", "x"),
    ]
    said = [("", "go"), ("B", "hi"), ("A", "yes"), ("A", "no"), ("A", "by the program")]
    rollout = Rollout(
        episode_type="talk",
        steps=steps,
        extras={"transcript": [{"author": who, "text": text} for who, text in said]},
    )
    turns = dialogue(rollout)
    assert [(turn.speaker, turn.text, turn.number) for turn in turns] == [
        ("", "go", 0),
        ("B", "hi", 1),
        ("A", "thinking", 2),
        ("A", "yes", 3),
        ("A", "no", 4),
        ("A", "by the program", 5),
        ("C", "x", 6),
    ]
    assert [turn.step for turn in turns] == [None, steps[1], steps[0], steps[2], steps[3], None, steps[4]]
    assert [turn.heard for turn in turns] == ["", "", "asked A", "", "", "", "asked C"]


def test_equal_answers_keep_their_own_steps():
    steps = [logged("A", "same") for _ in range(3)]
    turns = dialogue(
        Rollout(
            episode_type="talk", steps=steps, extras={"transcript": [{"author": "A", "text": "same"}] * 3}
        )
    )
    assert [turn.step is step for turn, step in zip(turns, steps, strict=True)] == [True] * 3


def test_a_malformed_transcript_is_replaced_by_the_steps():
    for transcript in (None, "spoken", [3], [{"author": 5}]):
        rollout = Rollout(episode_type="talk", steps=[logged("A", "yes")], extras={"transcript": transcript})
        assert [(turn.speaker, turn.text) for turn in dialogue(rollout)] == [("A", "yes")]


def test_episodes_are_taken_from_the_first_middle_and_last_step_with_a_failed_one(tmp_path):
    for step in range(1, 10):
        rollouts = []
        for number in range(20):
            failed = {"error": "lost"} if (step, number) == (3, 7) else {}
            child = a_rollout(
                "solve", None, {"parent_id": f"{step}-{number}", **failed}, f"{step}-{number}.0"
            )
            rollouts += [a_rollout("propose", None, {}, f"{step}-{number}"), child]
        write_log(tmp_path, step, rollouts)
    run = load_run(tmp_path)
    assert run.episodes_in_log == 180
    assert len(run.episodes) == 19
    assert sorted({one.step for one in run.episodes}) == [1, 3, 5, 9]
    assert [one.rollout.id for one in run.episodes if one.children[0].rollout.error] == ["3-7"]
    assert [one.rollout.id for one in run.episodes if one.step == 9] == [
        f"9-{number}" for number in (0, 3, 6, 10, 13, 16)
    ]


def test_nesting_and_numbers_of_children_have_limits(tmp_path):
    chain = [a_rollout("deep", None, {"parent_id": f"r{n - 1}"} if n else {}, f"r{n}") for n in range(2000)]
    wide = [
        a_rollout("wide", None, {}, "w"),
        *(a_rollout("c", None, {"parent_id": "w"}, f"w.{n}") for n in range(70)),
    ]
    write_log(tmp_path, 1, chain + wide)
    text = text_of(build(tmp_path))
    assert f"{2000 - MAX_DEPTH - 1:,} deeper sub-episodes not shown" in text
    assert "6 more sub-episodes not shown" in text


@pytest.mark.parametrize(
    ("artifact", "title"),
    [
        ({"topic": "Parks  and\nmalls"}, "Parks and malls"),
        ({"question": {"a": 1}, "prompt": "p"}, "p"),
        ("a plain topic", "a plain topic"),
        ({"topic": "x" * 200}, "x" * 100 + "…"),
        ({"seed": 3, "claim": "Cats purr"}, "Cats purr"),
        ({"right": True, "statement": "7 is prime", "source": "x"}, "7 is prime"),
        (9, "9"),
        ({"examples": []}, ""),
        ([1, 2], ""),
        (None, ""),
    ],
)
def test_the_artifact_gives_a_conversation_its_title(artifact, title):
    assert title_of(artifact) == title


@given(st.data())
def test_damaged_logs_and_measures_are_skipped_and_never_fatal(data):
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    with TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        children = [a_rollout("c", "q", {"parent_id": "p"}, f"p.{n}", [step_of("S", "a")]) for n in range(2)]
        top = a_rollout("p", {"topic": "t"}, {}, "p", [step_of("P", "a")], {"transcript": [{"author": "P"}]})
        write_log(run_dir, 1, [top, *children])
        path = write_evaluation(run_dir / "evaluation", 1, "m", MeasureResult("m", [0.0, 1.0, 0.5]))
        log = run_dir / "rollouts" / "step-000001.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        measure = json.loads(path.read_text())
        for target in (lines[0]["rollout"], lines[1]["rollout"], lines[0]["rollout"]["steps"][0], measure):
            key = data.draw(st.sampled_from(sorted(target)))
            target[key] = data.draw(json_values)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"rollout": {"id')
        path.write_text(json.dumps(measure))
        html = report_html(load_run(run_dir))
        assert "</html>" in html
        assert load_run(run_dir).episodes_in_log >= 1
