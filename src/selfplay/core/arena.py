"""Arena: knows the roles, the episodes and the client; runs episodes and makes their model calls."""

import asyncio
from typing import Any

from selfplay.core.client import InferenceClient, ModelResponse
from selfplay.core.episode import Episode, GenerateResult
from selfplay.core.errors import EpisodeError
from selfplay.core.types import Messages, Role


class Arena:
    """Persistent state and orchestration. Episode state is transient and lives elsewhere.

    Args:
        client: answers model calls.
        max_calls: most model calls in flight. The limit sits on the leaf calls, so nested episodes can
            neither deadlock nor multiply load.
        episode_timeout: seconds one episode may take, waiting for the model included.
    """

    def __init__(
        self, client: InferenceClient, *, max_calls: int = 4096, episode_timeout: float = 3600.0
    ) -> None:
        self.client = client
        self.episode_timeout = episode_timeout
        self.roles: dict[str, Role] = {}
        self.episodes: dict[str, Episode] = {}
        self._slots = asyncio.Semaphore(max_calls)

    def add_role(self, role: Role) -> None:
        """Register a role under its id."""
        self.roles[role.id] = role

    def add_episode(self, episode_type: str, episode: Episode) -> None:
        """Register an episode under a name."""
        self.episodes[episode_type] = episode

    async def call_model(
        self,
        messages: Messages,
        role_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        return_tokens: bool | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
    ) -> ModelResponse:
        """Call the model for ``role_id``, whose settings are the defaults; without one, outside training."""
        role = self.roles.get(role_id) if role_id is not None else None
        if role is not None:
            temperature = role.temperature if temperature is None else temperature
            max_tokens = role.max_tokens if max_tokens is None else max_tokens
            model = role.policy if model is None else model
        await self._slots.acquire()
        try:
            return await self.client.complete(
                messages,
                temperature=1.0 if temperature is None else temperature,
                max_tokens=max_tokens,
                return_tokens=role is not None if return_tokens is None else return_tokens,
                model=model,
                seed=seed,
            )
        finally:
            self._slots.release()

    async def run_episode(
        self, episode_type: str, artifact: Any, meta: dict[str, Any] | None = None
    ) -> GenerateResult:
        """Run the episode registered as ``episode_type``.

        Raises:
            EpisodeError: it took longer than ``episode_timeout``.
        """
        try:
            async with asyncio.timeout(self.episode_timeout):
                return await self.episodes[episode_type].generate(self, artifact, meta)
        except TimeoutError as error:
            raise EpisodeError(f"the episode took longer than {self.episode_timeout:g} s") from error
