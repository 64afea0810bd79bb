"""The files of the training API, in one directory. Records are sealed; names of clients become no paths.

sessions/ID.json                 a session
samplers/ID.json                 what a sampling session draws from
models/ID/model.json             a model: its shape, its seed and the base model that it belongs to
models/ID/requests/000012.KIND   a request that was accepted, until a state holds what it did
models/ID/state/                 the newest state: weights, moments, gradients, and answers
models/ID/weights/NAME/          what was saved to train on: an adapter and its learner
models/ID/sampler_weights/NAME/  what was saved to sample from: an adapter
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError
from sparring.core.adapters import STATE_FILE
from sparring.core.files import (
    finish_replacements,
    put_in_place,
    read_regular,
    remove_directory,
    remove_partial,
    scratch_for,
    write_file,
)
from sparring.core.manifest import check_files, damaged, seal, unsealed
from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.store import locked, write_record
from sparring.finetune.tinker.requests import CHECKPOINT_NAME, MODEL, SAMPLER, SESSION

SESSIONS, SAMPLERS, MODELS = "sessions", "samplers", "models"
IDS = {SESSIONS: SESSION, SAMPLERS: SAMPLER, MODELS: MODEL}
MODEL_FILE, REQUESTS, STATE = "model.json", "requests", "state"
WEIGHTS, SAMPLER_WEIGHTS = "weights", "sampler_weights"
SCHEME = "tinker://"
MAX_RECORDS = 10_000
"""Maximum numbers of sessions and of samplers."""
MAX_MODELS = 1000
UNNAMED = "~"
"""The beginning of names of weights that were saved for one sampling session; no client can choose it."""
KEPT_UNNAMED = 16
"""So many of a model's newest such weights are kept."""
LARGEST_RECORD = 1 << 20
Record = TypeVar("Record", bound=msgspec.Struct)


class SessionRecord(msgspec.Struct, frozen=True):
    """A session."""

    created: float
    display_name: str | None = None
    user_metadata: dict[str, Any] | None = None


class SamplerRecord(msgspec.Struct, frozen=True):
    """What a sampling session draws from: the base model, or the weights at a path."""

    model_path: str | None = None


class ModelRecord(msgspec.Struct, frozen=True):
    """A model. ``base`` are the hashes of the base model's files; ``first`` is the number of its first
    request: 0 if it begins by loading weights. ``dtype`` is the type in which it trains; empty if it is of an
    older server."""

    rank: int
    layers: list[str]
    alpha: float
    seed: int
    base: dict[str, str]
    first: int
    created: float
    user_metadata: dict[str, Any] | None = None
    dtype: str = ""


class KeptAnswer(msgspec.Struct, frozen=True):
    """The answer to a request: its body, and whether that is protobuf or JSON."""

    body: bytes
    is_protobuf: bool = False

    @classmethod
    def json(cls, **content: Any) -> "KeptAnswer":
        """Return an answer in JSON."""
        return cls(msgspec.json.encode(content))

    @classmethod
    def failure(cls, problem: str, *, of_user: bool) -> "KeptAnswer":
        """Return the answer to a request that failed."""
        return cls.json(error=problem, category="user" if of_user else "server")


class ModelState(msgspec.Struct):
    """What a model's state holds beside tensors: the last request that it took, and answers by number."""

    applied: int
    answers: dict[int, KeptAnswer]


class SavedBy(msgspec.Struct):
    """Which request saved weights."""

    seq_id: int


@dataclass(frozen=True)
class SavedWeights:
    """Weights that a client names by a path: of a model, to train on or to sample from, and their name."""

    model_id: str
    kind: str
    name: str

    @classmethod
    def at(cls, path: str) -> "SavedWeights":
        """Return the weights that a client names. Raises ApiError: that is no path."""
        parts = path.removeprefix(SCHEME).split("/")
        if path.startswith(SCHEME) and len(parts) == 3:
            model_id, kind, name = parts
            known = MODEL.fullmatch(model_id) and kind in (WEIGHTS, SAMPLER_WEIGHTS)
            if known and CHECKPOINT_NAME.fullmatch(name.removeprefix(UNNAMED)):
                return cls(model_id, kind, name)
        raise ApiError(400, f"path: {path!r:.200} is no path of weights. Use one that a save returned")

    @property
    def path(self) -> str:
        """The path by which clients name them."""
        return f"{SCHEME}{self.model_id}/{self.kind}/{self.name}"


class Store:
    """The directory, which is locked by its server. Raises InputError: it cannot be used, or is in use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().absolute()
        self.lock = locked(self.directory, (SESSIONS, SAMPLERS, MODELS), "--training")
        for name in (SESSIONS, SAMPLERS, MODELS):
            (self.directory / name).mkdir(exist_ok=True)

    def add_session(self, session_id: str, record: SessionRecord) -> None:
        """Write a new session. Raises ApiError: there are too many."""
        self._add(SESSIONS, session_id, record)

    def session(self, session_id: str) -> SessionRecord:
        """Return a session. Raises ApiError: there is none."""
        return self._read(SESSIONS, session_id, SessionRecord)

    def add_sampler(self, sampler_id: str, record: SamplerRecord) -> None:
        """Write a sampling session, or the same one again. Raises ApiError: there are too many."""
        self._add(SAMPLERS, sampler_id, record)

    def sampler(self, sampler_id: str) -> SamplerRecord:
        """Return what a sampling session draws from. Raises ApiError: there is none."""
        return self._read(SAMPLERS, sampler_id, SamplerRecord)

    def names(self, kind: str) -> list[str]:
        """Return the ids of all sessions, samplers or models, the newest last. A model without a record is
        one whose creation was killed."""
        paths = [*(self.directory / kind).iterdir()]
        if kind == MODELS:
            paths = [one for one in paths if (one / MODEL_FILE).is_file()]
        paths.sort(key=lambda one: (one.stat().st_mtime_ns, one.name))
        names = [one.name.removesuffix(".json").replace(".", ":") for one in paths]
        return [one for one in names if IDS[kind].fullmatch(one)]

    def model(self, model_id: str) -> "ModelFiles":
        """Return the files of a model. Raises ApiError: there is none."""
        files = self._files(model_id) if MODEL.fullmatch(model_id) else None
        if files is None or not (files.directory / MODEL_FILE).is_file():
            raise ApiError(404, f"there is no model {model_id!r:.100}")
        return files

    def add_model(self, model_id: str, record: ModelRecord) -> "ModelFiles":
        """Write a new model, or return the one of this id. Raises ApiError: there are too many."""
        files = self._files(model_id)
        if not (files.directory / MODEL_FILE).is_file():
            if len(self.names(MODELS)) >= MAX_MODELS:
                raise ApiError(400, f"there are {MAX_MODELS} models. Delete some of {MODELS}/")
            (files.directory / REQUESTS).mkdir(parents=True, exist_ok=True)
            write_record(files.directory / MODEL_FILE, record)
        return files

    def weights(self, weights: SavedWeights) -> Path:
        """Return the directory of weights. Raises ApiError: there are none."""
        directory = self.model(weights.model_id).weights(weights.kind, weights.name)
        if not directory.is_dir():
            raise ApiError(404, f"path: there are no weights {weights.path}. They may have been deleted")
        return directory

    def _files(self, model_id: str) -> "ModelFiles":
        return ModelFiles(self.directory / MODELS / model_id.replace(":", "."))

    def drop_old_samplers(self, files: "ModelFiles") -> None:
        """Delete a model's older sampling sessions, and the weights that were saved for them."""
        session = files.model_id.partition(":")[0]
        for weights in files.old_unnamed():
            number = int(weights.name.removeprefix(UNNAMED))
            self._record(SAMPLERS, sampler_id(session, number)).unlink(missing_ok=True)
            files.delete(weights)

    def _record(self, kind: str, name: str) -> Path:
        return self.directory / kind / f"{name.replace(':', '.')}.json"

    def _add(self, kind: str, name: str, record: msgspec.Struct) -> None:
        path = self._record(kind, name)
        if not path.exists() and sum(1 for _ in path.parent.iterdir()) >= MAX_RECORDS:
            raise ApiError(400, f"there are {MAX_RECORDS} {kind}. Delete some of {kind}/")
        write_record(path, record)

    def _read(self, kind: str, name: str, into: type[Record]) -> Record:
        path = self._record(kind, name)
        if not IDS[kind].fullmatch(name) or not path.is_file():
            raise ApiError(404, f"there is no {kind[:-1]} {name!r:.100}")
        return _read_record(path, into)


class ModelFiles:
    """The files of one model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model_id = directory.name.replace(".", ":")

    def record(self) -> ModelRecord:
        """Return what the model is."""
        return _read_record(self.directory / MODEL_FILE, ModelRecord)

    def clean(self) -> None:
        """Clean up after a kill."""
        finish_replacements(self.directory, STATE)
        remove_partial(self.directory, f"{STATE}|{MODEL_FILE}")
        remove_partial(self.directory / REQUESTS, ".*")
        for kind in (WEIGHTS, SAMPLER_WEIGHTS):
            finish_replacements(self.directory / kind, ".*")
            remove_partial(self.directory / kind, ".*")

    def accept(self, seq_id: int, kind: str, body: bytes) -> None:
        """Write a request, which is then done, whatever happens."""
        write_file(self.directory / REQUESTS / f"{seq_id:09d}.{kind}", body)

    def requests(self) -> dict[int, tuple[str, Path]]:
        """Return kind and file of the requests that were accepted and that no state holds, by number."""
        found = {}
        for path in sorted((self.directory / REQUESTS).glob("[0-9]*.*")):
            number, _, kind = path.name.partition(".")
            found[int(number)] = (kind, path)
        return found

    def saved(self) -> ModelState | None:
        """Return what the newest state holds beside tensors. Raises DamagedState."""
        return _read_state(self.directory / STATE, ModelState)

    def save(self, state: ModelState, scratch: Path) -> None:
        """Put a state in place whose tensors are in ``scratch``, and delete the requests that it holds."""
        (scratch / STATE_FILE).write_bytes(msgspec.json.encode(state))
        seal(scratch)
        put_in_place(scratch, self.directory / STATE)
        for number, (_, path) in self.requests().items():
            if number <= state.applied:
                path.unlink()

    def state(self) -> Path | None:
        """Return the directory of the newest state, unchanged. Raises DamagedState."""
        directory = self.directory / STATE
        if not directory.is_dir():
            return None
        check_files(directory)
        return directory

    def scratch(self) -> Path:
        """Return a new directory for a state."""
        return scratch_for(self.directory / STATE)

    def weights(self, kind: str, name: str) -> Path:
        """Return the directory of weights, whether there are any or not."""
        return self.directory / kind / name

    def listed(self) -> Iterator[tuple[SavedWeights, Path]]:
        """Yield all weights that clients named."""
        for kind in (WEIGHTS, SAMPLER_WEIGHTS):
            for path in sorted((self.directory / kind).glob("[!.~]*")):
                yield SavedWeights(self.model_id, kind, path.name), path

    def delete(self, weights: SavedWeights) -> None:
        """Delete weights."""
        remove_directory(self.weights(weights.kind, weights.name))

    def old_unnamed(self) -> list[SavedWeights]:
        """Return the weights that were saved for older sampling sessions than are kept."""
        unnamed = sorted(path.name for path in (self.directory / SAMPLER_WEIGHTS).glob(f"{UNNAMED}*"))
        return [SavedWeights(self.model_id, SAMPLER_WEIGHTS, name) for name in unnamed[:-KEPT_UNNAMED]]

    def remove(self) -> None:
        """Delete a model that nobody was told of."""
        shutil.rmtree(self.directory, ignore_errors=True)


def sampler_id(session_id: str, number: int) -> str:
    """Return the id of a session's sampling session."""
    return f"{session_id}:sample:{number}"


def model_id(session_id: str, number: int) -> str:
    """Return the id of a session's model, which the SDK also makes itself."""
    return f"{session_id}:train:{number}"


def unnamed(number: int) -> str:
    """Return the name of weights that are saved for a sampling session."""
    return f"{UNNAMED}{number:09d}"


def saved_by(directory: Path) -> int | None:
    """Return the number of the request that saved weights; ``None`` if there are none. Raises
    DamagedState."""
    saved = _read_state(directory, SavedBy)
    return None if saved is None else saved.seq_id


def now() -> float:
    """Return the time, in seconds since 1970."""
    return time.time()


def _read_state(directory: Path, form: type[Record]) -> Record | None:
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=form) if path.is_file() else None
    except (OSError, msgspec.DecodeError) as error:
        raise damaged(path) from error


def _read_record(path: Path, form: type[Record]) -> Record:
    try:
        return msgspec.convert(unsealed(read_regular(path, LARGEST_RECORD)), type=form)
    except (OSError, *UNREADABLE) as error:
        raise InputError("--training", f"{path} is damaged", f"Move {path.parent} away.") from error
