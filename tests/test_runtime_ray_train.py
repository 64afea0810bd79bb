"""What the command on Ray does around a run."""

import pytest

from selfplay.runtime.ray.train import _has_learned


@pytest.mark.parametrize(
    ("saved", "learned"),
    [([], False), (["000000"], False), ([".000001.partial"], False), (["000000", "000001"], True)],
)
def test_a_run_has_learned_when_an_update_is_saved(tmp_path, saved, learned):
    for name in saved:
        (tmp_path / "learner" / name).mkdir(parents=True)
    assert _has_learned(tmp_path) == learned
