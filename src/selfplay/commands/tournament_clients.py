"""One client for all members of a tournament: those served here and those behind an API."""

from collections.abc import Mapping

from selfplay.core import InferenceClient, Messages, ModelResponse


class MembersClient(InferenceClient):
    """Passes each call to the client of its model.

    Args:
        local: serves the models that no API has; ``None`` if there are none.
        apis: clients by the name of the member that they answer for.
    """

    def __init__(self, local: InferenceClient | None, apis: Mapping[str, InferenceClient]) -> None:
        self.local = local
        self.apis = apis

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
        """Answer as the model's client does; an API knows its own model by its own name."""
        api = self.apis.get(model or "")
        client, name = (self.local, model) if api is None else (api, None)
        assert client is not None, "every model is served here or behind an API"
        options = {"stop": stop} if stop else {}
        return await client.complete(
            messages, temperature, max_tokens, return_tokens, model=name, seed=seed, **options
        )

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Score as the model's client does; an API cannot."""
        client = self.apis.get(model or "", self.local)
        assert client is not None, "every model is served here or behind an API"
        return await client.score(messages, completions, model=model)
