"""What a model thinks is trained and counted, and reaches nobody else."""

import copy
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_requests import make_engine
from game_runs import configure
from live_server import TOKEN, engine_over, running
from proof_scripts import CLAIM, agent_of, make
from sparring.cli.main import main
from sparring.config.loading import load_config
from sparring.config.play import EnvSettings
from sparring.config.programs import DebateSettings, ProposerSolverSettings
from sparring.core import Arena, CallSettings, InputError, MockInferenceClient, PlaySpec, Role
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import ChatTokens
from sparring.core.reasoning import KNOWN_TAGS, PartsStream, Reasoning, split
from sparring.core.records import joined, record_of
from sparring.core.types import AgentSpec, Step
from sparring.engine.server import create_app
from sparring.envs.game_episode import build_episode
from sparring.programs.debate import DebateArena
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.run.metrics import answer_figures
from sparring.run.rehearsal import dry_run_of
from tiny_models import text_prompt, tiny_model, tiny_policy

PAIRS = pytest.mark.parametrize("pair", KNOWN_TAGS, ids=lambda pair: pair[0])
THINK = ("<think>", "</think>")


# The parts of a text.


@PAIRS
def test_every_pair_of_tags_tells_a_thought_from_what_is_said(pair):
    begin, end = pair
    for text in (f"{begin}\na plan\n{end}\n\nI say.", f"a plan{end} I say."):
        parts = split(text)
        assert (parts.said, parts.reasoning) == ("I say.", Reasoning("a plan"))
    for text in (f"{begin}a plan that", f" {begin} a plan that "):
        parts = split(text)
        assert (parts.said.strip(), parts.reasoning) == ("", Reasoning("a plan that", ended=False))
    assert split("a plan", opened=pair).reasoning == Reasoning("a plan", ended=False)


@pytest.mark.parametrize(
    ("text", "said", "thought"),
    [
        ("<think></think>\n\nYes", "Yes", ""),
        ("Yes <think>a</think> and <think>b</think> no", "Yes and no", "a\n\nb"),
        ("<think>I write <think> here</think> Yes", "Yes", "I write <think> here"),
        ("<think>I write </think> here</think> Yes", "Yes", "I write\n\nhere"),
        ("<thinking>a</think>b</thinking>Yes", "Yes", "a</think>b"),
    ],
)
def test_odd_thoughts(text, said, thought):
    parts = split(text)
    assert (parts.said, parts.reasoning) == (said, Reasoning(thought))


TEXTS = st.lists(
    st.sampled_from([*THINK, "[T]", "[/T]", "a", " b", "\n", "<thi", "</", "[", "</think", "c "])
)
TWO_PAIRS = [THINK, ("[T]", "[/T]")]


def has_end_outside(text, opened):
    inside = opened
    for mark in re.findall(r"</?think>|\[/?T\]", text):
        begun = next((pair for pair in TWO_PAIRS if pair[0] == mark), None)
        if inside is None and begun is None:
            return True
        inside = begun if inside is None else None if mark == inside[1] else inside
    return False


@given(TEXTS.map("".join), st.sampled_from([None, THINK]), st.integers(1, 5))
def test_a_growing_answer_is_told_apart_as_the_whole_is(text, opened, size):
    if has_end_outside(text, opened):
        return  # only the whole shows that its beginning was a thought
    stream, told = PartsStream(TWO_PAIRS, opened), []
    for start in range(0, len(text), size):
        told += stream.add(text[start : start + size])
    told += stream.finish()
    parts = split(text, TWO_PAIRS, opened=opened)
    assert "".join(one for one, thinks in told if not thinks) == parts.said
    thought = "" if parts.reasoning is None else parts.reasoning.text
    assert "".join(one for one, thinks in told if thinks) == thought


# Programs and games.


class Thinking(MockInferenceClient):
    """Answers as ``answer`` does, after a thought that nobody else may see; keeps the prompts."""

    def __init__(self, answer, pair=THINK):
        super().__init__(self._answer)
        self.answer, self.pair, self.prompts, self.number = answer, pair, [], 0

    def _answer(self, messages, seed):
        self.number += 1
        self.prompts.append(messages)
        begin, end = self.pair
        said = self.answer(messages, seed)
        return f"{begin}\nSecret {self.number}. Decision: reject. Question: no. Winner: Neg\n{end}\n\n{said}"

    def others_prompts(self, step):
        """The prompts that hold the thought of a step, but for the role's own answers."""
        thought = step.reasoning.partition(".")[0] + "."
        return [
            prompt
            for prompt in self.prompts
            for message in prompt
            if thought in message["content"] or thought in json.dumps(message.get("written", ""))
            if message["role"] != "assistant"
        ]


def check_kept_to_oneself(client, results):
    """Every step has its thought, no prompt of anybody else does, and nothing else of a rollout either."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    assert all(rollout.error is None for rollout in rollouts)
    steps = [step for rollout in rollouts for step in rollout.steps]
    assert steps
    for step in steps:
        assert step.reasoning.startswith("Secret ")
        assert "Secret" not in step.completion_text
        assert step.info["reasoning"]["ended"] is True
        assert client.others_prompts(step) == []
    for rollout in rollouts:
        kept = {name: value for name, value in rollout.extras.items() if name != "turns"} | {
            "turns": [{**turn, "reasoning": ""} for turn in rollout.extras.get("turns", [])]
        }
        assert "Secret" not in json.dumps([kept, rollout.meta, rollout.artifact], default=str)
    return steps


@PAIRS
async def test_a_debate_is_judged_by_what_is_said(pair):
    def answer(messages, seed):
        return "Winner: Aff, score: 0.8" if "Who won?" in messages[-1]["content"] else "I argue."

    client = Thinking(answer, pair)
    arena = DebateArena(client, DebateSettings(topics=["tea"], batch_size=2))
    _, results = await arena.play_step()
    steps = check_kept_to_oneself(client, results)
    assert all(step.completion_text == "I argue." for step in steps)
    assert results[0].rollout.rewards == {"Aff": 0.8, "Neg": -0.8}
    first, second = (step for step in results[0].rollout.steps[:3] if step.role_id == "Aff")
    own = [one["content"] for one in second.prompt if one["role"] == "assistant"]
    assert own[-1].startswith(pair[0])
    assert first.reasoning in own[-1]


async def test_a_proposer_may_think_before_its_question_and_a_solver_before_its_answer():
    def answer(messages, seed):
        if "Write a new question" in messages[-1]["content"]:
            return "Sure!\nQuestion: What is 2 + 3?\nAnswer: 5"
        return "The answer is: 5"

    client = Thinking(answer)
    settings = ProposerSolverSettings(batch_size=2, solver_rollouts=2)
    questions = [{"question": "What is 2 + 2?", "ground_truth": "4"}]
    arena = ProposerSolverArena(client, settings, questions=questions)
    _, results = await arena.play_step()
    check_kept_to_oneself(client, results)
    assert {result.rollout.extras["pass_rate"] for result in results} == {1.0}


@pytest.mark.parametrize("name", ["nip", "mnip", "debate", "adp", "solo_verifier"])
async def test_a_proof_is_decided_by_what_is_said(name):
    def answer(messages, seed):
        agent = agent_of(messages)
        last = messages[-1]["content"]
        if "verifier" in agent:
            return "Decision: accept" if "Decision:" in last or "decide" in last.lower() else "Why?"
        return "It is so."

    client = Thinking(answer)
    arena, episode = make(client, name)
    result = await episode.generate(arena, CLAIM)
    for step in result.rollout.steps:
        assert step.reasoning.startswith("Secret ")
        assert client.others_prompts(step) == []
    assert "Secret" not in json.dumps(result.rollout.extras)
    assert result.rollout.extras["decision"]["verdict"] == "accept"


@pytest.mark.parametrize("template", ["fewshot-chat", "qwen3-zs", "default"])
async def test_a_move_is_read_from_what_is_said(template):
    def answer(messages, seed):
        return "\\boxed{check}" if "\\boxed" in messages[-1]["content"] else "check"

    client = Thinking(answer)
    arena = Arena(client)
    for seat in range(2):
        arena.add_role(Role(f"player_{seat}"))
    episode = build_episode(EnvSettings(id="kuhn_poker", template=template))
    spec = PlaySpec("kuhn_poker", 2, (AgentSpec("policy"), AgentSpec("policy")), 3)
    result = await episode.generate(arena, spec)
    check_kept_to_oneself(client, [result])
    assert [turn["action"] for turn in result.rollout.extras["turns"]] == ["check", "check"]
    assert all("Secret" in turn["reasoning"] for turn in result.rollout.extras["turns"])


@pytest.mark.parametrize(
    ("tags", "said", "thought"),
    [
        ("auto", "[a]b[/a] c", "x"),
        ("none", "<think>x</think>[a]b[/a] c", ""),
        (("[a]", "[/a]"), "<think>x</think>c", "b"),
    ],
)
async def test_a_role_has_its_own_tags(tags, said, thought):
    arena = Arena(MockInferenceClient(["<think>x</think>[a]b[/a] c"]))
    arena.add_role(Role("A", reasoning=tags))
    step = (await arena.call_model("Go", "A")).to_step("A", "Go")
    assert (step.completion_text, step.reasoning) == (said, thought)


class Reader(MockInferenceClient):
    """A client of one's own that tells thoughts apart itself, and keeps what it was told."""

    told = "nothing"

    async def complete(self, messages, *args, reasoning="auto", **options):
        self.told = reasoning
        return (await super().complete(messages, *args, **options)).read_by(reasoning)


class Whole(MockInferenceClient):
    """A client of one's own that gives whole answers."""

    async def complete(
        self, messages, temperature, max_tokens=None, return_tokens=True, model=None, seed=None
    ):
        return await super().complete(messages, temperature, max_tokens, return_tokens)


@pytest.mark.parametrize(
    "tags",
    ["<plan>", "nonne", ("<plan>",), ("<plan>", "<plan>"), ("a", "b", "c"), ("", "b"), (1, 2), None, {}],
)
async def test_tags_that_say_nothing_are_refused(tags):
    said = r"reasoning: .* says nothing of a role's thoughts\. Write \"auto\""
    with pytest.raises(InputError, match=said):
        Role("solver", reasoning=tags)
    if tags:  # else a call leaves them to its role
        with pytest.raises(InputError, match=said):
            await Arena(MockInferenceClient()).call_model("Go", calls=CallSettings(reasoning=tags))


def test_a_pair_of_tags_may_be_a_list():
    assert Role("solver", reasoning=["<plan>", "</plan>"]) == Role("solver", reasoning=("<plan>", "</plan>"))


@pytest.mark.parametrize(("tags", "said"), [("none", "[a]b[/a] c"), (("[a]", "[/a]"), "c")])
@pytest.mark.parametrize("kind", [Reader, Whole])
async def test_a_client_is_told_the_tags_of_a_role_if_it_can_be(kind, tags, said):
    client = kind(["[a]b[/a] c"])
    arena = Arena(client)
    arena.add_role(Role("A", reasoning=tags))
    assert (await arena.call_model("Go", "A")).text == said
    assert getattr(client, "told", tags) == tags
    client.told = "nothing"
    await arena.call_model("Go")
    assert client.told in ("nothing", "auto")


# Tokens.

FAMILIES = {
    "Qwen 3": ([], "<think>\nplan\n</think>\n\nYes"),
    "Magistral": (["[THINK]", "[/THINK]"], "[THINK]plan[/THINK]Yes"),
    "gpt-oss": (
        ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"],
        "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>final<|message|>Yes",
    ),
    "Gemma 4": (["<|channel>", "<channel|>"], "<|channel>thought\nplan\n<channel|>Yes"),
    "Command A": (
        ["<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"],
        "<|START_THINKING|>plan<|END_THINKING|><|START_RESPONSE|>Yes<|END_RESPONSE|>",
    ),
    "Seed-OSS": (["<seed:think>", "</seed:think>"], "<seed:think>plan</seed:think>Yes"),
}


def tokenizer_with(control):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": control})
    return tokenizer


@pytest.mark.parametrize("control", [True, False], ids=["control tokens", "ordinary tokens"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tags_are_read_whether_they_are_control_tokens_or_spelled(family, control):
    names, text = FAMILIES[family]
    tokenizer = tokenizer_with(names if control else [])
    ids = tokenizer(text, add_special_tokens=False).input_ids
    reader = AnswerReader(tokenizer)
    written, parts = reader.read(tokenizer("Go").input_ids, ids)
    assert written == text
    if control:
        assert parts.said == "Yes"
        assert parts.reasoning.text.removesuffix("assistant") == "plan"
    thought = text[: text.rindex("Yes")].removesuffix("<|START_RESPONSE|>").rstrip("\n")
    assert parts.reasoning.tokens == len(tokenizer(thought, add_special_tokens=False).input_ids)


def test_a_tokenizer_may_name_its_tags():
    tokenizer = tokenizer_with([])
    tokenizer.response_template = {
        "start_anchor": "assistant",
        "fields": {"reasoning_content": {"open": "<mull>", "close": "</mull>"}, "content": {}},
    }
    ids = tokenizer("<mull>plan</mull>Yes", add_special_tokens=False).input_ids
    assert AnswerReader(tokenizer).read([], ids)[1].said == "Yes"
    tokenizer.response_template = {"fields": {"thinking": {"open": ["a"], "close": 3}, "reasoning": "odd"}}
    assert AnswerReader(tokenizer).tags == KNOWN_TAGS


def test_in_a_channel_the_end_of_a_message_is_not_the_end_of_the_answer():
    tokenizer = tokenizer_with(FAMILIES["gpt-oss"][0])
    ids = tokenizer(FAMILIES["gpt-oss"][1] + "<|end|>", add_special_tokens=False).input_ids
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    first = ids.index(end) + 1
    reader = AnswerReader(tokenizer)
    assert reader.thinks_on([], ids[:first])
    assert not reader.thinks_on([], ids)
    assert not reader.thinks_on([], [*ids[: first - 1], tokenizer.eos_token_id])


OPENED = text_prompt("Rules <think>")


async def test_a_prompt_may_begin_the_thought():
    engine = make_engine(tiny_policy())
    answers = [await engine.complete(OPENED, seed=seed) for seed in range(4)]
    assert [one.text for one in answers] == [""] * 4
    assert {one.reasoning.ended for one in answers} == {False}
    given = await engine.give(OPENED, "a plan</think>Yes")
    assert (given.text, given.reasoning.text) == ("Yes", "a plan")


async def test_a_thought_has_a_budget_and_nobody_learns_from_the_tokens_that_end_it():
    engine = make_engine(tiny_policy(), max_tokens=40)
    free = await engine.complete(OPENED, seed=3)
    response = await engine.complete(OPENED, seed=3, max_reasoning=5)
    start, end = response.forced
    closing = tiny_policy().tokenizer("\n</think>\n\n", add_special_tokens=False).input_ids
    ids = response.completion_token_ids
    assert (start, ids[:5], ids[start:end]) == (5, free.completion_token_ids[:5], closing)
    assert response.reasoning.ended
    assert len(response.completion_logprobs) == len(ids) > end
    step = replace(response, policy="default").to_step("A", OPENED)
    record = record_of(step, "one", 0, "thoughts")
    (record,) = joined([record])
    first, second = record.answers
    assert first.completion_token_ids == ids[:start]
    assert (second.prompt_token_ids, second.completion_token_ids) == (closing, ids[end:])
    assert second.logprobs == response.completion_logprobs[end:]
    assert record.input_ids == response.prompt_token_ids + ids
    figures = answer_figures([record])
    assert figures["answers/tokens"] == len(ids) - len(closing)
    assert figures["answers/reasoning_share"] == 1
    assert figures["answers/endless_reasoning_share"] == 0
    assert figures["answers/reasoning_tokens"] == 5 + len("\n</think>")


async def test_a_thought_in_a_roles_own_tags_has_tokens_a_budget_and_no_end_by_stop_strings():
    own, prompt = ("<plan>", "</plan>"), text_prompt("Rules <plan>")
    engine = make_engine(tiny_policy(), max_tokens=60)
    arena = Arena(engine)
    arena.add_role(Role("A", reasoning=own, max_reasoning=5))
    free = await arena.call_model(prompt, "A", seed=3)
    start, end = free.forced
    closing = tiny_policy().tokenizer("\n</plan>\n\n", add_special_tokens=False).input_ids
    assert (start, free.completion_token_ids[start:end]) == (5, closing)
    assert (free.reasoning.ended, free.reasoning.tokens) == (True, 5 + len("\n</plan>"))
    stop = (free.text[3], *free.reasoning.text)
    stopped = await arena.call_model(prompt, "A", seed=3, stop=stop)
    assert stopped.reasoning == free.reasoning
    assert stopped.text == free.text[: min(free.text.index(one) for one in stop if one in free.text)]
    cut = await arena.call_model(prompt, "A", max_tokens=4, seed=3)
    assert (cut.text, cut.reasoning.ended) == ("", False)


async def test_a_role_without_thoughts_has_no_budget_and_stops_everywhere():
    engine = make_engine(tiny_policy(), max_tokens=30)
    arena = Arena(engine)
    arena.add_role(Role("A", reasoning="none", max_reasoning=5))
    free = await engine.complete(OPENED, seed=3)
    said = await arena.call_model(OPENED, "A", seed=3)
    assert (said.reasoning, said.forced) == (None, None)
    assert said.completion_token_ids == free.completion_token_ids
    stopped = await arena.call_model(OPENED, "A", seed=3, stop=[said.text[3]])
    assert stopped.text == said.text[: said.text.index(said.text[3])]


def test_thoughts_without_token_ids_have_no_length():
    def figures(*tokens):
        notes = [{} if one == "none" else {"reasoning": {"ended": True, "tokens": one}} for one in tokens]
        steps = [Step("A", [], [], [1], [2, 3], [-1.0, -1.0], info=info) for info in notes]
        records = [record_of(step, str(n), 0, "thoughts") for n, step in enumerate(steps)]
        return answer_figures(records)

    unknown = figures(None, "none")
    assert (unknown["answers/reasoning_share"], "answers/reasoning_tokens" in unknown) == (0.5, False)
    known = figures(None, 4, 9)
    assert (known["answers/reasoning_share"], known["answers/reasoning_tokens"]) == (1, 6.5)


async def test_stop_strings_end_what_is_said_and_no_thought():
    engine = make_engine(tiny_policy(), max_tokens=60)
    free = await engine.complete(OPENED, seed=3, max_reasoning=5)
    stop = free.text[3]
    stopped = await engine.complete(OPENED, seed=3, max_reasoning=5, stop=(stop, *free.reasoning.text))
    assert stopped.finish_reason == "stop"
    assert stopped.reasoning == free.reasoning
    found = [free.text.index(one) for one in (stop, *free.reasoning.text) if one in free.text]
    assert stopped.text == free.text[: min(found)]


@pytest.mark.parametrize("budget", [5, None])
def test_a_server_has_the_reasoning_beside_the_content_also_in_a_stream(budget):
    engine = engine_over(tiny_policy(), max_tokens=60)
    body = {"model": "tiny", "messages": OPENED, "seed": 3, "thinking_token_budget": budget}
    with running(create_app(engine, token=TOKEN), engine) as live:
        whole = live.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        lines = live.post("/v1/chat/completions", json={**body, "stream": True}).text.splitlines()
        texts = live.post(
            "/v1/completions", json={"model": "tiny", "prompt": "Rules <think>", "seed": 3}
        ).json()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    for name in ("reasoning_content", "content"):
        assert "".join(one.get(name, "") for one in deltas) == whole[name]
    assert whole["reasoning_content"] != ""
    assert (whole["content"] == "") == (budget is None)
    if budget is None:
        assert texts["choices"][0]["text"].strip() == whole["reasoning_content"]


SWITCH = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_a_chat_template_has_options():
    tokenizer = tokenizer_with([])
    tokenizer.chat_template = SWITCH
    asked = [{"role": "user", "content": "Go"}]
    free, thoughtless = (
        ChatTokens(tokenizer, "switch", options=options) for options in ({}, {"enable_thinking": False})
    )
    assert thoughtless.decode(thoughtless.render(asked)).removeprefix(free.decode(free.render(asked))) == (
        "<think>\n\n</think>\n\n"
    )
    assert free.notes() == thoughtless.notes() == []
    tokenizer.chat_template = SWITCH.replace("{% if enable", "<think>\n{% if enable")
    (note,) = ChatTokens(tokenizer, "opening").notes()
    assert "opening begins every answer inside a thought" in note
    tokenizer.chat_template = SWITCH
    with pytest.raises(InputError, match="the chat template of switch has no option enable_thoughts"):
        ChatTokens(tokenizer, "switch", options={"enable_thoughts": False})


def test_a_dry_run_names_an_option_that_the_template_does_not_have():
    config = configure(tiny_model("llama"), **{"model.template_options.enable_thinking": "false"})
    with pytest.raises(InputError, match="has no option enable_thinking"):
        dry_run_of(config)


@pytest.mark.parametrize(
    "command",
    [
        "eval MODEL --env kuhn_poker --games 2",
        pytest.param("sft talks.jsonl out --model MODEL", marks=pytest.mark.slow),
    ],
)
def test_commands_on_a_model_take_the_options_of_its_template(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    talk = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    (tmp_path / "talks.jsonl").write_text(f"{json.dumps({'messages': talk})}\n" * 10)
    words = command.replace("MODEL", str(tiny_model("llama"))).split()
    capsys.readouterr()  # the model may have been made now
    assert main([*words, "--template-options", "{enable_thinking = false}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --template-options: the chat template of ")
    assert "has no option enable_thinking" in line


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("inference.max_reasoning", {"inference.max_reasoning": "16"}),
        ("envs.0.max_reasoning", {"envs.0.max_reasoning": "40", "envs.0.max_tokens": "40"}),
        ("inference.engine", {"inference.engine": '"vllm"', "envs.0.max_reasoning": "4"}),
    ],
)
def test_a_budget_that_leaves_nothing_for_the_answer_is_refused(field, changes):
    with pytest.raises(InputError) as caught:
        load_config("quickstart", changes)
    assert caught.value.field == field
