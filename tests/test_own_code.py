"""A user's own code that fails costs its episode, or ends the run in one line that names the method."""

import asyncio
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from failing_code import (
    ARENA_METHODS,
    EPISODE_METHODS,
    ERRORS,
    GAME_METHODS,
    VALUES,
    Program,
    configuration,
    is_possible,
)
from matrices import one_of_each
from sparring.cli.main import main
from sparring.collection.rollout_log import RolloutLog
from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeRequest,
    InputError,
    MockInferenceClient,
    PlaySpec,
    Role,
    Rollout,
    SparringError,
)
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from text_and_rewards import build_run
from tiny_models import tiny_model

RANDOM = AgentSpec("script", "random")
WAYS = [*ERRORS, *(f"returns {value}" for value in VALUES)]


BY_ILLEGAL_MOVES = ("normalise", "_invalid_rewards")
"""The methods of a game that a legal move does not call."""


@pytest.mark.parametrize(("method", "way"), one_of_each(EPISODE_METHODS, WAYS))
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


@pytest.mark.parametrize(("method", "way"), one_of_each(ARENA_METHODS, WAYS))
def test_a_method_of_the_arena_that_fails_ends_the_run_in_one_line(method, way, tmp_path):
    run = build_run(configuration(tmp_path, method, way), str(tmp_path / "run"))
    if is_possible(method, way):
        asyncio.run(run.trainer.run())
        return
    with pytest.raises(SparringError) as raised:
        asyncio.run(run.trainer.run())
    assert method in str(raised.value)
    assert run.serving.closed or method == "startup"


def game_in_which(method: str, way: str, directory: Path, kind: str = "Count") -> str:
    """Return the id of a game of which one method fails."""
    file = directory / "game.py"
    made = f"overriding({kind}, {method!r}, {way!r})"
    file.write_text(f"from failing_code import {kind}, overriding\n\nFails = {made}\n")
    return f"{file}:Fails"


def played(env_id: str, answer: str, other: AgentSpec = RANDOM) -> Rollout:
    """Play a game, by default against a script that makes legal moves."""
    arena = Arena(MockInferenceClient([answer]), retries=0)
    arena.add_role(Role("player_0"))
    arena.add_episode("Count", GameEpisode(env_id, 2, get_template("fewshot-chat")))
    spec = PlaySpec(env_id, 2, (AgentSpec("policy"), other), 3)
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("Count", spec)]))
    return result.rollout


@pytest.mark.parametrize(("method", "way"), one_of_each(GAME_METHODS, WAYS))
def test_a_method_of_a_game_that_fails_costs_the_game(method, way, tmp_path):
    if is_possible(method, way):
        return
    rollout = played(game_in_which(method, way, tmp_path), "three" if method in BY_ILLEGAL_MOVES else "1")
    also = {"_own_info": "game_info"} | dict.fromkeys(("_own_rewards", "_invalid_rewards"), "gave no reward")
    assert method in rollout.error or also[method] in rollout.error
    assert rollout.error.isprintable()
    RolloutLog(tmp_path).write(1, [rollout])


@pytest.mark.parametrize("way", ERRORS)
def test_only_a_game_that_lists_no_moves_may_raise_to_refuse_one(way, tmp_path):
    assert "apply" in played(game_in_which("apply", way, tmp_path), "1").error
    (tmp_path / "unlisted").mkdir()
    tmp_path /= "unlisted"
    env_id = game_in_which("apply", way, tmp_path, "Unlisted")
    rollout = played(env_id, "1", AgentSpec("model", "other"))
    info = rollout.extras["game_info"][0]
    assert rollout.extras["raised"] == info["raised"]
    assert info["reason"].startswith("the game failed on the move: ")
    assert rollout.rewards == {"player_0": -1.0}
    RolloutLog(tmp_path).write(1, [rollout])


COMMAND = "train {file} --name {name} --model.name {model} --model.dtype float32 --model.threads 1"
COMMAND += " --lora.rank 2 --inference.max_tokens 4 --run.directory {directory}"


def run_command(command: str, capfd) -> tuple[int, str]:
    """Run a command; return its status and the lines that it wrote to stderr."""
    status = main(shlex.split(command))
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    return status, said.err.strip()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run of a program in which nothing fails."""
    directory = tmp_path_factory.mktemp("program")
    file = configuration(directory, "", "")
    command = COMMAND.format(file=file, name="run", model=tiny_model("llama"), directory=directory)
    assert main(shlex.split(command)) == 0
    return directory / "run"


@pytest.mark.parametrize("way", ["sys.exit(0)", "an interrupt", "an error without a text", "half a pair"])
@pytest.mark.parametrize("method", ["__init__", "get_batch"])
def test_a_dry_run_says_which_method_fails(method, way, tmp_path, capfd):
    status, said = run_command(f"train {configuration(tmp_path, method, way)} --dry-run", capfd)
    assert status in (1, 2)
    assert said.startswith("error: ")
    assert said.count("\n") == 0
    assert method in said or "Program cannot be built" in said


@pytest.mark.parametrize(
    ("method", "way"),
    [
        ("startup", "a cancellation"),
        ("evaluate", "sys.exit(0)"),
        ("evaluate", "returns None"),
        ("end_step", "no Exception"),
    ],
)
def test_a_training_whose_program_fails_ends_with_a_status_and_a_line(method, way, tmp_path, capfd):
    file = configuration(tmp_path, method, way)
    model = tiny_model("llama")
    status, said = run_command(COMMAND.format(file=file, name="run", model=model, directory=tmp_path), capfd)
    assert status == 1
    assert said.splitlines()[-1].startswith("error: ")
    assert method in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("method", "way", "error"),
    [("reward", "sys.exit(0)", "SystemExit"), ("env_response", "an interrupt", "KeyboardInterrupt")],
)
def test_a_training_in_which_an_episode_fails_goes_on_and_counts_it(method, way, error, tmp_path, capfd):
    file, model = configuration(tmp_path, method, way), tiny_model("llama")
    command = COMMAND.format(file=file, name="run", model=model, directory=tmp_path)
    assert main(shlex.split(command)) == 0
    said = capfd.readouterr()
    assert "3 started = 2 finished + 1 failed" in said.out
    assert error in said.out
    assert "Traceback" not in said.out + said.err


def changed(finished: Path, directory: Path, method: str, way: str) -> Path:
    """Return a copy of a run whose program now fails."""
    run = directory / "run"
    shutil.copytree(finished, run)
    config = (run / "config.toml").read_text()
    config = re.sub(r"(?m)^method = .*$", f'method = "{method}"', config)
    (run / "config.toml").write_text(re.sub(r"(?m)^way = .*$", f'way = "{way}"', config))
    return run


@pytest.mark.parametrize("way", ["sys.exit(0)", "an error without a text", "returns None"])
@pytest.mark.parametrize("command", ["eval {run}", "play {run} --role A"])
def test_other_commands_say_which_method_fails(command, way, finished, tmp_path, capfd, monkeypatch):
    method = "evaluate" if command.startswith("eval") else "get_batch"
    run = changed(finished, tmp_path, method, way)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    status, said = run_command(command.format(run=run), capfd)
    assert status == 1
    assert method in said.splitlines()[-1]


@pytest.mark.parametrize("method", ["env_response", "get_extras"])
def test_an_evaluation_whose_episodes_fail_says_why_in_every_command(method, finished, tmp_path, capfd):
    run = changed(finished, tmp_path, method, "sys.exit(0)")
    config = (run / "config.toml").read_text().replace("failing_code.py:Program", "failing_code.py:Measured")
    (run / "config.toml").write_text(config)
    (tmp_path / "again.toml").write_text(config.replace('name = "run"', 'name = "again"'))
    for command in (f"eval {run}", f"train {tmp_path / 'again.toml'} --run.directory {tmp_path}"):
        status, said = run_command(command, capfd)
        assert status == 1
        line = said.splitlines()[-1]
        assert line.startswith("error: 1 episode of the evaluation failed; the last: ")
        assert f"Talk.{method} failed: SystemExit" in line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("self.client = client", r"Wrong.__init__ does not build the arena. Begin it with super"),
        ("self.add_role(Role('A'))", r"Wrong.__init__ does not build the arena. Begin it with super"),
        ("self.batches = self.step_num", r"Wrong.__init__ does not build the arena. Begin it with super"),
        (
            "self.batches = self.stepnum",
            r"Wrong cannot be built: AttributeError.*stepnum.* in wrong.py, line 6",
        ),
        ("super().__init__(client)\n        self.add_role('A')", r"a role is written Role\(...\), not 'A'"),
        ("super().__init__(client)\n        self.add_role(Role('A', temperature='hot'))", "must be numbers"),
        (
            "super().__init__(client)\n        self.add_role(Role(7))",
            "the id and the policy",
        ),
        (
            "super().__init__(client)\n        self.add_episode('e', Talk)",
            "takes an episode: ",
        ),
    ],
)
def test_an_arena_that_is_built_wrongly_says_how_to_write_it(body, line, tmp_path, capfd):
    refused(tmp_path, capfd, f"def __init__(self, client, *, seed=0):\n        {body}", line)


@pytest.mark.parametrize(
    ("given", "lacks"), [("client", "seed"), ("*, seed=0", "client"), ("seed=0", "client")]
)
def test_an_arena_that_does_not_take_what_it_is_built_with_says_how_to_write_it(
    given, lacks, tmp_path, capfd
):
    line = rf"Wrong does not take a {lacks}. Write it as __init__\(self, client, \*, seed=0, ...\)"
    refused(tmp_path, capfd, f"def __init__(self, {given}):\n        pass", line)


def refused(tmp_path, capfd, method, line):
    (tmp_path / "wrong.py").write_text(
        f"from failing_code import Arena, Role, Talk\n\n\nclass Wrong(Arena):\n    {method}\n"
    )
    (tmp_path / "run.toml").write_text('[program]\ntype = "python"\npath = "wrong.py:Wrong"\n')
    status, said = run_command(f"train {tmp_path / 'run.toml'} --dry-run", capfd)
    assert status == 2
    assert re.search(line, said)


@pytest.mark.parametrize(
    "meta", [{"error": "x"}, {"group": [1]}, {"rollout_id": 7}, {"seed": "x"}, {"policy_version": "1"}, 5]
)
def test_a_request_with_an_impossible_meta_is_refused(meta):
    with pytest.raises((TypeError, ValueError), match=r"meta|group"):
        EpisodeRequest("talk", "sums", meta)


async def test_two_rollouts_of_one_id_are_refused():
    arena = Program(MockInferenceClient())
    arena.get_batch = lambda: [EpisodeRequest("talk", "sums", {"rollout_id": "same"}) for _ in range(2)]
    with pytest.raises(SparringError, match="several rollouts have the same id"):
        await arena.step()
