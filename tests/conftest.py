"""Settings of all tests, and runs that several files look at."""

from pathlib import Path

import pytest
from hypothesis import settings

# A limit on the time of an example would be a timed assertion, which a busy machine fails.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def games_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Kuhn poker against a pool."""
    from watched_runs import train_games

    return train_games(tmp_path_factory.mktemp("watched") / "games")


@pytest.fixture(scope="session")
def program_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a program with two policies and sub-episodes."""
    from watched_runs import train_program

    return train_program(tmp_path_factory.mktemp("watched") / "program")


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray use loopback addresses although a test may have imported it without; see ``ray_import``."""
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
