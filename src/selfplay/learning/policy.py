"""PolicyModel: a frozen base model with LoRA adapters, run over token trees.

One instance holds the base weights once. The learner trains its adapter; the embedded engine plays with it
and with frozen ones. Both call ``hidden_states`` and bring their own attention: which tokens a token sees is
the caller's business, everything else is the model's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from selfplay.core import InputError, Messages

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""(layer, query_HTd, key_GTd, value_GTd, scale) -> output_THd, with G key-value heads shared by H heads."""

ATTENTION_NAME = "selfplay_tree"
TRAINED = "default"
AVERAGE = "average"
BASE = "base"
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class LoraSettings:
    """LoRA shape. Dropout is refused: tree training shares a token between samples, dropout would not."""

    lora_rank: int = 16
    lora_alpha: float = 32.0
    target_modules: list[str] = field(default_factory=lambda: list(ALL_LINEAR))


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
        seed: of the adapter's initial weights.

    Raises:
        InputError: the model cannot be loaded, or the adapter's target modules do not exist in it.
    """

    def __init__(
        self,
        model_name: str,
        lora: LoraSettings,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.model_name = model_name
        self.lora = lora
        self.device = torch.device(device)
        base = _load_base(model_name, dtype)
        self.tokenizer = _load_tokenizer(model_name)
        config = LoraConfig(
            r=lora.lora_rank,
            lora_alpha=int(lora.lora_alpha),
            lora_dropout=0.0,
            target_modules=list(lora.target_modules),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self.model = get_peft_model(base, config, adapter_name=TRAINED)
            except ValueError as error:
                raise InputError(
                    "lora.target_modules", str(error), "Name linear layers of this model."
                ) from error
        self.model.to(self.device).eval()
        self._causal_lm = self.model.get_base_model()
        self._active = TRAINED
        self.stop_token_ids = _stop_token_ids(self._causal_lm, self.tokenizer)
        self.context_length = int(getattr(self._causal_lm.config, "max_position_embeddings", 2048))

    @property
    def dtype(self) -> torch.dtype:
        """Of the base model's weights, and so of queries, keys and values."""
        dtype: torch.dtype = self._causal_lm.dtype
        return dtype

    @property
    def num_layers(self) -> int:
        """How many attention layers there are."""
        return int(self._causal_lm.config.num_hidden_layers)

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

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV in float32."""
        logits_NV: Tensor = self._causal_lm.lm_head(hidden_ND)
        return logits_NV.float()

    def adapter_parameters(self, name: str = TRAINED) -> list[torch.nn.Parameter]:
        """An adapter's weights, in the same order for every adapter."""
        return [p for key, p in self.model.named_parameters() if f".{name}." in key]

    @contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Run the body with adapter ``name`` active (``base``: with none)."""
        if name == BASE:
            with self.model.disable_adapter():
                yield
            return
        if name != self._active:
            self.model.set_adapter(name)
            self._active = name
        yield

    def adapter_state(self, name: str = TRAINED) -> dict[str, Tensor]:
        """A copy of an adapter's weights under PEFT's names."""
        state = get_peft_model_state_dict(self.model, adapter_name=name)
        return {key: value.detach().clone().cpu() for key, value in state.items()}

    def load_adapter_state(self, state: dict[str, Tensor], name: str = TRAINED) -> None:
        """Write weights into adapter ``name``, which is created frozen if it is new.

        Raises:
            InputError: names or shapes are not those of this model's adapter.
        """
        own = get_peft_model_state_dict(self.model, adapter_name=TRAINED)
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in state.items()}:
            raise InputError(
                "adapter",
                "its weights do not fit this base model and LoRA shape",
                "Give the adapter's own base.",
            )
        if name not in self.model.peft_config:
            self.model.add_adapter(name, self.model.peft_config[TRAINED])
            self.model.to(self.device)
            self.model.set_adapter(self._active)
        set_peft_model_state_dict(self.model, state, adapter_name=name)

    def drop_adapter(self, name: str) -> None:
        """Forget a frozen adapter."""
        if self._active == name:
            self.model.set_adapter(TRAINED)
            self._active = TRAINED
        self.model.delete_adapter(name)

    def render(self, messages: Messages) -> list[int]:
        """Token ids of a chat prompt. One message of role ``text`` is taken verbatim."""
        if len(messages) == 1 and messages[0]["role"] == "text":
            return list(self.tokenizer(messages[0]["content"]).input_ids)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, with the stop token that ends it."""
        return [*self.tokenizer(text, add_special_tokens=False).input_ids, self.stop_token_ids[0]]


def _load_base(model_name: str, dtype: torch.dtype) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(model_name)
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            model_name, config=config, dtype=dtype, attn_implementation=ATTENTION_NAME
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            "model", f"{model_name} cannot be loaded ({reason})", "Check the name or path."
        ) from error
    return model


def _load_tokenizer(model_name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model_name)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            "model", f"{model_name} has no usable tokenizer", "Add its tokenizer files."
        ) from error


def _stop_token_ids(model: torch.nn.Module, tokenizer: Any) -> list[int]:
    """Stop tokens: the tokenizer's end of sequence first, then the generation configuration's."""
    generation_config = getattr(model, "generation_config", None)
    configured = getattr(generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    ids = [tokenizer.eos_token_id, *listed]
    return list(dict.fromkeys(int(i) for i in ids if i is not None))
