"""Reading configurations: presets, files, overrides, and back to TOML."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.config import Config, dump_config, load_config, preset_names
from sparring.config.facts import FOR_GAMES, FOR_PROGRAMS, Only
from sparring.config.fields import config_fields, is_list, models_in
from sparring.config.loading import differences_text
from sparring.core import InputError
from sparring.run.checks import check_config

KUHN = '[[envs]]\nid = "kuhn_poker"\n'
PLAIN = [one for one in preset_names() if "/" not in one]


def load(text, overrides=None, *, folder):
    path = folder / "mine.toml"
    path.write_text(text)
    return load_config(str(path), overrides or {})


def problem(overrides, source="quickstart"):
    with pytest.raises(InputError) as raised:
        load_config(source, overrides)
    return str(raised.value)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_passes_the_checks_and_survives_a_round_trip(name, tmp_path):
    config = load_config(name, {})
    assert check_config(config)
    assert load(dump_config(config), folder=tmp_path) == config


def test_a_file_takes_precedence_over_a_preset_of_the_same_name_but_a_directory_does_not(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart", {}) == load_config("quickstart", {})
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text('[[envs]]\nid = "leduc_poker"\n')
    assert load_config("quickstart", {}).envs[0].id == "leduc_poker"


def test_a_file_is_laid_over_the_preset_or_the_file_that_it_extends(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "game.py").write_text("class Game: ...\n")
    games = '[[envs]]\nid = "game.py:Game"\nnum_players = 2\n[[envs]]\nid = "kuhn_poker"\n'
    (tmp_path / "base" / "first.toml").write_text(f'extends = "kuhn"\n{games}[learning]\nsteps = 3\n')
    config = load('extends = "base/first.toml"\n[learning]\nlearning_rate = 0.5\n', folder=tmp_path)
    assert [env.id for env in config.envs] == [f"{tmp_path}/base/game.py:Game", "kuhn_poker"]
    assert (config.learning.steps, config.learning.learning_rate) == (3, 0.5)
    kuhn = load_config("kuhn", {"learning.steps": "3", "learning.learning_rate": "0.5"})
    assert config.model_copy(update={"envs": kuhn.envs}) == kuhn
    assert load('extends = "kuhn"\n', folder=tmp_path) == load_config("kuhn", {})


def test_what_is_played_and_tables_of_another_type_replace_those_that_they_are_laid_over(tmp_path):
    other = load('extends = "kuhn"\n[learning.algorithm]\ntype = "reinforce"\n', folder=tmp_path)
    assert (
        other.learning.algorithm
        == load_config("kuhn", {"learning.algorithm": '{type = "reinforce"}'}).learning.algorithm
    )
    games = 'extends = "nip"\n[[envs]]\nid = "kuhn_poker"\n[credit]\ntype = "grpo"\n'
    assert load(games, folder=tmp_path).program is None
    claims = load('extends = "nip"\n[program.claims]\ntype = "file"\npath = "mine.jsonl"\n', folder=tmp_path)
    assert claims.program.claims.path == str(tmp_path / "mine.jsonl")


def test_a_buffer_that_would_part_the_answers_of_one_turn_is_refused():
    with pytest.raises(InputError, match=r"buffer.batch_size: draws single answers, but normalize_rewards"):
        load_config("papers/at-grpo-small", {"buffer.batch_size": "64"})


@pytest.mark.parametrize(
    "text",
    [
        'policies = ["one", "One"]\n',
        '[league.players]\ndefault = {role = "main"}\nDefault = {role = "main"}\n',
    ],
)
def test_policies_that_differ_only_in_case_are_refused(text, tmp_path):
    with pytest.raises(InputError, match=r"^policies: \w+ and \w+ differ only in case"):
        load(f'[[envs]]\nid = "kuhn_poker"\n{text}', folder=tmp_path)


OTHER_WAYS = {
    "papers/marshal-small": '[credit]\ntype = "rae"\n',
    "papers/at-grpo-small": '[credit]\ntype = "grpo"\n',
    "papers/spiral-small": '[rewards]\nsampling = [{type = "normalize_rewards"}]\n',
    "papers/r-zero-small": "[learning.critic]\n",
    "kuhn": '[rewards]\nsampling = [{type = "normalize_rewards"}]\n',
}


@pytest.mark.parametrize("base", OTHER_WAYS)
def test_another_way_to_advantages_takes_the_place_of_that_of_the_file_it_is_laid_over(base, tmp_path):
    config = load(f'extends = "{base}"\n{OTHER_WAYS[base]}', folder=tmp_path)
    ways = OTHER_WAYS[base]
    assert (config.credit is not None) == ("[credit]" in ways)
    assert (config.learning.critic is not None) == ("critic" in ways)
    if "normalize" in ways:
        assert [one.type for one in config.rewards.sampling] == ["normalize_rewards"]


def test_a_single_field_of_credit_leaves_the_others_as_they_are(tmp_path):
    config = load('extends = "papers/r-zero-small"\n[credit]\nnormalize = false\n', folder=tmp_path)
    assert (config.credit.type, config.credit.normalize) == ("grpo", False)


@pytest.mark.parametrize("policies", ["shared", "isolated"])
def test_other_policies_have_no_settings_of_those_that_they_replace(policies, tmp_path):
    text = f'extends = "papers/r-zero-small"\n[program]\npolicies = "{policies}"\n'
    assert load(text, folder=tmp_path).learning.policies == {}


@pytest.mark.parametrize(
    "base", ["papers/r-zero", "papers/prover-verifier-small", "papers/isolated-or-shared"]
)
def test_a_table_over_a_name_keeps_the_name(base, tmp_path):
    named = load_config(base, {}).program.questions
    config = load(f'extends = "{base}"\n[program.questions]\ntest_size = 0.5\n', folder=tmp_path)
    assert config.program.questions == named.model_copy(update={"test_size": 0.5})


def test_a_circle_through_two_directories_and_a_long_chain_are_refused(tmp_path):
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.toml").write_text(f'extends = "../{other}/a.toml"\n')
    for number in range(30):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"\n')
    for start in ("one/a.toml", "0.toml"):
        with pytest.raises(InputError, match=r"extends: .* is laid over itself, or over more than 20 others"):
            load_config(str(tmp_path / start), {})


@pytest.mark.parametrize(
    ("extends", "line"),
    [
        ("3", "extends: 3 is not a name. Name a preset or a .toml file"),
        (
            '"kuhn"\n[learning]\nextends = "kuhn"',
            "extends: stands in the table learning. Write it on the first line, before all tables",
        ),
        ('""', "extends: '' is not a name. Name a preset or a .toml file"),
        ('"kuh"', "/mine.toml names kuh, and no file or preset has this name. Did you mean kuhn?"),
        ('"paper.toml"', "/paper.toml, and there is no such file. Give a .toml file or one of PRESETS"),
        (
            '"mine.toml"',
            "/mine.toml is laid over itself, or over more than 20 others. Name another preset or file",
        ),
        (
            '"other.toml"',
            "/mine.toml is laid over itself, or over more than 20 others. Name another preset or file",
        ),
    ],
)
def test_a_file_that_extends_nothing_that_there_is_is_refused(extends, line, tmp_path):
    (tmp_path / "other.toml").write_text('extends = "mine.toml"\n')
    with pytest.raises(InputError) as refused:
        load(f"extends = {extends}\n", folder=tmp_path)
    presets = f"{', '.join(PLAIN)}, or a paper's, such as papers/spiral"
    assert str(refused.value).endswith(line.replace("PRESETS", presets))


def test_overrides_are_read_as_toml_values_or_otherwise_as_text():
    config = load_config(
        "quickstart",
        {
            "seed": "7",
            "learning.learning_rate": "1e-3",
            "evaluation.nash_conv": "false",
            "evaluation.opponents": '["base"]',
            "envs.0.id": "kuhn_poker(players=3)",
            "model.name": "some/model",
            "rewards.sampling": '[{type = "normalize_rewards", z_score = true}]',
            "population.lag_range": "[2, 3]",
            "learning.algorithm.regulariser": '"none"',
            "tracking.wandb_project": "123abc",
        },
    )
    assert config.seed == 7
    assert config.learning.learning_rate == 1e-3
    assert config.evaluation.nash_conv is False
    assert config.evaluation.opponents == ["base"]
    assert config.envs[0].id == "kuhn_poker(players=3)"
    assert config.model.name == "some/model"
    assert config.rewards.sampling[0].z_score is True
    assert config.population.lag_range == (2, 3)
    assert config.learning.algorithm.regulariser == "none"
    assert config.tracking.wandb_project == "123abc"


def test_an_override_of_an_entry_changes_only_that_entry(tmp_path):
    two = KUHN + '[[envs]]\nid = "leduc_poker"\n'
    config = load(two, {"envs.1.weight": "3"}, folder=tmp_path)
    assert [(env.id, env.weight) for env in config.envs] == [("kuhn_poker", 1.0), ("leduc_poker", 3.0)]


@pytest.mark.parametrize(
    "override",
    [
        {"program.path": "theirs.py:Arena", "model.name": "model"},
        {"program": '{type = "python", path = "./theirs.py:Arena"}', "model": '{name = "./model"}'},
    ],
)
def test_a_path_on_the_command_line_is_relative_to_the_working_directory(tmp_path, monkeypatch, override):
    (tmp_path / "project").mkdir()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    program = '[program]\ntype = "python"\npath = "mine.py:Arena"\n'
    config = load(program, override, folder=tmp_path / "project")
    assert config.program.path == f"{tmp_path}/theirs.py:Arena"
    assert config.model.name == str(tmp_path / "model")


def test_a_path_in_a_file_is_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "project" / "model").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    text = '[program]\ntype = "python"\npath = "mine.py:Arena"\n[model]\nname = "model"\n'
    config = load(text, folder=Path("project"))
    assert config.program.path == f"{tmp_path}/project/mine.py:Arena"
    assert config.model.name == f"{tmp_path}/project/model"
    saved = tmp_path / "runs" / "saved"
    saved.mkdir(parents=True)
    assert load(dump_config(config), folder=saved) == config, "a resume must find the same paths"


def test_the_file_of_an_algorithm_and_of_a_game_is_relative_to_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    algorithm = '[learning.algorithm]\npath = "mine.py:Loss"\noptions = {a = 1}\n'
    algorithm += '[learning.policies.default.algorithm]\npath = "own.py:Loss"\n'
    text = f'[[envs]]\nid = "games/mine.py:Game"\n{algorithm}'
    config = load(text, {"envs.0.weight": "2.0"}, folder=Path("project"))
    assert config.envs[0].id == f"{tmp_path}/project/games/mine.py:Game"
    assert config.envs[0].name == "Game"
    assert config.learning.algorithm.path == f"{tmp_path}/project/mine.py:Loss"
    own = config.learning.policies["default"].algorithm
    assert own is not None
    assert own.path == f"{tmp_path}/project/own.py:Loss"
    assert load(dump_config(config), folder=tmp_path) == config
    here = {"envs.0.id": "other.py:Game", "learning.algorithm.path": "../other.py:Loss"}
    config = load(text, here, folder=Path("project"))
    assert config.envs[0].id == f"{tmp_path}/other.py:Game"
    assert config.learning.algorithm.path == f"{tmp_path.parent}/other.py:Loss"


def test_an_algorithm_with_a_path_needs_no_type(tmp_path):
    for kind in ("", 'type = "python"\n'):
        text = f'{KUHN}[learning.algorithm]\n{kind}path = "mine.py:Loss"\n'
        assert load(text, folder=tmp_path).learning.algorithm.type == "python"
    config = load(f"{KUHN}[learning.algorithm]\nkl_weight = 0.5\n", folder=tmp_path)
    assert config.learning.algorithm.type == "reinforce"


def test_a_model_name_that_is_not_a_model_directory_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    for name in ("org/model", "gpt2", "./nothing", "smollm2-135m"):
        assert load_config("quickstart", {"model.name": name}).model.name == name


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"envs.3.id": "x"}, "envs.3: there is no such entry: envs has 1 entry. Use envs.0"),
        ({"envs.id": "x"}, "envs.id: there is no such entry: envs has 1 entry. Use envs.0"),
        ({"envs.0.id.x": "x"}, "envs.0.id.x: envs.0.id is 'kuhn_poker', not a table. Set envs.0.id itself"),
        ({"learning.steps": "true"}, "learning.steps: must be a whole number (got true)."),
        ({"learning": "3"}, "learning: must be a table of fields (got 3)."),
        ({"envs": "[]"}, "envs: is missing, so there is no game to play."),
        ({"learning.learning_rate": "nan"}, "learning.learning_rate: must be a finite number (got nan)."),
        ({"population.lag_range": "[1, 2, 3]"}, "population.lag_range: must have at most 2 values (got"),
        ({"population.lag_range": '["a", 2]'}, "population.lag_range.0: must be a whole number"),
        ({"learning.algorithm": "3"}, "learning.algorithm: must be a table of fields (got 3)."),
        (
            {"learning.algorithm": '{path = "mine.py"}'},
            'learning.algorithm.path: must name a file and a class (got "mine.py").',
        ),
        (
            {"learning.algorithm.kl_weight": "-1"},
            "learning.algorithm.kl_weight: must be at least 0 (got -1).",
        ),
        (
            {"learning.policies": "{solver = {momentum = 0.5}}"},
            "learning.policies: there is no policy solver. There are: default",
        ),
        (
            {"learning.policies.default.algorithm.type": "pro"},
            'learning.policies.default.algorithm.type: "pro" is not a valid type. Use one of "reinforce"',
        ),
        (
            {"learning.policies.default.algorithm": '{type = "dppo", correction = "tis"}'},
            "learning.policies.default.algorithm.correction: there is no such field. "
            'It belongs to type "reinforce"',
        ),
        (
            {"learning.algorithm.type": "pro"},
            'learning.algorithm.type: "pro" is not a valid type. Use one of "reinforce", "a2c", "ppo"',
        ),
        (
            {"learning.algorithm": '{type = "ppo", clip_high = -0.1}'},
            "learning.algorithm.clip_high: must be at least 0 (got -0.1).",
        ),
        (
            {"learning.algorithm": '{type = "ppo", dual_clip = 1}'},
            "learning.algorithm.dual_clip: must be greater than 1 (got 1).",
        ),
        (
            {"learning.algorithm.correction": "ais"},
            'learning.algorithm.correction: "ais" is not a valid value. Use "none", "tis", "mis"',
        ),
        (
            {"learning.algorithm": '{type = "dppo", correction = "tis"}'},
            'learning.algorithm.correction: there is no such field. It belongs to type "reinforce"',
        ),
    ],
)
def test_each_kind_of_invalid_value_gives_one_line_that_names_the_field(overrides, line):
    assert problem(overrides).startswith(line)
    assert "\n" not in problem(overrides)


def test_fields_of_tagged_entries_are_named_without_their_tag():
    entry = '[{type = "win_draw_loss", los = 1}]'
    line = problem({"rewards.final": entry})
    assert line == "rewards.final.0.los: there is no such field. Did you mean rewards.final.0.loss?"
    assert problem({"rewards.final": '[{type = "win_draw_loss", win = "x"}]'}).startswith(
        "rewards.final.0.win:"
    )


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("learning.lerning_rate", "learning.learning_rate"),
        ("steps", "learning.steps"),
        ("learning.max_tokens", "inference.max_tokens"),
        ("learning.kl_weight", "learning.algorithm.kl_weight"),
        ("learning.algorithm.kl_wight", "learning.algorithm.kl_weight"),
        ("learning.policies.default.momentun", "learning.policies.default.momentum"),
        ("invference.temperature", "inference"),
    ],
)
def test_the_error_for_a_misspelt_field_suggests_the_intended_one(field, meant):
    assert problem({field: "3"}).endswith(f"Did you mean {meant}?")


def test_the_error_for_an_unrecognisable_field_lists_the_fields_of_its_section():
    fields = "Fields of this section: type, max_size, batch_size, log_batches"
    assert problem({"buffer.zzz": "3"}).endswith(fields)


def test_the_error_for_a_field_of_another_type_of_entry_names_that_type():
    assert problem({"learning.algorithm.path": "mine.py:Loss"}) == (
        'learning.algorithm.regulariser: there is no such field. It belongs to type "reinforce", "a2c", '
        '"ppo", "gspo", "cispo", "sapo" or "dppo". '
        "Leave it out; --learning.algorithm '{type = \"...\"}' replaces the whole table"
    )
    assert problem({"rewards.final": '[{type = "role_advantage", win = 2}]'}) == (
        'rewards.final.0.win: there is no such field. It belongs to type "win_draw_loss"'
    )


def fields_only(fact):
    return [
        ".".join(one.written)
        for one in config_fields()
        if any(
            isinstance(known, Only) and (known.other, known.why) == (fact.other, fact.why)
            for known in one.info.metadata
        )
    ]


LISTS = (
    {".".join(one.written) for one in config_fields() if is_list(one.info.annotation)}
    - {"envs"}
    - {*fields_only(FOR_PROGRAMS)}
)


@pytest.mark.parametrize("field", sorted(one for one in LISTS if "*" not in one and "program" not in one))
def test_a_list_that_is_not_set_has_no_entry_to_change(field, tmp_path):
    with pytest.raises(InputError) as refused:
        load(KUHN, {f"{field}.0.type": "x"}, folder=tmp_path)
    assert str(refused.value) == f"{field}: is not set, so it has no entry to change. Use {field} = [...]"
    with pytest.raises(InputError) as refused:
        load(KUHN, {field: "{}"}, folder=tmp_path)
    assert "is not set" not in str(refused.value)


@pytest.mark.parametrize(
    ("preset", "field", "why"),
    [("debate", field, FOR_GAMES.why) for field in fields_only(FOR_GAMES)]
    + [("quickstart", field, FOR_PROGRAMS.why) for field in fields_only(FOR_PROGRAMS)],
)
@pytest.mark.parametrize("inside", ["", ".0", ".0.id"])
def test_a_field_that_is_only_for_games_or_programs_says_so_whatever_its_value(preset, field, why, inside):
    players = {"league.players": '{default = {role = "main"}}'} if field.startswith("league.") else {}
    assert problem({**players, f"{field}{inside}": '"x"'}, preset).startswith(f"{field}: {why}. ")


FREE = {"*", "program", "roles", "start", "frozen", "fields", "template_options"}
"""Tables with names of the user's own."""


@given(
    st.sampled_from([one.written for one in config_fields() if not FREE & set(one.written)]),
    st.sampled_from([{"no": "such"}, [[[]]], date(2024, 1, 1)]),
)
@example(path=("inference", "stop"), wrong=[[[]]])  # games end answers as the run does
@example(path=("finetune", "agents", "_default", "temperature"), wrong="x")  # agents are completed by it
def test_any_invalid_value_gives_an_error_that_names_its_field(path, wrong):
    config = {
        "envs": [{"id": "kuhn_poker"}],
        "evaluation": {"envs": [{"id": "leduc_poker"}]},
        "finetune": {"agents": {"prover": {}}},
    }
    table = config
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = wrong
    with pytest.raises(InputError) as raised:
        _load_dict(config)
    assert raised.value.field.startswith(".".join(path))
    assert raised.value.problem
    assert raised.value.fix


def _load_dict(data):
    from pydantic import ValidationError

    from sparring.config.problems import first_problem

    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise first_problem(error, data) from error


TEXTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=5)


@given(st.integers(0, 10**6), st.floats(1e-9, 1.0), st.lists(TEXTS, max_size=3, unique=True))
def test_a_dumped_configuration_loads_unchanged(seed, rate, texts):
    config = _load_dict(
        {
            "seed": seed,
            "envs": [{"id": "kuhn_poker", "weight": rate}, {"id": "-".join(["id", *texts])}],
            "learning": {"learning_rate": rate},
            "evaluation": {"opponents": texts},
            "rewards": {
                "final": [{"type": "role_advantage", "tau": rate}, {"type": "win_draw_loss"}],
                "sampling": [],
            },
            "population": {"lag_range": [0, seed]},
        }
    )
    assert _load_dict(tomllib.loads(dump_config(config))) == config


def test_every_field_is_documented():
    undocumented = [field.path for field in config_fields() if not field.info.description]
    assert undocumented == []
    for field in config_fields():
        for model in models_in(field.info.annotation):
            assert model.__doc__


def test_a_run_cannot_start_with_more_engines_than_it_has():
    two = {"run.runtime": "ray", "ray.engines": 2}
    assert load_config("quickstart", two).ray.least_engines == 2
    assert load_config("quickstart", two | {"ray.min_engines": 1}).ray.least_engines == 1
    assert problem(two | {"ray.min_engines": 3}).startswith(
        "ray.min_engines: 3 is more than ray.engines, which is 2"
    )


def test_a_base_is_shared_only_by_several_learners_and_not_in_four_bits():
    shared = {"run.runtime": "ray", "ray.shard_base": "true"}
    assert problem(shared).startswith("ray.shard_base: is for several learners")
    shared["ray.learners"] = "2"
    assert load_config("quickstart", shared).ray.shard_base
    assert problem(shared | {"model.quantization": "nf4"}).startswith("model.quantization: a base of four")


def test_only_fields_that_change_what_is_drawn_give_a_program_a_replay_buffer():
    assert load_config("quickstart", {}).uses_buffer
    for unused in ({}, {"buffer.log_batches": "false"}):
        assert not load_config("debate", unused).uses_buffer
    for used in ({"buffer.batch_size": 5}, {"buffer.type": "episode"}, {"rewards.sampling": "[]"}):
        assert load_config("debate", used | {"buffer.log_batches": "false"}).uses_buffer


@pytest.mark.parametrize(
    ("weights", "places", "problem"),
    [
        ({}, {"other": "first"}, "other is none of the fixed_opponents"),
        ({"optimal": 1}, {"random": "first", "optimal": "first"}, "in the place of second"),
        ({"optimal": 0}, {"random": "first", "optimal": "second"}, "in the place of second"),
    ],
)
def test_the_places_of_fixed_opponents_are_checked(weights, places, problem):
    games = [{"id": "kuhn_poker", "policies": ["first", "second"]}]
    names = ["random", *weights]
    population = {"sample_mode": "fixed", "fixed_opponents": names, "places": places}
    population |= {"weights": [1, *weights.values()]} if weights else {}
    with pytest.raises(InputError, match=rf"population.places: .*{problem}"):
        _load_dict({"envs": games, "population": population})


@pytest.mark.parametrize(
    "name", ["ckpt-10", "attacker-ckpt-5", "fixed-random", "my-average", "é", "名", "a b"]
)
def test_names_of_the_pools_members_and_of_no_directory_are_no_names_of_policies_or_adapters(name):
    games = [{"id": "kuhn_poker", "policies": ["first", name]}]
    with pytest.raises(InputError, match=f"envs.0.policies.1: '{name}' is not a valid name"):
        _load_dict({"envs": games})
    with pytest.raises(InputError, match=f"'{name}' is not a valid name"):
        _load_dict({"envs": [{"id": "kuhn_poker"}], "frozen": {name: "an-adapter"}})


@pytest.mark.parametrize(
    ("topics", "held_out", "line"),
    [
        (["Ban cars", " ban  CARS "], None, "program.topics: ' ban  CARS ' is in topics already"),
        (["Ban cars", "  "], None, "program.topics: one of them is empty"),
        (["Ban cars"], ["Zoos", "zoos"], "program.evaluation_topics: 'zoos' is in evaluation_topics already"),
        (["Ban cars"], ["Zoos", "ban cars"], "program.evaluation_topics: 'ban cars' is in topics already"),
    ],
)
def test_a_topic_is_there_once_and_what_is_held_out_is_not_trained_on(topics, held_out, line):
    program = {"type": "debate", "topics": topics, "evaluation_topics": held_out}
    with pytest.raises(InputError, match=re.escape(line)):
        _load_dict({"program": {name: value for name, value in program.items() if value is not None}})


def test_a_tilde_is_the_home_directory_in_every_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "model").mkdir(parents=True)
    proofs = '[program]\ntype = "proofs"\nprotocol = "~/court.py:court"\n'
    proofs += '[program.claims]\ntype = "file"\npath = "~/claims.jsonl"\n'
    proofs += '[model]\nname = "~/model"\n[frozen]\nold = "~/adapter"\n'
    proofs += '[learning.algorithm]\npath = "~/loss.py:Loss"\n'
    home = str(tmp_path / "home")
    config = load(proofs, folder=tmp_path)
    assert config.program.claims.path == f"{home}/claims.jsonl"
    assert config.program.protocol == f"{home}/court.py:court"
    assert (config.model.name, config.frozen["old"]) == (f"{home}/model", f"{home}/adapter")
    assert config.learning.algorithm.path == f"{home}/loss.py:Loss"


@pytest.mark.parametrize(("name", "is_here"), [("./data", True), ("lrhammond/buggy-apps", False)])
def test_a_directory_of_claims_is_relative_to_the_configuration(tmp_path, name, is_here):
    (tmp_path / "data").mkdir()
    config = load(
        f'[program]\ntype = "proofs"\n[program.claims]\ntype = "dataset"\nname = "{name}"\n', folder=tmp_path
    )
    assert config.program.claims.name == (str(tmp_path / "data") if is_here else name)


def test_fields_that_only_one_of_two_configurations_has_differ_too(tmp_path):
    one = load(KUHN, folder=tmp_path)
    other = load(KUHN + '[frozen]\nold = "an-adapter"\n', {"learning.schedule": "constant"}, folder=tmp_path)
    assert differences_text(one, one) == ""
    for first, second in ((one, other), (other, one)):
        assert set(differences_text(first, second).split(", ")) == {"frozen.old", "learning.schedule"}
    unset = load(KUHN, {"learning.policies.default": "{}"}, folder=tmp_path)
    for first, second in ((one, unset), (unset, one)):
        assert differences_text(first, second).startswith("learning.policies.default.algorithm, ")


def test_a_source_unlike_every_preset_gets_all_their_names():
    with pytest.raises(InputError) as refused:
        load_config("zzz", {})
    assert str(refused.value).endswith(
        f"Give a .toml file or one of {', '.join(PLAIN)}, or a paper's, such as papers/spiral"
    )


def test_an_override_cannot_smuggle_in_a_second_field():
    line = problem({"model.name": '"a"\nseed = 3'})
    assert line.startswith("model.name: must have no control characters, but has U+000A")


def test_only_vllm_spreads_a_model_over_gpus():
    spread = {"run.runtime": "ray", "inference.tensor_parallel": 2}
    assert load_config("quickstart", spread | {"inference.engine": "vllm"}).inference.tensor_parallel == 2
    assert problem(spread).startswith("inference.tensor_parallel: has no effect, because inference.engine is")
