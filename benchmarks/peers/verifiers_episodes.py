"""verifiers 0.4.0: two-seat TicTacToe episodes per second with a mock OpenAI server.

Run by ../episodes.py in an environment of its own (verifiers==0.4.0, textarena==0.7.4, uv). The environment
below is written as its own two-seat Kuhn poker is: each seat is an interaction with a trace of its own, and
the environment referees TextArena's TicTacToe-v0-train; ``run_eval`` plays it and writes the traces down. The
runtime is ``subprocess``, the one that needs neither container nor cloud. There are two harnesses:

- ``null`` (the default), the tool-less chat program that Kuhn poker uses. Each turn starts a fresh Python
  program in a process of its own. It imports openai, sends the seat's whole conversation by HTTP to the
  interception server of verifiers, which passes it on by HTTP to the model, and ends. So a game is seven or
  eight processes and fifteen HTTP requests, and most of its cost is the start of Python. It isolates the
  seats, which nothing else in this benchmark does, and it uses all cores.
- ``in-process``, the fastest way that verifiers allows: its ``Harness.launch`` lets a harness do without a
  program if all model calls go through the interception server. So a game is the same fifteen requests from
  one process, and about half of its cost is verifiers' HTTP client to the model. The harness is ours, below;
  verifiers ships none of this kind.

verifiers reaches a model only by HTTP, so the mock is a server, in a process of its own whose CPU seconds are
not counted. It answers with server-sent events where the request asks for a stream, as that of ``null`` does.
An eval of two episodes, not timed, comes first: ``null`` makes its program's environment in it (once, which
needs a package index) and its bytecode.

Command:  PYTHON verifiers_episodes.py EPISODES IN_FLIGHT [null | in-process]   (prints JSON on its last line)
"""

import asyncio
import gc
import json
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import textarena
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

__all__ = ["InProcessHarness", "TicTacToeEnv", "TicTacToeTaskset"]

PLUGIN = Path(__file__).stem  # verifiers imports this file by its name to find the classes of __all__
HARNESSES = {"null": "null", "in-process": PLUGIN}
USAGE = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
_MOVE = re.compile(r"\[\d\]")
_draw = random.Random(0)


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
    first: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    second: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class TicTacToeEnv(vf.Env[TicTacToeEnvConfig]):
    async def start(self) -> None:
        InProcessHarness.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        await InProcessHarness.http.close()

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
                    raise RuntimeError(f"seat {pid} ended before the game did")
                done, _ = game.step(segment.last_reply)
        rewards, _ = game.close()
        for pid, seat in enumerate((first, second)):
            seat.trace.record_reward("game", float(rewards[pid]))


class InProcessHarness(vf.Harness[vf.HarnessConfig]):
    """The ``null`` harness without its program: one model call for each segment, from this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    http: ClassVar[aiohttp.ClientSession]

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> ProgramResult:
        messages = [message_to_wire(message) for message in data.prompt]
        async with self.http.post(
            f"{endpoint}/chat/completions",
            json={"model": ctx.model, "messages": messages},
            headers={"Authorization": f"Bearer {secret}"},
        ) as response:
            response.raise_for_status()
            await response.read()
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def complete(request: web.Request) -> web.Response:
    """The mock model: a random legal move at once."""
    body = await request.json()
    text = str(body["messages"][-1]["content"])
    move = _draw.choice(_MOVE.findall(text, text.rindex("Available Moves:")))
    message = {"role": "assistant", "content": move}
    answer = {"id": "mock", "created": 0, "model": body["model"], "usage": USAGE}
    if body.get("stream"):
        chunk = {"index": 0, "delta": message, "finish_reason": "stop"}
        event = answer | {"object": "chat.completion.chunk", "choices": [chunk]}
        events = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
        return web.Response(text=events, content_type="text/event-stream")
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response(answer | {"object": "chat.completion", "choices": [choice]})


async def serve(port: Connection) -> None:
    """Serve the mock model until the process is ended; sends the port it has got."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    port.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def run_server(port: Connection) -> None:
    asyncio.run(serve(port))


def play(episodes: int, in_flight: int, harness: str, port: int) -> None:
    """Run the eval; ends the program if an episode was not played to its end."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    seat = {"harness": {"id": HARNESSES[harness]}}
    with tempfile.TemporaryDirectory() as directory:
        config = EvalConfig(
            env={"taskset": {"id": PLUGIN}, "first": seat, "second": seat},
            model="mock",
            client={"type": "eval", "base_url": f"http://127.0.0.1:{port}/v1", "api_key_var": "MOCK_KEY"},
            select={"limit": episodes},
            num_rollouts=1,
            max_concurrent=in_flight,
            push=False,
            rich=None,
            output_dir=Path(directory),
        )
        played = asyncio.run(run_eval(config))
    good = sum(episode.ok for episode in played)
    if good != episodes:
        print([error for episode in played for error in episode.errors][:1], file=sys.stderr)
        raise SystemExit(f"only {good} of {episodes} episodes were played to their end")


def cpu_seconds() -> float:
    """Of this process and the children it has waited for; the mock is not waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(episodes: int, in_flight: int, harness: str = "null") -> None:
    if harness not in HARNESSES:
        raise SystemExit(f"harness is one of {', '.join(HARNESSES)}, not {harness!r}")
    os.environ["MOCK_KEY"] = "none"
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where uv is
    # Without bytecode each of the harness's programs would compile openai anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=run_server, args=(sender,), daemon=True)
    server.start()
    try:
        port = receiver.recv()
        play(2, 2, harness, port)
        gc.collect()
        started, cpu = time.perf_counter(), cpu_seconds()
        play(episodes, in_flight, harness, port)
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    finally:
        server.terminate()
    print(json.dumps({"episodes": episodes, "seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4])
