"""``sparring card`` of a model behind an API that is killed (``kill -9``) 30 times while it asks."""

import json
import multiprocessing
from pathlib import Path

import pytest

from job_commands import wait_until
from paid_server import paid_server
from sparring.engine.paid_answers import ANSWERS_FILE

KILLS = 30
CALLS = 2000
AT_ONCE = 16
LONGEST = 600.0
"""Seconds."""
pytestmark = pytest.mark.slow


def card(words):
    """Run the command, in a process of its own that has loaded what it needs."""
    from sparring.cli.main import main

    raise SystemExit(main(words))


def is_killed(process, server, wanted):
    """Kill the process when so many calls have come; return whether it had not ended before."""
    wait_until(lambda: not process.is_alive() or len(server.asked) >= wanted)
    process.kill()
    process.join()
    return process.exitcode == -9


def kept(directory):
    """Return what was asked for each answer that is kept: the prompt and the seed that was sent."""
    file = directory / ANSWERS_FILE
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
    found = [json.loads(line) for line in lines]
    return {(json.dumps(one["prompt"]), one["seed"] % 2**31) for one in found if "text" in one}


def test_kills_lose_no_answer_that_was_paid_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparring.cli.main", "sparring.commands.card"])
    options = {
        "--env": "kuhn_poker",
        "--out": "card",
        "--updates": "6",
        "--games-per-step": "16",
        "--games": "300",
        "--calls": str(CALLS),
    }
    directory, killed, repeated, earlier = Path("card"), 0, [], set()
    with paid_server() as server:
        words = ["card", server.name, *(word for pair in options.items() for word in pair)]
        while True:
            process = context.Process(target=card, args=(words,))
            process.start()
            before, wanted = len(server.asked), len(server.asked) + 9 + killed % 7
            killed += killed < KILLS and is_killed(process, server, wanted)
            process.join(LONGEST)
            asked = [(json.dumps(one["messages"]), one["seed"]) for one in server.asked[before:]]
            repeated += [one for one in asked if one in earlier]
            earlier = kept(directory)
            if process.exitcode == 0:
                break
            assert process.exitcode == -9, "only kills end it"
    found = json.loads((directory / "card.json").read_text())
    print(f"{killed} kills, {len(server.asked)} calls were made, {found['calls']} counted")
    assert killed == KILLS
    assert repeated == [], "what was kept was asked again"
    assert found["rounds"] == 150
    assert len(server.asked) <= found["calls"] <= CALLS
    assert found["calls"] <= len(earlier) + AT_ONCE * KILLS
