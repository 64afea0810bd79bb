"""The checks of an adapter's files before vLLM loads them; they run without vLLM."""

import json

import pytest

from sparring.core import InputError
from sparring.engine.vllm_checks import check_adapter

PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def refusal(directory, config: str) -> str:
    (directory / "adapter_model.safetensors").touch()
    (directory / "adapter_config.json").write_text(config)
    with pytest.raises(InputError) as caught:
        check_adapter(directory, max_rank=8)
    assert "\n" not in str(caught.value)
    return str(caught.value)


EXPERTS = {"rank_pattern": {r".*\.gate_up_proj": 8}, "alpha_pattern": {r".*\.gate_up_proj": 16}}


@pytest.mark.parametrize(
    "change", [{}, {"target_modules": "all-linear"}, {"use_rslora": True}, EXPERTS], ids=str
)
def test_an_adapter_with_one_scale_passes(tmp_path, change):
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN | change))
    check_adapter(tmp_path, max_rank=8)  # raises nothing, but for a smaller limit:
    with pytest.raises(InputError, match="its rank is"):
        check_adapter(tmp_path, max_rank=3)


@pytest.mark.parametrize(
    "config", ["[" * 200_000, '{"r": 1e400, "target_modules": ["q_proj"]}', "[]", "{}", ""]
)
def test_a_damaged_configuration_is_rejected_in_one_line(tmp_path, config):
    assert "adapter_config.json" in refusal(tmp_path, config)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"r": 9}, "its rank is 9"),
        ({"target_modules": ["lm_head", "q_proj"]}, "it changes lm_head"),
        ({"target_modules": ".*(lm_head|q_proj)"}, "sets target_modules to"),
        ({"target_modules": [["lm_head"]]}, "sets target_modules to"),
        ({"target_modules": None}, "sets target_modules to"),
        ({"use_dora": True}, "sets use_dora to True"),
        ({"rank_pattern": {"q_proj": 9}}, "its rank is 9"),
        ({"rank_pattern": {"q_proj": 8}}, "several scales"),
        ({"alpha_pattern": {"q_proj": 4}}, "several scales"),
        (
            {"alpha_pattern": {"q_proj": 16}, "rank_pattern": {"q_proj": 8}, "use_rslora": True},
            "several scales",
        ),
    ],
)
def test_an_adapter_that_cannot_be_served_is_rejected_in_one_line(tmp_path, change, problem):
    assert problem in refusal(tmp_path, json.dumps(PLAIN | change))
