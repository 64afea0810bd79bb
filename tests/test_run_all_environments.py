"""Two updates in every TextArena id that is called playable. Slow; ``-m slow -s`` prints a table."""

import io
import time

import pytest
from rich.console import Console

from game_runs import configure, metrics_of
from sparring.core import SparringError
from sparring.envs.catalog import list_environments
from sparring.run.single_process import train

PLAYABLE = [env for env in list_environments() if env.library == "textarena" and env.playable]


@pytest.mark.slow
def test_two_updates_succeed_in_every_playable_textarena_id(model, tmp_path):
    failed = []
    print(f"\n{'id':<42}{'players':>8}{'games':>7}{'failed':>8}{'invalid':>9}{'turns':>8}{'s':>7}")
    for number, env in enumerate(PLAYABLE):
        config = configure(
            model,
            envs__0__id=env.env_id,
            envs__0__num_players=str(env.players[0]),
            envs__0__template="qwen3-zs",
            envs__0__max_turns="30",
            envs__0__error_allowance="1",
            collection__games_per_step="2",
            learning__steps="2",
            learning__max_batch_tokens="16384",
            evaluation__nash_conv="false",
            evaluation__opponents="[]",
        )
        started = time.perf_counter()
        try:
            train(config, tmp_path / str(number), Console(file=io.StringIO()))
        except SparringError as error:
            failed.append(env.env_id)
            print(f"{env.env_id:<42}{env.players[0]:>8}  {error}")
            continue
        last = metrics_of(tmp_path / str(number))[-1]
        invalid = last[f"collection-{env.env_id}/Invalid Move Rate"]
        turns = last[f"collection-{env.env_id}/Game Length"]
        print(
            f"{env.env_id:<42}{env.players[0]:>8}{last['accounts/finished']:>7.0f}"
            f"{last['accounts/failed']:>8.0f}{invalid:>9.0%}{turns:>8.1f}"
            f"{time.perf_counter() - started:>7.1f}",
            flush=True,
        )
    print(f"{len(PLAYABLE) - len(failed)} of {len(PLAYABLE)} ids trained")
    assert len(PLAYABLE) > 150
    assert failed == []
