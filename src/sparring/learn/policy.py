"""PolicyModel: a frozen base model with LoRA adapters, run over token trees.

A policy is an adapter that a learner trains; the embedded engine plays with policies and with frozen
adapters. Both call ``hidden_states`` with an attention of their own: the caller decides which tokens a token
sees.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from sparring.core import InputError, Messages, derive_seed
from sparring.core.adapter_config import EVERY_LINEAR_LAYER, FIELDS, SHAPE, more_shape_of, read_adapter_config
from sparring.core.adapters import (
    ALL_LINEAR,
    AVERAGE,
    BASE,
    LORA_ALPHA,
    LORA_RANK,
    NAMES_OF_POLICIES,
    TRAINED,
    Quantization,
    average_of,
    is_policy_name,
)
from sparring.core.chat_template import TemplateOption
from sparring.core.chat_tokens import ChatTokens, configured_stops
from sparring.core.errors import first_line
from sparring.learn import base_model
from sparring.learn.adapter_weights import layer_of, misfit, read_shapes
from sparring.learn.base_model import check_targets, left_out_by_lora, linear_kinds, name_output_layer
from sparring.learn.data_parallel import ShardedBase
from sparring.learn.flex_attention import TreeAttention
from sparring.learn.fused_lora import AdapterRows, FusedLinear
from sparring.learn.load_check import check_tree
from sparring.learn.model_attention import Attend
from sparring.learn.model_files import fingerprint, load_tokenizer
from sparring.learn.tree_attention import RunAttention

__all__ = ["ALL_LINEAR", "AVERAGE", "BASE", "TRAINED", "LoraSettings", "PolicyModel", "average_of"]

KNOWN_WARNINGS = (
    # Of an adapter whose name is a part of "lora_", such as "a"; PEFT's search by name is not used here.
    "Adapter name .* should not be contained in the prefix",
    # Of ranks that PEFT sets for experts itself.
    "The following (rank|alpha)_pattern keys",
    # Of the layers of GPT-2, for which PEFT corrects it.
    "fan_in_fan_out is set to",
)
"""PEFT's warnings that say nothing to a user."""


@dataclass(frozen=True)
class LoraSettings:
    """The shape of a LoRA adapter, without dropout, with which samples could not share tokens in a tree.

    ``more`` are further fields of PEFT's LoraConfig, of ``adapter_config.MORE_SHAPE``. With ``given``, an
    adapter has this shape already, so layers which the model does not have may be among ``target_modules``.
    """

    lora_rank: int = LORA_RANK
    lora_alpha: float = LORA_ALPHA
    target_modules: list[str] = field(default_factory=lambda: list(ALL_LINEAR))
    more: dict[str, Any] = field(default_factory=dict)
    given: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the shape of an adapter with this configuration, which was checked."""
        rank, alpha, modules = (config[name] for name in SHAPE)
        return cls(rank, alpha, modules, more_shape_of(config), given=True)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Return the shape of the adapter in a directory; ``all-linear`` are the layers that have weights."""
        config = read_adapter_config(directory)
        if config["target_modules"] == EVERY_LINEAR_LAYER:
            config["target_modules"] = sorted({layer_of(name) for name in read_shapes(directory)})
        return cls.of(config)

    @property
    def may_be_absent(self) -> bool:
        """Whether it is enough that some of ``target_modules`` are layers of the model."""
        return self.given or set(self.target_modules) == set(ALL_LINEAR)

    def for_peft(self) -> LoraConfig:
        """Return the configuration that PEFT takes."""
        return LoraConfig(
            r=self.lora_rank,
            lora_alpha=self.lora_alpha,
            lora_dropout=0.0,
            target_modules=list(self.target_modules),
            task_type="CAUSAL_LM",
            **self.more,
        )


class PolicyModel:
    """A base model and its adapters, which are always float32; see the module.

    With ``shard_base``, the base's linear layers are in parts, one with each learner of a group. The initial
    weights of a policy do not depend on the other policies. ``base`` is the base model's fingerprint,
    ``context_length`` the maximum number of tokens of prompt and answer, ``notes`` are lines that the user
    should know, ``template_options`` those of the chat template. ``mixes_adapters`` is whether one forward
    pass may use several adapters: experts reorder tokens. ``tree_attention`` is how learners compute
    attention on a GPU; ``None`` until the first one has measured it.

    Raises:
        InputError: the model cannot be loaded or run over a tree, or a target module or a name is wrong.
    """

    def __init__(
        self,
        model_name: str,
        lora: LoraSettings,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        quantization: Quantization = "none",
        shard_base: bool = False,
        seed: int = 0,
        policies: Sequence[str] = (TRAINED,),
        template_options: Mapping[str, TemplateOption] | None = None,
    ) -> None:
        _check_policy_names(policies)
        self.model_name = model_name
        self.lora = lora
        self.quantization = quantization
        self.policies = tuple(policies)
        self.device = torch.device(device)
        place = torch.device("cpu") if shard_base else self.device
        base = base_model.load_decoder(model_name, dtype, place, quantization).eval()
        self.context_length, limited = check_tree(model_name, base)
        kinds = linear_kinds(base)
        check_targets(kinds, [*lora.target_modules, *lora.more.get("target_parameters", ())])
        self.tokenizer = load_tokenizer(model_name)
        self.base = fingerprint(model_name)  # once both are loaded, they are in Hugging Face's cache
        config = lora.for_peft()
        config._register_custom_module({torch.nn.Linear: FusedLinear})  # PEFT's way, without a public name
        first, *others = self.policies
        with _drawing_from(_initial_seed(seed, first)):
            self.model = _add_lora(base, config, first)
        linear = [layer.base_layer for layer in self.model.modules() if isinstance(layer, FusedLinear)]
        self.sharded = ShardedBase(linear, self.device) if shard_base else None
        self.model.to(self.device).eval()
        if self.sharded is None:
            for layer in linear:
                base_model.keep_by_inputs(layer)
        if len(self.adapter_parameters(first)) != sum(p.requires_grad for p in self.model.parameters()):
            raise InputError(
                "lora.target_modules",
                f"{', '.join(lora.target_modules)} are not all linear layers",
                "Name only linear layers.",
            )
        left_out = left_out_by_lora(self.model, first, kinds, partly=lora.may_be_absent)
        self._causal_lm = self.model.get_base_model()
        self._layers = [m for m in self._causal_lm.modules() if isinstance(m, GradientCheckpointingLayer)]
        self._prepare_recomputing()
        self._find_adapted_layers()
        self._active = first
        for name in others:
            self._add_adapter(name, _initial_seed(seed, name))
        generation = self._causal_lm.generation_config
        stops = configured_stops(generation.eos_token_id if generation else None, model_name)
        self.template_options = dict(template_options or {})
        self.tokens = ChatTokens(self.tokenizer, model_name, stops, self.template_options)
        self.stop_token_ids = self.tokens.stop_token_ids
        if limited:
            limited = f"prompt and answer are limited to {self.context_length} tokens: {limited}"
        self.notes = [line for line in (left_out, limited, *self.tokens.notes()) if line]
        self.tree_attention: TreeAttention | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the base model's weights, and so of queries, keys and values."""
        dtype: torch.dtype = self._causal_lm.dtype
        return dtype

    @property
    def hidden_size(self) -> int:
        """D, the size of a hidden state."""
        size: int = self._causal_lm.config.get_text_config().hidden_size
        return size

    @property
    def vocabulary_size(self) -> int:
        """V, the number of logits; it may be larger than the tokenizer's number of tokens."""
        size: int = self._causal_lm.config.get_text_config().vocab_size
        return size

    def use_runs(self, reason: str) -> None:
        """Let learners that start from now on compute attention in runs, and note why."""
        self.tree_attention = RunAttention
        line = f"attention while learning is computed in runs, not by flex_attention: {reason}"
        if line not in self.notes:
            self.notes.append(line)

    def hidden_states(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the model over ``tokens_T`` with the active adapter; return hidden_TD after the last norm."""
        return base_model.hidden_states(self._causal_lm, tokens_T, positions_T, attend)

    @contextmanager
    def recomputing(self, enabled: bool, afterwards: bool = False) -> Iterator[None]:
        """Run the body so that layers keep only their input and compute the rest again for the gradient.

        Layers recompute only in training mode; that of their submodules does not change.
        """
        for layer in self._layers:
            layer.training = enabled
        try:
            yield
        finally:
            for layer in self._layers:
                layer.training = afterwards

    def _prepare_recomputing(self) -> None:
        """Enable the recomputation of layers if this family has it, without dropout or random numbers."""
        if not self._causal_lm.supports_gradient_checkpointing:
            return

        def contexts() -> tuple[Any, Any]:  # a layer runs in the mode of inference, as it runs again
            return self.recomputing(False, afterwards=True), nullcontext()

        with warnings.catch_warnings():
            # transformers still uses its old name.
            warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
            self._causal_lm.gradient_checkpointing_enable(
                {"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts}
            )

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV in float32."""
        return base_model.logits(self._causal_lm, hidden_ND)

    def adapter_parameters(self, name: str = TRAINED) -> list[torch.nn.Parameter]:
        """Return an adapter's weights, in the same order for all adapters; none if it does not exist."""
        return list(self._weights(name).values())

    def adapter_factor(self, factor: Literal["A", "B"], name: str = TRAINED) -> list[torch.nn.Parameter]:
        """Return one factor of each layer of an adapter, which adds B A x to what the layer computes."""
        return [one for key, one in self._weights(name).items() if key.endswith(f".lora_{factor}.weight")]

    @contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Run the body with adapter ``name`` active; with ``base``, none is.

        It stays active until another is requested, because a switch takes milliseconds. Only the active
        adapter has gradients, and only if it is a policy.
        """
        if name != self._active:
            names = [] if name == BASE else [name]
            self.model.base_model.set_adapter(names, inference_mode=name not in self.policies)
            self._active = name
        yield

    @contextmanager
    def adapters(self, parts: Sequence[tuple[str, int]]) -> Iterator[None]:
        """Run the body, without gradients, with adapters (or ``base``) for so many tokens of each pass."""
        rows = self._rows.of(parts)
        for layer in self._fused:
            layer.rows = rows
        try:
            yield
        finally:
            for layer in self._fused:
                layer.rows = None

    def _find_adapted_layers(self) -> None:
        adapted = {name: m for name, m in self.model.named_modules() if isinstance(m, BaseTunerLayer)}
        self._fused = [one for one in adapted.values() if isinstance(one, FusedLinear)]
        reorders = any("expert" in name for name in adapted)
        self.mixes_adapters = len(self._fused) == len(adapted) and not reorders
        self._rows = AdapterRows(self._fused, self.device)

    def adapter_config(self, name: str = TRAINED) -> dict[str, Any]:
        """Return an adapter's configuration as PEFT gave it, JSON-able, without unknown fields at their
        defaults.
        """
        plain = LoraConfig().to_dict()
        full = self.model.peft_config[name].to_dict()
        kept = {key: value for key, value in full.items() if key in FIELDS or value != plain.get(key)}
        listed = {key: sorted(value) if isinstance(value, set) else value for key, value in kept.items()}
        config: dict[str, Any] = json.loads(json.dumps(listed))
        return config

    def layers(self) -> set[str]:
        """Return the names of the base model's layers."""
        return {name for name, _ in self._causal_lm.named_modules()}

    def adapter_state(self, name: str = TRAINED) -> dict[str, Tensor]:
        """Return a copy of an adapter's weights under PEFT's names."""
        return {key: value.detach().clone().cpu() for key, value in self._weights(name).items()}

    def adapter_shapes(self, name: str = TRAINED) -> dict[str, tuple[int, ...]]:
        """Return an adapter's shapes under PEFT's names, in the order of :meth:`adapter_parameters`."""
        return {key: tuple(value.shape) for key, value in self._weights(name).items()}

    def load_adapter_state(self, state: dict[str, Tensor], name: str = TRAINED) -> None:
        """Write weights into adapter ``name``; a new one is created, and is frozen.

        Raises InputError if names or shapes are not those of the adapter; a new one's are those of the first
        policy.
        """
        found = {key: tuple(value.shape) for key, value in state.items()}
        is_new = name not in self.model.peft_config
        wrong = misfit(found, self.adapter_shapes(self.policies[0] if is_new else name), self.layers())
        if wrong is not None:
            raise wrong
        if is_new:
            self._add_adapter(name, seed=0)
        with torch.no_grad():
            for key, weight in self._weights(name).items():
                weight.copy_(state[key])

    def _weights(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Return an adapter's weights under PEFT's names, which do not contain the adapter's name.

        PEFT's own function finds an adapter by a part of its parameters' names, which may be ambiguous.
        """
        ending = f".{name}.weight"
        return {
            key.removesuffix(ending) + ".weight": parameter
            for key, parameter in self.model.named_parameters()
            if key.endswith((f".lora_A{ending}", f".lora_B{ending}"))
        }

    def _add_adapter(self, name: str, seed: int) -> None:
        with self.adapter(self.policies[0]), _drawing_from(seed):
            self.add_adapter(name, self.model.peft_config[self.policies[0]])
            self.model.to(self.device)

    def add_adapter(self, name: str, config: LoraConfig) -> None:
        """Add an adapter of any shape, with initial weights; the first policy is active afterwards.

        Raises InputError if it changes the output layer, ValueError if PEFT finds no layer for it.
        """
        targets = config.target_modules
        if not isinstance(targets, str) and name_output_layer(self._causal_lm, targets or ()):
            raise InputError(
                "adapter", "it changes the output layer", "Train the linear layers of the blocks only."
            )
        with self.adapter(self.policies[0]), warnings.catch_warnings():
            for known in KNOWN_WARNINGS:
                warnings.filterwarnings("ignore", known)
            self.model.add_adapter(name, config)
        self._find_adapted_layers()

    def add_policy(self, name: str, lora: LoraSettings, seed: int) -> None:
        """Add a policy with a shape of its own, whose initial weights depend on ``seed`` only.

        Raises InputError if the name is taken or impossible, or the model has none of the layers.
        """
        _check_policy_names([*self.policies, name])
        with _drawing_from(seed):
            try:
                self.add_adapter(name, lora.for_peft())
            except ValueError as error:
                raise InputError(
                    "lora.target_modules", first_line(error), "Name linear layers of this model."
                ) from error
        self.model.to(self.device)
        self.policies = (*self.policies, name)

    def drop_policy(self, name: str) -> None:
        """Delete a policy other than the first."""
        self.policies = tuple(one for one in self.policies if one != name)
        self.drop_adapter(name)

    def drop_adapter(self, name: str) -> None:
        """Delete a frozen adapter."""
        with self.adapter(self.policies[0]):
            self.model.delete_adapter(name)
        self._find_adapted_layers()

    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a chat prompt; see :class:`sparring.core.chat_tokens.ChatTokens`."""
        return self.tokens.render(messages)

    def encode_answer(self, prompt: Messages, text: str) -> list[int]:
        """Return the token ids of an answer to ``prompt`` with the token that ends it."""
        return self.tokens.encode_answer(prompt, text)

    def spelled_control_tokens(self, text: str) -> int:
        """Return the number of control tokens that an answer spells with ordinary tokens."""
        return self.tokens.spelled_control_tokens(text)


def _check_policy_names(policies: Sequence[str]) -> None:
    reserved = dir(torch.nn.ModuleDict())  # PEFT stores weights in a ModuleDict by the adapter's name
    for name in policies:
        if not is_policy_name(name) or name in reserved:
            fix = f"{NAMES_OF_POLICIES}, and no method of a torch module"
            raise InputError("policies", f"{name!r} cannot name a policy", fix)
    if not policies or len({name.lower() for name in policies}) < len(policies):
        raise InputError(
            "policies", f"{list(policies)} are not different names", "Give each policy its own name."
        )


def _initial_seed(seed: int, policy: str) -> int:
    return seed if policy == TRAINED else derive_seed(seed, policy)


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _add_lora(base: PreTrainedModel, config: LoraConfig, name: str) -> Any:
    with warnings.catch_warnings():
        # PEFT still uses its old name.
        warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
        for known in KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", known)
        try:
            model = get_peft_model(base, config, adapter_name=name)
        except ValueError as error:
            raise InputError(
                "lora.target_modules", first_line(error), "Name linear layers of this model."
            ) from error
    return model
