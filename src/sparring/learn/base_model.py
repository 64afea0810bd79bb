"""Load the base model with transformers, run it with an attention of our own, and find its linear layers."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils import logging as transformers_logging

from sparring.core import InputError
from sparring.core.adapters import Quantization
from sparring.core.errors import first_line
from sparring.learn.model_attention import ATTENTION_NAME, NO_MASK_SHAPE, Attend
from sparring.learn.model_files import check_quantization


def linear_kinds(base: Any) -> dict[str, str]:
    """Return the weight matrices but embeddings and the output layer, with their paths within a decoder
    layer.
    """
    left_out = {id(base.get_output_embeddings())}
    left_out |= {id(module) for module in base.modules() if isinstance(module, torch.nn.Embedding)}
    kinds = {}
    for prefix, module in base.named_modules():
        if id(module) in left_out:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2 and not name.endswith("bias"):
                full = prefix if name == "weight" else f"{prefix}.{name}"
                kinds[full] = _within_layer(full)
    return kinds


def _within_layer(name: str) -> str:
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[-1] + 1 :]) if numbers else name


def check_targets(kinds: dict[str, str], targets: Sequence[str]) -> None:
    """Raise InputError if no target is a layer of the model."""
    if not any(_is_named(name, target) for name in kinds for target in targets):
        raise _no_such_layer(targets, kinds)


def left_out_by_lora(model: Any, adapter: str, kinds: dict[str, str], *, partly: bool) -> str | None:
    """Return a line on the layers that an adapter of a PEFT model leaves out; ``None`` if there are none.

    Raises InputError if a target matches no layer; with ``partly``, it is enough that some match.
    """
    adapted = {*model.base_model.targeted_module_names, *model.base_model.targeted_parameter_names}
    config = model.peft_config[adapter]
    asked = {*config.target_modules, *(config.target_parameters or ())}
    known = adapted & kinds.keys()  # PEFT also finds the output layer, whose logits belong to no adapter here
    absent = sorted(target for target in asked if not any(_is_named(name, target) for name in known))
    if absent and not partly:
        raise _no_such_layer(absent, kinds)
    others = sorted({kind for name, kind in kinds.items() if name not in adapted})
    if not others:
        return None
    there = sorted({kinds[name] for name in adapted})
    return f"LoRA adapts {', '.join(there)}; it leaves out {', '.join(others)} (lora.target_modules)"


def name_output_layer(base: Any, targets: Iterable[str]) -> bool:
    """Return whether one of the targets names the output layer."""
    output = next(name for name, module in base.named_modules() if module is base.get_output_embeddings())
    return any(_is_named(output, target) for target in targets)


def _is_named(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _no_such_layer(targets: Sequence[str], kinds: dict[str, str]) -> InputError:
    return InputError(
        "lora.target_modules",
        f"{', '.join(targets)}: no such linear layer in this model",
        f"Choose from {', '.join(sorted(set(kinds.values())))}.",
    )


OTHER_FAMILY = "Use a model of another family, such as Llama or Qwen3."


def nf4(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return the setting with which transformers quantises a model while it loads it."""
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def keep_layout(model: torch.nn.Module) -> None:
    """Have bitsandbytes leave quantised weights as they are; on some CPUs it would reorder them."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 (not a tensor or module)


def keep_by_inputs(layer: torch.nn.Linear) -> None:
    """Store float32 weights on a CPU with all outputs of an input side by side.

    Products with up to some hundred tokens are 1.2 to 1.4 times as fast then (an Intel Xeon with MKL), those
    with more as fast as before; a gradient's, in the opposite order, lose as much with few tokens. Weights
    that were mapped from a float32 file are copied, so processes no longer share them.
    """
    weight_OI = layer.weight
    if weight_OI.dtype == torch.float32 and weight_OI.device.type == "cpu":
        weight_OI.data = weight_OI.data.t().contiguous().t()


def load_decoder(
    model_name: str, dtype: torch.dtype, device: torch.device, quantization: Quantization = "none"
) -> Any:
    """Load a causal language model that calls our attention, straight to its device and in its type.

    Raises InputError if it cannot be loaded, or its weights are incomplete or already quantised.
    """
    check_quantization(quantization)
    config = _configuration(model_name)
    own = getattr(config, "quantization_config", None)
    if own is not None and quantization != "none":
        raise InputError(
            "model.quantization", f"the weights of {model_name} are quantised already", "Leave it out."
        )
    settings = {} if quantization == "none" else {"quantization_config": nf4(dtype)}
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # problems in its load report are raised below
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            model_name,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            device_map={"": device},
            attn_implementation=ATTENTION_NAME,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **settings,
        )
    except Exception as error:  # a family may raise anything about its configuration
        if error.args == (ATTENTION_NAME,):  # a family looks its attention up in a table of its own
            problem = (
                f"{model_name} cannot be trained: {config.model_type} models have only their own attention"
            )
            raise InputError("model", problem, OTHER_FAMILY) from error
        raise _cannot_be_loaded(model_name, error) from error
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        problem = f"beside {model_name} is an adapter, which transformers adds to the model"
        raise InputError("model", problem, "Move its adapter_config.json away.")
    absent = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
    if absent:
        raise InputError(
            "model",
            f"the weights of {model_name} do not fit its config.json: {len(absent)} are missing or "
            f"misshapen, {absent[0]} for example",
            "Download the model again.",
        )
    keep_layout(model)
    return model


def _configuration(model_name: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:  # as in load_decoder
        raise _cannot_be_loaded(model_name, error) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        problem = (
            f"{model_name} cannot be trained: transformers has no causal language model {config.model_type}"
        )
        raise InputError("model", problem, OTHER_FAMILY)
    return config


def _cannot_be_loaded(model_name: str, error: Exception) -> InputError:
    problem = f"{model_name} cannot be loaded ({first_line(error)})"
    if isinstance(error, OSError):
        fix = "Check the name or path; weights must be safetensors."
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        fix = "Take a smaller model, or a device with more memory."
    elif isinstance(error, ImportError):
        fix = "Install the package that it names."
    else:
        fix = "Correct its config.json, or download it again."
    return InputError("model", problem, fix)


def hidden_states(causal_lm: Any, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
    """Run the model over ``tokens_T`` and return hidden_TD, the hidden states after the last norm."""
    inner = causal_lm.get_decoder()
    if inner is causal_lm:
        inner = causal_lm.model  # Llama 4 stores its decoder under another name than it declares
    output = inner(
        input_ids=tokens_T.unsqueeze(0),
        position_ids=positions_T.unsqueeze(0),
        attention_mask=torch.zeros(NO_MASK_SHAPE, device=tokens_T.device),
        use_cache=False,
        attend=attend,
    )
    hidden_TD: Tensor = output.last_hidden_state[0]
    return hidden_TD


def logits(causal_lm: Any, hidden_ND: Tensor) -> Tensor:
    """Return logits_NV in float32, scaled (Cohere, Granite) and capped (Gemma 2) as configured."""
    config = causal_lm.config.get_text_config()
    logits_NV: Tensor = causal_lm.get_output_embeddings()(hidden_ND).float()
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    if scale != 1.0:
        logits_NV = logits_NV * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return logits_NV if cap is None else cap * torch.tanh(logits_NV / cap)
