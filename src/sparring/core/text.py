"""Functions that make a model's text safe in terminals, logs and prompts, and texts for the user's shell and
network.

Self-play optimises a model's text, so treat it as an attacker's. The report escapes it by ``html.escape``;
``chat_tokens.py`` keeps it from becoming control tokens.
"""

import hashlib
import re
import shlex
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether no other machine can reach a host's name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def shell_command(*words: object) -> str:
    """Return a command of ``sparring`` as a shell reads it: ids of games and paths may need quotes."""
    return shlex.join(["sparring", *map(str, words)])


LONGEST_FILE_PART = 100
"""Characters of a name in a file's name: systems allow 255 bytes in all."""


def file_part(name: str) -> str:
    """Return a name as a part of a file's name, which is cut and has a hash if it is long."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return safe if len(safe) <= LONGEST_FILE_PART else f"{safe[:LONGEST_FILE_PART]}-{_hash_of(name)}"


def own_file_part(name: str) -> str:
    """Return a name as a part of a file's name that no other name has: with a hash unless it is plain."""
    part = file_part(name)
    return part if part == name or len(part) > LONGEST_FILE_PART else f"{part}-{_hash_of(name)}"


def _hash_of(name: str) -> str:
    return hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]


REPLACEMENT = "·"

# Characters that control a terminal or cannot be written to it: C0 with ESC, DEL and C1, the separators of
# lines and paragraphs, marks that reorder the text around them, unpaired surrogates.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, keep: str = "\n\t") -> str:
    """Return ``text`` of the same length with a dot for each character that controls a terminal, except in
    ``keep``.

    Every text that a model, an environment or another machine wrote passes through this function or
    ``one_line`` before it is printed. For Rich, also wrap it in a ``Text``, because Rich reads brackets as
    markup.
    """
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else REPLACEMENT, text)


def encodable(text: str) -> str:
    """Return ``text`` with a replacement character for each half of a surrogate pair, and pairs joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def one_line(text: str) -> str:
    """Return a printable text in one line: each run of white space, including line ends, becomes a space."""
    return printable(" ".join(text.split()))


# Control tokens of chat templates as the known families write them. Group 1 is the first character.
_CONTROL = (
    r"([<\[\]])(?=[|｜][^<>\n]{1,60}[|｜][>\]]|[|｜][\w-]{1,60}>|[\w-]{1,60}[|｜]>"
    r"|/?(?:s|bos|eos|pad|unk|sop|eop|eoa|eoh)>|(?:start|end)_of_(?:turn|image|utterance)>|seed:[\w:]{1,60}>"
    r"|(?:SPECIAL|extra|extra_id|reserved|reserved_token|unused|TOKENS_UNUSED)_?\d{1,6}>"
    r"|/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS|gMASK)\]"
    r"|(?:ARGS|CALL_ID|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|UNUSED_TOKEN_\d{1,6})\]"
    r"|~!?b[\[\]]|e~\["
)
_CONTROL_TOKEN = re.compile(_CONTROL + r"|/?(?:think|tool_call|tool_response)>|/?THINK\])")
_CONTROL_TOKEN_BUT_TAGS = re.compile(_CONTROL + ")")


def without_control_tokens(text: str, *, own: bool = False) -> str:
    """Return ``text`` with a space inserted in everything that looks like a chat template's control token.

    It is for servers whose tokenizer is unknown, by a list of the known families, which may miss one. In the
    model's ``own`` answers, tags of thoughts and tool calls stay as they are, so that the template finds
    them.
    """
    return (_CONTROL_TOKEN_BUT_TAGS if own else _CONTROL_TOKEN).sub(r"\1 ", text)


def speech(author: str, text: str) -> str:
    """Return ``NAME: text`` with every further line indented, so that no text can imitate another speaker."""
    return f"{author}: {indented(text)}"


def indented(text: str) -> str:
    """Return ``text`` with every line but the first indented. Every character that a terminal or a tokenizer
    may read as a line end counts as one."""
    first, *more = text.splitlines() or [""]
    return "\n".join([first, *(f"    {line}" if line.strip() else "" for line in more)])


def number_text(value: float, *, percent: bool = False) -> str:
    """Return a number in at most about six characters; ``percent`` is for shares between 0 and 1."""
    if percent:
        return f"{100 * value:.0f}%" if value in (0, 1) or 0.1 <= value <= 0.995 else f"{100 * value:.1f}%"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4:
        return f"{value / 1e3:.0f}k"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if size >= 1e-3 else f"{value:.0e}"


def duration_text(seconds: float) -> str:
    """Return a time span in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def precise_duration_text(seconds: float) -> str:
    """Return a time span as ``duration_text`` does, below ten seconds with tenths."""
    return f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
