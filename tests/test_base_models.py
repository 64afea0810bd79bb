"""A model without a chat template plays games by a prompt of plain text, whose answers a line feed ends."""

import json
import shutil

import pytest

from engine_requests import make_engine
from game_runs import MAGNET, configure, metrics_of, run
from matrices import first_of
from sparring.config import load_config
from sparring.core import AgentSpec, Arena, CallSettings, InputError, PlaySpec
from sparring.core.adapters import BASE
from sparring.core.client import MockInferenceClient
from sparring.core.play import seat_role
from sparring.core.types import Role
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.evaluation.nash_conv import nash_conv
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.checks import check_config
from sparring.run.rehearsal import dry_run_of
from tiny_models import perturb_adapter, roomy_model

POLICY = AgentSpec("policy", "default")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    """A tiny model as it comes from pre-training: its tokenizer has no chat template."""
    directory = tmp_path_factory.mktemp("models") / "base"
    shutil.copytree(roomy_model(), directory)
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


class Listening(MockInferenceClient):
    """Keeps the stops that it was asked for."""

    def __init__(self):
        super().__init__(["bet"])
        self.stops = []

    async def complete(self, *args, stop=(), **options):
        self.stops.append(stop)
        return await super().complete(*args, stop=stop, **options)


@pytest.mark.parametrize(
    ("of_game", "of_agent", "asked"),
    [(None, None, ("\n",)), (None, ("!",), ("!",)), (("#",), ("!",), ("#",)), (("#",), None, ("#",))],
)
async def test_the_stop_of_a_template_is_used_where_neither_the_game_nor_its_agent_has_one(
    of_game, of_agent, asked
):
    client = Listening()
    calls = CallSettings(stop=of_game)
    episode = GameEpisode("kuhn_poker", 2, get_template("fewshot-text"), calls=calls)
    agents = (AgentSpec("model", "one", stop=of_agent), AgentSpec("model", "two", stop=of_agent))
    await episode.generate(Arena(client), PlaySpec("kuhn_poker", 2, agents, 0))
    assert set(client.stops) == {asked}


async def test_answers_of_a_base_model_end_with_their_line(base_model):
    policy = PolicyModel(str(base_model), LoraSettings(2, 2.0))
    perturb_adapter(policy)
    arena = Arena(make_engine(policy, max_tokens=30))
    for pid in range(2):
        arena.add_role(Role(seat_role(pid)))
    episode = GameEpisode("kuhn_poker", 2, get_template("fewshot-text"), error_allowance=3)
    arena.add_episode("game", episode)
    specs = [PlaySpec("game", 2, (POLICY, POLICY), seed) for seed in range(6)]
    steps = [step for spec in specs for step in (await arena.run_episode("game", spec)).rollout.steps]
    ends = ["\n" in policy.tokens.decode(step.completion_token_ids) for step in steps]
    assert any(ends)
    for step, ended in zip(steps, ends, strict=True):
        assert "\n" not in step.completion_text
        assert (
            ended
            or step.info["finish_reason"] == "length"
            or step.completion_token_ids[-1] in (policy.stop_token_ids)
        )


async def test_the_legal_answers_of_a_base_model_are_probable_as_its_moves_are(base_model):
    """NashConv asks for the probability of whole answers; these are the ids that the model would draw."""
    policy = PolicyModel(str(base_model), LoraSettings(2, 2.0))
    template, engine = get_template("fewshot-text"), make_engine(policy, max_tokens=30)
    engine.publish("one", BASE, 0)
    result = await nash_conv(engine, "kuhn_poker", template, model="one")
    assert 0 <= result.nash_conv <= 8
    prompt = [{"role": "text", "content": "Move:"}]
    ids = policy.encode_answer(prompt, template.answer("bet"))
    assert policy.tokens.decode(ids) == " bet\n"
    drawn = await engine.give(prompt, template.answer("bet"))
    (logprob,) = await engine.score(prompt, [template.answer("bet")])
    assert drawn.completion_token_ids == ids
    assert sum(drawn.completion_logprobs) == pytest.approx(logprob, abs=1e-4)


@pytest.mark.parametrize("algorithm", first_of(["reinforce", "magnet", "all_actions"]))
def test_recipes_train_a_base_model(base_model, tmp_path, algorithm):
    config = configure(
        base_model,
        envs__0__template="fewshot-text",
        learning__algorithm=f'{{type = "{algorithm}"}}',
        learning__steps="2",
        inference__max_tokens="8",
        evaluation__nash_conv="true",
    )
    run(config, tmp_path / algorithm)
    lines = metrics_of(tmp_path / algorithm)
    assert len(lines) == 2
    assert all(line["learner/mismatch"] < 1e-3 for line in lines)
    assert "learner/legal_mass" in lines[0]
    assert list((tmp_path / algorithm / "evaluation").glob("*nash-conv*"))


@pytest.mark.parametrize("preset", ["quickstart", "debate", "proposer-solver", "nip"])
def test_a_dry_run_says_what_to_do_about_a_missing_chat_template(base_model, preset):
    config = load_config(preset, {"model.name": str(base_model)})
    with pytest.raises(InputError, match="has no chat template, but the prompts are chats") as caught:
        dry_run_of(config)
    assert "chat_template.jinja" in caught.value.fix
    assert 'template = "fewshot-text"' in caught.value.fix


def test_the_advice_for_games_works(base_model):
    _, notes = dry_run_of(configure(base_model, envs__0__template="fewshot-text"))
    assert not [note for note in notes if "has no chat template" in note]


@pytest.mark.slow  # dry runs above give the advice, and games follow it
def test_the_advice_for_programs_works(base_model, tmp_path):
    """A chat template of role names, and a line feed as the stop."""
    with_template = tmp_path / "with-template"
    shutil.copytree(base_model, with_template)
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    begin = "{% if add_generation_prompt %}assistant:{% endif %}"
    (with_template / "chat_template.jinja").write_text(template + begin)
    small = {"model.name": str(with_template), "model.threads": "1", "model.dtype": "float32"}
    small |= {"lora.rank": "2", "inference.max_tokens": "8", "inference.stop": '["\\n"]'}
    small |= {"program.batch_size": "2", "learning.steps": "1"}
    for preset in ("debate", "proposer-solver", "nip"):
        dry_run_of(load_config(preset, small))
    run(load_config("debate", small | {"program.on_judge_failure": "draw"}), tmp_path / "run")
    (line,) = metrics_of(tmp_path / "run")
    assert line["accounts/finished"] > 0


@pytest.mark.parametrize(("stop", "template"), [('["x"]', "fewshot-text"), ('["x"]', "fewshot-chat")])
def test_a_stop_of_the_users_is_refused_with_recipes_over_legal_answers(stop, template):
    changes = {"envs__0__stop": stop, "envs__0__template": template, **MAGNET}
    with pytest.raises(InputError) as caught:
        check_config(configure(roomy_model(), **changes))
    assert (
        caught.value.problem == "needs answers that a model ends by itself, and in kuhn_poker stop is ['x']"
    )
    assert caught.value.fix.endswith('for a base model, leave stop out and set template = "fewshot-text"')
