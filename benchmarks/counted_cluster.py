"""A run on Ray whose actors are in this process; messages are pickled as Ray pickles them, and counted.

Everything is the run's own but Ray: what is called gets a copy of the arguments, and who calls one of the
answer. Nothing is lost or late.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import ray
from ray import cloudpickle

import sparring.cluster.run
from sparring.engine.hosts import EngineHost

ADAPTER, IDS, LOGPROBS, TEXTS, REST = "adapters", "token ids", "log-probs", "texts", "the rest"
KINDS = {
    **dict.fromkeys(["content", "written", "reasoning", "text", "legal_answers"], TEXTS),
    **dict.fromkeys(["token_ids", "prompt_token_ids", "completion_token_ids"], IDS),
    **dict.fromkeys(["completion_logprobs", "logprobs"], LOGPROBS),
}
"""The kind of a field, by its name."""
me: ContextVar[str] = ContextVar("me", default="command")


@dataclass
class Sent:
    """A call (``what`` is the method), an answer, an object or an adapter, and how many bytes it has."""

    sender: str
    receiver: str
    what: str
    size: int
    kinds: dict[str, int]


def kinds_of(value: Any, size: int) -> dict[str, int]:
    """Return how many of ``size`` bytes are of each kind: its share of the value as msgpack."""
    shares = Counter[str]()
    try:
        _count(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=repr), REST, shares)
    except (TypeError, ValueError, RecursionError):
        shares = Counter({REST: 1})
    whole = max(1, shares.total())
    found = {kind: share * size // whole for kind, share in shares.items()}
    found[REST] = found.get(REST, 0) + size - sum(found.values())
    return found


def _count(value: Any, kind: str, counts: Counter[str]) -> None:
    if isinstance(value, dict):
        for name, one in value.items():
            counts[REST] += len(str(name)) + 1
            _count(one, KINDS.get(str(name), kind), counts)
    elif isinstance(value, list | tuple) and any(isinstance(one, dict | list | tuple) for one in value):
        for one in value:
            _count(one, kind, counts)
    else:
        counts[kind] += len(msgspec.msgpack.encode(value))


class CountedCluster:
    """Takes the place of Ray."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._actors: dict[str, Any] = {}
        self._objects: list[tuple[bytes, Any]] = []

    def count(self, sender: str, receiver: str, what: str, size: int, value: Any = None) -> None:
        """Note a message; actors of a kind are one."""
        names = [one.rstrip("-0123456789") for one in (sender, receiver)]
        kinds = {ADAPTER: size} if what == ADAPTER else kinds_of(value, size)
        self.sent.append(Sent(*names, what, size, kinds))

    @contextmanager
    def in_place_of_ray(self) -> Iterator[None]:
        """Build actors here; adapters that engines read are counted as well."""
        here = SimpleNamespace(
            get_actor_id=lambda: me.get(), get_actor_name=lambda: me.get(), get_node_id=lambda: "00" * 28
        )
        load = EngineHost._load

        async def loaded(host: Any, adapter: Any, *others: Any) -> Any:
            size = sum(path.stat().st_size for path in Path(adapter.path).iterdir())
            self.count("files", me.get(), ADAPTER, size)
            return await load(host, adapter, *others)

        changes = {
            "remote": lambda cls: SimpleNamespace(options=lambda **options: _Class(self, cls, options)),
            "get_actor": lambda name, namespace: self._actors[name],
            "get_runtime_context": lambda: here,
            "get_gpu_ids": list,
            "put": self._put,
            "kill": lambda actor: None,
        }
        run = {
            "Placement": _Placement,
            "connected": lambda *arguments: nullcontext(),
            "head_address": lambda settings: None,
        }
        with (
            mock.patch.multiple(ray, **changes),
            mock.patch.multiple(sparring.cluster.run, **run),
            mock.patch.object(EngineHost, "_load", loaded),
        ):
            yield

    def build(self, cls: type, name: str, arguments: Any, options: Any) -> Any:
        """Build an actor; return its handle."""
        context = Context()
        context.run(me.set, name)
        handle = self._actors[name] = _Handle(self, name, context.run(cls, *arguments, **options))
        return handle

    def _put(self, value: Any) -> "_Reference":
        self._objects.append((cloudpickle.dumps(value), value))
        return _Reference(len(self._objects) - 1)

    def fetch(self, number: int) -> Any:
        """Return a copy of an object."""
        content, value = self._objects[number]
        self.count("objects", me.get(), type(value).__name__, len(content), value)
        return cloudpickle.loads(content)


class _Placement:
    learners = None

    def __init__(self, *arguments: Any) -> None: ...

    def learner(self, *number: int) -> dict[str, Any]:
        return {}

    collector = engine = learner

    def remove(self) -> None: ...


class _Class:
    def __init__(self, cluster: CountedCluster, cls: type, options: dict[str, Any]) -> None:
        self._cluster, self._cls, self._name = cluster, cls, options["name"]

    def remote(self, *arguments: Any, **options: Any) -> Any:
        return self._cluster.build(self._cls, self._name, arguments, options)


@dataclass
class _Reference:
    number: int

    def __await__(self) -> Any:
        return CLUSTER.get().fetch(self.number)
        yield


CLUSTER: ContextVar[CountedCluster] = ContextVar("cluster")


class _Handle:
    def __init__(self, cluster: CountedCluster, name: str, actor: Any) -> None:
        self._cluster, self._name, self._actor = cluster, name, actor

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any, **options: Any) -> Any:
            sender, packed = me.get(), cloudpickle.dumps((arguments, options))
            what = arguments[0] if method == "call" else method
            self._cluster.count(sender, self._name, what, len(packed), [_seen(one) for one in arguments])
            context = Context()
            context.run(me.set, self._name)
            context.run(CLUSTER.set, self._cluster)
            running = self._run(sender, what, getattr(self._actor, method), packed)
            return asyncio.get_running_loop().create_task(running, context=context)

        return SimpleNamespace(remote=remote)

    async def _run(self, sender: str, what: str, method: Any, packed: bytes) -> Any:
        arguments, options = cloudpickle.loads(packed)
        answer = method(*arguments, **options)
        answer = await answer if inspect.isawaitable(answer) else answer
        packed = cloudpickle.dumps(answer)
        self._cluster.count(self._name, sender, f"{what}: answer", len(packed), answer)
        return cloudpickle.loads(packed)


def _seen(value: Any) -> Any:
    """Return what is in an argument that is packed."""
    return value.games() if type(value).__name__ == "PackedGames" else value
