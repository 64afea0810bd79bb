"""Recipes: published algorithms that are laid over a configuration."""

import pytest

from sparring.cli.main import main
from sparring.config import dump_active, load_config, recipe_names
from sparring.config.rewards import RewardSettings
from sparring.config.without_effect import without_effect
from sparring.run.assembly import build_learner
from sparring.run.checks import check_config
from tiny_models import tiny_policy

KUHN = '[[envs]]\nid = "kuhn_poker"\n'
OVER_LEGAL_ANSWERS = {"all_actions", "magnet", "neurd"}
WITH_A_CRITIC = {"a2c", "ppo", "nashpg"}


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def over(text, recipe, folder, overrides=None):
    path = folder / "mine.toml"
    path.write_text(text)
    return load_config(str(path), overrides or {}, recipe)


@pytest.mark.parametrize("preset", ["quickstart", "tictactoe", "proposer-solver"])
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_lies_over_every_kind_of_preset_and_builds(name, preset, policy):
    config = load_config(preset, {}, name)
    learner = build_learner(config, policy)
    assert learner.learning_rate.at(5) == learner.learning_rate.at(config.learning.steps - 1)
    assert learner.algorithm.terms.regulariser == "none"
    assert learner.algorithm.needs_legal_answers == (name in OVER_LEGAL_ANSWERS)
    assert (learner.critic is not None) == (name in WITH_A_CRITIC)
    assert (config.credit is None) == (name in {*OVER_LEGAL_ANSWERS, *WITH_A_CRITIC})


def test_the_promised_recipes_are_there():
    promised = (
        "grpo dr_grpo dapo gspo cispo sapo rloo reinforce_pp reinforce_pp_baseline spo rae icepop kpop "
        "dppo opsm tis mis magnet reinforce a2c ppo nashpg neurd all_actions"
    )
    assert set(promised.split()) <= set(recipe_names())


def test_a_recipe_replaces_single_fields_and_the_whole_algorithm(tmp_path):
    text = KUHN + (
        "[learning]\nlearning_rate = 3e-5\nminibatches = 3\n"
        '[learning.algorithm]\ntype = "ppo"\ndual_clip = 3.0\nkl_weight = 0.5\n'
    )
    learning = over(text, "dapo", tmp_path).learning
    assert (learning.learning_rate, learning.minibatches) == (3e-5, 16)
    assert (learning.algorithm.dual_clip, learning.algorithm.kl_weight) == (None, 0.0)
    assert (learning.algorithm.clip_low, learning.algorithm.clip_high) == (0.2, 0.28)


def test_fields_of_the_command_line_are_above_those_of_a_recipe(tmp_path):
    changed = {"learning.algorithm.clip_high": "0.5", "credit.group": "seat"}
    config = over(KUHN, "dapo", tmp_path, changed)
    assert (config.learning.algorithm.clip_high, config.credit.group) == (0.5, "seat")
    assert config.learning.algorithm.aggregation == "token-mean"


def test_a_recipe_brings_its_own_way_from_rewards_to_advantages(tmp_path):
    assert over(KUHN + "[credit]\ndecay = 0.5\n", "rloo", tmp_path).credit.decay == 0.95
    with_transforms = KUHN + '[rewards]\nsampling = [{type = "normalize_rewards", z_score = true}]\n'
    config = over(with_transforms, "rloo", tmp_path)
    assert (config.credit.type, config.rewards.sampling[0].type) == ("rloo", "same_prompt_baseline")
    magnet = over(KUHN + '[credit]\ntype = "rae"\n', "magnet", tmp_path)
    assert (magnet.credit, magnet.rewards.sampling[0].type) == (None, "same_prompt_baseline")


def test_a_recipe_with_a_critic_takes_the_place_of_credit_and_of_another_critic(tmp_path):
    config = over(KUHN + '[credit]\ntype = "rae"\n', "nashpg", tmp_path)
    assert (config.credit, config.learning.critic.value_clip) == (None, 0.2)
    own_critic = KUHN + "[learning.critic]\ngamma = 0.9\nvalue_clip = 0.7\n"
    a2c = over(own_critic, "a2c", tmp_path).learning.critic
    assert (a2c.gamma, a2c.value_clip, a2c.gae_lambda) == (1.0, None, 1.0)
    transforms = KUHN + '[rewards]\nsampling = [{type = "normalize_rewards"}]\n'
    assert over(transforms, "ppo", tmp_path).rewards == RewardSettings()
    for without in ("rloo", "magnet"):
        assert over(own_critic, without, tmp_path).learning.critic is None


@pytest.mark.parametrize("recipe", recipe_names())
def test_only_magnet_has_momentum_whatever_the_preset_has(recipe):
    assert load_config("kuhn", {}, recipe).learning.momentum == (0.8 if recipe == "magnet" else 0.0)


def test_a_recipe_is_for_every_policy(tmp_path):
    text = """
        [[envs]]
        id = "kuhn_poker"
        policies = ["first", "second"]

        [learning.policies.second]
        learning_rate = 1e-5
        epochs = 3
        critic = {}
        algorithm = {type = "a2c"}
    """
    config = over(text, "grpo", tmp_path)
    second = config.learning.policies["second"]
    assert (second.algorithm, second.critic, second.epochs) == (None, None, None)
    assert second.learning_rate == 1e-5


def test_a_recipe_that_says_nothing_of_advantages_keeps_the_critic(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[learning]\nepochs = 4\n[learning.algorithm]\ntype = "ppo"\n')
    learning = over(KUHN + "[learning.critic]\ngamma = 0.9\n", str(own), tmp_path).learning
    assert (learning.critic.gamma, learning.epochs) == (0.9, 4)


def test_a_recipe_of_ones_own_is_a_file_and_its_paths_are_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    own = tmp_path / "recipes" / "mine.toml"
    own.write_text('[learning]\nepochs = 4\n[learning.algorithm]\npath = "loss.py:Loss"\n')
    monkeypatch.chdir(tmp_path)
    config = over(KUHN + '[credit]\ntype = "rae"\n', "recipes/mine.toml", tmp_path)
    assert config.learning.algorithm.path == f"{tmp_path}/recipes/loss.py:Loss"
    assert (config.learning.epochs, config.credit.type) == (4, "rae")


def test_a_dry_run_prints_the_resolved_configuration_which_needs_no_recipe(tmp_path, capsys):
    assert main(["train", "quickstart", "--recipe", "gspo", "--model.threads=1", "--dry-run"]) == 0
    printed = capsys.readouterr()
    saved = tmp_path / "saved.toml"
    saved.write_text(printed.out)
    config = load_config("quickstart", {"model.threads": "1"}, "gspo")
    unused = without_effect(config)
    assert dump_active(config, unused) == printed.out
    active, _, _ = printed.out.partition("\n# without effect")
    assert dump_active(load_config(str(saved), {}), unused) == active
    assert "ok recipe gspo\n" in printed.err
    assert "ok run directory runs/quickstart-gspo\n" in printed.err


@pytest.mark.parametrize("preset", ["quickstart", "tictactoe"])
def test_the_recipe_magnet_brings_the_constants_of_the_preset_kuhn(preset):
    kuhn = load_config("kuhn", {})
    assert load_config("kuhn", {}, "magnet") == kuhn
    other = load_config(preset, {}, "magnet")
    ours, theirs = other.learning.model_dump(), kuhn.learning.model_dump()
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert differing <= {"steps", "learning_rate", "learning_rate_end"}
    assert (other.credit, other.rewards) == (kuhn.credit, kuhn.rewards)


@pytest.mark.parametrize("recipe", recipe_names())
def test_games_explore_only_under_a_recipe_whose_values_make_up_for_it(recipe):
    config = load_config("kuhn", {}, recipe)
    is_tree = getattr(config.learning.algorithm, "values", None) == "tree"
    assert config.envs[0].explore == (0.2 if is_tree else 0.0)
    check_config(config)
    asked = load_config("kuhn", {"envs.0.explore": "0.1"}, recipe)
    assert asked.envs[0].explore == 0.1
