"""ART 0.5.18: two-player TicTacToe games a second through ``gather_trajectory_groups`` with a stub model.

Run by ../episodes.py in an environment of its own (openpipe-art==0.5.18, textarena==0.7.4). A rollout plays
TextArena's TicTacToe-v0-train for both seats and returns one trajectory: the first seat's conversation, with
the second's among its ``additional_histories``. The stub gives an OpenAI ``Choice`` with a random legal move
after one turn of the event loop. ART leaves two-player games to the user; its examples write such a loop.

Command:  PYTHON art_episodes.py EPISODES IN_FLIGHT        (prints JSON on its last line)
"""

import asyncio
import json
import random
import re
import sys
import time

import art
import textarena
from art.trajectories import History
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

_MOVE = re.compile(r"\[\d\]")


async def stub_model(messages: list[object], text: str) -> Choice:
    """Answer after one turn of the event loop."""
    await asyncio.sleep(0)
    move = random.choice(_MOVE.findall(text, text.rindex("Available Moves:")))
    message = ChatCompletionMessage(role="assistant", content=move)
    return Choice(index=0, finish_reason="stop", message=message)


async def rollout(seed: int, slots: asyncio.Semaphore) -> art.Trajectory:
    """One game."""
    async with slots:
        env = textarena.make("TicTacToe-v0-train")
        env.reset(num_players=2, seed=seed)
        seats: list[list[object]] = [[], []]
        done = False
        while not done:
            pid, observation = env.get_observation()
            seats[pid].append({"role": "user", "content": observation})
            choice = await stub_model(seats[pid], observation)
            seats[pid].append(choice)
            done, _ = env.step(choice.message.content)
        rewards, _ = env.close()
        second = History(messages_and_choices=seats[1])
        return art.Trajectory(
            messages_and_choices=seats[0], additional_histories=[second], reward=rewards[0]
        ).finish()


async def gather(episodes: int, in_flight: int) -> int:
    """Play; returns how many trajectories came back."""
    slots = asyncio.Semaphore(in_flight)
    groups = [
        art.TrajectoryGroup(rollout(8 * group + index, slots) for index in range(8))
        for group in range(episodes // 8)
    ]
    gathered = await art.gather_trajectory_groups(groups, pbar_desc=None)
    return sum(len(group.trajectories) for group in gathered)


def main(episodes: int, in_flight: int) -> None:
    asyncio.run(gather(64, 64))
    cpu, started = time.process_time(), time.perf_counter()
    played = asyncio.run(gather(episodes, in_flight))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    if played != episodes // 8 * 8:
        raise SystemExit(f"only {played} of {episodes} games came back")
    print(json.dumps({"episodes": played, "seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
