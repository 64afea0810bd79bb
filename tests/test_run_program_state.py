"""The state of programs in checkpoints, and errors of a program's own code, without a local model."""

import asyncio
from pathlib import Path

import pytest

from program_files import write_program
from sparring.core import SparringError
from sparring.run.learners import Saved
from text_and_rewards import TextRun, build_run

SETTINGS = """
[learning]
steps = 2
[learning.algorithm]
regulariser = "none"
[evaluation]
every = 1
"""


def text_run(directory: Path, kind: str, name: str = "run", more: str = "") -> TextRun:
    program = f'[program]\ntype = "python"\npath = "{write_program(directory)}:{kind}"\n'
    (directory / "run.toml").write_text(SETTINGS + program + more)
    return build_run(str(directory / "run.toml"), str(directory / name))


def played_next(one: TextRun) -> list[int]:
    """Play the next step; return what its episodes were about."""
    batch = asyncio.run(one.source.play(Saved(0, {}, {}), one.trainer.progress))
    return [result.rollout.artifact for result in batch.results]


def evaluate(one: TextRun) -> None:
    asyncio.run(one.source.evaluate(0, full=True, progress=one.trainer.progress))


def test_what_an_evaluation_draws_from_a_store_is_in_the_state(tmp_path):
    whole, cut = (text_run(tmp_path, "Sampled", name) for name in ("whole", "cut"))
    asyncio.run(whole.source.begin(Saved(0, {}, {}), {}))
    unevaluated = asyncio.run(whole.source.state())
    evaluate(whole)
    state = asyncio.run(whole.source.state())
    assert state["arena"] != unevaluated["arena"], "or this test cannot tell"
    asyncio.run(cut.source.begin(Saved(0, {}, {}), state))
    assert played_next(cut) == played_next(whole)


def test_the_state_is_that_before_a_step_in_progress(tmp_path):
    one = text_run(tmp_path, "Sampled", more="[collection]\nmax_staleness = 1\n")
    again = text_run(tmp_path, "Sampled", "again", more="[collection]\nmax_staleness = 1\n")

    async def play_two() -> tuple[dict, list[int]]:
        await one.source.begin(Saved(0, {}, {}), {})
        await one.source.play(Saved(0, {}, {}), one.trainer.progress)
        state = await one.source.state()
        batch = await one.source.play(Saved(1, {}, {}), one.trainer.progress)
        return state, [result.rollout.artifact for result in batch.results]

    state, second = asyncio.run(play_two())
    assert state["arena"]["step_num"] == 2
    asyncio.run(again.source.begin(Saved(1, {}, {}), state))
    assert played_next(again) == second


@pytest.mark.parametrize("method", ["outcomes", "evaluate", "shutdown"])
def test_an_error_of_the_programs_own_method_ends_the_run_in_a_line_that_names_it(tmp_path, method):
    one = text_run(tmp_path, "Failing", more=f'[program.options]\nmethod = "{method}"\n')
    with pytest.raises(SparringError, match=rf"the program's {method} failed: ValueError\('as written'\)"):
        asyncio.run(one.trainer.run())
    assert one.serving.closed


def test_an_error_of_load_state_dict_is_a_line_that_names_it(tmp_path):
    state = asyncio.run(text_run(tmp_path, "HideAndSeek").source.state())
    one = text_run(tmp_path, "Failing", "again", '[program.options]\nmethod = "load_state_dict"\n')
    with pytest.raises(SparringError, match="the program's load_state_dict failed: ValueError"):
        asyncio.run(one.source.begin(Saved(0, {}, {}), state))


def test_a_state_that_json_cannot_hold_is_a_line_that_names_state_dict(tmp_path):
    one = text_run(tmp_path, "NoJson")
    with pytest.raises(
        SparringError, match=r"the program's state_dict returned what .*: .*set is not JSON serializable"
    ):
        asyncio.run(one.source.state())
