"""docs/unstable-baselines.md is true: names are where it says, tests exist, no specified name is missing."""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

import selfplay.compat.unstable
from selfplay.compat.unstable.forms import Form

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "unstable-baselines.md"

BUFFER = (
    "max_buffer_size tracker final_reward_transformation step_reward_transformation "
    "sampling_reward_transformation buffer_strategy"
)
# Parameters of the constructors of UnstableBaselines, in their order.
CONSTRUCTORS = {
    "VLLMActor": "cfg tracker name",
    "Collector": "num_actors step_buffer model_pool tracker vllm_config training_envs evaluation_envs "
    "evaluation_opponent max_eval_games_per_ckpt filter_opponent_invalid action_extraction",
    "ModelPool": "sample_mode max_active_lora tracker lag_range",
    "StepBuffer": BUFFER,
    "EpisodeBuffer": BUFFER,
    "StandardLearner": "model_name step_buffer model_pool algorithm batch_size mini_batch_size "
    "max_generation_len learning_rate grad_clip batch_delay_buffer lora_cfg initial_lora_path num_learners "
    "ckpt_root save_every tracker activation_checkpointing gradient_checkpointing use_trainer_cache "
    "max_train_len",
    "Tracker": "run_name wandb_project",
}
# Its public names: classes with their methods and fields.
SPECIFIED = {
    "VLLMActor": "submit_prompt",
    "Collector": "collect",
    "ModelPool": "add_checkpoint add_fixed current_uid latest_ckpt ckpt_path sample push_game_outcome "
    "snapshot",
    "StepBuffer": "add_trajectory get_batch clear stop size continue_collection",
    "StandardLearner": "train",
    "Tracker": "add_trajectory add_eval_episode log_inference log_learner log_model_pool get_interface_info",
    "TerminalInterface": "",
    "Trajectory": "pid obs actions extracted_actions infos final_rewards num_turns format_feedbacks",
    "Step": "pid obs act reward env_id step_info",
    "Opponent": "uid kind path_or_name rating active",
    "EpisodeResult": "",
    "PlaySpec": "env_id num_players seed",
    "AgentSpec": "kind model",
    "TaskMeta": "type env_id player_id seed ckpt_uid opponent_uid",
    "BaseAlgo": "initialize prepare_batch update",
    "BaseTracker": "",
    "ExplorationTracker": "",
    "FinalRewardTransform": "",
    "ComposeFinalRewardTransforms": "",
    "WinDrawLossFormatter": "",
    "RoleAdvantageFormatter": "",
    "RoleAdvantageByEnvFormatter": "",
    "StepRewardTransform": "",
    "ComposeStepRewardTransforms": "",
    "RewardForFormat": "",
    "PenaltyForInvalidMove": "",
    "SamplingRewardTransform": "",
    "ComposeSamplingRewardTransforms": "",
    "NormalizeRewards": "",
    "NormalizeRewardsByEnv": "",
    "Reinforce": "",
}


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def rows(columns):
    """Return the cells of every row of the tables with this many columns."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("| name |") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| name |", "|---")) and len(cells) == columns:
            found.append(cells)
    return found


ROWS = [(code(name), code(file), code(tests)) for name, file, tests, _ in rows(4)]
NOT_HERE = [name for names, _ in rows(2) for name in code(names)]


def found(owner, file):
    """Return the object that UnstableBaselines calls by this name."""
    module = importlib.import_module("selfplay." + file.removesuffix(".py").replace("/", "."))
    there = getattr(selfplay.compat.unstable, owner, None)
    return there if isinstance(there, Form) else getattr(module, owner)


def has(owner, member):
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    return hasattr(owner, member) or member in fields


@pytest.mark.parametrize(("names", "files"), [row[:2] for row in ROWS], ids=lambda cell: ", ".join(cell)[:60])
def test_named_things_are_in_their_files(names, files):
    assert names
    (file,) = files
    for name in names:
        word, _, parameters = name.removesuffix(")").partition("(")
        owner, _, member = word.partition(".")
        one = found(owner, file)
        takes = one.remote if isinstance(one, Form) else one
        if isinstance(one, Form):
            one = one.cls if member else type(one)
        if member:
            assert has(one, member), name
        home = getattr(one, member) if inspect.isfunction(getattr(one, member or "", None)) else one
        assert inspect.getsourcefile(home).endswith(file), f"{name} is not in {file}"
        if parameters:
            there = list(inspect.signature(takes).parameters)
            assert there[: parameters.count(",") + 1] == parameters.split(", "), name


@pytest.mark.parametrize("tests", [row[2] for row in ROWS], ids=", ".join)
def test_named_tests_exist(tests):
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in functions, test


def test_no_specified_name_is_missing():
    named = {name.partition("(")[0] for names, *_ in ROWS for name in names} | set(NOT_HERE)
    wanted = {f"{owner}.{member}" for owner, members in SPECIFIED.items() for member in members.split()}
    assert wanted | set(SPECIFIED) <= named, sorted((wanted | set(SPECIFIED)) - named)


def test_the_constructors_take_the_specified_parameters():
    named = {name for names, *_ in ROWS for name in names}
    for owner, parameters in CONSTRUCTORS.items():
        assert f"{owner}({', '.join(parameters.split())})" in named


@pytest.mark.parametrize("name", NOT_HERE)
def test_names_listed_as_missing_are_missing(name):
    owner, _, member = name.partition(".")
    there = getattr(selfplay.compat.unstable, owner, None)
    assert there is None if not member else not has(there.cls, member)
