"""Health: checks that every actor of a run answers, and measures how long one has not."""

import asyncio
from time import monotonic
from typing import Any

from ray.exceptions import ActorDiedError, RayError

from selfplay.cluster.addresses import knock
from selfplay.cluster.connect import in_our_words
from selfplay.core import InputError, SelfplayError

ASK_EVERY = 2.0
HEAD_PATIENCE = 30.0
"""Seconds that a cluster's head may be away. After 60, Ray ends every process without a report."""


class Health:
    """Polls every actor for as long as a run lasts.

    Args:
        actors: handles by name.
        patience: maximum seconds that an actor may be away.
        head: address of the cluster's head; ``None`` does not check the head.
    """

    def __init__(self, actors: dict[str, Any], patience: float, head: str | None = None) -> None:
        self.actors = actors
        self.patience = patience
        self.head = head
        self.head_is_lost = False
        self.away: dict[str, float] = {}

    async def ready(self) -> None:
        """Wait until all actors have answered once.

        Raises:
            SelfplayError: an actor cannot be built, or not in time.
        """
        await asyncio.gather(*(self._ready(name, actor) for name, actor in self.actors.items()))

    async def _ready(self, name: str, actor: Any) -> None:
        try:
            await asyncio.wait_for(actor.__ray_ready__.remote(), self.patience)
        except TimeoutError:
            raise SelfplayError(f"{name} did not start within {self.patience:g} s") from None
        except RayError as error:
            raise in_our_words(error, name) from error

    async def watch(self) -> None:
        """Poll all actors; end only with an error.

        Raises:
            SelfplayError: an actor is permanently dead, or away for longer than ``patience``, or the head is
                lost, after which no call to Ray can succeed.
        """
        watches = [self._watch(name, actor) for name, actor in self.actors.items()]
        if self.head is not None:
            watches.append(self._watch_head(self.head))
        await asyncio.gather(*watches)

    async def _watch_head(self, head: str) -> None:
        last = monotonic()
        while True:
            try:
                await asyncio.to_thread(knock, head)
                last = monotonic()
            except InputError:
                if monotonic() - last > HEAD_PATIENCE:
                    self.head_is_lost = True
                    raise SelfplayError(
                        f"the head of the cluster, {head}, has not answered for {HEAD_PATIENCE:g} s"
                    ) from None
            await asyncio.sleep(ASK_EVERY)

    async def _watch(self, name: str, actor: Any) -> None:
        last = monotonic()
        while True:
            try:
                await asyncio.wait_for(actor.__ray_ready__.remote(), self.patience)
                last = monotonic()
                self.away.pop(name, None)
            except ActorDiedError as error:
                raise in_our_words(error, name) from error
            except (RayError, TimeoutError):
                self.away[name] = monotonic() - last
                if self.away[name] > self.patience:
                    raise SelfplayError(f"{name} has not come back for {self.patience:g} s") from None
            await asyncio.sleep(ASK_EVERY)
