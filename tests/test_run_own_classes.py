"""Games and algorithms of one's own: the pages' examples train, in one process and on Ray, or say why not."""

import io
import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from doc_pages import DOCS, save_named_blocks
from game_runs import SMALL, metrics_of
from sparring.cli.main import main
from sparring.cluster.run import train as train_on_ray
from sparring.config import Config, load_config
from sparring.core import InputError, SparringError
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.algorithms.trial import CALLED
from sparring.run.checks import check_config
from sparring.run.single_process import train

LOSSES = """
from sparring.learn.algorithms import BaseAlgo


class Scaled(BaseAlgo):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def loss(self, logprobs_S, tokens):
        return -self.scale * logprobs_S.sum() / self.max_generation_len


class WithoutLoss(BaseAlgo):
    pass


class Raises(BaseAlgo):
    def loss(self, logprobs_S, tokens):
        return logprobs_S.sum(dim=7 if tokens.num_answers > 2 else 0)


class AsksTheModel(BaseAlgo):
    def loss(self, logprobs_S, tokens):
        ones_S = logprobs_S.new_ones(len(logprobs_S), device=self.policy.device)
        return (ones_S * logprobs_S).sum() / self.policy.vocabulary


class AsksForLimits(BaseAlgo):
    def loss(self, logprobs_S, tokens):
        return logprobs_S.sum() / self.limits.max_tokens
"""
PREPARING = [name for name, one in vars(BaseAlgo).items() if callable(one) and name not in CALLED]
USELESS_LOSSES = {
    "tokens.behavior_S.sum()": r"OneOwn.loss failed on made-up tokens: AttributeError\(.*in own.py, line 6",
    "logprobs_S.sum(dim=7)": r"OneOwn.loss failed on made-up tokens: IndexError\(.*in own.py, line 6",
    "0.0": r"OneOwn.loss returned 0.0, not a Tensor",
    "logprobs_S": r"OneOwn.loss failed on made-up tokens: .*only for scalar outputs",
    "tokens.advantage_S.sum()": r"OneOwn.loss failed on made-up tokens: .*does not require grad",
    "(logprobs_S * float('nan')).sum()": r"OneOwn.loss returned nan for made-up tokens",
    "(logprobs_S - tokens.old_S).sum()": r"OneOwn.loss failed on made-up tokens: TypeError",
}
"""What a loss may return that cannot be learned from, and the line that says so."""
GAMES = """
from sticks import Sticks


class Broken(Sticks):
    def __init__(self, env_id, num_players, seed):
        raise ValueError("no sticks")


class Seedless(Sticks):
    def __init__(self, env_id, num_players):
        super().__init__(env_id, num_players, 0)


class Forgetful(Sticks):
    def __init__(self, env_id, num_players, seed):
        self.left = 10


class Shy(Sticks):
    def __init__(self, env_id, num_players, seed):
        self.left, self.turn, self.env_id, self.num_players = 10, 0, env_id, num_players


class Tuple(Sticks):
    def legal_actions(self):
        return ("1", "2")


class Numbers(Sticks):
    def legal_actions(self):
        return [1, 2]


class Moveless(Sticks):
    def legal_actions(self):
        return self.moves


class Nobody(Sticks):
    possible_players = ()


class Secret(Sticks):
    possible_players = (2, 3)

    def legal_actions(self):
        return None
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """The files of both pages, and some more."""
    for page in ("tutorial-game.md", "howto-custom-algorithm.md"):
        save_named_blocks(DOCS / page, tmp_path)
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "games.py").write_text(GAMES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def configure(model: Path, algorithm: str, **changes: str) -> Config:
    one = {"learning.steps": "1", "model.name": str(model), "learning.algorithm": algorithm}
    overrides = SMALL | one | {name.replace("__", "."): value for name, value in changes.items()}
    return load_config("sticks.toml", overrides)


def adapter(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "adapter_model.safetensors")


def has_learned(run: Path) -> bool:
    before, after = adapter(run, 0), adapter(run, 1)
    return any((before[name] != after[name]).any() for name in before)


CLIPPED = '{path = "clipped.py:ClippedPolicyGradient", options = {clip = 0.1, regulariser = "uniform"}}'


@pytest.mark.slow  # test_cluster_seats shows it by default, on a cluster that it joins
def test_a_game_and_a_loss_of_ones_own_train_the_same_in_one_process_and_on_ray(files, model, loopback):
    settings = {"learning__learning_rate": "0.01", "lora__target_modules": "['q_proj', 'v_proj']"}
    train(configure(model, CLIPPED, **settings), files / "here", Console(file=io.StringIO()))
    there = configure(model, CLIPPED, run__runtime="ray", **settings)
    train_on_ray(there, files / "there", Console(file=io.StringIO()))
    assert has_learned(files / "here")
    one, other = adapter(files / "here", 1), adapter(files / "there", 1)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    for run in (files / "here", files / "there"):
        assert metrics_of(run)[-1]["learner/regulariser_weight"] > 0
        assert [path.name for path in sorted((run / "evaluation").glob("*.json"))] == [
            f"step-00000{step}-Sticks-random.json" for step in (0, 1)
        ]
        assert str(files) not in (run / "metrics.jsonl").read_text()
        assert str(files) not in (run / "evaluation" / "step-000001-Sticks-random.json").read_text()


@pytest.mark.parametrize(("scale", "learns"), [("0.0", False), ("1.0", True)])
def test_only_the_loss_of_the_named_class_trains(files, model, scale, learns):
    algorithm = f'{{path = "losses.py:Scaled", options = {{scale = {scale}}}}}'
    train(configure(model, algorithm), files / "run", Console(file=io.StringIO()))
    assert has_learned(files / "run") == learns


def test_an_error_in_a_loss_of_ones_own_is_one_line_and_the_run_can_be_resumed(files, model):
    config = configure(model, '{path = "losses.py:Raises"}')
    line = r"the algorithm of default failed: IndexError\(.*in losses.py, line 20.*--resume"
    with pytest.raises(SparringError, match=line):
        train(config, files / "run", Console(file=io.StringIO()))
    corrected = (files / "losses.py").read_text().replace("dim=7 if tokens.num_answers > 2 else 0", "")
    (files / "other.py").write_text(corrected)
    train(configure(model, '{path = "other.py:Raises"}'), files / "other", Console(file=io.StringIO()))
    assert has_learned(files / "other")


def test_an_algorithm_over_legal_answers_is_refused_if_one_of_its_games_lists_none(files):
    games = "[[envs]]\nid = 'sticks.py:Sticks'\n\n[[envs]]\nid = 'games.py:Secret'\n"
    (files / "two.toml").write_text(games)
    line = r"^learning.algorithm: magnet learns from legal answers, and Secret \(envs.1\) lists none"
    with pytest.raises(InputError, match=line):
        check_config(load_config("two.toml", {}, "magnet"))
    own = {"envs.1.policies": "['other', 'other']", "learning.policies.other.algorithm": "{type = 'ppo'}"}
    (files / "one.toml").write_text(f"{games}\n[learning]\nmomentum = 0\n")
    assert check_config(load_config("one.toml", own | {"learning.algorithm": "{type = 'magnet'}"}))


def test_a_run_in_a_game_of_ones_own_is_evaluated_in_it_as_it_was_trained(files, model, capsys):
    config = configure(model, '{type = "reinforce"}', envs__0__template="default")
    train(config, files / "run", Console(file=io.StringIO()))
    capsys.readouterr()
    assert main(["eval", "run", "--env", "sticks.py:Sticks", "--games", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["env_id"], result["opponent"], result["template"]) == ("Sticks", "random", "default")


def test_a_game_of_ones_own_is_described_with_the_prompt_of_its_first_move(files, capsys):
    assert main(["envs", "sticks.py:Sticks"]) == 0
    said = capsys.readouterr().out
    assert "moves    1, 2" in said
    assert "sticks are left." in said
    assert main(["envs", "games.py:Secret"]) == 0
    assert "players  2-3" in capsys.readouterr().out


def test_a_game_that_does_not_list_its_moves_is_evaluated_against_the_base_model(files, model):
    config = load_config("sticks.toml", {"model.name": str(model), "envs.0.id": "games.py:Secret"})
    found = check_config(config)
    assert any(line.startswith("opponents in ") and line.endswith(": base") for line in found)
    with pytest.raises(InputError, match=r"^evaluation.opponents.0: .* does not list its legal moves"):
        check_config(
            load_config("sticks.toml", {"envs.0.id": "games.py:Secret", "evaluation.opponents": "['random']"})
        )


def own_loss(files: Path, returned: str) -> dict[str, str]:
    method = f"    def loss(self, logprobs_S, tokens):\n        return {returned}\n"
    code = f"from sparring.learn.algorithms import BaseAlgo\n\n\nclass OneOwn(BaseAlgo):\n{method}"
    (files / "own.py").write_text(code)
    return {"learning.algorithm": "{path = 'own.py:OneOwn'}"}


@pytest.mark.parametrize(("returned", "line"), USELESS_LOSSES.items())
def test_a_loss_that_cannot_work_is_one_line_before_the_run_begins(files, model, returned, line):
    changes = {"model.name": str(model), **own_loss(files, returned)}
    with pytest.raises(InputError, match=f"^learning.algorithm.path: {line}") as raised:
        check_config(load_config("sticks.toml", changes))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "line"),
    [
        (
            "def state(self): return {'seen': 3}",
            r"OneOwn.state returned \{'seen': 3\}, not dense tensors by name",
        ),
        ("def state(self): return [3]", r"OneOwn.state returned \[3\], not a dict"),
        ("def state(self): return {'seen': self.seen}", "the state of OneOwn failed: AttributeError"),
        ("def load_state(self, state): self.seen = state['seen']", "the state of OneOwn failed: KeyError"),
    ],
)
def test_a_state_that_cannot_be_saved_is_one_line_before_the_run_begins(files, model, method, line):
    changes = {"model.name": str(model), **own_loss(files, "logprobs_S.sum()")}
    (files / "own.py").write_text(f"{(files / 'own.py').read_text()}\n    {method}\n")
    with pytest.raises(InputError, match=f"^learning.algorithm.path: {line}"):
        check_config(load_config("sticks.toml", changes))


@pytest.mark.parametrize("returned", ["tokens.behavior_S.sum()", "logprobs_S.summ()", "logprobs.sum()"])
def test_a_misspelt_name_is_found_whatever_an_update_prepares(files, model, returned):
    changes = {"model.name": str(model), **own_loss(files, returned)}
    prepared = "    def update(self, batch, weight=0.0):\n        return super().update(batch, weight)\n"
    (files / "own.py").write_text((files / "own.py").read_text() + prepared)
    with pytest.raises(InputError, match=r"OneOwn.loss failed on made-up tokens: .*in own.py, line 6"):
        check_config(load_config("sticks.toml", changes))


@pytest.mark.parametrize(
    ("kind", "method", "line"),
    [
        ("TokenLoss", "token_loss(self, logprobs_S, old_S, advantage_S, tokens)", "AttributeError"),
        ("Reinforce", "token_loss(self, logprobs_S, old_S, advantage_S, tokens)", "AttributeError"),
        ("BaseAlgo", "loss(self, logprobs_S)", "TypeError"),
    ],
)
def test_what_a_class_adds_to_a_loss_of_the_package_is_tried_too(files, model, kind, method, line):
    code = f"from sparring.learn.algorithms import {kind}\n\n\nclass OneOwn({kind}):\n    def {method}:\n"
    (files / "own.py").write_text(code + "        return logprobs_S.summ()\n")
    changes = {"model.name": str(model), "learning.algorithm": "{path = 'own.py:OneOwn'}"}
    with pytest.raises(InputError, match=rf"OneOwn.loss failed on made-up tokens: {line}"):
        check_config(load_config("sticks.toml", changes))


@pytest.mark.parametrize(
    "kind", ["reinforce:Reinforce", "ppo:Ppo", "magnet:Magnet", "all_actions:AllActions"]
)
def test_a_class_that_changes_nothing_of_the_package_passes(files, model, kind):
    module, _, name = kind.partition(":")
    code = f"from sparring.learn.algorithms.{module} import {name}\n\n\nclass OneOwn({name}):\n    pass\n"
    (files / "own.py").write_text(code)
    changes = {"model.name": str(model), "learning.algorithm": "{path = 'own.py:OneOwn'}"}
    assert "algorithm OneOwn" in check_config(load_config("sticks.toml", changes))


def test_a_loss_may_use_what_only_an_update_of_several_steps_has(files, model):
    several = {"model.name": str(model), "learning.epochs": "2"}
    changes = several | own_loss(files, "(logprobs_S - tokens.old_S).exp().sum() / tokens.mean_length")
    assert "algorithm OneOwn" in check_config(load_config("sticks.toml", changes))


@pytest.mark.parametrize("method", PREPARING)
def test_a_loss_is_not_refused_that_another_method_may_prepare_for(files, model, method):
    changes = {"model.name": str(model), **own_loss(files, "self.scale * logprobs_S.sum()")}
    prepares = f"    def {method}(self, *args, **kwargs):\n        self.scale = 2.0\n"
    again = f"        return super().{method}(*args, **kwargs)\n"
    (files / "own.py").write_text((files / "own.py").read_text() + prepares + again)
    (line,) = (one for one in check_config(load_config("sticks.toml", changes)) if "algorithm" in one)
    assert re.match(r"algorithm OneOwn \(OneOwn.loss failed on made-up tokens: AttributeError\(.*\)$", line)


@pytest.mark.parametrize(("name", "what"), [("AsksTheModel", "vocabulary"), ("AsksForLimits", "max_tokens")])
def test_a_loss_that_asks_for_the_model_is_not_tried(files, model, name, what):
    changes = {"model.name": str(model), "learning.algorithm": f"{{path = 'losses.py:{name}'}}"}
    found = check_config(load_config("sticks.toml", changes))
    assert f"algorithm {name} (its loss was not tried, since it asks for the model's {what})" in found


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"envs.0.id": "games.py:Nim"},
            "envs.0.id: .*games.py has no Game named 'Nim'",
        ),
        ({"envs.0.id": "losses.py:Scaled"}, "envs.0.id: .*losses.py has no Game named 'Scaled'"),
        ({"envs.0.id": "nothing.py:Nim"}, "envs.0.id: there is no file .*nothing.py"),
        (
            {"envs.0.id": "torn.py:Nim"},
            r"envs.0.id: .*torn.py cannot be imported: SyntaxError\(.* in torn.py, line 1\. Correct it",
        ),
        ({"envs.0.id": "games.py:Broken"}, "envs.0.id: Broken cannot be started with 2 players: .*no sticks"),
        (
            {"envs.0.id": "games.py:Forgetful"},
            r"envs.0.id: Forgetful.__init__ leaves out that of Game. Call super\(\).__init__",
        ),
        ({"envs.0.id": "games.py:Shy"}, "envs.0.id: Shy.__init__ leaves out that of Game. Call super"),
        (
            {"envs.0.id": "games.py:Tuple"},
            r"envs.0.id: Tuple.legal_actions returned \(.*, not a list. Correct it",
        ),
        (
            {"envs.0.id": "games.py:Numbers"},
            "envs.0.id: Numbers.legal_actions returned 1, not a str. Correct it",
        ),
        (
            {"envs.0.id": "games.py:Moveless"},
            "envs.0.id: Moveless.legal_actions failed: AttributeError.*moves",
        ),
        (
            {"envs.0.id": "games.py:Nobody"},
            r"envs.0.id: the possible_players of Nobody are \(\), not numbers",
        ),
        ({"envs.0.id": "games.py:Seedless"}, r"envs.0.id: Seedless cannot be started \(too many"),
        (
            {"envs.0.num_players": "3"},
            "envs.0.num_players: .*Sticks does not support 3 players",
        ),
        ({"evaluation.opponents": "['optimal']"}, "evaluation.opponents.0: no optimal player for .*Sticks"),
        ({"evaluation.nash_conv": "true"}, "evaluation.nash_conv: .*Sticks is not an OpenSpiel game"),
        (
            {"learning.algorithm.path": "losses.py:None_"},
            "learning.algorithm.path: .* has no BaseAlgo named",
        ),
        (
            {"learning.algorithm.path": "losses.py:Scaled"},
            "learning.algorithm.options: Scaled does not take them",
        ),
        (
            {"learning.algorithm": "{path = 'losses.py:Scaled', options = {scales = 1}}"},
            r"learning.algorithm.options: Scaled does not take them .*It takes: scale$",
        ),
        (
            {"learning.algorithm.path": "losses.py:WithoutLoss"},
            "learning.algorithm.path: WithoutLoss cannot",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line_before_the_run_begins(files, model, changes, line):
    (files / "torn.py").write_text("class Nim(")
    with pytest.raises(InputError, match=f"^{line}") as raised:
        check_config(load_config("sticks.toml", {"model.name": str(model)} | changes))
    assert "\n" not in str(raised.value)
