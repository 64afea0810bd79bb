"""The games or conversations that an evaluation keeps, complete."""

import io
import json
import platform
import re
import shutil

import msgspec
import pytest
from rich.console import Console

from game_runs import FEWER_GAMES, configure, run
from program_runs import configure as configure_program
from sparring.collection.rollout_log import LogLine
from sparring.collection.start_log import note_session
from sparring.commands.list_runs import headline
from sparring.core import InputError, SparringError
from sparring.evaluation.figures import read_figures
from sparring.run.single_process import resume, train
from tiny_models import tiny_model


def lines_of(path):
    return [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]


def names(path):
    return sorted(one.name for one in (path / "evaluation").iterdir())


def test_the_first_games_of_every_match_are_kept_in_full(model, tmp_path):
    config = configure(model, learning__steps="2", evaluation__games="6", tracking__games_logged="3")
    run(config, tmp_path / "run")
    for step in (0, 2):
        lines = lines_of(tmp_path / "run" / "evaluation" / f"step-{step:06d}-kuhn_poker-random.jsonl")
        assert [line.rollout.id for line in lines] == ["match-00000", "match-00001", "match-00002"]
        assert [line.step for line in lines] == [step] * 3
        assert all(turn["observation"] for line in lines for turn in line.rollout.extras["turns"])


def test_the_conversations_of_a_programs_evaluation_are_kept_in_full(model, tmp_path):
    config = configure_program(model, tmp_path, tracking__games_logged="2", learning__steps="2")
    run(config, tmp_path / "run")
    for step in (0, 2):
        lines = lines_of(tmp_path / "run" / "evaluation" / f"step-{step:06d}-conversations.jsonl")
        assert [line.rollout.episode_type for line in lines] == ["hide", "seek", "seek"] * 2
        assert all(line.rollout.steps[0].completion_text for line in lines)


@pytest.mark.slow  # test_run_local shows by default what a resume deletes
def test_a_resumed_run_deletes_later_evaluations_and_plays_them_again(model, tmp_path):
    run(configure(model, learning__steps="2", evaluation__every="1", run__save_every="1"), tmp_path / "run")
    before = names(tmp_path / "run")
    transcript = tmp_path / "run" / "evaluation" / "step-000002-kuhn_poker-random.jsonl"
    said = [line.rollout.extras for line in lines_of(transcript)]
    shutil.copy(transcript, transcript.with_name("step-000007-kuhn_poker-random.jsonl"))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000002")
    (tmp_path / "run" / "report.html").unlink()
    resume(tmp_path / "run", Console(file=io.StringIO()))
    assert names(tmp_path / "run") == before
    assert [line.rollout.extras for line in lines_of(transcript)] == said


def test_every_start_of_a_run_is_recorded_without_the_name_of_the_machine(model, tmp_path):
    run(configure(model, learning__steps="1"), tmp_path / "run")
    note_session(tmp_path / "run")
    first, second = json.loads((tmp_path / "run" / "sessions.json").read_text())
    assert first["started"] <= second["started"]
    assert platform.node() not in (tmp_path / "run" / "sessions.json").read_text()
    assert first["cpus"] >= 1
    assert {"sparring", "python", "torch", "transformers", "system", "gpus"} < set(first)
    (tmp_path / "run" / "sessions.json").write_text("{broken")
    note_session(tmp_path / "run")
    assert len(json.loads((tmp_path / "run" / "sessions.json").read_text())) == 1


def test_each_opponents_invalid_moves_are_printed_beside_the_wins_against_it(model, tmp_path):
    config = configure(
        model,
        learning__steps="1",
        evaluation__opponents="['random', 'base']",
        evaluation__nash_conv="false",
        **FEWER_GAMES,
    )
    said = " ".join(run(config, tmp_path / "run").split())
    for opponent in ("random", "base"):
        file = tmp_path / "run" / "evaluation" / f"step-000000-kuhn_poker-{opponent}.json"
        match = json.loads(file.read_text())
        won, invalid = match["win_rate"][1], match["invalid_move_rate"][1]
        assert f"win against {opponent} {won:.0%} ({invalid:.1%} of moves invalid)" in said


def test_a_match_without_a_finished_game_is_no_win_rate(model, tmp_path):
    config = configure(
        tiny_model("llama"),  # its context is too short for the prompts
        learning__steps="1",
        evaluation__nash_conv="false",
        **FEWER_GAMES,
    )
    text = io.StringIO()
    with pytest.raises(SparringError, match="games failed"):
        train(config, tmp_path / "run", Console(file=text, width=1000))
    assert re.search(r"win against random no game was finished \(1 x a prompt of \d+ tokens", text.getvalue())


TOO_SHORT = "1e-6"


def test_a_nash_conv_that_becomes_too_slow_is_left_out_and_the_run_goes_on(model, tmp_path):
    path = tmp_path / "run"
    changes = {"evaluation__nash_conv": "true", "evaluation__every": "1"}
    run(configure(model, learning__steps="2", run__save_every="1", **changes), path)
    shutil.rmtree(path / "checkpoints" / "step-000002")
    (path / "report.html").unlink()
    config = (path / "config.toml").read_text()
    assert "nash_conv_minutes = 10.0" in config
    (path / "config.toml").write_text(
        config.replace("nash_conv_minutes = 10.0", f"nash_conv_minutes = {TOO_SHORT}")
    )
    text = io.StringIO()
    resume(path, Console(file=text, width=400))
    assert "warning after update 2: NashConv of kuhn_poker is left out: scoring the 12" in text.getvalue()
    assert (path / "report.html").exists()
    evaluated = names(path)
    assert "step-000001-kuhn_poker-nash-conv.json" in evaluated
    assert "step-000002-kuhn_poker-random.json" in evaluated
    assert "step-000002-kuhn_poker-nash-conv.json" not in evaluated


def test_a_nash_conv_that_is_too_slow_at_once_is_refused(model, tmp_path):
    limited = {"evaluation__nash_conv": "true", "evaluation__nash_conv_minutes": TOO_SHORT}
    config = configure(model, **limited, **FEWER_GAMES)
    with pytest.raises(InputError, match=r"took over .* Allow more time"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_templates_of_one_game_are_measured_apart(model, tmp_path):
    both = '[{id = "kuhn_poker"}, {id = "kuhn_poker", template = "qwen3-zs"}]'
    changes = {"learning__steps": "1", "evaluation__games": "4", "evaluation__nash_conv": "false"}
    config = configure(model, envs=both, **changes)
    run(config, tmp_path / "run")
    found = [
        name for name in names(tmp_path / "run") if name.startswith("step-000001") and ".jsonl" not in name
    ]
    assert [re.sub(r"-[0-9a-f]{8}\.json", ".json", name) for name in found] == [
        "step-000001-kuhn_poker-for-2-fewshot-chat-random.json",
        "step-000001-kuhn_poker-for-2-qwen3-zs-random.json",
    ]
    kept = json.loads((tmp_path / "run" / "evaluation" / found[0]).read_text())
    assert kept["env_id"] == "kuhn_poker for 2, fewshot-chat"
    figures = headline(config, read_figures(tmp_path / "run" / "evaluation", 1))
    assert [str(one.name) for one in figures] == ["win rate against random in kuhn_poker for 2, fewshot-chat"]
