"""``sparring export --rollouts``: what of a rollout is in which column; tests/with_parquet reads the file."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doc_pages import DOCS
from report_pages import write_run
from sparring.cli.main import main
from sparring.collection import RolloutLog
from sparring.commands.rollout_rows import COLUMNS, rows_of
from sparring.core import AgentSpec, Rollout, Step
from sparring.view.batches import BatchRewards

JSON = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=2)


def rows_in(run: Path) -> list[dict]:
    batches, rows = BatchRewards(run, has_buffer=True, has_critic=lambda policy: False), []
    for update, rollout in RolloutLog(run / "rollouts"):
        batches.add_to(update, [rollout])
        rows += rows_of(update, 1, rollout)
    return rows


def test_a_game_has_a_row_for_each_move_and_a_scripted_one_has_no_tokens(tmp_path):
    run = write_run(tmp_path / "run", steps=4, games_per_step=2)
    rows = rows_in(run)
    games = [rollout for _, rollout in RolloutLog(run / "rollouts")]
    assert len(rows) == sum(len(game.extras["turns"]) for game in games)
    scripted = [row for row in rows if row["kind"] == "script"]
    assert scripted
    assert all(row["member"] == "random" and row["action"] for row in scripted)
    assert all(row["logprobs"] is row["prompt"] is row["advantage"] is None for row in scripted)
    first = rows[0]
    assert (first["update"], first["turn"], first["seat"], first["role"]) == (1, 1, 0, "player_0")
    assert first["logprobs"] == games[0].steps[0].completion_logprobs
    assert first["outcome"] == ("win" if first["final_reward"] > 0 else "loss")
    assert (first["reward_final_transformed"], first["advantage"]) == (1.9, 0.83)


def test_a_step_that_was_never_drawn_has_no_advantage(tmp_path):
    run = write_run(tmp_path / "run", steps=4, games_per_step=2)
    rows = [row for row in rows_in(run) if row["rollout_id"] == "game-1-0"]
    assert [row["advantage"] for row in rows] == [0.83, 0.83, None]
    for batch in (run / "batches").iterdir():
        batch.unlink()
    assert {row["advantage"] for row in rows_in(run)} == {None}


@given(
    st.dictionaries(st.sampled_from(["parent_id", "group", "error", "seed", "x"]), JSON),
    st.dictionaries(st.sampled_from(["turns", "final_rewards", "reward_stages", "explored", "x"]), JSON),
    JSON,
)
def test_whatever_a_log_holds_every_row_has_every_column(meta, extras, artifact):
    steps = [
        Step("Solver", [{"role": "user", "content": "?"}], [], [1], [2, 3], [-0.5, -1.0], 1.0, 0.5, extras),
        Step("Judge", [], [{"role": "assistant", "content": "A", "reasoning": "so"}], policy=""),
    ]
    agents = {"Judge": AgentSpec("model", "base")}
    rollout = Rollout(
        episode_type="qa", meta=meta, steps=steps, extras=extras, artifact=artifact, agents=agents
    )
    BatchRewards(Path("nowhere"), has_buffer=False, has_critic=lambda policy: False).add_to(3, [rollout])
    solver, judge = rows_of(3, 1, rollout)
    assert [*solver] == [*judge] == [*COLUMNS]
    assert (solver["member"], solver["completion_token_ids"], solver["advantage"]) == ("default", [2, 3], 0.5)
    assert (judge["kind"], judge["member"], judge["answer"], judge["reasoning"]) == (
        "model",
        "base",
        "A",
        "so",
    )
    assert judge["advantage"] is None
    assert {row["seed"] is None or isinstance(row["seed"], int) for row in (solver, judge)} == {True}


def test_the_page_lists_every_column():
    page = (DOCS / "run-directory.md").read_text().split("| columns | contents |")[1].split("\n\n")[0]
    listed = [name.strip(" `") for line in page.splitlines()[2:] for name in line.split("|")[1].split(",")]
    assert sorted(listed) == sorted(COLUMNS)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rollouts"], "End it in .parquet"),
        (["r.parquet", "--merge"], "does not go together with --merge"),
        (["r.parquet", "--verifiers"], "does not go together with --verifiers"),
        (["r.parquet"], "pip install 'sparring[parquet]'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tmp_path, monkeypatch, capsys, words, problem):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run", steps=2, games_per_step=1)
    assert main(["export", str(run), "--rollouts", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
