"""PolicyModel: a frozen base model with LoRA adapters, run over token trees.

One instance holds the base weights once. A policy is an adapter that a learner trains; the embedded engine
plays with policies and with frozen adapters. Both call ``hidden_states`` and bring their own attention: which
tokens a token sees is the caller's business, everything else is the model's.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jinja2 import TemplateError
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from selfplay.core import InputError, Messages, derive_seed

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""(layer, query_HTd, key_GTd, value_GTd, scale) -> output_THd, with G key-value heads shared by H heads."""

ATTENTION_NAME = "selfplay_tree"
TRAINED = "default"
"""The policy that is trained where none is named."""
AVERAGE = "average"
BASE = "base"
UNSUPPORTED_CONFIG = ("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling")
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
POLICY_NAME = re.compile(r"[A-Za-z0-9_-]+")
# PEFT warns of an adapter called "a", say, as a part of "lora_"; its search for weights is not used here.
PART_OF_PREFIX = "Adapter name .* should not be contained in the prefix"


@dataclass(frozen=True)
class LoraSettings:
    """LoRA shape. Dropout is refused: tree training shares a token between samples, dropout would not."""

    lora_rank: int = 16
    lora_alpha: float = 32.0
    target_modules: list[str] = field(default_factory=lambda: list(ALL_LINEAR))


def average_of(policy: str) -> str:
    """The name of the adapter that holds the running average of a policy's weights."""
    return AVERAGE if policy == TRAINED else f"{policy}-{AVERAGE}"


def _tree_attention(
    module: torch.nn.Module,
    query_1HTd: Tensor,
    key_1GTd: Tensor,
    value_1GTd: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attend: Attend,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls; it hands over to the ``attend`` given to the forward pass."""
    output_THd = attend(int(module.layer_idx), query_1HTd[0], key_1GTd[0], value_1GTd[0], scaling)  # type: ignore[arg-type]
    return output_THd.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _tree_attention)


class PolicyModel:
    """See the module.

    Args:
        model_name: a local directory or Hugging Face id (see ``model_files``).
        lora: the adapter's shape.
        dtype: of the frozen base. Adapter weights are float32 whatever it is.
        device: where everything lives.
        seed: of the initial weights. Those of one policy do not depend on which others there are.
        policies: names of the adapters that are trained, each made of letters, digits, "-" and "_".

    Raises:
        InputError: the model cannot be loaded, the adapter's target modules do not exist in it, or a policy
            cannot have its name.
    """

    def __init__(
        self,
        model_name: str,
        lora: LoraSettings,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
        policies: Sequence[str] = (TRAINED,),
    ) -> None:
        _check_policy_names(policies)
        self.model_name = model_name
        self.lora = lora
        self.policies = tuple(policies)
        self.device = torch.device(device)
        base = _load_base(model_name, dtype)
        self.tokenizer = _load_tokenizer(model_name)
        config = LoraConfig(
            r=lora.lora_rank,
            lora_alpha=lora.lora_alpha,
            lora_dropout=0.0,
            target_modules=list(lora.target_modules),
            task_type="CAUSAL_LM",
        )
        first, *others = self.policies
        with _drawing_from(_initial_seed(seed, first)):
            self.model = _add_lora(base, config, first)
        self.model.to(self.device).eval()
        if len(self.adapter_parameters(first)) != sum(p.requires_grad for p in self.model.parameters()):
            raise InputError(
                "lora.target_modules",
                f"{', '.join(lora.target_modules)} are not all linear layers",
                "Leave out the others.",
            )
        self._causal_lm = self.model.get_base_model()
        self._active = first
        for name in others:
            self._add_adapter(name, _initial_seed(seed, name))
        self.stop_token_ids = _stop_token_ids(self._causal_lm, self.tokenizer)
        self.context_length = int(self._causal_lm.config.max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        """Of the base model's weights, and so of queries, keys and values."""
        dtype: torch.dtype = self._causal_lm.dtype
        return dtype

    def hidden_states(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the model over ``tokens_T`` with the active adapter; returns hidden_TD after the last norm."""
        seen_by_nobody = torch.empty(1, 1, 1, 1, device=self.device)  # a 4-D mask is handed on untouched
        output = self._causal_lm.model(
            input_ids=tokens_T.unsqueeze(0),
            position_ids=positions_T.unsqueeze(0),
            attention_mask=seen_by_nobody,
            use_cache=False,
            attend=attend,
        )
        hidden_TD: Tensor = output.last_hidden_state[0]
        return hidden_TD

    @contextmanager
    def recomputing(self, enabled: bool) -> Iterator[None]:
        """Run the body so that layers keep their input only and compute the rest again for the gradient."""
        self.model.train(enabled)  # transformers recomputes in training mode only; nothing else depends on it
        try:
            yield
        finally:
            self.model.eval()

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV in float32."""
        logits_NV: Tensor = self._causal_lm.lm_head(hidden_ND)
        return logits_NV.float()

    def adapter_parameters(self, name: str = TRAINED) -> list[torch.nn.Parameter]:
        """An adapter's weights, in the same order for every adapter; none if there is no such adapter."""
        return list(self._weights(name).values())

    @contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Run the body with adapter ``name`` active (``base``: with none).

        It stays active until another is asked for: a switch costs milliseconds. The active adapter has
        gradients if it is a policy's, no other has.
        """
        if name != self._active:
            names = [] if name == BASE else [name]
            self.model.base_model.set_adapter(names, inference_mode=name not in self.policies)
            self._active = name
        yield

    def adapter_state(self, name: str = TRAINED) -> dict[str, Tensor]:
        """A copy of an adapter's weights under PEFT's names."""
        return {key: value.detach().clone().cpu() for key, value in self._weights(name).items()}

    def load_adapter_state(self, state: dict[str, Tensor], name: str = TRAINED) -> None:
        """Write weights into adapter ``name``, which is created frozen if it is new.

        Raises:
            InputError: names or shapes are not those of this model's adapters.
        """
        own = self._weights(self.policies[0])
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in state.items()}:
            raise InputError(
                "adapter",
                "its weights do not fit this base model and LoRA shape",
                "Give the adapter's own base.",
            )
        if name not in self.model.peft_config:
            self._add_adapter(name, seed=0)
        with torch.no_grad():
            for key, weight in self._weights(name).items():
                weight.copy_(state[key])

    def _weights(self, name: str) -> dict[str, torch.nn.Parameter]:
        """An adapter's weights under PEFT's names, which leave out the adapter's.

        PEFT's own function finds an adapter by a part of its parameters' names, which is ambiguous: a policy
        may be called ``model``.
        """
        ending = f".{name}.weight"
        return {
            key.removesuffix(ending) + ".weight": parameter
            for key, parameter in self.model.named_parameters()
            if key.endswith((f".lora_A{ending}", f".lora_B{ending}"))
        }

    def _add_adapter(self, name: str, seed: int) -> None:
        """Add an adapter whose initial weights ``seed`` decides; the first policy's is active afterwards."""
        with self.adapter(self.policies[0]), _drawing_from(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", PART_OF_PREFIX)
            self.model.add_adapter(name, self.model.peft_config[self.policies[0]])
            self.model.to(self.device)

    def drop_adapter(self, name: str) -> None:
        """Forget a frozen adapter."""
        with self.adapter(self.policies[0]):
            self.model.delete_adapter(name)

    def render(self, messages: Messages) -> list[int]:
        """Token ids of a chat prompt. One message of role ``text`` is taken verbatim.

        Raises:
            InputError: the model's tokenizer knows no chats, its chat template refuses these messages (a role
                that it does not know, say), or they hold what is no character.
        """
        if len(messages) == 1 and messages[0]["role"] == "text":
            return self._tokens_of(messages[0]["content"], add_special_tokens=True)
        if self.tokenizer.chat_template is None:
            raise InputError(
                "model",
                f"{self.model_name} has no chat template",
                "Use a model that can chat, or the prompt template default, which is plain text.",
            )
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InputError(
                "messages",
                f"the chat template of {self.model_name} refuses them ({_first_line(error)})",
                "Use roles, and an order of them, that it knows.",
            ) from error
        return self._tokens_of(text, add_special_tokens=False)

    def _tokens_of(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Half of a surrogate pair: Python's strings and JSON may hold one, no tokenizer reads it.
            problem = f"they hold {text[error.start]!r}, which is no character"
            raise InputError("messages", problem, "Send whole characters.") from error
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, with the stop token that ends it."""
        return [*self.tokenizer(text, add_special_tokens=False).input_ids, self.stop_token_ids[0]]


def _load_base(model_name: str, dtype: torch.dtype) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what its load report says is raised below, in one line
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            model_name,
            config=AutoConfig.from_pretrained(model_name, trust_remote_code=False),
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            "model", f"{model_name} cannot be loaded ({_first_line(error)})", "Check the name or path."
        ) from error
    absent = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
    if absent:
        raise InputError(
            "model",
            f"the weights of {model_name} do not fit its config.json: {len(absent)} are missing or "
            f"misshapen, {absent[0]} for one",
            "Get the model again.",
        )
    _check_architecture(model_name, model)
    return model  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _check_architecture(model_name: str, model: torch.nn.Module) -> None:
    """Refuse models that do more than ``hidden_states`` and ``logits``: they would run, but wrongly."""
    config: Any = model.config
    missing = [part for part in ("model", "lm_head") if not hasattr(model, part)]
    window = getattr(config, "sliding_window", None)
    extra = [key for key in UNSUPPORTED_CONFIG if getattr(config, key, None) not in (None, 1, 1.0)]
    if window is not None and window < config.max_position_embeddings:
        extra.append("sliding_window")
    if missing or extra:
        raise InputError(
            "model",
            f"{model_name} is not a plain decoder ({', '.join(missing + extra)})",
            "Use a Llama or Qwen3 model, say.",
        )


def _check_policy_names(policies: Sequence[str]) -> None:
    reserved = dir(torch.nn.ModuleDict())  # which holds an adapter's weights by the adapter's name
    for name in policies:
        if not POLICY_NAME.fullmatch(name) or name == BASE or name.endswith(AVERAGE) or name in reserved:
            raise InputError(
                "policies",
                f"{name!r} cannot name a policy",
                f'Use letters, digits, "-" and "_"; not "{BASE}", nothing that ends in "{AVERAGE}", and no '
                "method of a torch module.",
            )
    if not policies or len({name.lower() for name in policies}) < len(policies):
        raise InputError("policies", f"{list(policies)} are not different names", "Give each policy its own.")


def _initial_seed(seed: int, policy: str) -> int:
    return seed if policy == TRAINED else derive_seed(seed, policy)


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Run the body, which draws from torch's global generator, with a generator of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _add_lora(base: torch.nn.Module, config: LoraConfig, name: str) -> Any:
    """Add the first adapter, and let layers be recomputed when they are asked to."""
    with warnings.catch_warnings():
        # Both libraries still call this by its old name.
        warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
        warnings.filterwarnings("ignore", PART_OF_PREFIX)
        try:
            model = get_peft_model(base, config, adapter_name=name)
        except ValueError as error:
            raise InputError(
                "lora.target_modules", _first_line(error), "Name linear layers of this model."
            ) from error
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _load_tokenizer(model_name: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:
        raise InputError(
            "model", f"{model_name} has no usable tokenizer", "Add its tokenizer files."
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(
            "model", f"the tokenizer of {model_name} has no eos_token", "Answers must be able to end: set it."
        )
    return tokenizer


def _stop_token_ids(model: torch.nn.Module, tokenizer: Any) -> list[int]:
    """Stop tokens: the tokenizer's end of sequence first, then the generation configuration's."""
    generation_config = getattr(model, "generation_config", None)
    configured = getattr(generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    ids = [tokenizer.eos_token_id, *listed]
    return list(dict.fromkeys(int(i) for i in ids if i is not None))
