"""What the server tells of tokens: in every family of tokenizers, and where a model has more ids."""

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from live_server import ASK, TOKEN, Live, engine_over, running
from sparring.core import ModelResponse
from sparring.core.chat_tokens import decoded
from sparring.engine.answer_stream import AnswerStream, TokenTexts
from sparring.engine.openai_client import OpenAIClient
from sparring.engine.server import create_app
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import tiny_model
from tokenizer_families import FAMILIES, control_ids, tokenizer_of

SAID = [
    "Yes",
    "I win.  Is it so?",
    "Grüße aus Köln, 日本語 and emoji 🙂🙂",
    "for two in range(10):\n\n    score: 1.0",
    " Indeed",
    "\N{REPLACEMENT CHARACTER} é",
]


def ids_of(family: str, text: str) -> list[int]:
    return list(tokenizer_of(family)(text, add_special_tokens=False).input_ids)


def answer(family: str, ids: list[int]) -> ModelResponse:
    text = decoded(tokenizer_of(family), ids)
    return ModelResponse(text, [], [1], ids, [-1.0] * len(ids), 0, "length")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_of_the_tokens_of_an_answer_are_those_of_its_text(family):
    tokenizer = tokenizer_of(family)
    texts = TokenTexts(tokenizer)
    before = decoded(tokenizer, texts.before)  # an unknown letter is a token without a text
    for text in SAID:
        ids = ids_of(family, text)
        special = {token for token in ids if decoded(tokenizer, [*texts.before, token]) == before}
        spelled = b"".join(
            texts.bytes(token, first=place == 0) for place, token in enumerate(ids) if token not in special
        )
        assert spelled.decode() == decoded(tokenizer, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_continued_text_is_that_of_all_tokens_together_and_every_offset_is_right(family):
    tokenizer = tokenizer_of(family)
    texts, before = TokenTexts(tokenizer), ids_of(family, "Is it so?")
    start = len(decoded(tokenizer, before))
    for text, stop in product(SAID, ((), ("nothing of this",))):
        ids = ids_of(family, text)
        together = decoded(tokenizer, before + ids)
        stream = AnswerStream(texts, stop, offset=start, continues=True)
        pieces = list(stream.add(answer(family, ids)))
        assert "".join(piece.text for piece in pieces) == together[start:]
        tokens = [token for piece in pieces for token in piece.tokens]
        assert [token.id for token in tokens] == ids
        for token, following in pairwise(tokens):
            part, spelled = together[token.offset : following.offset], texts.bytes(token.id)
            assert not part or part.encode().endswith(spelled)  # a character is placed where it begins


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_have_their_names_and_their_bytes(family):
    texts = TokenTexts(tokenizer_of(family))
    for token in control_ids(tokenizer_of(family)):
        name = tokenizer_of(family).convert_ids_to_tokens(token)
        assert texts.text(token).strip() == name.strip()
        assert texts.bytes(token) == texts.text(token).encode()


# A model with more token ids than its tokenizer has tokens

ROWS = 512


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Iterator[Live]:
    directory: Path = tmp_path_factory.mktemp("wide")
    model = LlamaForCausalLM.from_pretrained(tiny_model("llama"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.resize_token_embeddings(ROWS)
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tiny_model("llama")).save_pretrained(directory)
    engine = engine_over(PolicyModel(str(directory), LoraSettings()))
    with running(create_app(engine, token=TOKEN), engine) as live:
        yield live


async def test_ids_that_the_tokenizer_does_not_know_are_taken_back(wide):
    client = OpenAIClient(api_key=TOKEN, model="tiny", base_url=f"{wide.url}/v1")
    first = await client.complete(ASK, max_tokens=30, seed=1)
    assert max(first.completion_token_ids) >= len(wide.engine.tokenizer)
    talk = [*ASK, *first.completion, {"role": "user", "content": "Go on."}]
    second = await client.complete(talk, max_tokens=4, seed=1)
    begun = first.prompt_token_ids + first.completion_token_ids
    assert second.prompt_token_ids[: len(begun)] == begun
    await client.close()


def test_such_ids_are_described_without_a_text(wide):
    last = ROWS - 1
    choice = wide.client().completions.create(
        model="tiny", prompt=[5, last, 6], echo=True, logprobs=20, max_tokens=1, logit_bias={str(last): 100}
    )
    told = choice.choices[0].logprobs
    assert told.tokens[1] == told.tokens[3] == ""
    assert len(told.token_logprobs) == 4
    chat = wide.client().chat.completions.create(
        model="tiny", messages=ASK, logprobs=True, top_logprobs=20, max_tokens=1, logit_bias={str(last): 100}
    )
    (token,) = chat.choices[0].logprobs.content
    assert (token.token, token.bytes) == ("", [])


def test_ids_after_the_models_last_one_are_refused(wide):
    for asked in ({"prompt": [ROWS]}, {"prompt": "x", "logit_bias": {str(ROWS): 1}}):
        with pytest.raises(openai.BadRequestError, match=f"{ROWS} is not one of the {ROWS} tokens"):
            wide.client().completions.create(model="tiny", **asked)
