"""Data-parallel learning: several learners make one update together, each on its shard of the batch.

Every learner holds the model, or a part of it, and receives the whole batch. Losses are
means over answers. If shard r keeps n_r of the batch's n answers (those that are not too long), then

    gradient = sum_r n_r / n * gradient_r

The learners exchange the gradients of the adapter and its critic, as one tensor, a line of metrics, and what
was measured before the first step: values of states and log-probabilities, because turns of a game may be in
several shards, and every epoch divides the answers anew. They exchange errors before gradients, so that none
of them continues alone.

A base model in parts: with FSDP, ranks run the same layers in the same order. Learners do not: each packs its
own shard of a batch into passes of its own number and size. So a learner that needs a layer says which, all
learners hear what each of them wants, and every wanted layer is then gathered by all; a learner that has
nothing left to compute goes on giving its parts until all are done. Before the group exists, and where a
learner computes alone, each keeps all weights in the machine's memory and copies a layer to its device when
it is used.
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from sparring.core import SparringError, TrainingRecord
from sparring.core.errors import reason_of
from sparring.learn.batch import NOTHING_FITS, Counts, NoRecordFits
from sparring.learn.trie import TOKEN, as_bytes, shared_prefixes

SUMS = ("packed_tokens", "separate_tokens")
"""Metrics that are sums. All others are means."""
MEANS_OVER = {
    "mismatch": "fresh_tokens",
    "stale_mismatch": "stale_tokens",
    "legal_mass": "regularised",
    "legal_entropy": "regularised",
    "progress": "regularised",
    "loss": "answers",
    "listed_share": "answers",
}
"""The field of Counts over which a metric is a mean; ``tokens`` for all that are not listed."""


class PeerLost(SparringError):
    """Another learner of the group died or did not answer in time. The group can no longer be used."""


@dataclass(frozen=True)
class Share:
    """Metrics and counts from training on a set of records; the gradients are in the parameters."""

    metrics: dict[str, float]
    counts: Counts


def combine(shares: list[Share]) -> Share:
    """Return the share that training on the records of all shares at once would have given.

    ``packed_tokens`` counts a prefix once for every shard that contains it.
    """
    names = dict.fromkeys(name for share in shares for name in share.metrics)
    counts = [share.counts for share in shares]
    return Share(
        {name: _combined(name, [share for share in shares if name in share.metrics]) for name in names},
        Counts(
            sum(count.answers for count in counts),
            sum(count.fresh_tokens for count in counts),
            sum(count.stale_tokens for count in counts),
            sum(count.regularised for count in counts),
        ),
    )


def _combined(name: str, shares: list[Share]) -> float:
    if name in SUMS:
        return sum(share.metrics[name] for share in shares)
    weights = [getattr(share.counts, MEANS_OVER.get(name, "tokens")) for share in shares]
    total = sum(weight * share.metrics[name] for weight, share in zip(weights, shares, strict=True))
    return float(total / max(sum(weights), 1))


def shard(records: list[TrainingRecord], count: int) -> list[list[TrainingRecord]]:
    """Split records into ``count`` shards so that shared prefixes are within shards, not between them.

    Records are sorted by their tokens and cut into runs such that the largest run is as small as possible,
    where a record counts without the tokens that it shares with the previous record.
    """
    prompts = [record.prompt_token_ids for record in records]
    rests = [record.input_ids[len(record.prompt_token_ids) :] for record in records]
    ids = list(as_bytes(prompts, rests))
    order = sorted(range(len(records)), key=lambda index: (ids[index], len(prompts[index])))
    ordered = [records[index] for index in order]
    if len(ordered) <= count:
        return [ordered[index : index + 1] for index in range(count)]
    alone = [len(ids[index]) // TOKEN.itemsize for index in order]
    shared = shared_prefixes([ids[index] for index in order])
    new = [length - common for length, common in zip(alone, shared, strict=True)]
    low, high = max(alone), sum(new)
    while low < high:
        limit = (low + high) // 2
        if len(_starts(alone, new, limit)) <= count:
            high = limit
        else:
            low = limit + 1
    starts = _starts(alone, new, low, at_least=count)
    return [ordered[start:stop] for start, stop in pairwise([*starts, len(ordered)])]


def _starts(alone: list[int], new: list[int], limit: int, at_least: int = 1) -> list[int]:
    """Return the starts of runs of at most ``limit`` tokens that are filled one after the other."""
    starts, size = [0], alone[0]
    for index in range(1, len(alone)):
        one_each = len(alone) - index == at_least - len(starts)
        if one_each or size + new[index] > limit:
            starts.append(index)
            size = alone[index]
        else:
            size += new[index]
    return starts


def host_store(address: str, timeout_seconds: float) -> TCPStore:
    """Serve the store through which a group's learners find each other, at this address on a free port."""
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    listening = socket.create_server((address, 0), family=family)
    port = listening.getsockname()[1]
    return _store(address, port, timeout_seconds, is_master=True, master_listen_fd=listening.detach())


def reach_store(address: str, port: int, timeout_seconds: float) -> TCPStore:
    """Connect to the store that another process serves; raise PeerLost if none answers."""
    return _store(address, port, timeout_seconds, is_master=False)


def _store(address: str, port: int, timeout_seconds: float, **options: Any) -> TCPStore:
    timeout = timedelta(seconds=timeout_seconds)
    with _others_answering():
        return TCPStore(address, port, timeout=timeout, wait_for_workers=False, **options)


@contextmanager
def _others_answering() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise PeerLost(f"a learner of the group was lost ({reason})") from error


def _gloo(store: TCPStore, rank: int, size: int, timeout: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=_address_towards(store))]
    return ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)


def _address_towards(store: TCPStore) -> str:
    """Return this machine's address from which it reaches the store.

    By default gloo listens at the host name's, which often is 127.0.1.1, or one that others cannot reach.
    """
    family = socket.AF_INET6 if ip_address(store.host).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as unsent:
        unsent.connect((store.host, store.port))
        address: str = unsent.getsockname()[0]
    return address


def _nccl(store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # type: ignore[attr-defined]  # not in builds for CPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


DONE = -1
"""What a learner wants that needs no more layers."""


class ShardedBase:
    """The weights of a model's adapted linear layers, whose own ``weight`` becomes empty."""

    def __init__(self, layers: list[Any], device: torch.device) -> None:
        self._device = device
        self._shapes: list[torch.Size] = [layer.weight.shape for layer in layers]
        self._kept: list[Tensor] = [layer.weight.detach() for layer in layers]
        self._parts_of: int | None = None
        self._peers: DataParallel | None = None
        for number, layer in enumerate(layers):
            empty = torch.empty(0, dtype=layer.weight.dtype, device=device)
            layer.weight = torch.nn.Parameter(empty, requires_grad=False)
            layer.sharded = partial(self.whole, number)

    @property
    def is_whole(self) -> bool:
        """Whether this learner still has all weights, so that it can compute without the others."""
        return self._parts_of is None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that this learner keeps."""
        return sum(kept.nbytes for kept in self._kept)

    @property
    def device_bytes(self) -> int:
        """Those of them that are in the memory of the device on which they are multiplied."""
        return sum(kept.nbytes for kept in self._kept if kept.device.type == self._device.type)

    def join(self, peers: "DataParallel") -> None:
        """Keep only this rank's parts, on the device, and gather layers with ``peers`` from now on."""
        if self.is_whole:
            self._kept = [_part(kept, peers).to(self._device) for kept in self._kept]
            self._parts_of = peers.size
        if self._parts_of != peers.size:
            raise ValueError(f"the base is in {self._parts_of} parts, but {peers.size} learners joined")
        self._peers = peers

    def leave(self) -> None:
        """Forget the peers; layers cannot be used until others are joined."""
        self._peers = None

    def whole(self, number: int) -> Tensor:
        """Return weight_OI of a layer, for use at once."""
        if self.is_whole:
            return self._kept[number].to(self._device)
        _, gathered = self._take_part(number)
        return gathered

    def serve(self) -> None:
        """Give parts to the other learners until none of them needs a layer any more."""
        others_need_layers = True
        while others_need_layers:
            others_need_layers, _ = self._take_part(DONE)

    def _take_part(self, wanted: int) -> tuple[bool, Tensor]:
        if self._peers is None:
            raise RuntimeError("the learner has a part of the base model only, and has left its group")
        layers = sorted({*self._peers.exchange(wanted)} - {DONE})
        own = torch.empty(0)
        for number in layers:
            flat = self._peers.gather_parts(self._kept[number])
            if number == wanted:
                shape = self._shapes[number]
                own = flat[: shape.numel()].view(shape)
        return bool(layers), own


def _part(weight: Tensor, peers: "DataParallel") -> Tensor:
    flat = weight.flatten()
    length = -(-len(flat) // peers.size)
    own = flat[peers.rank * length : (peers.rank + 1) * length]
    part = torch.zeros(length, dtype=weight.dtype)
    part[: len(own)] = own
    return part


class DataParallel:
    """One learner's membership in a group of ``size`` learners; ``rank`` 0's process serves the store.

    Reports use gloo; gradients use gloo on a CPU and NCCL on a CUDA device. The process groups are not
    torch's default group, of which a process can have only one, because groups change with their members: a
    new group needs a new store. ``base`` is the base model if the learners share it. Raises PeerLost if the
    others did not join within ``timeout_seconds``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: TCPStore,
        *,
        device: torch.device | str = "cpu",
        timeout_seconds: float,
        base: ShardedBase | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        timeout = timedelta(seconds=timeout_seconds)
        with _others_answering():
            self._reports = _gloo(store, rank, size, timeout)
            self._gradients: Any = self._reports
            if torch.device(device).type == "cuda":
                self._gradients = _nccl(PrefixStore("nccl", store), rank, size, timeout)
        self._base = base
        if base is not None:
            base.join(self)

    def close(self) -> None:
        """Leave the group. Learners that still wait for this one get PeerLost at once."""
        if self._base is not None:
            self._base.leave()
        del self._gradients, self._reports, self._store

    def shares(
        self, records: list[TrainingRecord], work: Callable[[list[TrainingRecord]], Share]
    ) -> tuple[Share, Share]:
        """Return the share of this rank's shard of the records, and the batch's, equal on every rank.

        Raises SparringError if the work failed on another rank, NoRecordFits if no rank kept a record,
        PeerLost if some rank died or does not answer.
        """
        try:
            own = work(shard(records, self.size)[self.rank])
        except NoRecordFits:
            own = Share({}, Counts(0, 0, 0, 0))
        except PeerLost:
            raise
        except Exception as error:
            with suppress(PeerLost):  # this rank's own error says more
                self.serve()
                self._gather({"error": reason_of(error)})  # otherwise the others would wait for this rank
            raise
        self.serve()
        reports = self._gather(asdict(own))
        for rank, report in enumerate(reports):
            if "error" in report:
                raise SparringError(f"learner {rank} failed: {report['error']}")
        whole = combine([Share(report["metrics"], Counts(**report["counts"])) for report in reports])
        if whole.counts.answers == 0:
            raise NoRecordFits(NOTHING_FITS)
        return own, whole

    def serve(self) -> None:
        """Give the other learners this one's parts of the base model until none of them needs any more."""
        if self._base is not None:
            self._base.serve()

    def exchange(self, number: int) -> list[int]:
        """Return each learner's number, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        return self._summed(numbers).tolist()

    def sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over all learners of their arrays, which have one shape."""
        summed: NDArray[np.float64] = self._summed(torch.tensor(numbers)).numpy()
        return summed

    def gather_parts(self, part: Tensor) -> Tensor:
        """Return the parts of all learners, which are equally long, one after the other."""
        whole = part.new_empty(self.size * len(part))
        with _others_answering():
            self._gradients._allgather_base(whole.view(torch.uint8), part.view(torch.uint8)).wait()
        return whole

    def sum_gradients(self, parameters: list[torch.nn.Parameter], weight: float) -> None:
        """Replace each gradient by the sum over ranks of ``weight`` times it; a missing gradient is zero."""
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).float().flatten() for p in parameters]
        )
        flat *= weight
        with _others_answering():
            self._gradients.allreduce([flat]).wait()
        pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, summed in zip(parameters, pieces, strict=True):
            parameter.grad = summed.view_as(parameter).to(parameter.dtype)

    def _gather(self, report: dict[str, Any]) -> list[dict[str, Any]]:
        own = torch.frombuffer(bytearray(json.dumps(report).encode()), dtype=torch.uint8)
        lengths = self.exchange(len(own))
        padded = torch.zeros(self.size, max(lengths), dtype=torch.uint8)
        padded[self.rank, : len(own)] = own
        rows = zip(self._summed(padded), lengths, strict=True)
        return [json.loads(bytes(row[:length].tolist())) for row, length in rows]

    def _summed(self, tensor: Tensor) -> Tensor:
        """Replace a tensor, which is not on a GPU, by the sum of those of all learners, and return it."""
        with _others_answering():
            self._reports.allreduce([tensor]).wait()
        return tensor
