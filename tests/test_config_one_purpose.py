"""Two settings for one purpose are refused, and what does nothing is not printed as if it did."""

import itertools
import json
import tomllib
from typing import Any, get_args

import pytest
import torch

from matrices import one_of_each
from sparring.cli.main import main
from sparring.config import dump_active, load_config, preset_names, recipe_names
from sparring.config.algorithms import Algorithm, LossSettings
from sparring.config.loading import preset_text
from sparring.config.without_effect import without_effect, without_effect_on_jobs
from sparring.core import InputError
from sparring.learn.algorithms import build_algorithm
from sparring.learn.batch import Tokens
from sparring.run.rewards import build_credit

ROLE = '[{type = "role_advantage_by_env"}]'
TWICE = [
    (
        {"rewards.final": ROLE, "credit.type": "rae"},
        "role_advantage_by_env is a baseline, and so is credit rae",
    ),
    ({"rewards.final": ROLE, "credit.type": "grpo"}, "and so is credit grpo"),
    ({"rewards.final": ROLE}, "and so is same_prompt_baseline in rewards.sampling"),
    (
        {"rewards.final": ROLE, "learning.critic": "{}", "learning.algorithm": '{type = "a2c"}'},
        "so is a critic",
    ),
    (
        {"rewards.final": '[{type = "role_advantage"}, {type = "role_advantage_by_env"}]'},
        "role_advantage is there twice",
    ),
    ({"rewards.final": '[{type = "win_draw_loss"}, {type = "win_draw_loss"}]'}, "is there twice"),
    ({"rewards.final": '[{type = "win_draw_loss"}, {type = "game_range"}]'}, "both set the scale of rewards"),
    ({"rewards.step": '[{type = "reward_for_format"}, {type = "reward_for_format"}]'}, "is there twice"),
    (
        {"rewards.sampling": '[{type = "normalize_rewards"}, {type = "normalize_rewards_by_env"}]'},
        "normalize_rewards is there twice",
    ),
    ({"credit.type": "rae", "rewards.sampling": "[]"}, "takes the place of rewards.sampling"),
    (
        {"learning.algorithm": '{regulariser = "base", kl_weight = 0.1}'},
        "learning.algorithm.regulariser: base is the model of kl_weight too",
    ),
    (
        {"learning.policies.default.algorithm": '{regulariser = "base", kl_weight = 0.1}'},
        "learning.policies.default.algorithm.regulariser: base is the model of kl_weight too",
    ),
]


@pytest.mark.parametrize(("changes", "said"), TWICE)
def test_two_settings_for_one_purpose_are_refused(changes, said):
    with pytest.raises(InputError) as refused:
        load_config("quickstart", changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards.final": ROLE, "rewards.sampling": '[{type = "normalize_rewards_by_env", z_score = true}]'},
        {"rewards.final": ROLE, "credit.type": "episodic"},
        {"rewards.sampling": '[{type = "same_prompt_baseline"}, {type = "normalize_rewards"}]'},
        {"learning.algorithm": '{regulariser = "reference", kl_weight = 0.1}'},
    ],
)
def test_settings_for_different_purposes_go_together(changes):
    assert load_config("quickstart", changes)


@pytest.mark.parametrize(("preset", "recipe"), one_of_each(preset_names(), [None, *recipe_names()]))
def test_what_is_printed_is_what_the_run_does(preset, recipe, tmp_path):
    try:
        config = load_config(preset, {}, recipe)
    except InputError:
        pytest.skip("this recipe does not fit the preset")
    unused = without_effect(config)
    text = dump_active(config, unused)
    for name in unused:
        assert not _is_in(text, name), name
    file = tmp_path / "printed.toml"
    file.write_text(text)
    again = load_config(str(file), {})
    assert without_effect(again) == {
        name: why for name, why in unused.items() if name not in ("finetune", "psro")
    }
    active = text.partition("# without effect")[0].rstrip()
    assert dump_active(again, unused).partition("# without effect")[0].rstrip() == active


def _is_in(text, name):
    node = tomllib.loads(text)
    for part in name.split("."):
        node = node[int(part)] if isinstance(node, list) else node.get(part)
        if node is None:
            return False
    return True


CREDIT = {
    "group": '"prompt"',
    "normalize": "true",
    "positive_only": "true",
    "decay": "0.5",
    "half_life": "0.5",
}
TYPES = ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "rae", "spo", "episodic"]


@pytest.mark.parametrize(("kind", "field"), [*itertools.product(TYPES, CREDIT)])
def test_a_field_of_credit_is_printed_exactly_if_it_changes_the_assigner(kind, field):
    def built(changes):
        credit = load_config("quickstart", {"credit.type": kind} | changes).credit
        return json.dumps(vars(build_credit(credit)), default=lambda one: sorted(vars(one).items()))

    unused = without_effect(load_config("quickstart", {"credit.type": kind}))
    changed = built({}) != built({f"credit.{field}": CREDIT[field]})
    assert changed == (f"credit.{field}" not in unused)


ALGORITHM = {
    "clip_low": 0.006,
    "clip_high": 0.01,
    "dual_clip": 1.001,
    "tau_positive": 3.0,
    "tau_negative": 3.0,
    "correction_level": "sequence",
    "max_importance_weight": 1.01,
    "min_importance_weight": 0.99,
    "kpop_threshold": 0.001,
}
KINDS = [
    get_args(one.model_fields["type"].annotation)[0]
    for one in get_args(get_args(Algorithm)[0])
    if issubclass(one, LossSettings)
]
CASES = [(kind, correction) for kind in KINDS for correction in ("none", "tis", "mis", "icepop", "kpop")]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("kind", "correction"), [case for case in CASES if case[0] != "dppo"] + [("dppo", "")]
)
def test_a_field_of_an_algorithm_is_printed_exactly_if_it_changes_the_gradient(kind, correction, steps):
    table = {"type": kind, "dual_clip": 1000.0} if kind == "ppo" else {"type": kind}
    table |= {"correction": correction} if correction else {}
    changes = {"learning.epochs": str(steps)} | ({"learning.critic": "{}"} if kind == "a2c" else {})

    def loaded(**options):
        fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in (table | options).items())
        return load_config("quickstart", changes | {"learning.algorithm": f"{{{fields}}}"})

    config = loaded()
    unused = without_effect(config)
    for field, value in ALGORITHM.items():
        if getattr(config.learning.algorithm, field, None) is None:
            continue
        same = torch.allclose(_gradient(config, steps), _gradient(loaded(**{field: value}), steps))
        assert same == (f"learning.algorithm.{field}" in unused), field


def _gradient(config, steps):
    """The gradient of tokens whose probabilities differ between the engine, the first step and now."""
    algorithm = build_algorithm(config.learning.algorithm)
    algorithm.max_generation_len = 4
    logprobs_S = torch.tensor([-1.0, -0.5, -2.0, -0.7, -1.5, -0.9], requires_grad=True)
    advantage_S = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.5, -0.5])
    tokens = Tokens(
        advantage_S=advantage_S,
        credit_S=advantage_S,
        behaviour_S=torch.tensor([-1.05, -0.6, -1.95, -1.05, -1.4, -1.0]),
        stale_S=torch.zeros(6, dtype=torch.bool),
        answer_S=torch.tensor([0, 0, 1, 1, 2, 3]),
        offset_S=torch.tensor([0, 1, 0, 1, 0, 0]),
        length_S=torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 1.0]),
        mean_length=1.5,
        old_S=torch.tensor([-1.1, -0.8, -1.9, -1.4, -1.505, -0.895]) if steps > 1 else None,
    )
    algorithm.loss(logprobs_S, tokens).backward()
    return logprobs_S.grad


@pytest.mark.parametrize(
    ("preset", "changes", "unused", "used"),
    [
        ("quickstart", {}, "population.lag_range ray inference.gpu_memory roles", "learning.average_power"),
        (
            "quickstart",
            {"learning.algorithm": '{type = "reinforce"}'},
            "learning.reference_decay learning.reference_every",
            "learning.algorithm",
        ),
        ("tictactoe", {}, "evaluation.games_during evaluation.nash_conv_minutes", "evaluation.games"),
        ("kuhn", {}, "learning.learning_rate_end", "learning.reference_decay learning.max_generation_len"),
        (
            "league",
            {"population.fixed_opponents": '["random"]'},
            "population.pfsp population.sample_mode",
            "population.add_every population.fixed_opponents league",
        ),
        (
            "nip",
            {},
            "program.sequential program.prover0_first rewards buffer finetune",
            "program.verifier_first",
        ),
        (
            "nip",
            {"program.protocol": "court.py:court", "program.shared_reward": "true"},
            "rewards buffer finetune",
            "program.prover0_first program.prover_reward program.verifier_first program.prover_policy",
        ),
        ("nip", {"program.shared_reward": "true"}, "program.prover_reward", "program.shared_reward"),
        (
            "debate",
            {},
            "envs evaluation.games evaluation.temperature",
            "program.num_rounds inference.temperature",
        ),
        ("debate", {"buffer.batch_size": "5"}, "collection.games_per_step", "rewards.sampling buffer"),
        (
            "quickstart",
            {"population.sample_mode": "lagged"},
            "population.payoff_games population.pfsp",
            "population.lag_range population.add_every collection.filter_opponent_invalid",
        ),
        (
            "quickstart",
            {"population.sample_mode": "fixed", "population.fixed_opponents": '["random"]'},
            "population.lag_range population.add_every",
            "population.fixed_opponents population.mirror_share",
        ),
        (
            "quickstart",
            {"run.runtime": "ray", "inference.engine": "vllm"},
            "inference.max_cached_tokens",
            "ray inference.max_batch inference.max_adapters",
        ),
        (
            "quickstart",
            {
                "evaluation.envs": '[{id = "leduc_poker", opponents = ["base"], games = 9, nash_conv=false}]',
                "evaluation.temperature": "0.5",
            },
            "evaluation.opponents evaluation.games evaluation.games_during evaluation.nash_conv_minutes",
            "evaluation.every evaluation.temperature",
        ),
        (
            "quickstart",
            {"evaluation.envs": '[{id = "leduc_poker", games = 9}, {id = "kuhn_poker", nash_conv = true}]'},
            "ray",
            "evaluation.opponents evaluation.games evaluation.nash_conv evaluation.nash_conv_minutes",
        ),
        (
            "quickstart",
            {"learning.policies.default.algorithm": '{type = "magnet"}'},
            "learning.algorithm",
            "learning.reference_decay learning.policies",
        ),
    ],
)
def test_other_fields_without_effect_are_known(preset, changes, unused, used):
    config = load_config(preset, changes)
    text = dump_active(config, without_effect(config))
    assert [name for name in unused.split() if _is_in(text, name)] == []
    assert [name for name in used.split() if not _is_in(text, name)] == []


def test_a_dry_run_marks_what_is_written_and_leaves_out_the_rest(capsys):
    assert main(["train", "quickstart", "--recipe", "rae", "--dry-run", "--credit.half_life", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert '# without effect: credit.half_life (credit.type is "rae")' in printed
    assert "half_life = " not in printed
    assert "same_prompt_baseline" not in printed
    assert "positive_only" not in printed


def written(preset: str) -> dict[str, Any]:
    """What a preset's file sets, over those that it extends."""
    data = tomllib.loads(preset_text(preset))
    base = data.pop("extends", None)
    return data if base is None else merged(written(base), data)


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    tables = {name for name in one.keys() & other.keys() if isinstance(one[name], dict)}
    return {**one, **other, **{name: merged(one[name], other[name]) for name in tables}}


@pytest.mark.parametrize("preset", preset_names())
def test_only_what_a_file_sets_is_said_to_be_without_effect(preset):
    config = load_config(preset, {})
    *_, named = dump_active(config, without_effect(config)).partition("# without effect: ")
    for line in named.splitlines():
        table = written(preset)
        for name in line.removeprefix("# without effect: ").partition(" ")[0].split("."):
            assert name in table, line
            table = table[name]


def test_a_dry_run_of_jobs_prints_what_jobs_use(capsys):
    config = load_config("nip", {})
    text = dump_active(config, without_effect_on_jobs(config))
    assert "[finetune.rl]" in text
    assert "[learning" not in text
    assert "# without effect: learning (is for sparring train)" in text
    assert "[model]" not in text
    local = load_config("nip", {"finetune.provider.type": "local"})
    text = dump_active(local, without_effect_on_jobs(local))
    assert "[model]" in text
    assert "[inference]" in text
