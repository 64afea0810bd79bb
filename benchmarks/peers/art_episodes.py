"""ART 0.5.18: two-player TicTacToe games per second with a stub model.

Run by ../episodes.py in an environment of its own (openpipe-art==0.5.18, textarena==0.7.4). ART leaves the
loop of a two-player game to the user. This one is built as its own tic-tac-toe self-play example is: a game
is a coroutine with a ``Trajectory`` for each seat, observations and choices are appended to them and
``messages()`` is what the model gets. ``gather_trajectories`` plays the games, each seat's trajectories go
into groups of 8, and a semaphore holds the number in flight.

A game starts no process and makes no HTTP call: it costs ART's pydantic objects, on one event loop in one
thread. The stub stands where a user's OpenAI client would be: after one turn of the event loop it answers
with a new OpenAI ``Choice``, the object that ART keeps, holding a random legal move.

In ART's favour: the choices carry no tokens and no log-probabilities, and tqdm's bar, which ART draws again
after each game, is off. Against it: Python's garbage collector runs, as ART leaves it on, and takes nearly
half of the time; ``Collector.collect`` turns it off while it plays. With ``no-gc`` it is off here too.

Command:  PYTHON art_episodes.py EPISODES IN_FLIGHT [no-gc]        (prints JSON on its last line)
"""

import asyncio
import gc
import json
import os
import random
import re
import resource
import sys
import time

os.environ["TQDM_DISABLE"] = "1"  # before ART's import: tqdm reads it once

import art
import textarena
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

GROUP = 8
_MOVE = re.compile(r"\[\d\]")
_draw = random.Random(0)


async def stub_model(messages: art.Messages) -> Choice:
    """Answer after one turn of the event loop."""
    await asyncio.sleep(0)
    text = str(messages[-1]["content"])
    move = _draw.choice(_MOVE.findall(text, text.rindex("Available Moves:")))
    message = ChatCompletionMessage(role="assistant", content=move)
    return Choice(index=0, finish_reason="stop", message=message)


async def rollout(seed: int, slots: asyncio.Semaphore) -> tuple[art.Trajectory, art.Trajectory]:
    """One game: a trajectory a seat."""
    async with slots:
        env = textarena.make("TicTacToe-v0-train")
        env.reset(num_players=2, seed=seed)
        seats = art.Trajectory(reward=0), art.Trajectory(reward=0)
        done = False
        while not done:
            pid, observation = env.get_observation()
            seat = seats[pid]
            seat.messages_and_choices.append({"role": "user", "content": observation})
            choice = await stub_model(seat.messages())
            seat.messages_and_choices.append(choice)
            done, _ = env.step(choice.message.content)
        rewards, _ = env.close()
        for pid, seat in enumerate(seats):
            seat.reward = rewards[pid]
            seat.finish()
        return seats


async def gather(episodes: int, in_flight: int) -> list[art.TrajectoryGroup]:
    """Play; returns groups of one seat's trajectories each."""
    slots = asyncio.Semaphore(in_flight)
    games = await art.gather_trajectories(rollout(seed, slots) for seed in range(episodes))
    return [
        art.TrajectoryGroup([game[pid] for game in games[start : start + GROUP]])
        for start in range(0, episodes, GROUP)
        for pid in range(2)
    ]


def cpu_seconds() -> float:
    """Of this process and the children it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(episodes: int, in_flight: int, without_gc: bool) -> None:
    asyncio.run(gather(64, 64))  # what only the first games cost is not a game's cost
    gc.collect()
    if without_gc:
        gc.disable()
    started, cpu = time.perf_counter(), cpu_seconds()
    groups = asyncio.run(gather(episodes, in_flight))
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    played = sum(len(group) for group in groups) / 2
    if played != episodes:
        raise SystemExit(f"only {played} of {episodes} games came back")
    print(json.dumps({"episodes": episodes, "seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["no-gc"])
