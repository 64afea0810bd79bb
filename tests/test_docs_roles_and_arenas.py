"""docs/roles-and-arenas.md is true: names can be imported, tests exist, no specified name is missing."""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from selfplay.core import Arena, MockInferenceClient

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "roles-and-arenas.md"
INSTANCES = {"Arena": Arena(MockInferenceClient())}
"""Instances with attributes that their classes do not have."""

# The specified public names: classes and functions with their methods and fields.
SPECIFIED = {
    "Role": "id system_prompt temperature max_tokens build_messages",
    "Step": "role_id prompt completion prompt_token_ids completion_token_ids completion_logprobs reward "
    "advantage info completion_text",
    "Rollout": "id episode_type artifact meta steps extras rewards advantages metrics started_at ended_at",
    "TrainingRecord": "action_mask input_ids",
    "GenerateResult": "rollout children is_trainable rewards all_rollouts",
    "EpisodeState": "trajectory current_actor data done child_results turn last_step last_completion_text",
    "Episode": "episode_type rubric rollout call_model get_extras generate",
    "ChatEpisode": "get_initial_actor get_initial_prompt env_response is_done get_next_actor",
    "SingleTurnEpisode": "",
    "MultiTurnEpisode": "",
    "AlternatingRolesEpisode": "",
    "RewardFn": "",
    "Rubric": "score",
    "RolloutStepKey": "",
    "CreditAssigner": "compute",
    "apply_credit": "",
    "GRPOCredit": "normalize positive_only",
    "ConstantCredit": "",
    "EpisodicRewardCredit": "",
    "RAECredit": "",
    "ModelResponse": "",
    "InferenceClient": "complete get_policy_version",
    "MockInferenceClient": "",
    "Artifact": "",
    "ArtifactStore": "add sample sample_one count get",
    "EpisodeRequest": "",
    "TrainingBatch": "",
    "Arena": "roles episodes stores add_role add_episode add_store call_model get_batch run_episode "
    "resolve_artifact generate_rollouts build_training_batch sanity_check_batch step run startup shutdown",
    "OpenAIClient": "complete for_local for_openrouter get_policy_version",
    "VerboseLogger": "__enter__ __exit__ log_run_start log_step_start log_step_end log_episode_start "
    "log_episode_end log_model_call log_result log_batch_summary log_training_records",
    "make_debate_rubric": "",
    "DebateEpisode": "",
    "DebateArena": "",
    "make_proposer_rubric": "",
    "ProposerEpisode": "",
    "SolveEpisode": "",
}


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def rows():
    """Return names, files, tests and difference of every row of the tables."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        inside = line.startswith("| name |") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| name |", "|---")):
            name, file, tests, different = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((code(name), code(file), code(tests), different))
    return found


ROWS = rows()


@pytest.mark.parametrize(("names", "files"), [row[:2] for row in ROWS], ids=lambda cell: ", ".join(cell))
def test_named_things_exist(names, files):
    assert names
    (file,) = files
    module = importlib.import_module("selfplay." + file.removesuffix(".py").replace("/", "."))
    for name in names:
        owner, _, member = name.partition(".")
        found = getattr(module, owner)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__module__ == module.__name__, f"{owner} is from elsewhere"
        if member:
            fields = (
                {field.name for field in dataclasses.fields(found)}
                if dataclasses.is_dataclass(found)
                else set()
            )
            made = hasattr(INSTANCES.get(owner), member)
            assert hasattr(found, member) or member in fields or made, name


@pytest.mark.parametrize("tests", [row[2] for row in ROWS], ids=", ".join)
def test_named_tests_exist(tests):
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in functions, test


def test_no_specified_name_is_missing():
    named = {name for names, *_ in ROWS for name in names}
    wanted = {f"{owner}.{member}" for owner, members in SPECIFIED.items() for member in members.split()}
    assert wanted | set(SPECIFIED) <= named, sorted((wanted | set(SPECIFIED)) - named)
