"""An answer that was not sampled has the ids that it has in the rendering of the whole conversation."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from matrices import one_of_each
from sparring.core import Messages, TrainingRecord
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import ChatTokens
from sparring.core.messages import said
from sparring.core.records import with_alternatives
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.fine_tuning.examples import Conversation, Preference, Renderer
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from tiny_models import make_record
from tokenizer_families import FAMILIES, TURN_ENDS, as_usual, tokenizer_of

THINKING = ("Qwen 3", "DeepSeek")
"""Families whose template writes thoughts around an answer or cuts them from it."""
LONG = " ".join(f"On turn {number} the player said: I win. [{number}]" for number in range(40))
PROMPTS: dict[str, Messages] = {
    "a question": [said("user", "Is it so?")],
    "a long question": [said("user", f"{LONG} Is it so?")],
    "a later question": [said("user", "Is it so?"), said("assistant", "No."), said("user", "I win, a < b:")],
    "a text": [said("text", "Is it so? ")],
    "a long text": [said("text", f"{LONG}\nmove:")],
}
ANSWERS = (
    "Yes",
    "No",
    "[4]",
    "I win.",
    " Yes",
    " Yes\n",
    " [4]\n",
    "Yes \n",
    "\n\nYes",
    "a < b",
    "|",
    "Grüße",
    "4",
    "",
)


@functools.cache
def chat_tokens(family: str) -> ChatTokens:
    tokenizer = tokenizer_of(family)
    return ChatTokens(tokenizer, family, [tokenizer.convert_tokens_to_ids(TURN_ENDS[family])])


def ends_with_its_line(family: str, prompt: Messages, answer: str) -> bool:
    """Whether an answer to plain text ends with a line feed that the tokenizer can say."""
    line = tokenizer_of(family)("e\n", add_special_tokens=False).input_ids
    said_line = "\n" in tokenizer_of(family).decode(line, clean_up_tokenization_spaces=False)
    return said_line and prompt[0]["role"] == "text" and answer.endswith("\n")


def whole_text(family: str, prompt: Messages, answer: str, *, by_line: bool = False) -> str:
    """The text of a prompt, its answer and the end of the turn, as the tokenizer's own template writes it."""
    tokenizer, end = tokenizer_of(family), TURN_ENDS[family]
    if prompt[0]["role"] == "text":
        return prompt[0]["content"] + answer + ("" if by_line else tokenizer.eos_token)
    opening = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    if family in THINKING:
        return opening + answer + end
    text = tokenizer.apply_chat_template([*prompt, said("assistant", answer)], tokenize=False)
    assert text.startswith(opening)
    return opening + text.removeprefix(opening).partition(end)[0] + end


def assert_is_whole(
    family: str, prompt: Messages, answer: str, begun: list[int], ids: list[int], *, by_line: bool
) -> bool:
    """Assert that the ids of a prompt and its answer are those of the whole text; return whether no token of
    the whole reaches over the boundary. If one does, they are at least ids of the same text.
    """
    tokenizer, text = tokenizer_of(family), whole_text(family, prompt, answer, by_line=by_line)
    whole = list(tokenizer(text, add_special_tokens=prompt[0]["role"] == "text").input_ids)
    if whole[: len(begun)] == begun:
        assert begun + ids == whole
        return True
    if family != "BERT":  # a word that it does not know has no text
        shown = [tokenizer.decode(one, clean_up_tokenization_spaces=False) for one in (begun + ids, whole)]
        assert shown[0] == shown[1]
    return False


Ids = tuple[list[int], list[int]]


def answered(tokens: ChatTokens, prompt: Messages, answer: str) -> Ids:
    return tokens.render(prompt), tokens.encode_answer(prompt, answer)


def legal_answer(tokens: ChatTokens, prompt: Messages, answer: str) -> Ids:
    record = replace(make_record(tokens.render(prompt), [1]), prompt=prompt, legal_answers=["No", answer])
    (encoded,) = with_alternatives([record], tokens.encode_answer)
    return record.prompt_token_ids, encoded.alternatives[1]


def trained_answer(tokens: ChatTokens, prompt: Messages, answer: str) -> Ids:
    talk = Conversation(1, [*prompt, said("assistant", answer)], (len(prompt),))
    (record,) = Renderer(tokens, 100_000).conversation(talk)
    return record.prompt_token_ids, after_the_thought(tokens, record)


def preferred_answer(tokens: ChatTokens, prompt: Messages, answer: str) -> Ids:
    pair = Preference(1, prompt, said("assistant", answer), said("assistant", "another"))
    preferred, _ = Renderer(tokens, 100_000).preference(pair)
    return preferred.prompt_token_ids, after_the_thought(tokens, preferred)


def after_the_thought(tokens: ChatTokens, record: TrainingRecord) -> list[int]:
    """An answer without what ends the thought that the template has opened, if it has."""
    reader = AnswerReader(tokens.tokenizer)
    opened = reader.opened(record.prompt_token_ids)
    closing = [] if opened is None else reader.closing(opened)
    assert record.completion_token_ids[: len(closing)] == closing
    return record.completion_token_ids[len(closing) :]


FUNCTIONS: dict[str, Callable[[ChatTokens, Messages, str], Ids]] = {
    "encode_answer": answered,
    "legal answers": legal_answer,
    "fine-tuning": trained_answer,
    "preferences": preferred_answer,
}


OF_JOBS = ("fine-tuning", "preferences")
"""What jobs train on ends with the end-of-text token: who asks the model may have no stop."""


@pytest.mark.parametrize(("family", "function"), one_of_each([*FAMILIES], [*FUNCTIONS]))
def test_a_prompt_and_its_answer_have_the_ids_of_the_whole_conversation(family, function):
    tokens, whole = chat_tokens(family), 0
    for prompt in PROMPTS.values():
        for answer in ANSWERS:
            found = FUNCTIONS[function](tokens, prompt, answer)
            by_line = function not in OF_JOBS and ends_with_its_line(family, prompt, answer)
            whole += assert_is_whole(family, prompt, answer, *found, by_line=by_line)
    assert whole >= len(PROMPTS) * len(ANSWERS) // 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_with_drawn_answers_has_the_ids_of_the_whole_one(family):
    tokens, tokenizer, compared = chat_tokens(family), tokenizer_of(family), 0
    for answer in ANSWERS:
        talk: Messages = [said("user", "Is it so?")]
        for question in ("x", "Is it so?"):
            ids = tokens.encode_answer(talk, answer)
            talk += [said("assistant", answer, ids), said("user", question)]
        drawn, text = tokens.render(talk), as_usual(tokenizer, talk)
        begun = tokens.render(talk[:1])
        if family == "DeepSeek":  # it opens a thought before an answer that is drawn, and not before others
            assert drawn[len(begun) :][: len(ids)] == ids
            compared += 1
        elif text[: len(begun)] == begun:
            assert drawn == text
            compared += 1
    assert compared >= (0 if family.startswith("Alpaca") else len(ANSWERS) // 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_was_cut_goes_on_as_the_template_goes_on(family):
    tokens = chat_tokens(family)
    asked, end = said("user", "Is it so?"), tokens.stop_token_ids[0]
    ids = tokens.encode_answer([asked], "Yes")
    words = ids[: ids.index(end)]
    while not tokens.decode(words[-1:]).strip():  # white space that the template adds
        words.pop()
    ended = tokens.render([asked, said("assistant", "Yes", ids), asked])
    cut = tokens.render([asked, said("assistant", "Yes", words), asked])
    assert cut == ended


def test_thoughts_in_an_answer_are_the_tokens_that_a_model_draws():
    tokens, tokenizer = chat_tokens("Qwen 3"), tokenizer_of("Qwen 3")
    prompt, answer = [said("user", "Is it so?")], "<think>\nhm\n</think>\n\nYes"
    text = tokenizer.apply_chat_template([*prompt, said("assistant", answer)], tokenize=False)
    whole = tokenizer(text.removesuffix("\n"), add_special_tokens=False).input_ids
    assert tokens.render(prompt) + tokens.encode_answer(prompt, answer) == whole


# What a model says and what it is said to say


@dataclass
class Saying:
    """A tiny model that was fitted to say Yes, No or nothing of the kind after a question."""

    engine: EmbeddedEngine
    prompt: Messages
    answers: tuple[str, ...]


def fitted(family: str, prompt: Messages, directory, answers: tuple[str, ...]) -> Saying:
    """Fit a model in plain torch to the tokenizer's own ids of whole conversations."""
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_ENDS[family]),
    )
    model = LlamaForCausalLM(config)
    plain = prompt[0]["role"] == "text"
    texts = [whole_text(family, prompt, answer) for answer in answers]
    samples = [torch.tensor([tokenizer(text, add_special_tokens=plain).input_ids]) for text in texts]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        loss = sum(
            weight * model(input_ids=one, labels=one).loss
            for one, weight in zip(samples, (2.0, 1.0), strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    engine = EmbeddedEngine(PolicyModel(str(directory), LoraSettings(2, 2.0)))
    engine.publish("default", TRAINED, 0)
    return Saying(engine, prompt, answers)


@pytest.mark.parametrize(
    ("role", "family"),
    one_of_each(["user", "text"], ["Zephyr, legacy", "Llama 2", "ChatML on Mistral", "Gemma", "XLM-R"]),
)
async def test_a_model_says_an_answer_as_often_as_its_score_says(family, role, tmp_path):
    saying = fitted(family, [said(role, "Is it so?")], tmp_path, ("Yes", "No"))
    drawn = [
        await saying.engine.complete(saying.prompt, max_tokens=6, return_tokens=True, seed=seed)
        for seed in range(100)
    ]
    scores = torch.tensor(await saying.engine.score(saying.prompt, ["Yes", "No"])).exp().tolist()
    for answer, score in zip(saying.answers, scores, strict=True):
        ids = saying.engine.model.encode_answer(saying.prompt, answer)
        said_so = sum(one.completion_token_ids == ids for one in drawn) / len(drawn)
        assert score == pytest.approx(said_so, abs=4 * (score * (1 - score) / len(drawn)) ** 0.5 + 0.01)
        assert score > 0.1
        texts = {one.text.strip() for one in drawn if one.completion_token_ids == ids}
        assert texts == {answer}
