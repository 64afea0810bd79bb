"""Small tokenizers, trained here, that differ as those of the model families do.

They differ in how they split and normalise, in what they put before a text, in which tokens are added and
special, and in what their chat templates do with contents.
"""

import functools
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerFast

from sparring.core import Messages

TEXT = [
    "The player says: I win. user assistant system model, Is it so? Indeed. Be brief. Yes. No.",
    'im_start im_end end_of_turn start_header_id <html> [4] {json: "text"} </b> a < b and c > d | e',
    "Winner: affirmative, score: 1.0\nWinner: negative, score: 0.5\n\n  for two in range(10):",
    "Grüße aus Köln, 日本語 and emoji. think tool_call eot_id bos eos INST SYS",
]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{%- set ns = namespace(last=messages|length) -%}"
    "{%- for m in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 -%}"
    "{%- if ns.last == messages|length and m.role == 'user' and not (m.content.startswith('<tool_response>')"
    " and m.content.endswith('</tool_response>')) %}{%- set ns.last = index -%}{%- endif %}{%- endfor %}"
    "{%- if tools %}{{- '<tool_call>' + tools + '</tool_call>' }}{%- endif %}"
    "{%- for m in messages %}{%- set content = m.content -%}{%- set thought = '' -%}"
    "{%- if m.role == 'assistant' and '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}"
    "{%- else %}{{- content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' +"
    " m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set rules = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set rules = '' %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set content = rules + m.content if loop.first else m.content %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% set content = m.content %}"
    "{% if '</think>' in content and m.role == 'assistant' %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{% if m.role == 'user' %}{{ '<｜User｜>' + content }}"
    "{% elif m.role == 'system' %}{{ content }}"
    "{% else %}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
VICUNA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content }}"
    "{% elif m.role == 'system' %}{{ m.content + ' ' }}"
    "{% else %}{{ ' ASSISTANT: ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)
ALPACA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '### Response: ' + m.content + '\n' + eos_token + '\n\n' }}"
    "{% else %}{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response: ' }}{% endif %}"
)
WORDS = (
    "{% for m in messages %}{{ m.role + ' : ' + m.content + ' [SEP] ' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)
T5 = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def _special(*texts: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, **flags) for text in texts]


def _added(*texts: str, normalized: bool = False) -> list[AddedToken]:
    return [AddedToken(text, special=False, normalized=normalized) for text in texts]


def _byte_level(split: str | None = None, *, ignore_merges: bool = False) -> Tokenizer:
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    backend.pre_tokenizer = byte_level
    if split is not None:
        cut = pre_tokenizers.Split(Regex(split), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def _sentence_piece(pieces: list[str], *, normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    """BPE over characters with byte fallback; the control tokens are in the vocabulary, with merges."""
    letters = sorted({letter for text in TEXT for letter in text.replace(" ", "▁")} | set("▁<>|_/[]"))
    words = ["▁w", "in", "▁I", "s>", "<s", "</", "▁▁", "\n\n", "es", "Yes", "▁Yes", "▁[", ":▁"]
    bytes_256 = [f"<0x{number:02X}>" for number in range(256)]
    vocabulary = [*pieces, *bytes_256, *letters]
    vocabulary += [word for word in words if word not in vocabulary]
    merges = [
        ("▁", "w"),
        ("i", "n"),
        ("▁", "I"),
        ("s", ">"),
        ("<", "s"),
        ("<", "/"),
        ("▁", "▁"),
        ("\n", "\n"),
        ("e", "s"),
        ("Y", "es"),
        ("▁", "Yes"),
        ("▁", "["),
        (":", "▁"),
    ]
    merges += [pair for pair in (("<", "s>"), ("<s", ">"), ("</", "s>")) if "".join(pair) in pieces]
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate(vocabulary)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _finish(
    backend: Tokenizer, added: list[AddedToken], template: str, **names: str
) -> PreTrainedTokenizerFast:
    backend.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **names)


def _qwen3() -> PreTrainedTokenizerFast:
    backend = _byte_level(LLAMA3_SPLIT)
    backend.normalizer = normalizers.NFC()
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    added = [*_special("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"), *_added(*tags)]
    return _finish(backend, added, QWEN3, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _llama3() -> PreTrainedTokenizerFast:
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    reserved = (f"<|reserved_special_token_{number}|>" for number in range(250))
    backend = _byte_level(LLAMA3_SPLIT, ignore_merges=True)
    backend.add_special_tokens(_special(*names, *reserved))
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", backend.token_to_id("<|begin_of_text|>"))],
    )
    return _finish(backend, [], LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def _llama2(legacy: bool) -> PreTrainedTokenizerFast:
    if legacy:
        normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        pre_tokenizer = None
    else:
        normalizer, pre_tokenizer = None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    pieces = ["<unk>", "<s>", "</s>"]
    backend = _sentence_piece(pieces, normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    backend.add_special_tokens(_special(*pieces))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _finish(backend, [], LLAMA2, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


LEGACY = "legacy"
"""The space mark that LlamaTokenizer's ``legacy`` puts before every text between control tokens."""


def _spaced(
    mark: str, template: str, *added: str, words: bool = False, after: Any = None
) -> PreTrainedTokenizerFast:
    """A SentencePiece tokenizer of Llama or Mistral with another's template.

    Args:
        mark: LEGACY, or where Metaspace puts a space mark.
        template: the chat template.
        added: special tokens for the template.
        words: whether no token reaches over a space.
        after: a further normalizer.
    """
    pieces = ["<unk>", "<s>", "</s>"]
    legacy = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")] if mark == LEGACY else []
    further = [] if after is None else [after]
    normalizer = normalizers.Sequence([*further, *legacy]) if legacy or further else None
    metaspace = None if legacy else pre_tokenizers.Metaspace("▁", prepend_scheme=mark, split=words)
    backend = _sentence_piece(pieces, normalizer=normalizer, pre_tokenizer=metaspace)
    backend.add_special_tokens(_special(*pieces, *added))
    end = added[-1] if added else "</s>"
    return _finish(backend, [], template, bos_token="<s>", eos_token=end, unk_token="<unk>")


def _prefixed_bytes() -> PreTrainedTokenizerFast:
    """Bytes with a space before the first word, and before the first word after each control token."""
    backend = _byte_level()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    return _finish(
        backend, _special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), CHATML, eos_token="<|im_end|>"
    )


def _pieces(mark: str, split: bool) -> PreTrainedTokenizerFast:
    """Unigram pieces of XLM-R, or with ``split`` false of ALBERT."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=mark, split=split)
    backend.decoder = decoders.Metaspace("▁", prepend_scheme=mark)
    trainer = UnigramTrainer(
        vocab_size=150, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return _finish(backend, _special("<s>", "</s>"), ZEPHYR, bos_token="<s>", eos_token="</s>")


def _word_pieces() -> PreTrainedTokenizerFast:
    """Word pieces as BERT's, which ignore white space."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    names = ["[UNK]", "[CLS]", "[SEP]"]
    backend.train_from_iterator(
        TEXT, WordPieceTrainer(vocab_size=200, special_tokens=names, show_progress=False)
    )
    return _finish(backend, _special(*names), WORDS, eos_token="[SEP]", unk_token="[UNK]")


def _mistral() -> PreTrainedTokenizerFast:
    names = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]")
    pieces = ["<unk>", "<s>", "</s>", *names]
    metaspace = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)
    backend = _sentence_piece(pieces, normalizer=None, pre_tokenizer=metaspace)
    backend.add_special_tokens(_special(*pieces))
    return _finish(backend, [], MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _gemma() -> PreTrainedTokenizerFast:
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    text = ["\n\n", "▁▁", "<h1>", "</h1>"]
    backend = _sentence_piece([*control, *text], normalizer=normalizers.Replace(" ", "▁"), pre_tokenizer=None)
    backend.add_special_tokens(_special(*control))
    return _finish(
        backend,
        _added(*text),
        GEMMA,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def _deepseek() -> PreTrainedTokenizerFast:
    special = _special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
    plain = _added("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", normalized=True)
    backend = _byte_level(LLAMA3_SPLIT)
    backend.normalizer = normalizers.Sequence([])
    return _finish(
        backend,
        [*special, *plain],
        DEEPSEEK,
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
    )


def _phi() -> PreTrainedTokenizerFast:
    added = _special("<|endoftext|>")
    added += _special("<|end|>", rstrip=True) + _added("<|user|>", "<|system|>", "<|assistant|>")
    return _finish(_byte_level(), added, PHI, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def _glm() -> PreTrainedTokenizerFast:
    names = (
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    )
    return _finish(_byte_level(LLAMA3_SPLIT), _special(*names), GLM, eos_token="<|endoftext|>")


def _unigram() -> PreTrainedTokenizerFast:
    """Its vocabulary holds the control tokens as pieces of text, as T5's does."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    trainer = UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return _finish(
        backend, _added("[TURN]", normalized=True), T5 + "{# [TURN] #}", eos_token="</s>", pad_token="<pad>"
    )


def _bytes_with(template: str) -> PreTrainedTokenizerFast:
    backend = _byte_level(LLAMA3_SPLIT)
    return _finish(backend, _special("<s>", "</s>"), template, bos_token="<s>", eos_token="</s>")


def _chatml() -> PreTrainedTokenizerFast:
    added = _special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _finish(_byte_level(), added, CHATML, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


FAMILIES = {
    "ChatML whose end of text is no end of turn": _chatml,
    "Qwen 3": _qwen3,
    "Llama 3": _llama3,
    "Llama 2": lambda: _llama2(legacy=True),
    "Llama 2, space before the first word only": lambda: _llama2(legacy=False),
    "Mistral": _mistral,
    "Gemma": _gemma,
    "DeepSeek": _deepseek,
    "Phi": _phi,
    "GLM": _glm,
    "T5": _unigram,
    "Zephyr, legacy": lambda: _spaced(LEGACY, ZEPHYR),
    "Zephyr, space mark always": lambda: _spaced("always", ZEPHYR),
    "Zephyr, space mark first": lambda: _spaced("first", ZEPHYR),
    "Zephyr, space mark never": lambda: _spaced("never", ZEPHYR),
    "Zephyr, split at spaces": lambda: _spaced("always", ZEPHYR, words=True),
    "Zephyr, strips": lambda: _spaced("first", ZEPHYR, after=normalizers.Strip()),
    "ChatML on Mistral, legacy": lambda: _spaced(LEGACY, CHATML, "<|im_start|>", "<|im_end|>"),
    "ChatML on Mistral": lambda: _spaced("first", CHATML, "<|im_start|>", "<|im_end|>"),
    "Gemma's turns on Llama 2": lambda: _spaced(LEGACY, GEMMA, "<start_of_turn>", "<end_of_turn>"),
    "Vicuna, legacy": lambda: _spaced(LEGACY, VICUNA),
    "Vicuna": lambda: _spaced("first", VICUNA),
    "Alpaca, legacy": lambda: _spaced(LEGACY, ALPACA),
    "Alpaca, bytes": lambda: _bytes_with(ALPACA),
    "Zephyr, bytes": lambda: _bytes_with(ZEPHYR),
    "Bytes with a space first": _prefixed_bytes,
    "XLM-R": lambda: _pieces("always", True),
    "ALBERT": lambda: _pieces("first", False),
    "BERT": _word_pieces,
}


TURN_ENDS = {
    "ChatML whose end of text is no end of turn": "<|im_end|>",
    "Qwen 3": "<|im_end|>",
    "Llama 3": "<|eot_id|>",
    "Llama 2": "</s>",
    "Llama 2, space before the first word only": "</s>",
    "Mistral": "</s>",
    "Gemma": "<end_of_turn>",
    "DeepSeek": "<｜end▁of▁sentence｜>",
    "Phi": "<|end|>",
    "GLM": "<|user|>",
    "T5": "</s>",
    "ChatML on Mistral, legacy": "<|im_end|>",
    "ChatML on Mistral": "<|im_end|>",
    "Gemma's turns on Llama 2": "<end_of_turn>",
    "Bytes with a space first": "<|im_end|>",
    "BERT": "[SEP]",
}
TURN_ENDS |= dict.fromkeys(FAMILIES.keys() - TURN_ENDS.keys(), "</s>")
"""What each template puts behind an assistant's words; GLM's next speaker begins without an end."""
TEXT_TOKENS = ("\n\n", "▁▁", "<h1>", "</h1>")
"""Added tokens that are text."""


@functools.cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family; made once."""
    return FAMILIES[family]()


def control_ids(tokenizer: Any) -> set[int]:
    """The ids of everything that only a chat template may write; not of letters that the tokenizer lacks."""
    added = tokenizer.added_tokens_decoder.items()
    control = {number for number, token in added if token.content not in TEXT_TOKENS}
    return control.difference(tokenizer("\U0010abcd \u1234", add_special_tokens=False).input_ids)


def as_usual(tokenizer: Any, messages: Messages) -> list[int]:
    """The ids of a prompt as transformers makes them, contents and all."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False).input_ids)
