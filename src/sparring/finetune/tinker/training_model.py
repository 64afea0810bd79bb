"""TrainingModel: one client's adapter and its optimizer, and what its requests do to them.

A request changes the model the same way whenever it is taken, so the state after a kill is the newest saved
one, and the requests since, taken again.
"""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

import msgspec
from pydantic import ValidationError

from sparring.config.problems import first_in_short
from sparring.core import InputError, SparringError
from sparring.core.adapters import LEARNER_FILE, STATE_FILE
from sparring.core.errors import reason_of
from sparring.core.files import put_in_place, scratch_for
from sparring.core.manifest import check_files, seal
from sparring.engine.server_errors import ApiError
from sparring.finetune.tinker.messages import GradientRequest, gradient_answer
from sparring.finetune.tinker.requests import LoadWeights, OptimStep, SaveForSampler, SaveWeights
from sparring.finetune.tinker.store import (
    SAMPLER_WEIGHTS,
    WEIGHTS,
    KeptAnswer,
    ModelFiles,
    ModelRecord,
    ModelState,
    SamplerRecord,
    SavedBy,
    SavedWeights,
    Store,
    sampler_id,
    saved_by,
    unnamed,
)
from sparring.learn.checkpoints import read_tensors, write_adapter, write_tensors
from sparring.learn.model_files import check_base, differing_files
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.learn.token_learner import TokenLearner
from sparring.learn.token_losses import RequestedLoss

FORWARD_BACKWARD, OPTIM_STEP, LOAD = "forward_backward", "optim_step", "load_weights"
SAVE, SAVE_FOR_SAMPLER = "save_weights", "save_weights_for_sampler"
UNKNOWN = "unknown"
"""A request that is not served. It takes its turn, since the requests after it wait for that."""
SAVE_SECONDS, SAVE_REQUESTS = 30.0, 64
"""A state is saved after so much work, or so many requests, that a kill would let be done again."""
KEPT_ANSWERS = 256
"""So many of the newest answers are kept, and so many requests of a model may wait."""
KEPT_BYTES = 64 * 2**20
"""So large may all but the newest answer be together: each state holds them."""
T = TypeVar("T")


class TrainingModel:
    """A model in memory, as the policy ``name`` of the base. Raises InputError: the base has none of its
    layers, or its files belong to another base or are damaged."""

    def __init__(
        self, files: ModelFiles, store: Store, policy: PolicyModel, base_name: str, name: str
    ) -> None:
        record = files.record()
        self.files = files
        self.store = store
        self.policy = policy
        self.base_name = base_name
        self.name = name
        if differing_files(record.base, policy.base):
            problem = f"{files.model_id} was trained on another base model than {base_name}"
            raise InputError("model_id", problem, "Serve that model, or create a new one.")
        policy.add_policy(name, lora_of(record), record.seed)
        try:
            self.learner = TokenLearner(policy, name)
            saved = files.saved() or ModelState(record.first - 1, {})
            self.applied = saved.applied
            self.answers = saved.answers
            directory = files.state()
            if directory is not None:
                self.learner.load_tensors(read_tensors(directory / LEARNER_FILE))
        except BaseException:
            policy.drop_policy(name)
            raise
        self._seconds, self._unsaved = 0.0, 0

    def close(self) -> None:
        """Save the state, and free the memory."""
        if self._unsaved:
            self.save()
        self.policy.drop_policy(self.name)

    async def take(self, seq_id: int, kind: str, body: bytes) -> None:
        """Take a request, the one after ``applied``, and keep its answer."""
        started = time.monotonic()
        must_save = kind in (SAVE, LOAD)
        try:
            answer = await self._answer(seq_id, kind, body)
        except (InputError, ApiError, SparringError, ValidationError) as error:
            answer = KeptAnswer.failure(_problem(error), of_user=True)
        except Exception as error:  # noqa: BLE001 (the client is told, and other models go on)
            answer, must_save = KeptAnswer.failure(reason_of(error), of_user=False), True
        self.keep(seq_id, answer)
        self._seconds += time.monotonic() - started
        if must_save or self._seconds >= SAVE_SECONDS or self._unsaved >= SAVE_REQUESTS:
            self.save()

    def keep(self, seq_id: int, answer: KeptAnswer) -> None:
        """Keep the answer to the newest request, and as many before it as there is room for."""
        self.applied = seq_id
        self.answers[seq_id] = answer
        self._unsaved += 1
        size = 0
        for number in sorted(self.answers.keys() - {seq_id}, reverse=True):
            size += len(self.answers[number].body)
            if number <= seq_id - KEPT_ANSWERS or size > KEPT_BYTES:
                del self.answers[number]

    def save(self) -> None:
        """Save the state."""
        scratch = self.files.scratch()
        write_tensors(scratch / LEARNER_FILE, self.learner.tensors())
        self.files.save(ModelState(self.applied, self.answers), scratch)
        self._seconds, self._unsaved = 0.0, 0

    async def _answer(self, seq_id: int, kind: str, body: bytes) -> KeptAnswer:
        match kind:
            case "forward_backward":
                return await self._gradients(GradientRequest.read(body))
            case "optim_step":
                norm = self.learner.step(OptimStep.model_validate_json(body).adam_params.step())
                return KeptAnswer.json(metrics={"grad_norm": norm}, type=OPTIM_STEP)
            case "save_weights":
                return self._save_weights(seq_id, SaveWeights.model_validate_json(body))
            case "save_weights_for_sampler":
                return self._save_for_sampler(seq_id, SaveForSampler.model_validate_json(body))
            case "unknown":
                problem = f"{body.decode()}: this server has no such request"
                raise ApiError(404, f"{problem}. docs/howto-serve.md says what it has")
            case _:
                return self._load(LoadWeights.model_validate_json(body))

    async def _gradients(self, request: GradientRequest) -> KeptAnswer:
        loss = RequestedLoss.of(request.loss_fn, request.settings)
        samples = request.samples(self.policy.vocabulary_size, self.policy.context_length)
        loss.check_inputs(set(samples[0].inputs))
        work = self.learner.run(samples, loss, backward=not request.forward_only)
        return KeptAnswer(gradient_answer(*await _in_turns(work)), is_protobuf=True)

    def _save_weights(self, seq_id: int, request: SaveWeights) -> KeptAnswer:
        weights = SavedWeights(self.files.model_id, WEIGHTS, request.path or f"{seq_id:09d}")
        self._write(weights, seq_id, overwrite=request.overwrite, trainable=True)
        return KeptAnswer.json(path=weights.path, type=SAVE)

    def _save_for_sampler(self, seq_id: int, request: SaveForSampler) -> KeptAnswer:
        if (request.path is None) == (request.sampling_session_seq_id is None):
            raise ApiError(400, "path: give it, or sampling_session_seq_id")
        number = request.sampling_session_seq_id
        name = request.path if number is None else unnamed(number)
        weights = SavedWeights(self.files.model_id, SAMPLER_WEIGHTS, name or "")
        self._write(weights, seq_id, overwrite=False, trainable=False)
        if number is None:
            return KeptAnswer.json(path=weights.path, type=SAVE_FOR_SAMPLER)
        sampler = sampler_id(self.files.model_id.partition(":")[0], number)
        self.store.add_sampler(sampler, SamplerRecord(weights.path))
        self.store.drop_old_samplers(self.files)
        return KeptAnswer.json(sampling_session_id=sampler, type=SAVE_FOR_SAMPLER)

    def _load(self, request: LoadWeights) -> KeptAnswer:
        weights = SavedWeights.at(request.path)
        directory = self.store.weights(weights)
        if weights.kind != WEIGHTS:
            raise ApiError(400, f"path: {weights.path} is for sampling. Use one that save_weights returned")
        check_files(directory)
        check_base(directory, self.policy.base)
        self.learner.load_tensors(read_tensors(directory / LEARNER_FILE), optimizer=request.optimizer)
        return KeptAnswer.json(path=weights.path, model_id=self.files.model_id, type=LOAD)

    def _write(self, weights: SavedWeights, seq_id: int, *, overwrite: bool, trainable: bool) -> None:
        """Write weights, unless this request has written them before a kill. Raises ApiError: the name is
        taken."""
        directory = self.files.weights(weights.kind, weights.name)
        by = saved_by(directory)
        if by == seq_id:
            return
        if by is not None and not overwrite:
            raise ApiError(409, f"path: there are weights {weights.name} already. Choose another name")
        scratch = scratch_for(directory)
        write_adapter(scratch, self.policy, self.base_name, self.name)
        if trainable:
            write_tensors(scratch / LEARNER_FILE, self.learner.tensors())
        (scratch / STATE_FILE).write_bytes(msgspec.json.encode(SavedBy(seq_id)))
        seal(scratch, self.policy.base)
        put_in_place(scratch, directory)


def lora_of(record: ModelRecord) -> LoraSettings:
    """Return the shape of a model's adapter."""
    return LoraSettings(record.rank, record.alpha, record.layers)


async def _in_turns(work: Generator[None, None, T]) -> T:
    """Do work, and let the engine and the server go on after each part of it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def _problem(error: Exception) -> str:
    return first_in_short(error) if isinstance(error, ValidationError) else str(error)
