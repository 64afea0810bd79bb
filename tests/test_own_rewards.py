"""Reward transforms, credit assigners and templates of one's own, by file and name."""

import json
import shutil
from pathlib import Path

import pytest

from game_runs import SMALL, metrics_of, resumed, run
from sparring.collection import StepBuffer
from sparring.collection.transforms import CreditTransform
from sparring.config import dump_config, load_config
from sparring.core import (
    Arena,
    ArtifactStore,
    GenerateResult,
    InputError,
    MockInferenceClient,
    Rollout,
    SparringError,
    Step,
    Trajectory,
)
from sparring.envs.catalog import make_game
from sparring.envs.templates import BoxedTemplate, get_template
from sparring.run.checks import check_config
from sparring.run.rehearsal import rehearse
from sparring.run.rewards import build_credit, composed_transforms

MINE = r"""
import re
from sparring.core import CreditAssigner
from sparring.envs.templates import BoxedTemplate, PromptTemplate
from sparring.collection import FinalRewardTransform, SamplingRewardTransform, StepRewardTransform


class Remember(FinalRewardTransform):
    def __init__(self, scale=1.0):
        self.scale, self.seen = scale, 0

    def __call__(self, x, env_id=None):
        self.seen += 1
        return {pid: self.scale * reward for pid, reward in x.items()}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Later(StepRewardTransform):
    def __call__(self, trajectory, step_index, base_reward):
        return base_reward + step_index


class Half(SamplingRewardTransform):
    def __call__(self, steps):
        for step in steps:
            step.advantage /= 2
        return steps


class Constant(CreditAssigner):
    def __init__(self, weight):
        self.weight, self.calls = weight, 0

    def compute(self, results):
        self.calls += 1
        return {
            (rollout.id, index): self.weight
            for result in results
            for rollout in result.trainable_rollouts()
            for index, _ in enumerate(rollout.steps)
        }

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Forgets(Later):
    def state_dict(self):
        return None


class NoFinal(FinalRewardTransform):
    def __call__(self, x, env_id=None):
        return None


class Raises(FinalRewardTransform):
    def __call__(self, x, env_id=None):
        raise ValueError("no such table")


class Text(StepRewardTransform):
    def __call__(self, trajectory, step_index, base_reward):
        return "3"


class Copies(SamplingRewardTransform):
    def __call__(self, steps):
        return [step.scored(1.0, step.info, step.env_id) for step in steps]


class Pays(SamplingRewardTransform):
    def __call__(self, steps):
        for step in steps:
            step.reward = 0.5
        return steps


class Nothing(SamplingRewardTransform):
    def __call__(self, steps):
        return None


class Exits(SamplingRewardTransform):
    def __call__(self, steps):
        raise SystemExit(0)


class NoWeights(CreditAssigner):
    def compute(self, results):
        return None


class Foreign(Constant):
    def compute(self, results):
        return super().compute(results) | {("another", 0): 1.0}


class Flat(Constant):
    def compute(self, results):
        return {rollout: value for (rollout, _), value in super().compute(results).items()}


class Leaves(Constant):
    def compute(self, results):
        return dict(list(super().compute(results).items())[1:])


class Mean(Constant):
    def compute(self, results):
        return dict.fromkeys(super().compute(results), float("nan"))


class Worded(Constant):
    def compute(self, results):
        return dict.fromkeys(super().compute(results), "1")


class Stateless(Constant):
    def state_dict(self):
        return None


terse = BoxedTemplate("terse", "{observation}\n\nYour move in \\boxed{}.")


class MoveLine(PromptTemplate):
    name = "move-line"
    strict = True

    def messages(self, game, pid):
        return [{"role": "user", "content": f"{game.observation(pid)}\nMove:"}]

    def extract(self, text):
        return text.strip(), True

    def answer(self, action):
        return action
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "project"


def load(files, text, **overrides):
    (files / "mine.toml").write_text(f'[[envs]]\nid = "kuhn_poker"\n{text}')
    return load_config(str(files / "mine.toml"), {one.replace("__", "."): v for one, v in overrides.items()})


REWARDS = """
[rewards]
final = [{path = "mine.py:Remember", options = {scale = 0.5}}]
step = [{type = "mine.py:Later"}]
sampling = [{type = "python", path = "mine.py:Half"}]
"""


def test_transforms_are_named_by_file_and_class_and_get_their_options(files, monkeypatch):
    config = load(files, REWARDS)
    final, step, sampling = composed_transforms(config)
    assert final({0: 3.0, 1: -1.0}) == {0: 1.5, 1: -0.5}
    assert [type(one.transforms[0]).__name__ for one in (step, sampling)] == ["Later", "Half"]
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files / "elsewhere")
    (files / "elsewhere" / "again.toml").write_text(dump_config(config))
    assert load_config("again.toml", {}) == config, "a resume finds the same files"
    assert check_config(config)


@pytest.mark.parametrize("kind", ['path = "mine.py:Constant"', 'type = "mine.py:Constant"'])
def test_a_credit_assigner_is_named_by_file_and_class(kind, files):
    config = load(files, f"[credit]\n{kind}\noptions = {{weight = 0.25}}\n")
    assert build_credit(config.credit).weight == 0.25
    assert config.credit.path == f"{files}/mine.py:Constant"
    assert check_config(config)


@pytest.mark.parametrize("name", ["terse", "MoveLine"])
def test_a_template_is_named_by_file_and_name(name, files):
    (files / "mine.toml").write_text(f'[[envs]]\nid = "kuhn_poker"\ntemplate = "mine.py:{name}"\n')
    config = load_config(str(files / "mine.toml"), {})
    assert config.envs[0].template == f"{files}/mine.py:{name}"
    assert check_config(config)


def test_a_run_with_all_of_them_goes_on_where_it_was_cut_off(files, model):
    text = 'template = "mine.py:terse"\n' + REWARDS
    one = {"learning.steps": "2", "model.name": str(model), "evaluation.games": "2"}
    one["evaluation.nash_conv"] = "false"
    small = {name: value for name, value in SMALL.items() if not name.startswith("envs")} | one
    (files / "mine.toml").write_text(f'[[envs]]\nid = "kuhn_poker"\n{text}')
    whole = load_config(str(files / "mine.toml"), small | {"run.save_every": "1"})
    run(whole, files / "whole")
    last = files / "whole" / "checkpoints" / "step-000002"
    state = json.loads((last / "state.json").read_text())
    transforms = state["source"]["buffer"]["buffer"]["transforms"]["final"]["transforms"]
    assert transforms[0]["type"] == "Remember"
    assert transforms[0]["state"]["seen"] > 0
    weights = (last / "adapter_model.safetensors").read_bytes()
    (files / "whole" / "report.html").unlink(missing_ok=True)
    shutil.rmtree(last)
    resumed(files / "whole")
    assert (last / "adapter_model.safetensors").read_bytes() == weights
    assert (
        json.loads((last / "state.json").read_text())["source"]["buffer"]["buffer"]["transforms"]
        == (state["source"]["buffer"]["buffer"]["transforms"])
    )
    assert len(metrics_of(files / "whole")) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[rewards]\nfinal = [{path = "mine.py:Half"}]',
            r"final\.0\.path: .* FinalRewardTransform named",
        ),
        ('[rewards]\nstep = [{path = "no.py:Half"}]', r"rewards\.step\.0\.path: there is no file"),
        (
            '[rewards]\nsampling = [{path = "mine.py:Half", options = {a = 1}}]',
            r"sampling\.0\.options: ",
        ),
        ('[credit]\npath = "mine.py:Half"', r"credit\.path: .* has no CreditAssigner named 'Half'"),
        ('[credit]\npath = "mine.py:Constant"', r"credit\.options: Constant does not take them"),
    ],
)
def test_a_name_that_is_wrong_is_found_by_the_checks(text, line, files):
    with pytest.raises(InputError, match=line):
        check_config(load(files, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[credit]\noptions = {a = 1}", "credit.options: has no effect, because credit.type is"),
        ('[credit]\ntype = "python"', "credit.path: is missing"),
        ('[credit]\npath = "mine.py"', "credit.path: must name a file and a class"),
        ('[rewards]\nfinal = [{path = "mine.py"}]', "rewards.final.0.path: must name a file and a class"),
    ],
)
def test_a_table_that_is_wrong_is_one_line(text, line, files):
    with pytest.raises(InputError) as refused:
        load(files, text)
    assert str(refused.value).startswith(line)


def test_a_template_that_is_none_is_named(files):
    (files / "mine.toml").write_text('[[envs]]\nid = "kuhn_poker"\ntemplate = "mine.py:Half"\n')
    with pytest.raises(InputError, match=r"envs\.0\.template: .* has no PromptTemplate named 'Half'"):
        check_config(load_config(str(files / "mine.toml"), {}))


TRAJECTORY = Trajectory(0, "kuhn_poker", final_reward=2.0, steps=[Step("player_0", [], [])])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[rewards]\nfinal = [{path = "mine.py:NoFinal"}]', "the final transforms returned None, not a dict"),
        ('[rewards]\nfinal = [{path = "mine.py:Raises"}]', "Raises.__call__ failed: ValueError"),
        ('[rewards]\nstep = [{path = "mine.py:Text"}]', "in kuhn_poker became '3'"),
        ('[rewards]\nsampling = [{path = "mine.py:Copies"}]', "returned other steps than they"),
        (
            '[rewards]\nsampling = [{path = "mine.py:Pays"}]',
            "changed the reward of a step; set its advantage",
        ),
        (
            '[rewards]\nsampling = [{path = "mine.py:Nothing"}]',
            "transforms returned None, not a list of steps",
        ),
        ('[rewards]\nsampling = [{path = "mine.py:Exits"}]', "Exits.__call__ failed: SystemExit"),
        ('[credit]\npath = "mine.py:NoWeights"', "NoWeights.compute returned None, not a dict"),
    ],
)
def test_one_that_fails_ends_the_run_in_one_line(text, line, files):
    buffer = StepBuffer(10, None, *composed_transforms(load(files, text)))

    def play():
        buffer.add_player_trajectory(TRAJECTORY, "kuhn_poker")
        buffer.get_batch(1)

    with pytest.raises(SparringError) as refused:
        play()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_transform_or_a_store_whose_state_is_none_is_named(files):
    _, step, _ = composed_transforms(load(files, '[rewards]\nstep = [{path = "mine.py:Forgets"}]'))
    with pytest.raises(SparringError, match=r"^Forgets\.state_dict returned None, not a dict$"):
        step.state_dict()

    class Shelf(ArtifactStore):
        def state_dict(self):
            return None

    arena = Arena(MockInferenceClient())
    arena.add_store("shelf", Shelf())
    with pytest.raises(SparringError, match=r"^Shelf\.state_dict returned None, not a dict$"):
        arena.state_dict()


WRONG_CREDIT = {
    "NoWeights": "NoWeights.compute returned None, not a dict",
    "Foreign": "Foreign.compute has the key ('another', 0), not (rollout id, step index) of a step",
    "Flat": "Flat.compute has the key ",
    "Leaves": "Leaves.compute gave no advantage for step 0 of the rollout ",
    "Mean": "Mean.compute for a step gave nan, which is not a finite number",
    "Worded": "Worded.compute for a step gave '1', which is not a finite number",
    "Stateless": "Stateless.state_dict returned None, not a dict",
}
WEIGHTED = "options = {weight = 1.0}"


@pytest.mark.parametrize("name", WRONG_CREDIT)
@pytest.mark.parametrize("of", ["games", "a program", "a program with a critic"])
def test_a_credit_assigner_that_returns_nonsense_is_named(name, of, files):
    options = "" if name == "NoWeights" else WEIGHTED
    config = load(files, f'[credit]\npath = "mine.py:{name}"\n{options}\n')
    credit = build_credit(config.credit)
    steps = [Step("A", [], [], policy="p"), Step("A", [], [], policy="p")]
    rollout = Rollout(episode_type="talk", steps=steps, rewards={"A": 1.0})

    def used():
        if of == "games":
            transform = CreditTransform(credit)
            transform(steps)
            transform.state_dict()
            return
        arena = Arena(MockInferenceClient())
        arena.credit_assigner = credit
        arena.critics = frozenset({"q"} if of == "a program with a critic" else ())
        arena.end_step(0, [GenerateResult(rollout)])
        arena.state_dict()

    with pytest.raises(SparringError) as refused:
        used()
    assert str(refused.value).startswith(WRONG_CREDIT[name])


TEMPLATE = """
from sparring.envs.templates import BoxedTemplate, PromptTemplate


class Loud(PromptTemplate):
    name = "loud"
    strict = True

    def messages(self, game, pid):
        return [{"role": "user", "content": "your move"}]

    def extract(self, text):
        return text.strip(), True

    def answer(self, action):
        return action
"""


@pytest.mark.parametrize(
    ("method", "value", "line"),
    [
        ("answer", "None", "Loud.answer returned None, not a str"),
        ("answer", "'\\ud800'", "Loud.answer: a text contains"),
        ("extract", "None", "Loud.extract returned None, not a tuple"),
        ("extract", "('1', True, 2)", "Loud.extract returned 3 values, not an action and true or false"),
        ("extract", "(None, True)", "Loud.extract returned None, not a str"),
        ("extract", "('1', None)", "Loud.extract returned None, not true or false"),
        ("messages", "None", "Loud.messages returned None, not a list"),
        ("messages", "'go'", "Loud.messages returned 'go', not a list"),
        ("messages", "[]", "Loud.messages returned no message"),
        ("messages", "[{'role': 'user', 'content': 7}]", "Loud.messages: a message must have a text as its"),
        ("messages", "[('user', 'go')]", "Loud.messages: a message must have a text as its role"),
    ],
)
def test_a_template_that_returns_nonsense_is_named(method, value, line, tmp_path):
    body = f"\n    def {method}(self, *_):\n        return {value}\n"
    (tmp_path / "mine.py").write_text(TEMPLATE + body)
    (tmp_path / "mine.toml").write_text('[[envs]]\nid = "kuhn_poker"\ntemplate = "mine.py:Loud"\n')
    with pytest.raises(InputError) as refused:
        rehearse(load_config(str(tmp_path / "mine.toml"), {}))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "{rules}\\n{observation}",
            "layout: curt has an unknown placeholder {rules}. {observation} stands for",
        ),
        ("your move", "layout: curt has 0 times {observation}. Write it once"),
        ("{observation} and {observation}", "layout: curt has 2 times {observation}. Write it once"),
    ],
)
def test_a_layout_with_other_placeholders_is_one_line(text, line, tmp_path):
    (tmp_path / "mine.py").write_text(TEMPLATE + f'\n\ncurt = BoxedTemplate("curt", "{text}")\n')
    with pytest.raises(InputError) as refused:
        get_template(f"{tmp_path}/mine.py:curt")
    assert str(refused.value).startswith(line)


def test_the_argument_of_a_command_is_no_placeholder():
    template = BoxedTemplate("mine", "{observation} Write \\boxed{move} or {}.")
    (message,) = template.messages(make_game("kuhn_poker", 2, seed=0), 0)
    assert message["content"].endswith(" Write \\boxed{move} or {}.")
