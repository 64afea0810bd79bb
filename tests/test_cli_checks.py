"""The checks of a configuration before anything is loaded."""

import importlib.util
import json
import subprocess
import sys
from itertools import combinations

import pytest

from sparring.config import load_config
from sparring.core import InputError
from sparring.core.adapters import ALL_LINEAR
from sparring.core.client import CANNOT_GIVE
from sparring.core.errors import renaming
from sparring.envs.catalog import list_environments
from sparring.learn.model_files import check_model_name
from sparring.run.checks import check_config, notes_on
from sparring.run.run_names import find_run, new_run_directory


def check(**overrides):
    return check_config(load_config("quickstart", {k.replace("__", "."): v for k, v in overrides.items()}))


def field_of(**overrides):
    with pytest.raises(InputError) as raised:
        check(**overrides)
    return raised.value.field


def test_passed_checks_are_listed():
    assert check(model__name="some/model", evaluation__opponents='["base"]') == [
        "model some/model (not looked at: the run finds it in the cache or downloads it)",
        "environment kuhn_poker, 2 players, template fewshot-chat",
        "opponents in kuhn_poker: base",
        "NashConv of kuhn_poker",
    ]


def test_a_run_on_ray_has_collectors_for_games_and_for_programs():
    on_ray = {"run.runtime": "ray", "ray.collectors": "3"}
    for preset in ("quickstart", "debate"):
        line = check_config(load_config(preset, on_ray))[-1]
        assert line == "Ray on this machine: 1 engine(s), 1 learner(s), 3 collector(s)"


def test_errors_name_the_entry_of_a_list(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text('[[envs]]\nid = "kuhn_poker"\n[[envs]]\nid = "tic_tac_toe"\ntemplate = "nix"\n')
    with pytest.raises(InputError) as raised:
        check_config(load_config(str(path), {}))
    assert raised.value.field == "envs.1.template"
    assert field_of(evaluation__opponents='["random", "me"]') == "evaluation.opponents.1"
    assert field_of(population__fixed_opponents='["me"]') == "population.fixed_opponents.0"


PLAIN = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": list(ALL_LINEAR)}
STACKED = {"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj"]}


def adapter_with(tmp_path, **fields):
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN | fields))
    return str(tmp_path)


@pytest.mark.parametrize("place", ["start.default", "frozen.teacher"])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"r": 4}, "its rank is 4, the run's 16"),
        ({"lora_alpha": 8}, "its alpha is 8, the run's 32"),
        ({"target_modules": ["q_proj", "v_proj"]}, "its target modules are ['q_proj', 'v_proj'], the run's"),
        ({"target_modules": "all-linear"}, "its target modules are all-linear, the run's"),
        ({"target_modules": ".*_proj"}, "sets target_modules to '.*_proj'"),
        (STACKED | {"r": 4}, "its rank is 4, the run's 16"),
        ({"use_dora": True}, "sets use_dora to True"),
        ({"peft_type": "IA3"}, "describes no LoRA adapter"),
    ],
)
def test_an_adapter_that_a_run_cannot_use_is_found_before_it_begins(place, fields, problem, tmp_path):
    with pytest.raises(InputError) as raised:
        check_config(load_config("quickstart", {place: adapter_with(tmp_path, **fields)}))
    assert raised.value.field == place
    assert raised.value.problem.startswith(str(tmp_path))
    assert problem in raised.value.problem


@pytest.mark.parametrize(
    "fields", [{}, STACKED, {"target_modules": list(reversed(ALL_LINEAR))}, {"fan_in_fan_out": True}]
)
def test_an_adapter_that_may_have_the_runs_shape_passes_without_the_model(fields, tmp_path):
    assert f"adapter {tmp_path} for default" in check(start__default=adapter_with(tmp_path, **fields))


def test_a_long_list_of_layers_which_peft_shortens_is_compared_when_the_model_is_there(tmp_path):
    modules = json.dumps([f"layers.{number}.self_attn.q_proj" for number in range(20)])
    given = adapter_with(tmp_path, target_modules=["q_proj"])
    assert f"adapter {tmp_path} for default" in check(start__default=given, lora__target_modules=modules)


def test_adapters_of_earlier_runs_are_found_and_may_be_opponents(tmp_path):
    adapter_with(tmp_path)
    opponents = {"evaluation__opponents": '["teacher"]', "population__fixed_opponents": '["teacher"]'}
    overrides = {"frozen.teacher": str(tmp_path)} | {k.replace("__", "."): v for k, v in opponents.items()}
    found = check_config(load_config("quickstart", overrides))
    assert f"adapter {tmp_path} for teacher" in found
    assert "opponents in kuhn_poker: teacher" in found
    assert field_of(**opponents) == "evaluation.opponents.0"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"start.default": "/nowhere"}, "start.default: /nowhere is neither an adapter nor a run"),
        ({"frozen.teacher": "/nowhere"}, "frozen.teacher: /nowhere is neither an adapter nor a run"),
    ],
)
def test_impossible_adapters_of_earlier_runs_are_one_line(changes, line):
    with pytest.raises(InputError, match=line):
        check_config(load_config("quickstart", changes))


@pytest.mark.parametrize("env_id", ["LiarsDice-v0-small-train", "IteratedPrisonersDilemma-v0-train"])
def test_an_environment_that_does_not_list_its_moves_is_evaluated_against_the_untrained_model(
    env_id, tmp_path
):
    path = tmp_path / "mine.toml"
    path.write_text(f'[[envs]]\nid = "{env_id}"\n[[envs]]\nid = "kuhn_poker"\n')
    config = load_config(str(path), {})
    found = check_config(config)
    assert f"opponents in {env_id}: base" in found
    assert "opponents in kuhn_poker: random" in found
    assert notes_on(config) == [
        f"{env_id} does not list its legal moves, so it is evaluated against base, not random"
    ]
    with pytest.raises(InputError, match="does not list its legal moves"):
        check_config(load_config(str(path), {"evaluation.opponents": '["random"]'}))


def test_random_openings_need_a_game_that_lists_its_moves():
    openings = {"envs__0__random_opening": "2", "evaluation__nash_conv": "false"}
    assert field_of(envs__0__id="LiarsDice-v0-small-train", **openings) == "envs.0.random_opening"
    assert check(envs__0__id="TicTacToe-v0-train", **openings)


EXPLORES = {"envs__0__explore": "0.2", "learning__momentum": "0.8"}
MAGNET = {"learning__algorithm": '{type = "magnet"}'} | EXPLORES


def test_exploration_needs_a_game_that_lists_its_moves_and_an_algorithm_over_legal_answers():
    assert check(**MAGNET)
    assert check(**MAGNET, envs__0__random_opening="2")
    assert check(**EXPLORES, learning__algorithm='{type = "all_actions"}')
    for algorithm in ("reinforce", "ppo", "gspo", "dppo"):
        line = f"learning.algorithm is {algorithm}, which learns from answers that the policy has drawn"
        with pytest.raises(InputError, match=f"envs.0.explore: {line}. Set 0, or choose magnet or all_a"):
            check(**EXPLORES, learning__algorithm=f'{{type = "{algorithm}"}}')
    silent = {"envs__0__id": "LiarsDice-v0-small-train", "evaluation__nash_conv": "false"}
    assert field_of(**EXPLORES, **silent) == "envs.0.explore"


def test_a_seat_that_cannot_learn_from_explored_answers_is_named():
    seats = MAGNET | {"envs__0__policies": '["first", "second"]', "evaluation__nash_conv": "false"}
    assert check(**seats)
    with pytest.raises(InputError, match=r"envs.0.explore: learning.policies.second.algorithm is ppo"):
        check(**seats, learning__policies__second__algorithm='{type = "ppo"}')


OF_VLLM = {
    'run.runtime = "ray" (for inference.tensor_parallel above 1)': {"inference__tensor_parallel": "2"},
    f"envs.0.explore = 0, envs.1.explore = 0 (it {CANNOT_GIVE})": {
        "envs": '[{id = "kuhn_poker", explore = 0.2}, {id = "leduc_poker", explore = 0.1}]'
    },
    "lora.rank = 512 or less": {"lora__rank": "513"},
    'model.quantization = "none" (it would answer with another base than the one that learns)': {
        "model__quantization": "nf4"
    },
}


@pytest.mark.parametrize("wrong", [some for n in range(1, 5) for some in combinations(OF_VLLM, n)])
def test_all_that_vllm_does_not_take_is_one_message(wrong):
    changes = {"inference__engine": "vllm", "learning__algorithm": '{type = "magnet"}'}
    for one in wrong:
        changes |= OF_VLLM[one]
    with pytest.raises(InputError) as refused:
        check(**changes)
    assert refused.value.field == "inference.engine"
    assert refused.value.problem == f"vllm needs {', '.join(wrong)}"


OWN_LOSSES = """
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.algorithms.magnet import Magnet


class Mine(Magnet):
    pass


class Drawn(BaseAlgo):
    def loss(self, logprobs_S, tokens):
        return -logprobs_S.sum()
"""


def test_an_algorithm_of_ones_own_says_whether_it_learns_from_draws(tmp_path):
    (tmp_path / "losses.py").write_text(OWN_LOSSES)

    def own(name):
        return EXPLORES | {"learning__algorithm": f'{{path = "{tmp_path}/losses.py:{name}"}}'}

    assert check(**own("Mine"))
    assert field_of(**own("Drawn")) == "envs.0.explore"
    assert field_of(**own("Mine"), envs__0__stop='["x"]', evaluation__nash_conv="false") == "envs.0.explore"


GAMES_WITH_RANDOM_PLAYERS = """
import json, sys
from sparring.core import InputError
from sparring.run.checks import check_opponent

def told(game):
    try:
        check_opponent("random", game)
    except InputError:
        return False
    return True

found = {game: told(game) for game in json.load(sys.stdin)}
print(json.dumps([found, "textarena" in sys.modules]))
"""


def test_whether_moves_are_listed_is_known_without_loading_textarena():
    from sparring.envs.textarena_game import tells_moves

    games = [info.env_id for info in list_environments() if info.library == "textarena" and info.playable]
    command = [sys.executable, "-c", GAMES_WITH_RANDOM_PLAYERS]
    said = subprocess.run(command, input=json.dumps(games), capture_output=True, text=True, check=True)
    found, loaded = json.loads(said.stdout)
    assert not loaded
    assert found == {game: tells_moves(game) for game in games}
    assert {*found.values()} == {True, False}


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M"])
def test_possible_model_names_pass_and_are_said_not_to_be_looked_at(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check(model__name=name)[0].startswith(f"model {name} (not looked at: ")
    assert check()[0] == "model smollm2-135m"


@pytest.mark.parametrize(
    "name", ["./nothing", "/nothing", "a/b/c", "a b", "", "smollm2-135M", "a/", "~nosuchuser/x"]
)
def test_impossible_model_names_are_rejected(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        check_model_name(name)


def test_runs_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "config.toml").touch()
    assert find_run("one").resolve() == run
    assert find_run("runs/one").resolve() == run
    assert find_run(str(run)) == run
    for missing in ("two", "runs", ""):
        with pytest.raises(InputError) as raised:
            find_run(missing, "--resume")
        assert raised.value.field == "--resume"
    assert new_run_directory(tmp_path / "runs", "one").name == "one-2"


def test_a_mode_that_needs_an_extra_says_so(monkeypatch):
    def missing(name, package=None):
        return None if name == "cvxpy" else found(name, package)

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert field_of(population__sample_mode="meta-nash") == "population.sample_mode"
    assert check(population__sample_mode="pfsp")


@pytest.mark.parametrize(
    ("changes", "lags"),
    [
        ({}, "of the lags 1 to 7, only those up to 3 are drawn"),
        ({"population.lag_range": "[0, 4]"}, "of the lags 0 to 4, only those up to 3 are drawn"),
        ({"population.lag_range": "[2, 3]", "population.max_active_lora": "1"}, "lags 2 to 3, none is drawn"),
        ({"population.max_active_lora": "8"}, None),
        ({"population.sample_mode": "random"}, None),
    ],
)
def test_a_run_says_which_lags_its_pool_is_too_small_for(changes, lags):
    notes = notes_on(load_config("quickstart", {"population.sample_mode": "lagged"} | changes))
    assert [lags in note for note in notes] == [True] * (lags is not None)


@pytest.mark.parametrize(
    ("policies", "mode", "noted"),
    [
        ('["first", "teacher"]', "random", True),
        ('["first", "teacher"]', "mirror", False),
        ('["first", "second"]', "random", False),
    ],
)
def test_opponents_that_no_seat_is_left_for_are_a_note(policies, mode, noted):
    envs = f'[{{id = "kuhn_poker", policies = {policies}}}]'
    changes = {"envs": envs, "frozen.teacher": "x", "population.sample_mode": mode}
    notes = notes_on(load_config("quickstart", changes))
    expected = f"population.sample_mode {mode} draws no opponents: no game has two seats that are trained"
    assert (expected in notes) == noted


@pytest.mark.parametrize("kind", ["magnet", "all_actions"])
@pytest.mark.parametrize(("explore", "values"), [("0.2", "returns"), ("0.2", "tree"), ("0", "returns")])
def test_explored_games_whose_values_are_of_the_exploring_seats_are_a_note(kind, explore, values):
    second = f'{{type = "{kind}", values = "{values}"}}'
    changes = {
        "envs": f'[{{id = "kuhn_poker", policies = ["first", "second"], explore = {explore}}}]',
        "learning.algorithm": '{type = "all_actions", values = "tree"}',
        "learning.momentum": "0.8",
        "learning.policies.second.algorithm": second,
    }
    notes = [note for note in notes_on(load_config("quickstart", changes)) if "explore" in note]
    assert [note.partition(",")[0] for note in notes] == ["with envs.0.explore"] * len(notes)
    named = ['learning.policies.second.algorithm.values = "tree"' in note for note in notes]
    assert named == [True] * (explore != "0" and values == "returns")


def test_one_player_needs_no_opponent():
    found = check(
        envs__0__id="2048-v0-train", envs__0__num_players="1", evaluation__nash_conv="false"
    )  # it does not list its legal moves, so no player can play it at random
    assert found == ["model smollm2-135m", "environment 2048-v0-train, 1 player, template fewshot-chat"]


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ("env.options.make", "envs.1.options.make"),
        ("env.options", "envs.1.options"),
        ("env.optional", "env.optional"),
    ],
)
def test_what_is_wrong_inside_a_table_is_named_where_the_user_wrote_the_table(found, named):
    with pytest.raises(InputError) as caught, renaming({"env.options": "envs.1.options"}):
        raise InputError(found, "is wrong", "Correct it")
    assert caught.value.field == named
