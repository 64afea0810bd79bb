"""``sparring eval --nash-conv`` in a game of millions; here it begins late, which leaves 62 states."""

import asyncio
import json

import pytest

import own_tries_game
from game_runs import configure, run
from sparring.cli.main import main
from sparring.commands import board_nash_conv
from sparring.commands.model_source import find_player
from sparring.config.model import InferenceSettings
from sparring.envs.openspiel_game import game_at
from sparring.envs.templates import get_template
from sparring.evaluation import board_policy
from sparring.evaluation.hidden_board import HiddenBoard
from sparring.evaluation.nash_conv import nash_conv_of_table, states_of
from sparring.run.assembly import publish_models

START = (0, 4, 4, 8, 0, 2, 3, 1)
STATES = 62


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    run(configure(model, learning__steps="1", evaluation__games="2", evaluation__nash_conv="false"), path)
    return path


@pytest.fixture(autouse=True)
def late(monkeypatch, tmp_path):
    build = HiddenBoard.build
    monkeypatch.setattr(HiddenBoard, "build", lambda rules: build(rules, START))
    monkeypatch.setattr(board_nash_conv, "BLOCK_ROWS", 16)
    monkeypatch.setattr(board_policy, "SCORED_AT_ONCE", 6)
    monkeypatch.chdir(tmp_path)


def measured(capsys, run, *arguments):
    """Run the command; return the exact measure and what it said."""
    capsys.readouterr()
    options = ["--env", "phantom_ttt", "--nash-conv", "--games", "2", "--json"]
    assert main(["eval", str(run), *options, *arguments]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out)["exact"], " ".join(printed.err.split())


def only_table(directory):
    (table,) = (directory / "nash-conv").iterdir()
    return table


async def by_openspiel(run) -> float:
    """NashConv by OpenSpiel's best responses, each state asked for by itself."""
    source, template = find_player(str(run)), get_template("fewshot-chat")
    engine = publish_models(source.model, {"model": source.adapter}, InferenceSettings()).engine
    name = f"{own_tries_game.NAME}(rules=phantom,start={''.join(f'a{action}' for action in START)})"
    chances = []
    for state in states_of(name):
        game = game_at("phantom_ttt", START + state.history)
        answers = [template.answer(move) for move in game.legal_actions()]
        prompt = template.messages(game, state.pid)
        weights = [2.718281828459045**one for one in await engine.score(prompt, answers, model="model")]
        chances.append([weight / sum(weights) for weight in weights])
    assert len(chances) == STATES
    return nash_conv_of_table(name, chances)


async def test_the_figure_is_openspiels_also_after_a_stop_and_a_kill(trained, tmp_path, capsys):
    whole, said = await asyncio.to_thread(measured, capsys, trained)
    assert whole["nash_conv"] == pytest.approx(await by_openspiel(trained), abs=1e-6)
    assert whole["nash_conv"] == pytest.approx(sum(whole["exploitability"]))
    assert "62 information states, 0 of them in nash-conv/phantom_ttt-" in said
    assert "46 states are left, about" in said
    content = only_table(tmp_path).read_bytes()
    only_table(tmp_path).unlink()

    first, said = await asyncio.to_thread(measured, capsys, trained, "--max-states", "40")
    assert first is None
    assert "14 of 62 information states are left; the same command goes on with them" in said
    with only_table(tmp_path).open("ab") as table:
        table.write(b"a part of a block")
    again, said = await asyncio.to_thread(measured, capsys, trained)
    assert "62 information states, 48 of them in" in said
    assert again == whole
    assert only_table(tmp_path).read_bytes() == content


def test_each_checkpoint_has_a_table_of_its_own(trained, tmp_path, capsys):
    for name in (trained, f"{trained}@0", f"{trained}@1"):
        measured(capsys, name, "--max-states", "1")
    sizes = sorted(path.stat().st_size for path in (tmp_path / "nash-conv").iterdir())
    assert len(sizes) == 2, "the newest checkpoint is that after one update"
    assert sizes[1] - sizes[0] == 16 * 9 * 4 + 32


def test_a_mixture_is_refused(trained, tmp_path, capsys):
    member = {"name": "a", "weight": 1, "adapter": str(trained / "checkpoints" / "step-000001")}
    (tmp_path / "mixture.json").write_text(json.dumps({"members": [member]}))
    assert main(["eval", "mixture.json", "--env", "phantom_ttt", "--nash-conv"]) == 2
    expected = "error: --nash-conv: phantom_ttt is too large for a mixture. Name one of its members"
    assert expected in capsys.readouterr().err


def test_a_damaged_table_is_one_line_before_any_game(trained, tmp_path, capsys):
    measured(capsys, trained, "--max-states", "32")
    content = bytearray(only_table(tmp_path).read_bytes())
    content[-32 - 16 * 9 * 4 - 1] ^= 1  # in the block before the last
    only_table(tmp_path).write_bytes(content)
    capsys.readouterr()
    assert main(["eval", str(trained), "--env", "phantom_ttt", "--nash-conv"]) == 2
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert "block 0 is damaged. Restore the file, or delete it and begin again" in line
    assert "playing" not in printed.out + printed.err
