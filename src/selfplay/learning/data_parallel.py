"""Data-parallel learning: several learners make one update together, each on its shard of the batch.

Every learner holds the whole model and is given the whole batch. It trains on its own shard; then the shards'
gradients become the batch's, and all make the same step. Losses are means over records, so for shards that
keep n_r of the batch's n records (those that are not too long)

    gradient = sum_r n_r / n * gradient_r

Only the adapter's gradients travel, as one tensor, and a line of metrics. What one learner finds wrong is
told to all before gradients are: none of them goes on alone.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from selfplay.core import SelfplayError, TrainingRecord
from selfplay.core.errors import reason_of
from selfplay.learning.batch import NOTHING_FITS, Counts, NoRecordFits

SUMS = ("packed_tokens", "separate_tokens")
"""Metrics that add up. All others are means."""
MEANS_OVER = {
    "mismatch": "fresh_tokens",
    "legal_mass": "answered_records",
    "legal_entropy": "answered_records",
}
"""What a metric is a mean over, a field of Counts; ``records`` where it is not here."""


class PeerLost(SelfplayError):
    """Another learner of the group died or did not answer in time. The group is of no more use."""


@dataclass(frozen=True)
class Share:
    """What training on some records gave, the gradients apart."""

    metrics: dict[str, float]
    counts: Counts


def combine(shares: list[Share]) -> Share:
    """What training on the records of all shares would have given.

    ``packed_tokens`` is what was fed: it counts a prefix again for every shard that has it.
    """
    names = dict.fromkeys(name for share in shares for name in share.metrics)
    counts = [share.counts for share in shares]
    return Share(
        {name: _combined(name, [share for share in shares if name in share.metrics]) for name in names},
        Counts(
            sum(count.records for count in counts),
            sum(count.fresh_tokens for count in counts),
            sum(count.answered_records for count in counts),
        ),
    )


def _combined(name: str, shares: list[Share]) -> float:
    if name in SUMS:
        return sum(share.metrics[name] for share in shares)
    weights = [getattr(share.counts, MEANS_OVER.get(name, "records")) for share in shares]
    total = sum(weight * share.metrics[name] for weight, share in zip(weights, shares, strict=True))
    return float(total / max(sum(weights), 1))


def shard(records: list[TrainingRecord], count: int) -> list[list[TrainingRecord]]:
    """Split records into ``count`` shards that share prefixes within, not between.

    Records are sorted by their tokens and cut into runs, so that the largest run is as small as it can be.
    Its size is that of its prefix tree, nearly: a record counts without the tokens that it begins with like
    the record before it. No shard is empty unless there are fewer records than shards.
    """
    ordered = sorted(records, key=lambda record: (record.prompt_token_ids, record.completion_token_ids))
    if len(ordered) <= count:
        return [ordered[index : index + 1] for index in range(count)]
    ids = [record.input_ids for record in ordered]
    alone = [len(own) for own in ids]
    new = [alone[0], *(len(own) - _shared(before, own) for before, own in pairwise(ids))]
    low, high = max(alone), sum(new)
    while low < high:
        limit = (low + high) // 2
        if len(_starts(alone, new, limit)) <= count:
            high = limit
        else:
            low = limit + 1
    starts = _starts(alone, new, low, at_least=count)
    return [ordered[start:stop] for start, stop in pairwise([*starts, len(ordered)])]


def _shared(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _starts(alone: list[int], new: list[int], limit: int, at_least: int = 1) -> list[int]:
    """Where runs of at most ``limit`` tokens begin that are filled one after the other.

    A record adds ``new`` tokens to a run that holds the one before it, and is ``alone`` where it begins one.
    """
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
    """The store through which a group's learners find each other, served by this process on a free port.

    ``address`` is this machine's, as the other learners reach it; the port is the store's ``port``.
    """
    return _store(address, 0, timeout_seconds, is_master=True)


def reach_store(address: str, port: int, timeout_seconds: float) -> TCPStore:
    """The store that another process serves.

    Raises:
        PeerLost: nobody answers there.
    """
    return _store(address, port, timeout_seconds, is_master=False)


def _store(address: str, port: int, timeout_seconds: float, *, is_master: bool) -> TCPStore:
    timeout = timedelta(seconds=timeout_seconds)
    with _others_answering():
        return TCPStore(address, port, is_master=is_master, timeout=timeout, wait_for_workers=False)


@contextmanager
def _others_answering() -> Iterator[None]:
    """torch raises RuntimeError and its subclasses for connections that broke, timed out or never came."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise PeerLost(f"a learner of the group was lost ({reason})") from error


def _nccl(store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # type: ignore[attr-defined]  # not in builds for CPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


class DataParallel:
    """One learner's place in a group of ``size``.

    Reports travel by gloo; gradients do too on a CPU, by NCCL on a CUDA device. torch takes the network
    interface of the machine's name, or what GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME say. The process groups
    are not torch's default group, of which a process has one: groups come and go with their members.

    Args:
        rank: 0 to ``size`` - 1.
        size: how many learners there are.
        store: of the group; a new group needs a new one. Rank 0's process serves it.
        device: where the gradients are.
        timeout_seconds: how long a learner waits for the others: the most by which one may be behind.

    Raises:
        PeerLost: the others did not come in time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: TCPStore,
        *,
        device: torch.device | str = "cpu",
        timeout_seconds: float,
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        timeout = timedelta(seconds=timeout_seconds)
        with _others_answering():
            self._reports: Any = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
            self._gradients: Any = self._reports
            if torch.device(device).type == "cuda":
                self._gradients = _nccl(PrefixStore("nccl", store), rank, size, timeout)

    def close(self) -> None:
        """Leave the group. Who still waits for this learner gets PeerLost at once."""
        del self._gradients, self._reports, self._store

    def train(
        self,
        records: list[TrainingRecord],
        train: Callable[[list[TrainingRecord]], Share],
        parameters: list[torch.nn.Parameter],
    ) -> Share:
        """Leave the gradient of all records in the parameters; returns what they gave, alike on every rank.

        Args:
            records: the whole batch.
            train: adds the gradient of the records that it is given, a mean over them, to the parameters'.
            parameters: without gradients at first.

        Raises:
            SelfplayError: training failed on some rank. (What it raised is raised on that rank.)
            NoRecordFits: no rank could keep a record.
            PeerLost: some rank is gone or silent.
        """
        try:
            own = train(self.mine(records))
        except NoRecordFits:
            own = Share({}, Counts(0, 0, 0))
        except Exception as error:
            self._gather({"error": reason_of(error)})  # or the others would wait for this rank
            raise
        reports = self._gather(asdict(own))
        for rank, report in enumerate(reports):
            if "error" in report:
                raise SelfplayError(f"learner {rank} failed: {report['error']}")
        whole = combine([Share(report["metrics"], Counts(**report["counts"])) for report in reports])
        if whole.counts.records == 0:
            raise NoRecordFits(NOTHING_FITS)
        self._sum_gradients(parameters, own.counts.records / whole.counts.records)
        return whole

    def mine(self, records: list[TrainingRecord]) -> list[TrainingRecord]:
        """This rank's shard."""
        return shard(records, self.size)[self.rank]

    def _sum_gradients(self, parameters: list[torch.nn.Parameter], weight: float) -> None:
        """Replace each gradient by the sum over ranks of ``weight`` times theirs; none counts as zero."""
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
        """Every rank's report, by rank."""
        own = torch.frombuffer(bytearray(json.dumps(report).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(own)
        with _others_answering():
            self._reports.allreduce([lengths]).wait()
            padded = torch.zeros(self.size, int(lengths.max()), dtype=torch.uint8)
            padded[self.rank, : len(own)] = own
            self._reports.allreduce([padded]).wait()
        texts = [bytes(row[:length].tolist()) for row, length in zip(padded, lengths, strict=True)]
        return [json.loads(text) for text in texts]
