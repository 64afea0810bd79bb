"""A user's own code that fails costs its episode, or ends the run in one line that names the method."""

import asyncio
from pathlib import Path

import pytest

import failing_code
from failing_code import ARENA_METHODS, EPISODE_METHODS, ERRORS, VALUES, Program
from selfplay.core import InputError, MockInferenceClient, SelfplayError
from selfplay.replay.rollout_log import RolloutLog
from text_and_rewards import build_run

WAYS = [*ERRORS, *(f"returns {value}" for value in VALUES)]
POSSIBLE = {
    "get_extras": (
        "keys that are numbers",
        "half a pair inside",
        "more than a float",
        "NaN",
        "a text",
        "lists",
    ),
    "is_done": [*VALUES],
    "take_turn": [*VALUES],
    "score": [*VALUES],
    "startup": [*VALUES],
    "shutdown": [*VALUES],
    "adjust_rewards": [*VALUES],
    "state_dict": (
        "keys that are numbers",
        "half a pair inside",
        "more than a float",
        "NaN",
        "a text",
        "lists",
    ),
}
"""What a method may return."""


def is_possible(method: str, way: str) -> bool:
    return way.startswith("returns ") and any(value in way for value in POSSIBLE.get(method, ()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", EPISODE_METHODS)
async def test_a_method_that_fails_costs_its_episode_and_is_named(method, way, tmp_path):
    if is_possible(method, way):
        return
    arena = Program(MockInferenceClient(), method=method, way=way)
    arena.retries = 1
    if method in ("get_initial_actor", "get_next_actor") and way == "returns half a pair":
        with pytest.raises(InputError, match=f"Talk.{method}: there is no role"):
            await arena.generate_rollouts(arena.get_batch())
        return
    failing, *others = await arena.generate_rollouts(arena.get_batch())
    assert [one.rollout.error for one in others] == [None, None]
    reason = failing.rollout.error
    assert method in reason
    assert reason.isprintable()
    assert failing.rollout.steps == []
    log = RolloutLog(tmp_path)
    log.write(1, [failing.rollout, *(one.rollout for one in others)])
    assert [rollout.error for rollout in log.read(1)] == [reason, None, None]


SETTINGS = """
[program]
type = "python"
path = "{path}:Program"
options = {{ method = "{method}", way = "{way}" }}

[learning]
steps = 1

[learning.algorithm]
regulariser = "none"
"""


def configuration(directory: Path, method: str, way: str) -> str:
    file = directory / "run.toml"
    file.write_text(SETTINGS.format(path=Path(failing_code.__file__), method=method, way=way))
    return str(file)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ARENA_METHODS)
def test_a_method_of_the_arena_that_fails_ends_the_run_in_one_line(method, way, tmp_path):
    run = build_run(configuration(tmp_path, method, way), str(tmp_path / "run"))
    if is_possible(method, way):
        asyncio.run(run.trainer.run())
        return
    with pytest.raises(SelfplayError) as raised:
        asyncio.run(run.trainer.run())
    assert method in str(raised.value)
    assert run.serving.closed or method == "startup"
