"""A client with a limit on the calls in flight, for a model that others use too."""

from selfplay.core import InferenceClient, Messages, ModelResponse
from selfplay.core.call_slots import CallSlots
from selfplay.core.current_episode import wait_for_slot


class BoundedClient(InferenceClient):
    """Passes calls on, never more than ``limit`` at once; the others wait, first come, first served.

    Waiting takes nothing from an episode's time. A call that is tried again keeps its slot meanwhile, so an
    overloaded server gets fewer calls.

    Args:
        client: answers.
        limit: maximum number of calls in flight, 1 or more.
    """

    def __init__(self, client: InferenceClient, limit: int) -> None:
        self.client = client
        self._slots = CallSlots(limit)

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> ModelResponse:
        """Answer as the client does."""
        if not self._slots.take():
            await wait_for_slot(self._slots)
        try:
            return await self.client.complete(
                messages, temperature, max_tokens, return_tokens, model=model, seed=seed, stop=stop
            )
        finally:
            self._slots.release()
