"""Games as conversations for supervised training, written and read back, and training without a server."""

import json
import re
import shlex
from pathlib import Path

import pytest

from doc_pages import DOCS
from game_runs import SMALL, configure, run
from hostile_text import HOSTILE_PIECES
from matrices import first_of
from sparring.cli.main import main
from sparring.collection import RolloutLog
from sparring.commands.examples import run_examples
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_FILE
from sparring.envs.catalog import make_game
from sparring.envs.templates import TEMPLATES, get_template
from sparring.evaluation.match import Progress
from sparring.finetune.jobs.schema import read_conversations
from tiny_models import roomy_model

SOLVED = ["kuhn_poker", "leduc_poker", "tic_tac_toe", "nim(pile_sizes=1;3)", "TicTacToe-v0-train"]
"""Games with an optimal player: hidden cards, minimax, and the one of TextArena."""
PAGE = DOCS / "howto-examples.md"
FEW_SHOT = ("fewshot-chat", "fewshot-text")


def written(file: Path) -> list[list[dict]]:
    """The messages of each line, read as a job reads them and as plain JSON."""
    content = file.read_bytes()
    lines = [json.loads(line) for line in content.decode("ascii").splitlines()]
    assert all(set(line) == {"messages"} for line in lines)
    for line, talk in zip(lines, read_conversations(content), strict=True):
        assert talk.trained == (len(line["messages"]) - 1,)  # the move, and no example in the prompt
        assert talk.messages == [{"role": m["role"], "content": m["content"]} for m in line["messages"]]
    return [line["messages"] for line in lines]


def without_weights(messages: list[dict]) -> list[dict]:
    return [{"role": one["role"], "content": one["content"]} for one in messages]


@pytest.mark.parametrize("template", FEW_SHOT)
@pytest.mark.parametrize("env_id", SOLVED)
def test_an_experts_moves_answer_the_prompts_of_its_games(env_id, template, tmp_path, capsys):
    file = tmp_path / "expert.jsonl"
    options = ["--env", env_id, "--games", "6", "--template", template, "--seed", "3"]
    assert main(["examples", "optimal", str(file), *options]) == 0
    prompts = get_template(template)
    found = written(file)
    assert f"{len(found)} examples of 6 games" in capsys.readouterr().out
    game = make_game(env_id, 2, 0)
    rules = {game.rules(pid) for pid in range(2)}
    for *prompt, answer in found:
        assert any(prompt[0]["content"].startswith(text) for text in rules)
        move, well_formed = prompts.extract(answer["content"])
        assert well_formed
        assert answer["content"] == prompts.answer(move)
    again = tmp_path / "again.jsonl"
    assert main(["examples", "optimal", str(again), *options]) == 0
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_first_prompt_is_that_of_a_model_in_the_same_seat(template, tmp_path):
    file = tmp_path / "expert.jsonl"
    options = ["--env", "tic_tac_toe", "--games", "2", "--template", template]
    assert main(["examples", "optimal", str(file), "--opponent", "optimal", *options]) == 0
    (*prompt, _), *_ = written(file)
    game = make_game("tic_tac_toe", 2, 0)
    assert without_weights(prompt) == get_template(template).messages(game, 0)


def test_both_sides_are_experts_where_the_opponent_is_the_same(tmp_path):
    sizes = []
    for opponent in ("random", "optimal"):
        file = tmp_path / f"{opponent}.jsonl"
        options = ["--env", "tic_tac_toe", "--games", "4", "--opponent", opponent]
        assert main(["examples", "optimal", str(file), *options]) == 0
        sizes.append(len(written(file)))
    assert sizes[0] <= 4 * 5
    assert sizes[1] == 4 * 9  # perfect play fills the board


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run against scripts in which nearly every move is legal, because most answers are random ones."""
    path = tmp_path_factory.mktemp("runs") / "played"
    config = configure(
        roomy_model(),
        envs__0__id="tic_tac_toe",
        envs__0__template="fewshot-chat",
        envs__0__error_allowance="30",
        envs__0__random_opening="2",
        learning__steps="2",
        inference__max_tokens="3",
        population__sample_mode="fixed",
        population__fixed_opponents="['optimal']",
        evaluation__nash_conv="false",
    )
    run(config, path)
    return path


def test_a_members_moves_are_those_of_the_log_with_their_prompts(played):
    found = run_examples(played, None, "optimal", reasoning=False, progress=Progress())
    turns = [
        turn
        for _, rollout in RolloutLog(played / "rollouts")
        if rollout.error is None
        for turn in rollout.extras["turns"]
        if (turn["kind"], turn["model"]) == ("script", "optimal")
    ]
    assert turns
    answers = [json.loads(line)["messages"][-1]["content"] for line in found.lines]
    assert answers == [turn["action"] for turn in turns]
    assert "games that no longer come out" not in found.summary(Path("x"))


def test_only_the_winners_moves_are_taken_by_default(played):
    wins = sum(
        rollout.extras["invalid_pid"] is None and set(rollout.extras["final_rewards"].values()) == {-1.0, 1.0}
        for _, rollout in RolloutLog(played / "rollouts")
    )
    if wins:
        found = run_examples(played, None, None, reasoning=False, progress=Progress())
        assert found.games == wins
    else:
        with pytest.raises(InputError, match="no game was won"):
            run_examples(played, None, None, reasoning=False, progress=Progress())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimal", "x.jsonl"], "--env: is missing"),
        (["optimal", "x.jsonl", "--env", "chess"], "SCRIPT_OR_RUN: no optimal player for chess"),
        (
            ["optimal", "x.jsonl", "--env", "kuhn_poker", "--opponent", "base"],
            "--opponent: no scripted",
        ),
        (["optimal", "x.jsonl", "--env", "kuhn_poker", "--member", "a"], "--member: is for a run's games"),
        (["nobody", "x.jsonl"], "SCRIPT_OR_RUN: there is no run 'nobody'"),
        (["nobody", "x.jsonl", "--games", "4"], "--games: is for games of a scripted player"),
        (["optimal", "no/x.jsonl", "--env", "kuhn_poker"], "FILE: there is no directory no"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["examples", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1
    assert not (tmp_path / "x.jsonl").exists()


def test_members_that_are_not_there_are_named(played, tmp_path, capsys):
    file = tmp_path / "x.jsonl"
    assert main(["examples", str(played), str(file), "--member", "ckpt-7"]) == 2
    assert "There are: default, optimal, random" in capsys.readouterr().err
    assert main(["examples", str(played), str(file), "--env", "chess"]) == 2
    assert "--env: the run did not play chess. It played tic_tac_toe" in capsys.readouterr().err


OWN_GAME = '''
from sparring.envs.game import Game

MOVES = {pieces!r}


class Odd(Game):
    """A game whose moves are what attackers write; the last one to move wins."""

    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.played = []

    @property
    def current_pid(self):
        return len(self.played) % 2

    def rules(self, pid):
        return "Say one of them."

    def observation(self, pid):
        return "So far: " + "; ".join(self.played)

    def legal_actions(self):
        return MOVES

    def apply(self, action):
        self.played.append(action)
        return True

    def _finished(self):
        return len(self.played) == 4

    def _own_rewards(self):
        return {{0: -1.0, 1: 1.0}}
'''


def test_hostile_moves_are_written_as_data(tmp_path, monkeypatch):
    moves = sorted({one.strip() for one in HOSTILE_PIECES if one.isprintable() and one.strip()})
    (tmp_path / "odd.py").write_text(OWN_GAME.format(pieces=moves))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "odd.jsonl"
    options = ["--env", "odd.py:Odd", "--template", "qwen3-zs", "--games", "60"]
    assert main(["examples", "random", str(file), *options, "--opponent", "random"]) == 0
    said = {messages[-1]["content"] for messages in written(file)}
    assert said <= {get_template("qwen3-zs").answer(move) for move in moves}
    assert len(said) > len(moves) // 2


def commands_of_the_page() -> list[list[str]]:
    text = "".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    return [shlex.split(line)[1:] for line in text.splitlines()]


def made_small(words: list[str], template: str) -> list[str]:
    """A command of the page with a tiny model and few games."""
    words = [{"smollm2-135m": str(roomy_model()), "500": "4"}.get(word, word) for word in words]
    fields = SMALL | {"model.name": str(roomy_model()), "learning.steps": "1", "lora.rank": "16"}
    fields |= {
        "evaluation.opponents": "['random']",
        "envs.0.template": template,
        "envs.0.error_allowance": "9",
    }
    return (
        words
        + {
            "examples": ["--template", template] if "optimal" in words else [],
            "sft": [
                "--model",
                str(roomy_model()),
                "--epochs",
                "1",
                *["--threads", "1", "--dtype", "float32", "--seed", "4"],
            ],
            "train": [f"--{name}={value}" for name, value in fields.items()],
            "eval": ["--games", "2", *(["--template", template] if "--env" in words else [])],
        }[words[0]]
    )


@pytest.mark.parametrize("template", first_of(FEW_SHOT))
def test_the_commands_of_the_page_go_from_an_experts_games_to_self_play(
    template, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for words in commands_of_the_page():
        status = main(made_small(words, template))
        printed = capsys.readouterr()
        # A tiny model with random weights wins no game by legal moves, and has none that is well formed.
        no_games = words[:2] == ["examples", "alone"] and status == 2 and "SCRIPT_OR_RUN" in printed.err
        assert status == 0 or no_games, printed.err
        if words[0] == "sft":
            assert "--start.default ./expert" in printed.out
    again = ["sft", "expert.jsonl", "again"]
    assert main(made_small(again, template)) == 0
    assert Path("again", ADAPTER_FILE).read_bytes() == Path("expert", ADAPTER_FILE).read_bytes()
    assert main(made_small(again, template)) == 2
    assert "OUT: again exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            "line 2: the last message must be",
        ),
        ("nonsense", "line 2: Invalid JSON"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_loaded(line, said, tmp_path, capsys):
    good = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}'
    file = tmp_path / "x.jsonl"
    file.write_text(f"{good}\n{line}\n")
    assert main(["sft", str(file), str(tmp_path / "out"), "--model", str(roomy_model())]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
