"""Health: checks that every actor of a run answers, and measures how long one has not."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from sparring.cluster.calls import answered, error_of, own_error
from sparring.cluster.connect import knock
from sparring.cluster.placement import waits_for
from sparring.core import InputError, SparringError

ASK_EVERY = 2.0
SILENCE = 10.0
"""Seconds without an answer after which an actor counts as away. A busy one may take some."""
HEAD_PATIENCE = 30.0
"""Seconds that a cluster's head may be away. After 60, Ray ends every process without a report."""


class Health:
    """Polls every actor for as long as a run lasts.

    Args:
        actors: handles by name.
        patience: maximum seconds that an actor may be away.
        head: address of the cluster's head; ``None`` does not check the head.
        engines: names of the actors that do the work of one another: the run goes on while one is left.
        groups: the placement groups of the actors that have one, by name.

    Attributes:
        away: seconds since an actor that does not answer was heard, by name.
    """

    def __init__(
        self,
        actors: dict[str, Any],
        patience: float,
        head: str | None = None,
        engines: Collection[str] = (),
        groups: Mapping[str, PlacementGroup | None] | None = None,
    ) -> None:
        self.actors = actors
        self.patience = patience
        self.head = head
        self.engines = set(engines)
        self.groups = groups or {}
        self.head_is_lost = False
        self.away: dict[str, float] = {}
        self._lost: set[str] = set()

    async def ready(self) -> None:
        """Wait until all actors except the engines have answered once.

        Raises:
            SparringError: an actor cannot be built, or not in time.
        """
        others = (name for name in self.actors if name not in self.engines)
        await asyncio.gather(*(self._ready(name, self.actors[name]) for name in others))

    async def _ready(self, name: str, actor: Any) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await answered(name, actor.check)
        except TimeoutError:
            raise SparringError(f"{name} did not start within {self.patience:g} s") from None

    async def watch(self) -> None:
        """Poll all actors; end only with an error.

        Raises:
            SparringError: an actor is permanently dead, or away for longer than ``patience``; of the engines,
                all are. Or the head is lost, after which no call to Ray can succeed.
        """
        watches = [self._watch(name, actor) for name, actor in self.actors.items()]
        if self.head is not None:
            watches.append(self._watch_head(self.head))
        await asyncio.gather(*watches)

    async def reason_of(self, error: RayError) -> SparringError:
        """Return why a call to some actor failed: its own error, or which actor has died."""
        if own_error(error) is None:
            for name, actor in sorted(self.actors.items(), key=lambda one: one[0] in self.engines):
                try:
                    await asyncio.wait_for(actor.check.remote(), ASK_EVERY)
                except (ActorDiedError, RayTaskError) as death:
                    return error_of(name, death)
                except (RayError, TimeoutError):
                    continue  # it may come back
        return error_of("the run", error)

    async def _watch_head(self, head: str) -> None:
        last = _now()
        while True:
            try:
                await asyncio.to_thread(knock, head)
                last = _now()
            except InputError:
                if _now() - last > HEAD_PATIENCE:
                    self.head_is_lost = True
                    raise SparringError(
                        f"the head of the cluster, {head}, has not answered for {HEAD_PATIENCE:g} s"
                    ) from None
            await asyncio.sleep(ASK_EVERY)

    async def _watch(self, name: str, actor: Any) -> None:
        last = _now()
        while True:
            try:
                await self._answer(name, actor, last)
                last = _now()
                self.away.pop(name, None)
                self._lost.discard(name)
            except (RayError, TimeoutError) as error:
                self.away[name] = _now() - last
                lost = await self._loss_of(name, error)
                if lost is not None:
                    raise lost from error
            await asyncio.sleep(ASK_EVERY)

    async def _answer(self, name: str, actor: Any, last: float) -> None:
        """Wait for an actor's answer. One that cannot be reached often says nothing, rather than fail."""
        asked = asyncio.ensure_future(actor.check.remote())
        try:
            while not (await asyncio.wait([asked], timeout=ASK_EVERY))[0]:
                silent = _now() - last
                if silent > self.patience:
                    raise TimeoutError
                if silent > SILENCE:
                    self.away[name] = silent
            await asked
        finally:
            asked.cancel()

    async def _loss_of(self, name: str, error: Exception) -> SparringError | None:
        """Return why an actor is lost; ``None`` while it may come back, or the run goes on without it."""
        died = isinstance(error, ActorDiedError | RayTaskError)
        if not (died or self.away[name] > self.patience) or self._goes_on_without(name):
            return None
        if died:
            return error_of(name, error)
        return SparringError(f"{name} has not come back for {self.patience:g} s{await self._why(name)}")

    async def _why(self, name: str) -> str:
        """Return the end of a sentence: nodes that come back may be given to others of its actors first."""
        try:
            wanted = await asyncio.wait_for(asyncio.to_thread(waits_for, self.groups.get(name)), ASK_EVERY)
        except (RayError, TimeoutError):
            return ""
        return "" if wanted is None else f": it requests {wanted}, and no node has as much free"

    def _goes_on_without(self, lost: str) -> bool:
        self._lost.add(lost)
        return lost in self.engines and not self.engines <= self._lost


def _now() -> float:
    return asyncio.get_running_loop().time()
