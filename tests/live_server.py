"""A real server on a port of this machine, in a thread, for tests to ask."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import openai
import uvicorn
from fastapi import FastAPI

from openai_http import httpx2
from sparring.commands.listening import listen
from sparring.core import ModelResponse
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.policy import TRAINED, PolicyModel

TOKEN = "the-token"
ASK = [{"role": "user", "content": "rules"}]


class Live:
    """A server on a port of this machine, with what it is made of.

    Its clients load no certificates, which would take longer than most answers.
    """

    def __init__(self, app: FastAPI, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
        self.server = uvicorn.Server(config)
        self.loop = asyncio.new_event_loop()

    def client(self, api_key: str = TOKEN) -> openai.OpenAI:
        http_client = httpx2.Client(verify=False)
        base_url = f"{self.url}/v1"
        return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http_client)

    def async_client(self, transport: httpx2.AsyncBaseTransport | None = None) -> openai.AsyncOpenAI:
        http_client = httpx2.AsyncClient(transport=transport, verify=False)
        base_url = f"{self.url}/v1"
        return openai.AsyncOpenAI(base_url=base_url, api_key=TOKEN, max_retries=0, http_client=http_client)

    def get(self, path: str, **options) -> httpx2.Response:
        return httpx2.get(self.url + path, verify=False, **options)

    def post(self, path: str, **options) -> httpx2.Response:
        options = {"headers": {"Authorization": f"Bearer {TOKEN}"}} | options
        return httpx2.post(self.url + path, verify=False, **options)

    def run(self) -> None:
        self.loop.run_until_complete(self.server.serve(sockets=[self.listener]))
        self.loop.close()


@contextlib.contextmanager
def running(app: FastAPI, engine: EmbeddedEngine) -> Iterator[Live]:
    live = Live(app, engine)
    thread = threading.Thread(target=live.run)
    thread.start()
    try:
        yield live
    finally:
        live.server.should_exit = True
        thread.join()


def pieces_of_work_in_threads(live: Live, ask: Callable[[], None], ask_another: Callable[[], None]) -> int:
    """Return how many pieces of work in threads a request needs; each begins after another request's answer.

    The loop can use no threads afterwards.
    """
    news: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()

    class Held(ThreadPoolExecutor):
        def submit(self, work: Callable[..., object], *args: object) -> Future[object]:
            begin = threading.Event()
            news.put(begin)
            return super().submit(lambda: begin.wait() and work(*args))

    pieces = 0
    with Held(1) as threads, ThreadPoolExecutor(1) as client:
        live.loop.call_soon_threadsafe(live.loop.set_default_executor, threads)
        asking = client.submit(ask)
        asking.add_done_callback(lambda _: news.put(None))
        while (begin := news.get()) is not None:
            try:
                ask_another()
            finally:
                begin.set()
            pieces += 1
        asking.result()
    return pieces


def engine_over(policy: PolicyModel, **options) -> EmbeddedEngine:
    engine = EmbeddedEngine(policy, **{"max_tokens": 16, **options})
    engine.publish("tiny", TRAINED, 7)
    return engine


def answer_of(engine: EmbeddedEngine, seed: int, **options) -> ModelResponse:
    return asyncio.run(engine.complete(ASK, model="tiny", seed=seed, **options))
