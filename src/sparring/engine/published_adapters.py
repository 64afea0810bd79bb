"""PublishedAdapters: adapters from directories, under the names by which an embedded engine serves them.

An adapter is published once it has proved that it answers: its file has the hash that the learner wrote, it
was trained on this base model, and the engine gives the canary the learner's log-probability with it.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from sparring.core import InputError, SparringError
from sparring.core.adapters import BASE
from sparring.core.errors import first_line
from sparring.core.manifest import Expectation
from sparring.engine.adapters import (
    Delivery,
    DeliveryError,
    check_delivery,
    check_hash,
    file_hash,
    tolerance_of,
)
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.adapter_weights import Shapes, misfit, read_shapes, read_weights
from sparring.learn.checkpoints import canary_tokens
from sparring.learn.model_files import check_base
from sparring.learn.policy import LoraSettings


@dataclass(frozen=True)
class _Header:
    """What is known of an adapter before its weights are read; ``said`` is what the learner wrote of it."""

    lora: LoraSettings
    shapes: Shapes
    sha256: str
    said: Expectation | None

    @classmethod
    def read(cls, directory: Path, name: str, version: int | None, proof: bool) -> Self:
        """Read an adapter that is to be published as a version of ``name``; ``None`` or 0 are any version."""
        said, sha256 = Expectation.read(directory), ""
        if said is not None or proof:
            sha256 = file_hash(directory)
        if said is not None:
            check_hash(name, version or said.version, directory, sha256, said.sha256)
            if version and said.version != version:
                problem = f"the files in {directory} are version {said.version}"
                raise DeliveryError(name, version, problem)
        return cls(LoraSettings.read(directory), read_shapes(directory), sha256, said)


class PublishedAdapters:
    """Adapters of any rank, scale and target modules. ``alike`` of the model's own shape get memory now: PEFT
    needs much longer to add an adapter than to load weights into one that exists."""

    def __init__(self, engine: EmbeddedEngine, alike: int = 0) -> None:
        self.engine = engine
        self.policy = engine.model
        self._newest = 0
        self._made = 0
        self._name_in_model: dict[str, str] = {}
        self._shape = LoraSettings.of(self.policy.adapter_config(self.policy.policies[0]))
        self._free: list[str] = []
        untrained = self.policy.adapter_state(self.policy.policies[0]) if alike else {}
        for _ in range(alike):
            self._free.append(self._new_name())
            self.policy.load_adapter_state(untrained, self._free[-1])
        self._alike = frozenset(self._free)

    def names(self) -> list[str]:
        """Return the names of all models that the engine serves, the base model's included."""
        return self.engine.names()

    def publish(self, name: str, directory: Path, version: int | None = None) -> Delivery:
        """Serve an adapter as ``name``, in place of one of that name, as ``version`` (one more than the
        newest by default). Raises InputError: it does not fit the model; DeliveryError: it is not what its
        ``delivery.json`` says.
        """
        header = _Header.read(directory, name, version, proof=False)
        self._check_fits(header)
        check_base(directory, self.policy.base)
        return self._publish(name, header, read_weights(directory), version)

    async def publish_in_background(
        self,
        name: str,
        directory: Path,
        version: int | None = None,
        *,
        proof: bool = False,
        before: Delivery | None = None,
    ) -> Delivery:
        """Publish an adapter whose files are read in a thread. ``proof``: its answers must be the learner's,
        whatever the base model answered when it was described; ``before`` is the version that it follows, if
        that has another name.
        """
        header = await asyncio.to_thread(_Header.read, directory, name, version, proof)
        self._check_fits(header)
        weights = await asyncio.to_thread(read_weights, directory)
        check_base(directory, self.policy.base)
        if {key: tuple(value.shape) for key, value in weights.items()} != header.shapes:
            raise InputError("adapter", f"{directory} was changed while it was loaded", "Load it again.")
        return self._publish(name, header, weights, version, proof=proof, before=before)

    def withdraw(self, name: str) -> None:
        """Stop serving adapter ``name`` and free its memory. Pending requests for it fail."""
        self.engine.withdraw(name)
        self._give_back(self._name_in_model.pop(name))

    def _publish(
        self,
        name: str,
        header: _Header,
        weights: dict[str, Tensor],
        version: int | None,
        *,
        proof: bool = False,
        before: Delivery | None = None,
    ) -> Delivery:
        said = header.said
        version = self._newest + 1 if version is None else version
        adapter = self._in_model(name, header.lora, weights)
        try:
            delivery = Delivery(name, version, header.sha256, (), said.canary if said else None)
            as_described = said is not None and abs(self._base.mean - said.base) <= self._tolerance
            if proof or as_described:
                delivery = replace(delivery, canary=self._canary_of(adapter))
                check_delivery(
                    delivery,
                    said,
                    before=before,
                    base=self._base,
                    changes_nothing=_changes_nothing(weights),
                    tolerance=self._tolerance,
                )
        except BaseException:
            self._give_back(adapter)
            raise
        replaced = self._name_in_model.get(name)
        self._name_in_model[name] = adapter
        self._newest = max(self._newest, version)
        self.engine.publish(name, adapter, version)
        if replaced is not None:
            self._give_back(replaced)
        return delivery

    @cached_property
    def _base(self) -> Delivery:
        return Delivery(BASE, 0, "", self._canary_of(BASE))

    @property
    def _tolerance(self) -> float:
        return tolerance_of(self.policy.dtype)

    def _canary_of(self, adapter: str) -> tuple[float, ...]:
        return tuple(self.engine.logprobs(canary_tokens(self.policy), adapter=adapter))

    def _check_fits(self, header: _Header) -> None:
        """Compare an adapter's shapes with the model's, before memory of its size is allocated. Raises
        InputError."""
        rank, shapes = header.lora.lora_rank, header.shapes
        largest = max((shape[0] for name, shape in shapes.items() if "lora_A" in name), default=0)
        if rank > largest:
            problem = f"its weights do not fit its rank, {rank}: the largest has {largest}"
            raise InputError("adapter", problem, "Correct r.")
        wrong = misfit(shapes, self._shapes_of(header.lora), self.policy.layers())
        if wrong is not None:
            raise wrong

    def _shapes_of(self, lora: LoraSettings) -> Shapes:
        """Return the shapes of an adapter in this model, which PEFT makes without memory. Raises InputError:
        it cannot."""
        if self._is_alike(lora):
            return self.policy.adapter_shapes(self.policy.policies[0])
        name = "shapes-only"
        try:
            with torch.device("meta"):  # tensors there have a shape and no memory
                self.policy.add_adapter(name, lora.for_peft())
            return self.policy.adapter_shapes(name)
        except ValueError as error:
            problem, fix = first_line(error), "Give the adapter's own base model."
            if lora.more.get("target_parameters"):
                problem = f"target_parameters are {lora.more['target_parameters']} ({problem})"
                fix = "Merge it into its base model with PEFT, and use the merged model."
            raise InputError("adapter", f"it does not fit: {problem}", fix) from error
        finally:
            if name in self.policy.model.peft_config:
                self.policy.drop_adapter(name)

    def _is_alike(self, lora: LoraSettings) -> bool:
        same = replace(lora, target_modules=self._shape.target_modules)
        return same == self._shape and set(lora.target_modules) == set(self._shape.target_modules)

    def _in_model(self, name: str, lora: LoraSettings, weights: dict[str, Tensor]) -> str:
        alike = self._is_alike(lora)
        adapter = self._free.pop() if alike and self._free else self._new_name()
        try:
            if alike:
                self.policy.load_adapter_state(weights, adapter)
            else:
                self.policy.add_adapter(adapter, lora.for_peft())
                self.policy.model.to(self.policy.device)
                names = self.policy.adapter_shapes(adapter)
                with torch.no_grad():
                    for key, parameter in zip(names, self.policy.adapter_parameters(adapter), strict=True):
                        parameter.copy_(weights[key])
        except BaseException as error:
            self._give_back(adapter)
            if isinstance(error, torch.OutOfMemoryError):
                raise SparringError(f"there is no memory for the adapter {name}") from error
            raise
        return adapter

    def _new_name(self) -> str:
        self._made += 1
        return f"published-{self._made}"

    def _give_back(self, adapter: str) -> None:
        if adapter in self._alike:
            self._free.append(adapter)
        elif adapter in self.policy.model.peft_config:
            self.policy.drop_adapter(adapter)


def _changes_nothing(weights: dict[str, Tensor]) -> bool:
    return not any("lora_B" in name and bool(weight.any()) for name, weight in weights.items())
