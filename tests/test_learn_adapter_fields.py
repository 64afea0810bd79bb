"""Every field of PEFT's LoRA: an adapter that has it is refused by name, or answers as in plain PEFT."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from family_models import family_model
from sparring.commands.model_source import find_model
from sparring.core import InputError
from sparring.core.adapter_config import FIELDS
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, MANIFEST_FILE
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.engine.vllm_checks import check_adapter
from sparring.learn.checkpoints import load_adapter, save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.given_adapters import load_adapter_of
from tiny_models import tiny_model, tiny_policy

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = [40 + 7 * place % 200 for place in range(24)]
BLOCKS = {"target_modules_bd_a": ["o_proj"], "target_modules_bd_b": ["q_proj", "v_proj"], "nblocks": 2}
# Values that are not those of a plain adapter, by field.
VALUES: dict[str, list[object]] = {
    "task_type": ["SEQ_CLS", "SEQ_2_SEQ_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION", 3],
    "peft_type": ["IA3", "LOHA", "ADALORA", "PREFIX_TUNING", None, ["LORA"]],
    "auto_mapping": [{"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"}],
    "peft_version": ["0.1.0", None],
    "base_model_name_or_path": ["some/other-model-70b", None],
    "revision": ["v2"],
    "inference_mode": [True, False],
    "r": [6, 0, "4", 10**400],
    "target_modules": [
        "all-linear",
        ["q_proj"],
        ["model.layers.1.mlp.up_proj"],
        r".*\.[qv]_proj",
        "(a+)+$",
        None,
        [],
    ],
    "exclude_modules": [["model.layers.0.self_attn.q_proj"], ["down_proj"], r".*\.0\..*"],
    "lora_alpha": [3, 0.5, -2, "8"],
    "lora_dropout": [0.5],
    "fan_in_fan_out": [True, 1],
    "bias": ["all", "lora_only"],
    "use_rslora": [True, "yes"],
    "modules_to_save": [["lm_head"], ["embed_tokens"], ["norm"]],
    "init_lora_weights": [
        False,
        "gaussian",
        "orthogonal",
        "eva",
        "pissa",
        "pissa_niter_4",
        "olora",
        "corda",
        "loftq",
        "lora_ga",
        "mica",
        "of-tomorrow",
    ],
    "layers_to_transform": [0, [1], [0, 1], "0"],
    "layers_pattern": ["layers", ["layers"], "(a+)+"],
    "rank_pattern": [{"q_proj": 2}, {r"model\.layers\.0\.mlp\.up_proj": 7}, {"(a+)+$": 2}, {"q_proj": 0}],
    "alpha_pattern": [{"q_proj": 1.5}, {"model.layers.0.mlp.up_proj": 9}, {".*": 2}, {"q_proj": "2"}],
    "megatron_config": [{"x": 1}],
    "megatron_core": ["megatron.core.other"],
    "trainable_token_indices": [[1, 2, 3], {"embed_tokens": [5]}],
    "loftq_config": [{"loftq_bits": 4}],
    "eva_config": [{"rho": 2.0}],
    "corda_config": [{"corda_method": "ipm"}],
    "lora_ga_config": [{"direction": "ArBr"}],
    "use_dora": [True],
    "velora_config": [{"num_groups": 4}],
    "alora_invocation_tokens": [[40, 47]],
    "use_qalora": [True],
    "qalora_group_size": [8],
    "monteclora_config": [{"num_samples": 2}],
    "layer_replication": [[[0, 2], [0, 2]]],
    "runtime_config": [{"ephemeral_gpu_offload": True}],
    "lora_bias": [True],
    "target_parameters": [["q_proj.weight"], ["mlp.up_proj.weight"], "up_proj.weight"],
    "use_bdlora": [BLOCKS],
    "arrow_config": [{"top_k": 2}],
    "kasa_config": [{}, {"beta": 1.0}],
    "ensure_weight_tying": [True],
}
# Of these fields, this value is served.
SERVED = {field: VALUES[field][0] for field in (
    "auto_mapping", "peft_version", "base_model_name_or_path", "inference_mode", "r", "target_modules",
    "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "init_lora_weights",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
)}  # fmt: skip
CASES = [
    pytest.param(field, value, marks=pytest.mark.slow if number else ())
    for field, values in VALUES.items()
    for number, value in enumerate(values)
]


@pytest.fixture(scope="module")
def served():
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(1))
    engine = EmbeddedEngine(policy)
    yield PublishedAdapters(engine)
    engine.close()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    policy = tiny_policy()
    directory = tmp_path_factory.mktemp("plain") / "adapter"
    save_adapter(directory, policy, policy.model_name)
    (directory / MANIFEST_FILE).unlink(missing_ok=True)  # as others save it
    return directory


@pytest.fixture(scope="module")
def expected(adapter) -> list[float]:
    """What PEFT answers with the plain adapter."""
    return logprobs_of(PeftModel.from_pretrained(base(), adapter))


@pytest.fixture(scope="module")
def of_base() -> list[float]:
    return logprobs_of(base())


def base():
    return AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)


def logprobs_of(model) -> list[float]:
    with torch.no_grad():
        logits_TV = model.eval()(input_ids=torch.tensor([TOKENS])).logits[0, :-1]
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return logprobs_TV.gather(1, torch.tensor(TOKENS[1:])[:, None])[:, 0].tolist()


async def logprobs_with(served: PublishedAdapters, directory: Path) -> list[float]:
    served.publish("mine", directory)
    try:
        return served.engine.logprobs(TOKENS, model="mine")
    finally:
        served.withdraw("mine")


def change(adapter: Path, directory: Path, **fields: object) -> Path:
    """Copy an adapter with other settings."""
    shutil.copytree(adapter, directory)
    file = directory / ADAPTER_CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return directory


async def answers_or_refusal(served: PublishedAdapters, directory: Path) -> list[float] | InputError:
    try:
        return await logprobs_with(served, directory)
    except InputError as error:
        return error


def made_by_peft(field: str, value: object, directory: Path) -> list[float] | None:
    """Let PEFT make and train an adapter with this setting; return its log-probabilities.

    ``None``: PEFT refuses it, or needs data or packages for it.
    """
    settings = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "up_proj"],
        "task_type": "CAUSAL_LM",
    }
    if field == "layers_pattern":
        settings["layers_to_transform"] = [1]
    if field not in NOTES:
        settings[field] = value
    torch.manual_seed(0)
    try:
        model = get_peft_model(base(), LoraConfig(**settings))
    except Exception:  # noqa: BLE001 (of many kinds)
        return None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    file = directory / ADAPTER_CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | ({field: value} if field in NOTES else {})))
    return logprobs_of(model)


NOTES = {"base_model_name_or_path", "inference_mode", "peft_version", "auto_mapping"}


def test_every_field_of_the_installed_peft_is_tried():
    assert VALUES.keys() == {field.name for field in dataclasses.fields(LoraConfig)}
    assert FIELDS.keys() >= VALUES.keys()


@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda value: str(value)[:40])
async def test_an_adapter_with_this_setting_answers_as_in_peft_or_is_refused_by_its_name(
    field, value, served, adapter, of_base, tmp_path
):
    directory = tmp_path / "adapter"
    expected = made_by_peft(field, value, directory)
    if expected is None:
        change(adapter, directory, **{field: value})
    found = await answers_or_refusal(served, directory)
    if isinstance(found, InputError):
        said = {"peft_type": "no LoRA adapter", "target_modules": "leaves out", "r": "rank"}.get(field, field)
        assert said in found.problem or field in found.problem
        assert str(tmp_path) in found.problem or "fit" in found.problem
        assert "\n" not in str(found)
        assert len(str(found)) < 500
        assert field not in SERVED or value != SERVED[field], "PEFT's own answers are known"
        return
    assert found == pytest.approx(logprobs_of(PeftModel.from_pretrained(base(), directory)), abs=1e-5)
    if expected is not None:
        assert found == pytest.approx(expected, abs=1e-5)
    assert found != pytest.approx(of_base, abs=1e-2), "or the test could not tell them apart"


@pytest.mark.parametrize(
    ("value", "is_off"), [(3, False), ("x", False), (None, True), (False, True), ([], True)]
)
async def test_a_field_that_peft_adds_tomorrow_is_refused_unless_it_is_off(
    value, is_off, served, adapter, tmp_path
):
    directory = change(adapter, tmp_path / "adapter", tomorrow=value)
    if is_off:
        assert await logprobs_with(served, directory) == await logprobs_with(served, adapter)
    else:
        with pytest.raises(InputError, match=r"sets tomorrow to .*does not know"):
            served.publish("mine", directory)


def load_with_a_job(directory: Path) -> None:
    LoraSettings.read(directory)


ENTRIES = {
    "a served adapter": lambda served, directory: served.publish("mine", directory),
    "[start] and [frozen]": lambda served, directory: load_adapter_of(directory, served.policy, "mine"),
    "an adapter on the command line": lambda served, directory: find_model(str(directory)),
    "vLLM": lambda served, directory: check_adapter(directory, 64),
    "an engine on Ray": lambda served, directory: load_adapter(directory),
    "a job that continues it": lambda served, directory: load_with_a_job(directory),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "fields", [{"init_lora_weights": "pissa"}, {"alora_invocation_tokens": [1]}, {"tomorrow": 1}], ids=str
)
def test_every_way_in_makes_the_same_check(entry, fields, served, adapter, tmp_path):
    directory = change(adapter, tmp_path / "adapter", **fields)
    with pytest.raises(InputError, match=f"sets {next(iter(fields))} to"):
        ENTRIES[entry](served, directory)


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"
MORE = {
    "DoRA's magnitudes": f"{LAYER}.lora_magnitude_vector",
    "a bias": f"{LAYER}.lora_B.bias",
    "embeddings": "base_model.model.model.embed_tokens.weight",
    "the output layer": "base_model.model.lm_head.weight",
    "a name of a terminal": "\x1b[2Jx",
}

OTHER_NAMES = {
    "no prefix": ("base_model.model.", ""),
    "another prefix": ("base_model.model.", "module."),
    "the adapter's name": (".weight", ".default.weight"),
}


def change_weights(adapter: Path, directory: Path, changed) -> Path:
    shutil.copytree(adapter, directory)
    weights = load_file(directory / ADAPTER_FILE)
    save_file(changed(weights), directory / ADAPTER_FILE)
    return directory


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (lambda w: w | {A: torch.full_like(w[A], torch.nan)}, "q_proj that are not finite"),
        (lambda w: w | {B: w[B].index_fill(0, torch.tensor([3]), torch.inf)}, "q_proj that are not finite"),
        (lambda w: w | {A: torch.full_like(w[A], 1e300, dtype=torch.float64)}, "q_proj that are not finite"),
        (lambda w: w | {A: w[A].to(torch.int32)}, "of the type I32"),
        (lambda w: w | {A: w[A].to(torch.float8_e4m3fn)}, "of the type F8_E4M3"),
        (lambda w: w | {A: w[A] > 0}, "of the type BOOL"),
        (lambda w: {k: v for k, v in w.items() if k != B}, "1 are missing, model.layers.0.self_attn.q_proj"),
        (lambda w: {k: v for k, v in w.items() if "v_proj" not in k}, "4 are missing, .*v_proj"),
        (lambda w: {}, "rank"),
        (lambda w: {k.replace("s.1.", "s.7."): v for k, v in w.items()}, "this model has no model.layers.7"),
        (lambda w: w | {A: w[A][:, :16].contiguous()}, r"q_proj has the shape \[4, 16\] there and \[4, 32\]"),
        (lambda w: w | {A: w[A][:3].clone(), B: w[B][:, :3].clone()}, "rank: .*q_proj has 3, not 4"),
        (lambda w: w | {A: w[A][None].contiguous()}, "no matrix"),
        *((lambda w, name=name: w | {name: torch.zeros(4, 4)}, "no LoRA of") for name in MORE.values()),
        *((lambda w, old=old, new=new: {k.replace(old, new): v for k, v in w.items()}, "otherwise than PEFT")
          for old, new in OTHER_NAMES.values()),
    ],
    ids=[
        *("NaN", "infinity", "too large for float32", "int32", "float8", "bool", "one missing"),
        *("a kind missing", "empty", "more layers", "another width", "another rank", "3-D", *MORE),
        *OTHER_NAMES,
    ],
)  # fmt: skip
async def test_weights_that_are_no_lora_of_this_model_are_refused_with_their_own_reason(
    changed, problem, served, adapter, expected, tmp_path
):
    directory = change_weights(adapter, tmp_path / "adapter", changed)
    with pytest.raises(InputError, match=problem) as caught:
        served.publish("mine", directory)
    assert str(caught.value).isprintable()
    said = "own base model" in str(caught.value)
    assert said == ("this model" in problem or "shape" in problem), "only if it belongs to another"
    found = await logprobs_with(served, adapter)
    assert found == pytest.approx(expected, abs=1e-5), "a refusal leaves nothing behind"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
async def test_weights_of_every_floating_point_type_are_served(dtype, served, adapter, tmp_path):
    directory = change_weights(
        adapter, tmp_path / "adapter", lambda weights: {k: v.to(dtype) for k, v in weights.items()}
    )
    expected = logprobs_of(PeftModel.from_pretrained(base(), directory))
    assert await logprobs_with(served, directory) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("others", [["adapter_model.bin"], ["adapter_model-00001-of-00002.safetensors"]])
def test_weights_in_another_file_are_refused_by_its_name(others, served, adapter, tmp_path):
    directory = change(adapter, tmp_path / "adapter")
    for other in others:
        shutil.copyfile(directory / ADAPTER_FILE, directory / other)
    (directory / ADAPTER_FILE).unlink()
    with pytest.raises(
        InputError, match=rf"has {others[0][:14]}.* and no {ADAPTER_FILE}\. Save it with PEFT"
    ):
        served.publish("mine", directory)


async def test_an_adapter_of_single_experts_is_served_after_peft_has_joined_them(tmp_path):
    """As with transformers 4, which had a layer for each expert."""
    base, old, new = family_model("Mixtral"), tmp_path / "old", tmp_path / "new"
    shapes = {"w1": (48, 32), "w2": (32, 48), "w3": (48, 32)}
    experts = [f"layers.{layer}.block_sparse_moe.experts.{one}" for layer in range(4) for one in range(4)]
    weights = {}
    for layer, (rows, columns) in ((f"{one}.{name}", shapes[name]) for one in experts for name in shapes):
        weights[f"base_model.model.model.{layer}.lora_A.weight"] = 0.2 * torch.randn(2, columns)
        weights[f"base_model.model.model.{layer}.lora_B.weight"] = 0.2 * torch.randn(rows, 2)
    old.mkdir()
    save_file(weights, old / ADAPTER_FILE)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": [*shapes],
    }
    (old / ADAPTER_CONFIG).write_text(json.dumps(config))
    policy = PolicyModel(str(base), LoraSettings(1))
    engine = EmbeddedEngine(policy)
    served = PublishedAdapters(engine)
    with pytest.raises(
        InputError, match=r"experts\.0\.w1 is one expert, .* Load it with PEFT and save it again"
    ):
        served.publish("mine", old)
    in_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), old)
    in_peft.save_pretrained(new)
    assert await logprobs_with(served, new) == pytest.approx(logprobs_of(in_peft), abs=1e-5)
    engine.close()
