"""Watchman: sees that every actor of a run answers, and for how long one has not."""

import asyncio
from time import monotonic
from typing import Any

from ray.exceptions import ActorDiedError, RayError

from selfplay.core import SelfplayError
from selfplay.runtime.ray.cluster import in_our_words

ASK_EVERY = 2.0


class Watchman:
    """Asks every actor again and again whether it is there.

    Args:
        actors: handles by name.
        patience: seconds that one may be away.
    """

    def __init__(self, actors: dict[str, Any], patience: float) -> None:
        self.actors = actors
        self.patience = patience
        self.away: dict[str, float] = {}

    async def ready(self) -> None:
        """Wait until all are there for the first time.

        Raises:
            SelfplayError: one cannot be made, or not in time.
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
        """Never ends, but with an error.

        Raises:
            SelfplayError: an actor is dead for good, or away for longer than ``patience``.
        """
        await asyncio.gather(*(self._watch(name, actor) for name, actor in self.actors.items()))

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
