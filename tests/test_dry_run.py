"""What can fail at the start of a run fails in its dry run: own code, and a model that does not fit."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from failing_code import ARENA_METHODS, EPISODE_METHODS, configuration, is_possible
from family_models import FAMILIES, family_model
from loaded_modules import loaded_by
from matrices import first_of, one_of_each
from program_files import write_program
from sparring.cli.main import main
from sparring.config import load_config, preset_names
from sparring.core import InputError
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run import made_up, rehearsal
from sparring.run.rehearsal import dry_run_of, rehearse
from tiny_models import roomy_model

KUHN = '[[envs]]\nid = "kuhn_poker"\n'


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_rehearsed(preset):
    found = rehearse(load_config(preset, {}))
    assert found.notes == []
    assert [line for line in found.found if line.endswith("with made-up answers")] == found.found
    assert found.calls


def rehearsed(tmp_path, method):
    """Make the dry run of a game whose method is written here."""
    source = f"from failing_code import Count\n\nclass Mine(Count):\n    {method}\n"
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "mine.toml").write_text('[[envs]]\nid = "mine.py:Mine"\n')
    rehearse(load_config(str(tmp_path / "mine.toml"), {}))


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        ([], "returned no move, but the game is not over"),
        (["1", "2", "1"], "returned '1' twice"),
        (["1", "2\n"], "returned '2\\n', which no answer can be: it has no spaces around it"),
        ([" 1", "2"], "returned ' 1', which no answer can be: it has no spaces around it"),
        (["", "2"], "returned '', which no answer can be: it has no spaces around it"),
        ([1, 2], "returned 1, not a str"),
    ],
)
def test_moves_that_nobody_can_make_are_said_as_they_are(moves, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(f"Mine.legal_actions {said}")):
        rehearsed(tmp_path, f"def legal_actions(self): return {moves!r}")


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ("{0: 1.0}", "gave no reward to player 1"),
        ("{0: 1.0, 1: -1.0, 2: 0.0}", "rewards 2, no player of 0 to 1"),
        ("{0: 1.0, 1: -1.0, '0': 0.0}", "rewards '0', no player of 0 to 1"),
        ("[1.0, -1.0]", "Mine._own_rewards returned [1.0, -1.0], not a dict"),
        ("{0: '1', 1: -1.0}", "for player 0 gave '1', which is not a finite number"),
        ("{0: float('nan'), 1: 0.0}", "for player 0 gave nan, which is not a finite number"),
    ],
)
def test_wrong_rewards_of_a_game_are_said_as_they_are(rewards, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(said)):
        rehearsed(tmp_path, f"def _own_rewards(self): return {rewards}")


@pytest.mark.parametrize("moves", ["1111", "1112", "112", "121", "22"])
def test_a_game_that_fails_only_after_some_moves_is_found(moves, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "MORE_SECONDS", 60.0)
    method = f"""def apply(self, action):
        self.said = getattr(self, "said", "") + action
        if self.said == {moves!r}:
            raise ValueError("only now")
        return super().apply(action)"""
    with pytest.raises(InputError, match="only now"):
        rehearsed(tmp_path, method)


@pytest.mark.parametrize(("method", "noted"), [("def apply(self, action): return True", 1), ("pass", 0)])
def test_a_game_that_never_ends_is_noted(tmp_path, method, noted):
    rehearsed(tmp_path, method)
    notes = rehearse(load_config(str(tmp_path / "mine.toml"), {"envs.0.max_turns": "7"})).notes
    assert len(notes) == noted
    assert all(one.startswith("no game of Mine with random moves has ended within 7 turns;") for one in notes)


def test_a_slow_game_of_ones_own_is_played_once(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "MORE_SECONDS", -1.0)
    rehearsed(tmp_path, "def apply(self, action): return super().apply(action)")
    found = rehearse(load_config(str(tmp_path / "mine.toml"), {})).found
    assert [line.partition(" of ")[0] for line in found] == ["one episode"]


UNTOUCHED = ("outcomes",)
NEEDED = [("score", "returns None")]
"""What is possible, but leaves roles without a reward."""
"""Methods that only opponents and evaluations need."""
ENDLESS = [("take_turn", "returns None")]
"""Episodes that never end."""


@pytest.mark.parametrize(
    ("method", "way"),
    one_of_each(
        ["__init__", *EPISODE_METHODS, *ARENA_METHODS],
        ["sys.exit(0)", "no Exception", "an error without a text", "a time limit", "returns None"],
    ),
)
def test_a_method_that_fails_is_one_line(method, way, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 2.0)
    if (method, way) in ENDLESS:
        monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 0.1)
    status = main(["train", configuration(tmp_path, method, way), "--dry-run"])
    printed = capsys.readouterr()
    possible = is_possible(method, way) and (method, way) not in NEEDED
    if method in UNTOUCHED or possible or (method, way) == ("__init__", "returns None"):
        assert status == 0
        said = (
            "not checked further" if (method, way) in ENDLESS else "ok one episode of failing_code.py:Program"
        )
        assert said in printed.err
        return
    assert status == 2
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert method in printed.err or method in ("episode_type", "__init__")
    assert printed.out == ""


PROGRAM = """
import time
from sparring.core import Arena, EpisodeError, EpisodeRequest, MultiTurnEpisode, Role, Rubric


class Guess(MultiTurnEpisode):
    episode_type = "guess"
    rubric = Rubric([lambda rollout, arena: {"guesser": 1.0}])

    def __init__(self, what):
        self.what = what

    def get_initial_actor(self, artifact, state):
        return "guesser"

    def get_initial_prompt(self, arena, artifact, state):
        print("noise")
        if self.what == "sleep":
            time.sleep(30)
        if self.what == "loop":
            while True:
                time.sleep(0.01)
        return "a number?"

    async def env_response(self, state, arena, artifact):
        if self.what == "endless":
            return ""
        if self.what == "refuse":
            raise EpisodeError("that is no number")
        state.done = True
        if self.what == "parse":
            int("no number")


class Mine(Arena):
    def __init__(self, client, *, seed=0, what=""):
        super().__init__(client, seed=seed)
        self.add_role(Role("guesser"))
        self.add_episode("guess", Guess(what))

    def get_batch(self):
        return [EpisodeRequest("guess", None)]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROGRAM)

    def configured(what):
        (tmp_path / "mine.toml").write_text(
            f'[program]\ntype = "python"\npath = "mine.py:Mine"\noptions = {{what = "{what}"}}\n'
        )
        return str(tmp_path / "mine.toml")

    return configured


@pytest.mark.parametrize("what", ["sleep", "loop"])
def test_a_program_that_does_not_answer_is_left_after_a_while(what, mine, monkeypatch, capsys):
    monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 0.2)
    assert main(["train", mine(what), "--dry-run"]) == 0
    assert "note: an episode took more than 0.2 s and was not checked further" in capsys.readouterr().err


def test_what_is_no_list_of_requests_is_said_as_it_is(mine, tmp_path, capsys):
    configured = mine("")
    code = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(code.replace('[EpisodeRequest("guess", None)]', '["chair"]'))
    assert main(["train", configured, "--dry-run"]) == 2
    line = "error: program: what Mine.get_batch returned is not a list of EpisodeRequests, but ['chair']. "
    assert capsys.readouterr().err.startswith(line)


def test_an_endless_conversation_is_not_kept_whole(mine, monkeypatch, capsys):
    monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(made_up, "MOST_CALLS", 5)
    found = rehearse(load_config(mine("endless"), {}))
    assert len(found.calls) == 5
    assert found.notes == ["an episode took more than 0.5 s and was not checked further"]


def test_an_answer_that_a_program_refuses_is_no_fault_but_one_that_it_cannot_read_is(mine, capsys):
    assert main(["train", mine("refuse"), "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "which failed, as it may with such answers: that is no number" in printed.err
    assert "noise" not in printed.out + printed.err
    assert main(["train", mine("parse"), "--dry-run"]) == 2
    line = capsys.readouterr().err
    assert "Guess.env_response failed: ValueError" in line
    assert "raise an EpisodeError if an answer is at fault" in line


def test_a_template_that_fails_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from sparring.envs.templates import BoxedTemplate\n"
        'broken = BoxedTemplate("broken", "{observation}")\n'
        "def messages(game, pid):\n    raise ValueError('no board')\n"
        "broken.messages = messages\n"
    )
    (tmp_path / "mine.toml").write_text(KUHN + 'template = "mine.py:broken"\n')
    assert main(["train", str(tmp_path / "mine.toml"), "--dry-run"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(
        "error: envs: an episode of kuhn_poker with made-up answers failed: messages failed"
    )
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "extract", "said"),
    [
        ("action", "(text, True)", ""),
        ("action.upper()", "(text, True)", ""),
        ("f'<{action}>'", "(text, True)", "gives the answer '<1>' for the move '1', and reads '<1>' in it"),
        ("action", "(text[1:], True)", "for the move '1', and reads '' in it"),
        ("action", "(text, False)", "and reads '1' in it, which it finds ill-formed"),
    ],
)
def test_a_template_that_does_not_read_its_own_answers_is_one_line(tmp_path, answer, extract, said):
    (tmp_path / "terse.py").write_text(
        "from sparring.envs.templates import PromptTemplate\n"
        "class Terse(PromptTemplate):\n    name, strict = 'terse', True\n"
        "    def messages(self, game, pid):\n        return [{'role': 'user', 'content': 'Move:'}]\n"
        f"    def answer(self, action):\n        return {answer}\n"
        f"    def extract(self, text):\n        return {extract}\n"
    )
    (tmp_path / "mine.toml").write_text('[[envs]]\nid = "tests_game.py:Count"\ntemplate = "terse.py:Terse"\n')
    (tmp_path / "tests_game.py").write_text("from failing_code import Count\n")
    with pytest.raises(InputError, match=re.escape(said)) if said else nullcontext():
        rehearse(load_config(str(tmp_path / "mine.toml"), {}))


KEEPS = """
class Kept:
    def __init__(self):
        self.seen = {}

    def see(self):
        self.seen["a"] = self.seen.get("a", 0) + 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

class NoJson(Kept):
    def state_dict(self):
        return {"seen": {1, 2}}

class Numbers(Kept):
    def state_dict(self):
        return {"seen": [{3: 1}]}

class Forgets(Kept):
    def load_state_dict(self, state):
        pass

class Changes(Kept):
    def load_state_dict(self, state):
        self.seen = {"a": 0}

class Fails(Kept):
    def load_state_dict(self, state):
        self.seen = state["found"]
"""
STATES = {
    "NoJson": r"state_dict returned what a checkpoint cannot hold: Object of type set",
    "Numbers": r"state_dict returned what a checkpoint cannot hold: the key 3 is no text",
    "Forgets": r"state_dict gave .*seen = \{'a': \d\}, and after load_state_dict it gives \{\}",
    "Changes": r"state_dict gave .*seen\.a = \d, and after load_state_dict it gives 0",
    "Fails": r"load_state_dict failed: KeyError\('found'\)",
    "Kept": "",
}


def transform_of(kind: str) -> str:
    return (
        f"{KEEPS}\nfrom sparring.collection import FinalRewardTransform\n"
        f"class Mine({kind}, FinalRewardTransform):\n"
        "    def __call__(self, x, env_id=None):\n        self.see()\n        return x\n"
    )


def program_of(kind: str) -> str:
    return (
        f"{KEEPS}\nimport hide_and_seek\n"
        f"class Mine({kind}, hide_and_seek.HideAndSeek):\n"
        "    def __init__(self, client, *, seed=0):\n"
        f"        Kept.__init__(self)\n        hide_and_seek.HideAndSeek.__init__(self, client, seed=seed)\n"
        "    def get_batch(self):\n        self.see()\n        return super().get_batch()\n"
    )


@pytest.mark.parametrize(("kind", "line"), STATES.items())
@pytest.mark.parametrize("whose", ["transform", "program"])
def test_a_state_that_a_checkpoint_cannot_give_back_is_found(tmp_path, whose, kind, line):
    write_program(tmp_path)
    of_program = '[program]\ntype = "python"\npath = "mine.py:Mine"\n'
    settings = KUHN + '[rewards]\nfinal = [{path = "mine.py:Mine"}]\n' if whose == "transform" else of_program
    (tmp_path / "mine.py").write_text(transform_of(kind) if whose == "transform" else program_of(kind))
    (tmp_path / "mine.toml").write_text(settings)
    with pytest.raises(InputError, match=line) if line else nullcontext():
        rehearse(load_config(str(tmp_path / "mine.toml"), {}))


def checked(model: Path, **changes):
    return dry_run_of(load_config("quickstart", {"model.name": str(model)} | changes))


@pytest.fixture
def model(tmp_path) -> Path:
    return Path(shutil.copytree(roomy_model(), tmp_path / "model"))


MIXTURES = ("JetMoE",)
"""A dry run does not look at the layers of a mixture of experts, which has other names for its weights."""


@pytest.mark.parametrize("family", first_of([*FAMILIES], 12))
def test_a_model_fits_exactly_if_it_can_be_loaded_with_such_an_adapter(family):
    try:
        PolicyModel(str(family_model(family)), LoraSettings(lora_rank=2))
    except InputError as error:
        if error.field == "lora.target_modules" and family not in MIXTURES:
            with pytest.raises(InputError, match="no such layer in this model"):
                checked(family_model(family))
        return
    found, notes = checked(family_model(family), **{"inference.max_tokens": "16"})
    assert notes == []
    assert found[-1].startswith("tokenizer, layers and context of ")


def test_a_model_without_a_chat_template_fits_plain_text_alone(model):
    (model / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = model / "tokenizer_config.json"
    kept = {
        name: value for name, value in json.loads(tokenizer.read_text()).items() if name != "chat_template"
    }
    tokenizer.write_text(json.dumps(kept))
    (model / "chat_template.json").write_text('{"chat_template": "only a processor reads it"}')
    (model / "additional_chat_templates").mkdir()
    with pytest.raises(InputError, match=r"model.name: .* has no chat template, but the prompts are chats"):
        checked(model)
    assert checked(model, **{"envs.0.template": "default"})
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert checked(model)


@pytest.mark.parametrize("names", ['["nope"]', '["q_proj", "nope"]', '["self_attn"]', '["embed"]'])
def test_layers_that_the_model_lacks_are_named(names, model):
    with pytest.raises(
        InputError, match=r"lora.target_modules: \w+: no such layer in this model. It has down"
    ):
        checked(model, **{"lora.target_modules": names})


def test_layers_may_be_named_with_their_parents(model):
    assert checked(model, **{"lora.target_modules": '["self_attn.q_proj", "down_proj"]'})


def test_prompts_and_answers_have_room_in_the_context(model):
    with pytest.raises(
        InputError, match=r"inference.max_tokens: \d+ tokens of a prompt and its longest answer"
    ):
        checked(model, **{"inference.max_tokens": "1000000"})
    with pytest.raises(InputError, match="exceed the context of 100"):
        checked(model, **{"inference.max_context": "100"})


def test_a_model_that_is_not_here_is_said_not_to_be_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    _, notes = dry_run_of(load_config("quickstart", {"model.name": "some/model"}))
    assert notes == ["the tokenizer and the layers of some/model were not checked: it is not here yet"]


def test_a_dry_run_loads_neither_torch_nor_transformers():
    command = f"train kuhn --dry-run --model.name {roomy_model()}"
    assert loaded_by(command, heavy=("torch", "transformers")) == []


@pytest.mark.parametrize(
    ("changes", "counts", "sizes"),
    [
        ({}, None, ""),
        ({"learning.steps": "2"}, "4000 games, training 16", "evaluation.games"),
        ({"learning.steps": "2", "evaluation.opponents": "[]"}, None, ""),
        (
            {"learning.steps": "5", "evaluation.every": "2", "collection.games_per_step": "800"},
            "4800 games, training 4000",
            "evaluation.games and evaluation.games_during",
        ),
        (
            {
                "learning.steps": "5",
                "evaluation.every": "2",
                "evaluation.envs": '[{id = "kuhn_poker", games = 30}]',
            },
            "240 games, training 40",
            "evaluation.envs.0.games",
        ),
    ],
)
def test_a_short_run_is_told_how_much_of_it_is_evaluations(changes, counts, sizes):
    """The preset plays 1000 games before and after, and 200 during training, against two opponents."""
    small = {"collection.games_per_step": "8"} if changes else {}
    _, notes = dry_run_of(load_config("quickstart", small | changes))
    said = [note for note in notes if note.startswith("evaluations play")]
    assert len(said) == (counts is not None)
    if counts is not None:
        assert counts in said[0]
        assert f"lower {sizes}, or set evaluation.opponents = []" in said[0]
