"""The model families that differ most from Llama, trained by ``sparring train``."""

import pytest

from matrices import first_of
from model_families import LARGEST_MISMATCH, outcome


@pytest.mark.parametrize(
    "family", first_of(["gpt-oss", "DeepSeek-V3", "Mistral, window of 32", "Gemma 2", "Qwen3-MoE"])
)
def test_engine_and_learner_agree_through_two_updates(family, tmp_path):
    mismatch, refusal = outcome(family, tmp_path)
    assert refusal == ""
    assert mismatch < LARGEST_MISMATCH


def test_a_hybrid_model_is_rejected_before_anything_is_written(tmp_path):
    mismatch, refusal = outcome("Qwen3-Next", tmp_path)
    assert mismatch is None
    assert "cannot be trained" in refusal
    assert "\n" not in refusal
    assert list(tmp_path.iterdir()) == []
