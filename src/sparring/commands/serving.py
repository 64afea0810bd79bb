"""Serve what members consist of: adapters on one base model here, and models behind an API."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.commands.members import Member, base_of
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.core import InferenceClient, InputError
from sparring.engine.api_models import MembersClient
from sparring.engine.paid_answers import ANSWERS_FILE, PaidFile, paying_client
from sparring.evaluation.match import Progress
from sparring.evaluation.venues import Frozen
from sparring.run.assembly import publish_models

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
    frozen: Frozen | None = None,
    directory: Path | None = None,
) -> AsyncIterator[MembersClient]:
    """Yield a client that answers for every member, each of whose names it knows, and for ``frozen``.

    ``serve`` serves the adapters; without it, this process does. What models behind an API answer is kept in
    the ``directory``, if there is one, and counted there.

    Raises:
        InputError: a member has a name of ``frozen``.
    """
    frozen = frozen or Frozen()
    apis = {one.uid: one.name for one in members if one.kind == "api"}
    models = [one for one in members if one.kind == "model"]
    adapters = {name: path for one in models for name, path in one.adapters().items()}
    if taken := (apis.keys() | adapters.keys()) & (frozen.apis.keys() | frozen.adapters.keys()):
        problem = f"{min(taken)} is also a name in the program's [frozen]"
        raise InputError("members", problem, "Name a copy of it that is called something else")
    apis, adapters = apis | dict(frozen.apis), adapters | dict(frozen.adapters)
    answers = PaidFile(None if directory is None else directory / ANSWERS_FILE, frozen.calls)
    with_apis = partial(paying_client, apis=apis, file=answers, measured=True)
    if not models:
        yield with_apis(None)
    elif serve is None:
        inference = InferenceSettings(max_tokens=max(one.max_tokens or 1 for one in models))
        yield with_apis(build_engine(base_of(models), adapters, inference, seed, progress))
    else:
        async with serve(adapters) as client:
            yield with_apis(client)
