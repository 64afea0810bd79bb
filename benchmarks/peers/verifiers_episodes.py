"""verifiers 0.4.0: two-seat TicTacToe episodes a second with a mock OpenAI server.

Run by ../episodes.py in an environment of its own (verifiers==0.4.0, textarena==0.7.4, uv). The environment
below is written the way verifiers' own two-seat Kuhn poker is: each seat is an interaction with its own trace
and the tool-less ``null`` harness, the environment referees TextArena's TicTacToe-v0-train. The runtime is
``subprocess``, the one that needs no container and no cloud; it starts a program a seat.

Command:  PYTHON verifiers_episodes.py EPISODES IN_FLIGHT        (prints JSON on its last line)
"""

import asyncio
import json
import os
import random
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import textarena
import verifiers.v1 as vf

__all__ = ["TicTacToeEnv", "TicTacToeTaskset"]

RUNTIME = {"type": "subprocess"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


class TicTacToeData(vf.TaskData):
    seed: int


class TicTacToeTask(vf.Task[TicTacToeData]):
    pass


class TicTacToeConfig(vf.TasksetConfig):
    pass


class TicTacToeTaskset(vf.Taskset[TicTacToeTask, TicTacToeConfig]):
    INFINITE = True

    def load(self) -> Iterator[TicTacToeTask]:
        for index in count():
            yield TicTacToeTask(TicTacToeData(idx=index, name=f"game {index}", prompt=None, seed=index))


class TicTacToeEnvConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=RUNTIME)
    second: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=RUNTIME)


class TicTacToeEnv(vf.Env[TicTacToeEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        game = textarena.make("TicTacToe-v0-train")
        game.reset(num_players=2, seed=task.data.seed)
        seat_task = vf.Task(vf.TaskData(idx=task.data.idx, prompt=None))
        async with (
            agents.first.interaction(seat_task) as first,
            agents.second.interaction(seat_task) as second,
        ):
            done = False
            while not done:
                pid, observation = game.get_observation()
                segment = await (first, second)[pid].turn(observation)
                if segment.terminated:
                    break
                done, _ = game.step(segment.last_reply)
        rewards, _ = game.close()
        for pid, seat in enumerate((first, second)):
            seat.trace.record_reward("game", float(rewards[pid]))


class MockServer(BaseHTTPRequestHandler):
    """Answers every chat completion at once with a random legal move."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = str(body["messages"][-1]["content"])
        move = random.choice(re.findall(r"\[\d\]", text[text.rindex("Available Moves:") :]))
        message = {"role": "assistant", "content": move}
        answer = {"id": "mock", "created": 0, "model": body["model"], "usage": USAGE}
        if body.get("stream"):
            chunk = {"index": 0, "delta": message, "finish_reason": "stop"}
            event = answer | {"object": "chat.completion.chunk", "choices": [chunk]}
            self._send("text/event-stream", f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
        else:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = answer | {"object": "chat.completion", "choices": [choice]}
            self._send("application/json", json.dumps(whole))

    def _send(self, content_type: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def cpu_seconds() -> float:
    """Of this process and the children it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(episodes: int, in_flight: int) -> None:
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    server = ThreadingHTTPServer(("127.0.0.1", 0), MockServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["MOCK_KEY"] = "none"
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where uv is
    with tempfile.TemporaryDirectory() as directory:
        config = EvalConfig(
            env={"taskset": {"id": Path(__file__).stem}},
            model="mock",
            client={
                "type": "eval",
                "base_url": f"http://127.0.0.1:{server.server_port}/v1",
                "api_key_var": "MOCK_KEY",
            },
            select={"limit": episodes},
            max_concurrent=in_flight,
            push=False,
            rich=None,
            output_dir=Path(directory),
        )
        started, cpu = time.perf_counter(), cpu_seconds()
        played = asyncio.run(run_eval(config))
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    good = sum(episode.ok for episode in played)
    if good < episodes:
        print([error for episode in played for error in episode.errors][:1], file=sys.stderr)
        raise SystemExit(f"only {good} of {episodes} episodes were played to their end")
    print(json.dumps({"episodes": episodes, "seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
