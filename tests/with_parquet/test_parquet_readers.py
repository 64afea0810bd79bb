"""What ``sparring export --rollouts`` writes, read by the libraries that people use for such files."""

import json
import re
from pathlib import Path

import datasets
import duckdb
import pandas
import pyarrow.parquet
import pytest

from file_limits import files_no_longer_than
from report_pages import write_run
from sparring.cli.main import main
from sparring.collection import RolloutLog
from sparring.commands import export_rollouts
from sparring.commands.rollout_rows import COLUMNS, rows_of
from sparring.core import Rollout, Step
from sparring.view.batches import BatchRewards

PAGE = Path(__file__).parents[2] / "docs" / "run-directory.md"
READERS = re.findall(r"`((?:pandas|duckdb|datasets)\.\w+\([^`]*\))`", PAGE.read_text())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run like one of Kuhn poker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return write_run(tmp_path / "run", steps=4, games_per_step=3)


def rows_in(loaded) -> list[dict]:
    if isinstance(loaded, datasets.DatasetDict):
        return loaded["train"].to_list()
    if isinstance(loaded, pandas.DataFrame):
        return loaded.astype(object).where(loaded.notna(), None).to_dict("records")
    return loaded.to_arrow_table().to_pylist()


def test_the_page_names_the_three_libraries():
    assert [one.partition(".")[0] for one in READERS] == ["pandas", "duckdb", "datasets"]


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.partition(".")[0])
def test_the_line_of_the_page_reads_every_column_and_row(run, reader):
    assert main(["export", str(run), "rollouts.parquet", "--rollouts"]) == 0
    rows = rows_in(eval(reader))
    batches, expected = BatchRewards(run, has_buffer=True, has_critic=lambda policy: False), []
    for number, (update, rollout) in enumerate(RolloutLog(run / "rollouts")):
        batches.add_to(update, [rollout])
        expected += rows_of(update, number % 3 + 1, rollout)
    assert len(rows) == len(expected) > 20
    for row, wanted in zip(rows, expected, strict=True):
        assert list(row) == list(COLUMNS)
        for column, kind in COLUMNS.items():
            if kind == "time":
                assert (row[column] is None) == (wanted[column] is None)
            elif kind in ("integers", "numbers", "messages") and row[column] is not None:
                assert [*row[column]] == wanted[column]
            else:
                assert row[column] == wanted[column], column


@pytest.mark.parametrize(("limit", "most"), [("GROUP_BYTES", 5000), ("GROUP_ROLLOUTS", 3)])
def test_a_log_that_is_larger_than_one_group_comes_back_whole(run, monkeypatch, limit, most):
    monkeypatch.setattr(export_rollouts, limit, most)
    assert main(["export", str(run), "rollouts.parquet", "--rollouts"]) == 0
    file = pyarrow.parquet.ParquetFile("rollouts.parquet")
    assert file.num_row_groups > 2
    ids = [rollout.id for _, rollout in RolloutLog(run / "rollouts")]
    assert list(dict.fromkeys(file.read(["rollout_id"]).column(0).to_pylist())) == ids


def test_a_note_says_how_many_games_were_played_but_not_logged(run, capsys):
    assert main(["export", str(run), "all.parquet", "--rollouts"]) == 0
    assert capsys.readouterr().err == ""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "accounts/finished": 1030.0, "accounts/failed": 4.0}) + "\n")
    assert main(["export", str(run), "some.parquet", "--rollouts"]) == 0
    assert "note: 1,034 were played; a run keeps 8 of an update" in capsys.readouterr().err


def test_damaged_lines_are_named_and_left_out(run, capsys):
    log = run / "rollouts" / "step-000001.jsonl"
    lines = log.read_text().splitlines()
    huge = json.loads(lines[2])
    huge["rollout"]["steps"][0]["completion_token_ids"] = [10**100]
    late = json.loads(lines[0])
    late["rollout"]["started_at"] = 1e308
    log.write_text("\n".join([lines[0], lines[1][:-9], json.dumps(huge)]) + "\n")
    second = run / "rollouts" / "step-000002.jsonl"
    late["step"] = 2
    second.write_text("\n".join([json.dumps(late), *second.read_text().splitlines()[1:]]) + "\n")
    assert main(["export", str(run), "rollouts.parquet", "--rollouts"]) == 0
    said = capsys.readouterr()
    assert re.findall(r"step-00000(\d).jsonl, line (\d): the line is damaged", said.err) == [
        ("1", "2"),
        ("1", "3"),
        ("2", "1"),
    ]
    assert ", 6 rollouts" in said.out
    assert set(pandas.read_parquet("rollouts.parquet").query("update == 1").line) == {1}


def test_what_exists_is_not_overwritten_and_a_failed_export_leaves_nothing(run, capsys):
    Path("mine.parquet").write_text("mine")
    assert main(["export", str(run), "mine.parquet", "--rollouts"]) == 2
    assert Path("mine.parquet").read_text() == "mine"
    before = sorted(Path().iterdir())
    capsys.readouterr()
    with files_no_longer_than(1000):
        assert main(["export", str(run), "rollouts.parquet", "--rollouts"]) == 1
    assert "rollouts.parquet cannot be written" in capsys.readouterr().err
    assert sorted(Path().iterdir()) == before


def test_a_rollout_without_an_answer_has_a_row(run):
    failed = Rollout(episode_type="game", meta={"error": "the engine is gone"}, id="failed")
    told = Rollout(episode_type="debate", steps=[Step("judge", [], [], policy="")], id="told")
    RolloutLog(run / "rollouts").write(9, [failed, told])
    assert main(["export", str(run), "rollouts.parquet", "--rollouts"]) == 0
    rows = duckdb.sql("from 'rollouts.parquet' where update = 9").fetchall()
    assert len(rows) == 2
    found = duckdb.sql("select error, turn, role from 'rollouts.parquet' where update = 9").fetchall()
    assert found == [("the engine is gone", None, None), (None, 1, "judge")]
