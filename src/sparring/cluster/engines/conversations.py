"""Prompts on their way to an engine, and their token ids on the way back, without what the other side has.

An engine keeps the conversations that it has answered under keys, which it sends with its answers. The next
prompt of a conversation names the key and has only what is new. An engine that does not know a key any more,
or never did, says so and gets the whole prompt. A request also says how many of its prompt's ids the client
has, with their hash; the answer leaves them out if they are the prompt's. So nothing depends on what is kept.
"""

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from sparring.collection.serialization import packed, unpacked
from sparring.core import Messages, ModelResponse
from sparring.core.adapters import AdapterRef
from sparring.core.current_episode import EpisodeContext
from sparring.core.messages import said
from sparring.engine.answering import EngineCall
from sparring.engine.hosts import EngineRequest

KEPT_BYTES = 1 << 26
"""Bytes of the conversations that an engine keeps; those not continued for longest go first."""
TALKS = 8
"""Conversations of a game that a client keeps; a game has one for each role that remembers."""


class SentRequest(msgspec.Struct, array_like=True):
    """A request on its way. Its prompt has ``messages``: those of the conversation ``key``, if there is one,
    and ``content``, as msgpack, one after the other. The client has the first ``known`` ids of the prompt,
    whose hash is ``known_hash``; ``goes_on``: the conversation may.
    """

    number: int
    adapter: AdapterRef
    call: EngineCall
    completions: list[str] | None
    content: bytes
    messages: int
    key: int | None = None
    known: int = 0
    known_hash: bytes = b""
    goes_on: bool = False


LONG_ARRAY = b"\xdd"
"""With four bytes of a length, it begins an array in msgpack."""
_SENT = msgspec.msgpack.Decoder(list[SentRequest])
_MESSAGES = msgspec.msgpack.Decoder(Messages)
_ENCODER = msgspec.msgpack.Encoder()
_USUAL = {one.name: one.default for one in fields(EngineCall) if one.name != "messages"}


@dataclass(eq=False)
class Talk:
    """A conversation, as a client has it: its messages as msgpack, and its ids with their hash.

    ``engine`` keeps it under ``key``; any object can stand for an engine.
    """

    content: bytes
    ids: list[int]
    engine: Any
    key: int | None
    ids_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.ids_hash = hash_of(self.ids)


class Asking:
    """The prompt of a request, and the conversation that it continues, if its client knows one."""

    def __init__(self, request: EngineRequest, talks: "list[Talk] | None") -> None:
        self.request = request
        self.talks = talks
        self.content = encoded(request.call.messages)
        continued = [talk for talk in talks or () if self.content.startswith(talk.content)]
        self.talk = max(continued, key=lambda talk: len(talk.content), default=None)

    def sent_to(self, engine: Any) -> SentRequest:
        """Return the request as it is sent to an engine."""
        asked = self.request
        sent = SentRequest(
            asked.number,
            asked.adapter,
            _without_usual(asked.call),
            asked.completions,
            self.content,
            len(asked.call.messages),
            goes_on=self.talks is not None,
        )
        talk = self.talk
        if talk is not None:
            sent.known, sent.known_hash = len(talk.ids), talk.ids_hash
            if talk.engine is engine and talk.key is not None:
                sent.key, sent.content = talk.key, self.content[len(talk.content) :]
        return sent

    def unknown_to(self, engine: Any) -> None:
        """Note that an engine does not have the conversation."""
        if self.talk is not None and self.talk.engine is engine:
            self.talk.key = None

    def whole(self, response: ModelResponse, known: int, engine: Any, key: int | None) -> ModelResponse:
        """Return a response with all ids of its prompt, and note the conversation for the next prompt.

        Args:
            response: as it came, without the first ``known`` ids of the prompt.
            key: under which the engine keeps the conversation.
        """
        ids = response.prompt_token_ids
        if known and ids is not None:
            assert self.talk is not None
            ids = self.talk.ids[:known] + ids
            response = replace(response, prompt_token_ids=ids)
        if self.talks is not None:
            if self.talk in self.talks:
                self.talks.remove(self.talk)
            drawn = response.completion_token_ids
            self.talks.append(
                Talk(
                    self.content + encoded([answer_of(response)]),
                    [] if ids is None or drawn is None else ids + drawn,
                    engine,
                    key,
                )
            )
            del self.talks[:-TALKS]
        return response


class Talks:
    """The conversations of a client, by game, for as long as the game is there."""

    def __init__(self) -> None:
        self._of_games: WeakKeyDictionary[EpisodeContext, list[Talk]] = WeakKeyDictionary()

    def asking(self, request: EngineRequest, game: EpisodeContext | None) -> Asking:
        """Return the request with the conversation that it continues."""
        asks = game is not None and request.completions is None
        return Asking(request, self._of_games.setdefault(game, []) if game is not None and asks else None)


class KeptConversations:
    """The conversations that an engine keeps, for all its clients."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._keys = count(secrets.randbits(62))  # so that no key is one from before a restart

    def has(self, key: int) -> bool:
        """Whether a conversation is kept."""
        return key in self._kept

    def prompt(self, sent: SentRequest) -> bytes:
        """Return the whole prompt of a request; the conversation that it continues is not kept any longer."""
        if sent.key is None:
            return sent.content
        begun = self._kept.pop(sent.key)
        self._bytes -= len(begun)
        return begun + sent.content

    def keep(self, prompt: bytes, response: ModelResponse) -> int:
        """Keep the conversation of a prompt and the answer to it; return its key."""
        key, content = next(self._keys), prompt + encoded([answer_of(response)])
        self._kept[key] = content
        self._bytes += len(content)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._kept.popitem(last=False)[1])
        return key


def packed_requests(asked: Iterable[Asking], engine: Any) -> bytes:
    """Return requests as they are sent to an engine."""
    return packed([one.sent_to(engine) for one in asked])


def sent_requests(content: bytes) -> list[SentRequest]:
    """Return the requests of :func:`packed_requests`."""
    return unpacked(content, _SENT)


def request_of(sent: SentRequest, prompt: bytes) -> EngineRequest:
    """Return a request with its whole prompt."""
    messages = _MESSAGES.decode(LONG_ARRAY + sent.messages.to_bytes(4, "big") + prompt)
    return EngineRequest(sent.number, sent.adapter, replace(sent.call, messages=messages), sent.completions)


def _without_usual(call: EngineCall) -> Any:
    """Return a call as msgspec reads it, without its messages and what is as usual."""
    given = {name: getattr(call, name) for name in _USUAL}
    return {"messages": []} | {name: one for name, one in given.items() if one != _USUAL[name]}


def without_known(response: ModelResponse, sent: SentRequest) -> tuple[ModelResponse, int]:
    """Return a response without the ids of the prompt that its client has, and their number."""
    ids = response.prompt_token_ids
    if not sent.known or ids is None or hash_of(ids[: sent.known]) != sent.known_hash:
        return response, 0
    return replace(response, prompt_token_ids=ids[sent.known :]), sent.known


def answer_of(response: ModelResponse) -> Any:
    """Return the message that later prompts of a role that forgets nothing have of an answer."""
    return said("assistant", response.text, response.drawn, response.written)


def encoded(messages: Sequence[Any]) -> bytes:
    """Return messages as msgpack, one after the other."""
    return b"".join(map(_ENCODER.encode, messages))


def hash_of(ids: Sequence[int]) -> bytes:
    """Return a hash of token ids."""
    return blake2b(_ENCODER.encode(ids), digest_size=16).digest()
