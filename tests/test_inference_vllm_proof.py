"""The checks of an adapter's files before vLLM loads them; they run without vLLM."""

import json

import pytest

from selfplay.core import InputError
from selfplay.inference.vllm_checks import check_adapter

PLAIN = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


def refusal(directory, config: str) -> str:
    (directory / "adapter_model.safetensors").touch()
    (directory / "adapter_config.json").write_text(config)
    with pytest.raises(InputError) as caught:
        check_adapter(directory, max_rank=8)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("target_modules", [["q_proj"], "all-linear"])
def test_a_plain_adapter_passes(tmp_path, target_modules):
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN | {"target_modules": target_modules}))
    check_adapter(tmp_path, max_rank=8)  # raises nothing, but for a smaller limit:
    with pytest.raises(InputError, match="its rank is 4"):
        check_adapter(tmp_path, max_rank=3)


@pytest.mark.parametrize(
    "config", ["[" * 200_000, '{"r": 1e400, "target_modules": ["q_proj"]}', "[]", "{}", ""]
)
def test_a_damaged_configuration_is_rejected_in_one_line(tmp_path, config):
    assert "is not a LoRA adapter" in refusal(tmp_path, config)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"r": 9}, "its rank is 9"),
        ({"target_modules": ["lm_head", "q_proj"]}, "it changes lm_head"),
        ({"target_modules": ".*(lm_head|q_proj)"}, "its target_modules are"),
        ({"target_modules": [["lm_head"]]}, "its target_modules are"),
        ({"target_modules": None}, "its target_modules are"),
    ],
)
def test_an_adapter_that_cannot_be_served_is_rejected_in_one_line(tmp_path, change, problem):
    assert problem in refusal(tmp_path, json.dumps(PLAIN | change))
