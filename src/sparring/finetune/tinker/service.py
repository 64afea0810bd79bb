"""TrainingService: many clients' models on one base, and their requests, each model's in order.

A request is written before it is accepted, and taken when the one before it was. What was accepted survives a
kill: the next server takes it. Models beyond a number are kept on disk until they are asked for.
"""

import asyncio
import os
import re
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sparring.core import InputError
from sparring.core.adapters import ALL_LINEAR, LORA_ALPHA
from sparring.core.errors import reason_of
from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.tinker.requests import MODEL, CreateModel, CreateSession, LoadWeights
from sparring.finetune.tinker.store import (
    MODELS,
    KeptAnswer,
    ModelFiles,
    ModelRecord,
    SavedWeights,
    SessionRecord,
    Store,
    model_id,
    now,
)
from sparring.finetune.tinker.training_model import KEPT_ANSWERS, LOAD, TrainingModel
from sparring.learn.policy import LoraSettings, PolicyModel

MAX_RESIDENT = 8
"""So many models are in memory at once."""
GAP_SECONDS = 60.0
"""How long a request waits for the one before it."""
LONGEST_WAIT = 30.0
"""How long a client waits for an answer, in seconds, before it is told to ask again."""
FUTURE = re.compile(rf"({MODEL.pattern})/([0-9]{{1,9}})")
ATTENTION, MLP = ALL_LINEAR[:4], ALL_LINEAR[4:]


class TrainingService:
    """The models of one directory, on one event loop.

    Args:
        directory: where they are; it is created.
        policy: the base model, whose policies they become.
        base: how the base model is called.
        say: prints a line for whoever runs the server.

    Raises InputError: the directory is in use, or its models train in another type than the base has.
    """

    def __init__(
        self, directory: Path, policy: PolicyModel, base: ServedBase, say: Callable[[str], None]
    ) -> None:
        self.store = Store(directory)
        self.policy = policy
        self.base = base
        self.say = say
        self._check_type()
        self._models: OrderedDict[str, TrainingModel] = OrderedDict()
        self._made = 0
        self._pending: defaultdict[str, dict[int, tuple[str, Path]]] = defaultdict(dict)
        self._waiting: defaultdict[tuple[str, int], asyncio.Event] = defaultdict(asyncio.Event)
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._busy = ""
        self._broken: dict[str, str] = {}
        self._waited_for: dict[str, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take requests, first those that an earlier server accepted."""
        for name in self.store.names(MODELS):
            files = self.store.model(name)
            try:
                files.clean()
                self._queue(name, files.requests())
            except InputError as error:
                self._break(name, error)
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            os.close(self.store.lock)

    # What clients ask for.

    def _check_type(self) -> None:
        kept = sorted({self._type_of(name) for name in self.store.names(MODELS)} - {"", self.base.dtype})
        if kept:
            os.close(self.store.lock)
            problem = f"the models in {self.store.directory} train in {kept[0]}, this is {self.base.dtype}"
            raise InputError("--dtype", problem, f"Write --dtype {kept[0]}, or name another directory")

    def _type_of(self, name: str) -> str:
        try:
            return self.store.model(name).record().dtype
        except InputError:  # damaged, which concerns only its own client
            return ""

    def create_session(self, request: CreateSession) -> str:
        """Create a session, and return its id."""
        session_id = secrets.token_hex(16)
        record = SessionRecord(now(), request.display_name, request.user_metadata)
        self.store.add_session(session_id, record)
        return session_id

    def create_model(self, request: CreateModel) -> str:
        """Create a model, or find the one that this request created before; return its id. Raises ApiError,
        InputError."""
        self.check_base(request.base_model)
        lora = request.lora_config
        layers = [*(ATTENTION if lora.train_attn else ()), *(MLP if lora.train_mlp else ())]
        if not layers:
            problem = "neither train_attn nor train_mlp is true"
            raise InputError("lora_config", problem, "The output layer alone cannot be trained here.")
        seed = secrets.randbits(32) if lora.seed is None else lora.seed
        shape = LoraSettings(lora.rank, LORA_ALPHA, layers)
        return self._create(request.session_id, request.model_seq_id, shape, seed, 1, request.user_metadata)

    def load_new(self, request: LoadWeights, body: bytes) -> str:
        """Create a model from weights; return its id. Raises ApiError."""
        if request.session_id is None or request.model_seq_id is None:
            raise ApiError(400, "model_id: give it with seq_id, or session_id with model_seq_id")
        if request.base_model is not None:
            self.check_base(request.base_model)
        shape = LoraSettings.read(self.store.weights(SavedWeights.at(request.path)))
        number = request.model_seq_id
        name = self._create(request.session_id, number, shape, 0, 0, request.user_metadata)
        self.accept(name, 0, LOAD, body)
        return name

    def accept(self, name: str, seq_id: int, kind: str, body: bytes) -> str:
        """Accept a request of a model, or find it among those that were; return its id. Raises ApiError."""
        files = self.store.model(name)
        pending = self._pending[name]
        if name in self._broken:
            raise ApiError(400, self._broken[name])  # the SDK repeats what is refused with 409
        if seq_id not in pending and seq_id > self._applied(files):
            if len(pending) >= KEPT_ANSWERS:
                raise ApiError(429, f"{KEPT_ANSWERS} requests of {name} wait")
            files.accept(seq_id, kind, body)
            self._queue(name, files.requests())
        return f"{name}/{seq_id}"

    async def answer(self, request_id: str, seconds: float = LONGEST_WAIT) -> KeptAnswer | None:
        """Return the answer to a request; ``None`` if it takes longer. Raises ApiError: it is not known, or
        its answer no longer."""
        found = FUTURE.fullmatch(request_id)
        if found is None:
            raise ApiError(410, f"there is no request {request_id!r:.100}")
        name, number = found[1], int(found[2])
        files = self.store.model(name)
        if number == 0 and files.record().first == 1:
            return KeptAnswer.json(model_id=name, type="create_model")
        if number in self._pending[name]:
            done = self._waiting[name, number]
            try:
                await asyncio.wait_for(done.wait(), seconds)
            except TimeoutError:
                return None
        if name in self._broken:
            return KeptAnswer.failure(self._broken[name], of_user=False)
        model = self._models.get(name) or files.saved()
        answers = {} if model is None else model.answers
        if number not in answers:
            raise ApiError(410, f"{name} has no answer to request {number}: it is too old, or was never sent")
        return answers[number]

    def check_base(self, name: str) -> None:
        """Raise ApiError if a base model is not the one that is served."""
        own = (self.base.name, self.base.served)
        if name not in own:
            raise ApiError(400, f"base_model: this server has {own[0]}, not {name!r:.100}. Use that")

    # What becomes of it.

    def _create(
        self,
        session_id: str,
        number: int,
        shape: LoraSettings,
        seed: int,
        first: int,
        metadata: dict[str, object] | None,
    ) -> str:
        self.store.session(session_id)
        name = model_id(session_id, number)
        record = ModelRecord(
            shape.lora_rank,
            list(shape.target_modules),
            shape.lora_alpha,
            seed,
            dict(self.policy.base),
            first,
            now(),
            metadata,
            self.base.dtype,
        )
        is_new = name not in self.store.names(MODELS)
        files = self.store.add_model(name, record)
        found = files.record()
        if (found.rank, found.layers, found.first) != (record.rank, record.layers, record.first):
            raise ApiError(400, f"model_seq_id: {name} is another model already. Choose another number")
        try:
            self._model(files)
        except InputError:
            if is_new:
                files.remove()
            raise
        return name

    def _applied(self, files: ModelFiles) -> int:
        model = self._models.get(files.model_id)
        if model is not None:
            return model.applied
        saved = files.saved()
        return files.record().first - 1 if saved is None else saved.applied

    def _queue(self, name: str, requests: dict[int, tuple[str, Path]]) -> None:
        applied = self._applied(self.store.model(name))
        pending = self._pending[name]
        pending.update({number: one for number, one in requests.items() if number > applied})
        if pending:
            self._ready.put_nowait(name)

    def _model(self, files: ModelFiles) -> TrainingModel:
        """Return a model, in memory; the one that was asked for longest ago may leave it."""
        name = files.model_id
        if name not in self._models:
            if len(self._models) >= MAX_RESIDENT:
                oldest = next(one for one in self._models if one != self._busy)
                self._models[oldest].close()
                del self._models[oldest]
            self._made += 1
            own_name = f"training-{self._made}"
            self._models[name] = TrainingModel(files, self.store, self.policy, self.base.name, own_name)
        self._models.move_to_end(name)
        return self._models[name]

    async def _work(self) -> None:
        while True:
            name = await self._ready.get()
            try:
                await self._take_next(name)
            except Exception as error:  # noqa: BLE001 (other models go on; this one is tried again)
                self.say(f"note: requests of {name} wait ({reason_of(error)})")
                asyncio.get_running_loop().call_later(GAP_SECONDS, self._ready.put_nowait, name)
            await asyncio.sleep(0)  # whoever waits for this answer, and the server, come first

    async def _take_next(self, name: str) -> None:
        pending = self._pending[name]
        if not pending:
            return
        try:
            model = self._model(self.store.model(name))
        except InputError as error:
            self._break(name, error)
            return
        number = model.applied + 1
        if number not in pending:
            if self._waited_for.pop(name, None) == number:
                self._skip(model)
            else:
                asyncio.get_running_loop().call_later(GAP_SECONDS, self._give_up, name, number)
            return
        kind, path = pending[number]
        self._busy = name
        try:
            await model.take(number, kind, path.read_bytes())
        finally:
            self._busy = ""
            if model.applied >= number:
                self._answered(name, number)
        if pending:
            self._ready.put_nowait(name)

    def _break(self, name: str, error: InputError) -> None:
        """Fail all requests of a model whose files cannot be used."""
        self.say(f"note: {name} cannot be used ({error})")
        self._broken[name] = str(error)
        for number in list(self._pending[name]):
            self._answered(name, number)

    def _give_up(self, name: str, number: int) -> None:
        self._waited_for[name] = number
        self._ready.put_nowait(name)

    def _skip(self, model: TrainingModel) -> None:
        """Fail requests whose predecessor never came."""
        name = model.files.model_id
        problem = f"request {model.applied + 1} of {name} never came, and these wait for it"
        for number in sorted(self._pending[name]):
            model.keep(number, KeptAnswer.failure(problem, of_user=True))
            self._answered(name, number)
        model.save()

    def _answered(self, name: str, number: int) -> None:
        self._pending[name].pop(number, None)
        done = self._waiting.pop((name, number), None)
        if done is not None:
            done.set()
