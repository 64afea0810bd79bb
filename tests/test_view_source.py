"""Reading a growing, damaged or finished run."""

import json
import math
import shutil
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.run.run_directory import RunDirectory
from sparring.view import metrics
from sparring.view.cards import card_of, dialogue
from sparring.view.episodes import outlines_of, read_outline
from sparring.view.metrics import MAX_POINTS, MAX_RATED, NEWEST, GrowingSeries, MetricsTail, Series
from sparring.view.run_view import RunView
from sparring.view.source import MAX_PARTS, RunDirectorySource
from sparring.view.watch.header import header
from sparring.view.whole_run import load_run
from watched_runs import append, read_all, run_of, said, write_log


def test_a_finished_run_of_games_is_read_whole(games_run):
    before = sorted((path, path.stat().st_mtime_ns) for path in games_run.rglob("*"))
    view = read_all(games_run)
    assert (view.name, view.step, view.total_steps, view.unit) == ("games", 3, 3, "games")
    assert view.is_finished
    assert view.plays() == ["kuhn_poker"]
    assert {step for series in view.figures.values() for step in series} == {0, 1, 2, 3}
    population = view.population()
    assert population.step == 3
    assert population.standing("fixed-random", "default").games > 0
    assert {"fixed-random", "ckpt-3"} <= {rating.uid for rating in view.ratings()}
    assert [rating.mu for rating in view.ratings()] == sorted([r.mu for r in view.ratings()], reverse=True)
    assert view.game is not None
    assert view.game.step == 3
    assert card_of(view.game).turns[0].speaker in ("seat 0", "seat 1")
    assert (view.damaged_lines, view.trouble) == (0, "")
    after = sorted((path, path.stat().st_mtime_ns) for path in games_run.rglob("*"))
    assert before == after


def test_a_programs_run_is_read_with_its_policies_and_sub_episodes(program_run):
    view = read_all(program_run)
    assert (view.step, view.unit, view.is_program) == (3, "episodes", True)
    assert view.plays()[0].endswith(":HideAndSeek")
    assert {rating.uid for rating in view.ratings()} == {"hider", "seeker"}
    assert view.game is not None
    assert view.game.rollout.episode_type == "hide"
    assert [part.rollout.episode_type for part in view.game.children] == ["seek", "seek"]
    assert [turn.speaker for turn in dialogue(view.game.rollout)] == ["", "Hider"]


def test_the_view_does_not_depend_on_the_size_of_a_piece(games_run, monkeypatch):
    whole = read_all(games_run)
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 100)
    source = RunDirectorySource(games_run)
    shares = [source.read().share_read for _ in range(3)]
    assert shares[0] < shares[1] < shares[2] == 1
    assert source.read() == whole


def test_a_run_that_has_just_started_is_empty(tmp_path):
    view = read_all(run_of(tmp_path / "run"))
    assert (view.step, view.total_steps, view.series, view.game) == (0, 100, {}, None)
    assert not view.in_use
    RunDirectory(tmp_path / "run").lock()
    assert "not started" in header(read_all(tmp_path / "run"), 0.0, 80).plain


def test_a_growing_file_is_followed(tmp_path):
    run = run_of(tmp_path / "run", step=1, wall_time=10.0, **{"learner/loss": 0.5})
    source = RunDirectorySource(run)
    assert source.read().series["learner/loss"] == Series([1], [0.5])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "learner/')
        file.flush()
        assert source.read().step == 1
        file.write('loss": 0.25}\n')
    view = source.read()
    assert view.series["learner/loss"] == Series([1, 2], [0.5, 0.25])
    assert (view.damaged_lines, view.share_read) == (0, 1)


def test_the_view_of_a_resumed_run_drops_the_lines_that_were_cut_off(tmp_path):
    run = run_of(tmp_path / "run")
    for step in range(1, 6):
        append(run, {"step": step, "wall_time": step, "x": 0.0})
    source = RunDirectorySource(run)
    assert source.read().step == 5
    file = run / "metrics.jsonl"
    kept = file.read_text().splitlines(keepends=True)[:2]
    file.write_text("".join(kept))
    for step in range(3, 20):
        append(run, {"step": step, "wall_time": 100 + step, "x": 1.0})
    view = source.read()
    assert view.series["x"] == Series(list(range(1, 20)), [0.0] * 2 + [1.0] * 17)


@given(
    lines=st.lists(
        st.one_of(st.integers(1, 9), st.sampled_from(["{", "[]", "", '{"x": 1}', "\x00", "null"]))
    ),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_only_damaged_lines_are_lost_however_the_file_grows(tmp_path_factory, lines, cuts):
    text = "".join(
        (line if isinstance(line, str) else json.dumps({"step": line, "x": line})) + "\n" for line in lines
    ).encode()
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    tail = MetricsTail(path)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    with path.open("wb") as file:
        for start, end in zip(places, [*places[1:], len(text)], strict=True):
            file.write(text[start:end])
            file.flush()
            tail.read()
    good = [line for line in lines if isinstance(line, int)]
    assert tail.series().get("x", Series()).values == good
    assert tail.damaged == sum(isinstance(line, str) and line != "" for line in lines)


@pytest.mark.parametrize("count", [MAX_POINTS, MAX_POINTS + 1, 50 * MAX_POINTS])
def test_a_long_series_keeps_its_ends_its_newest_points_and_every_nth_of_the_others(count):
    growing = GrowingSeries()
    for step in range(1, count + 1):
        growing.append(step, float(step))
    one = growing.series()
    assert one.steps == one.values
    assert len(one.steps) <= MAX_POINTS
    assert one.steps[0] == 1
    assert one.steps[-NEWEST:] == list(range(count - NEWEST + 1, count + 1))
    gaps = {later - earlier for earlier, later in pairwise(one.steps[: len(one.steps) - 2 * NEWEST // 3])}
    assert max(gaps) <= 4 * count / NEWEST, "no part of the run is missing"
    assert one.total == count * (count + 1) / 2


def test_only_some_models_are_followed_by_step_and_all_by_their_latest_rating(tmp_path):
    names = {f"model-pool/ckpt-{number}/mu": 25.0 for number in range(3 * MAX_RATED)}
    view = read_all(run_of(tmp_path / "run", step=1, **names))
    assert len(view.under("model-pool/")) == MAX_RATED
    assert names.items() <= view.latest.items()


def test_a_line_that_is_nested_too_deeply_is_damaged(tmp_path):
    run = run_of(tmp_path / "run", step=1)
    deep = "[" * 100_000 + "]" * 100_000
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 2, "x": {deep}}}\n')
    (run / "rollouts").mkdir()
    (run / "rollouts" / "step-000001.jsonl").write_text(f'{{"rollout": {{"extras": {deep}}}}}\n')
    view = load_run(run)
    assert (view.damaged_lines, view.game, view.episodes) == (1, None, [])


def test_a_view_carries_no_more_of_a_conversation_than_is_shown(tmp_path):
    run = run_of(tmp_path / "run")
    prompt = [{"role": "user", "content": text} for text in ("rules", "your turn")]
    step = {"role_id": "A", "prompt": prompt, "completion": [], "prompt_token_ids": [1]}
    children = [said(f"child {n}", meta={"parent_id": "top"}, steps=[step]) for n in range(MAX_PARTS + 3)]
    write_log(run, 1, [said("top", steps=[step]), *children])
    game = read_all(run).game
    assert game is not None
    assert (len(game.children), game.left_out) == (MAX_PARTS, 3)
    for episode in (game, *game.children):
        assert episode.rollout.steps[0].prompt == prompt[1:]
        assert episode.rollout.steps[0].prompt_token_ids is None


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    path = tmp_path / "step-000001.jsonl"
    lines = [
        json.dumps({"rollout": {"episode_type": "solve", "id": f"{number:02}"}}) + "\n"
        for number in range(100)
    ]
    path.write_text("".join(lines))
    for tail_bytes in range(1, 3 * len(lines[-1])):
        outlines = outlines_of(path, path.stat().st_size - tail_bytes)
        assert len(outlines) == tail_bytes // len(lines[-1])
        assert [one.rollout.id for outline in outlines for one in read_outline(outline)] == [
            f"{number:02}" for number in range(100 - len(outlines), 100)
        ]


def test_values_that_are_not_numbers_are_left_out(tmp_path):
    run = run_of(tmp_path / "run", step=1, a=None, b="text", c=2, d=10**400, e=-1e308)
    assert set(read_all(run).series) == {"step", "c"}


@pytest.mark.parametrize("config", ["[[envs]", f"x = {'[' * 100_000}", f"seed = 1{'0' * 5000}"])
def test_other_damaged_files_are_left_out(games_run, tmp_path, config):
    run = tmp_path / "run"
    shutil.copytree(games_run, run)
    (run / "config.toml").write_text(config)
    for path in (run / "evaluation").iterdir():
        path.write_text("{")
    for path in (run / "rollouts").iterdir():
        path.write_text('{"rollout": 3}\n\n{"rollout": {"id": [')
    view = read_all(run)
    assert (view.config, view.figures, view.game) == ({}, {}, None)
    assert view.step == 3
    assert view.trouble == ""


def test_changed_and_deleted_evaluations_are_noticed(tmp_path):
    run = run_of(tmp_path / "run")
    source = RunDirectorySource(run)
    assert source.read().figures == {}

    def means():
        return [one.value for series in source.read().figures.values() for one in series.values()]

    write_evaluation(run / "evaluation", 0, "exact", MeasureResult("exact", [0.25]))
    path = write_evaluation(run / "evaluation", 10, "exact", MeasureResult("exact", [0.5]))
    assert means() == [0.25, 0.5]
    path.unlink()
    assert means() == [0.25]
    write_evaluation(run / "evaluation", 10, "exact", MeasureResult("exact", [0.75]))
    assert means() == [0.25, 0.75]


def test_a_deleted_run_is_reported_and_the_last_view_stays(games_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(games_run, run)
    source = RunDirectorySource(run)
    assert source.read().step == 3
    shutil.rmtree(run)
    view = source.read()
    assert view.step == 3
    assert "run cannot be read (No such file or directory)" in view.trouble
    assert "unreachable" in header(view, 0.0, 80).plain


def test_the_last_game_is_the_last_complete_one_that_did_not_fail(tmp_path):
    run = run_of(tmp_path / "run")
    failed = said("third", meta={"error": "it broke"})
    write_log(run, 4, [said("first"), said("second"), said("child", meta={"parent_id": "second"}), failed])
    game = read_all(run).game
    assert game is not None
    assert [turn.text for turn in dialogue(game.rollout)] == ["second"]
    assert [part.rollout.id for part in game.children] == ["child"]
    write_log(run, 5, [failed])
    game = read_all(run).game
    assert game is not None
    assert (game.rollout.id, game.rollout.error) == ("third", "it broke")


def test_a_damaged_newest_log_keeps_the_previous_game(tmp_path):
    run = run_of(tmp_path / "run")
    write_log(run, 1, [said("hello")])
    source = RunDirectorySource(run)
    first = source.read().game
    (run / "rollouts" / "step-000002.jsonl").write_text("{\n")
    assert source.read().game == first is not None


def test_pauses_of_a_resumed_run_do_not_count_as_its_speed():
    times = [0.0, 10.0, 20.0, 9000.0, 9010.0]
    view = RunView("", {"learning": {"steps": 7}}, {"wall_time": Series([1, 2, 3, 4, 5], times)}, {"step": 5})
    assert view.seconds_left() == pytest.approx(20.0)
    assert math.isclose(sum(view.step_seconds()), 30.0)
