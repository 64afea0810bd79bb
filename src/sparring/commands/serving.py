"""Serve what members consist of: adapters on one base model here, and models behind an API."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.commands.members import Member, base_of
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.core import InferenceClient
from sparring.engine.api_models import MembersClient, api_client
from sparring.evaluation.match import Progress
from sparring.evaluation.venues import ProgramVenue, Venue
from sparring.run.assembly import publish_models
from sparring.run.given_adapters import frozen_of

if TYPE_CHECKING:
    from sparring.engine.engine import EmbeddedEngine

Serve = Callable[[Mapping[str, Path]], AbstractAsyncContextManager[InferenceClient]]
"""Serves adapters by name, and their base model as ``base``, for as long as the body runs."""


def build_engine(
    model: ModelSettings,
    adapters: Mapping[str, Path],
    inference: InferenceSettings,
    seed: int,
    progress: Progress,
) -> "EmbeddedEngine":
    """Serve adapters by name, and their base model as ``base``; see :func:`publish_models`."""
    with progress.doing("importing torch"):
        import torch  # noqa: F401 - the longest part of loading, which is told apart
    with progress.doing(f"loading {model.name}"):
        return publish_models(model, adapters, inference, seed=seed, say=progress.say).engine


@asynccontextmanager
async def serving(
    members: Sequence[Member],
    seed: int,
    progress: Progress,
    serve: Serve | None = None,
    venue: Venue | None = None,
) -> AsyncIterator[MembersClient]:
    """Yield a client that answers for every member, each of whose names it knows.

    ``serve`` serves the members' adapters, and those that hold other roles of the ``venue``; without it, this
    process does.
    """
    apis = {one.uid: api_client(one.name) for one in members if one.kind == "api"}
    if isinstance(venue, ProgramVenue):
        apis |= {name: api_client(address) for name, address in frozen_of(venue.config, "api").items()}
    frozen = {} if venue is None else dict(venue.frozen)
    models = [one for one in members if one.kind == "model"]
    adapters = {name: path for one in models for name, path in one.adapters().items()} | frozen
    if not models:
        yield MembersClient(None, apis)
    elif serve is None:
        inference = InferenceSettings(max_tokens=max(one.max_tokens or 1 for one in models))
        yield MembersClient(build_engine(base_of(models), adapters, inference, seed, progress), apis)
    else:
        async with serve(adapters) as client:
            yield MembersClient(client, apis)
