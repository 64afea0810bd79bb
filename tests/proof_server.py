"""A chat server on loopback that plays proofs by a script and answers questions about messages."""

import contextlib
import json
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from proof_scripts import agent_of, turn_of

MISSING = "missing"
"""A model that the server does not have."""
CONFIG = """
[program]
type = "proofs"
protocol = "{protocol}"
examples = false

[program.claims]
type = "arithmetic_claims"
count = 60

[finetune]
trainer = "{trainer}"

[finetune.provider]
type = "dry_run"
base_url = "{url}"
concurrency = 4

[finetune.agents._default]
model_name = "base"

[finetune.rl]
rollouts_per_iteration = 6
num_iterations = {iterations}

[finetune.text_rl]
test_scheme = "all"
"""


def scripted(messages: list[dict[str, str]], seed: int) -> str:
    """A verifier that asks once and then guesses, and provers that quote the claim."""
    if messages[0]["content"].startswith("You judge"):
        return "Yes" if zlib.crc32(messages[1]["content"].encode()) % 3 else "No"
    agent = agent_of(messages)
    drawn = random.Random(f"{agent} {seed} {len(messages)}")
    if not agent.startswith("verifier"):
        return f'Look at the claim: "it is {drawn.randrange(99)}". That is how it is.'
    if "Decide now" in messages[-1]["content"] or turn_of(messages):
        return f"Decision: {drawn.choice(('accept', 'reject'))}"
    return f"Is number {drawn.randrange(99)} carried?"


@contextlib.contextmanager
def serving_proofs(answer: Callable[[list[dict[str, str]], int], str] = scripted) -> Iterator["ProofServer"]:
    """Serve in threads until the body ends."""
    server = ProofServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ProofServer(ThreadingHTTPServer):
    """Answers chat completions by a function of messages and seed.

    Keeps the bodies of all requests, and the largest number that were open at a time.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[list[dict[str, str]], int], str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict] = []
        self.open = self.most_open = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has left first."""

    def config(self, protocol: str = "nip", trainer: str = "pure_text_ei", iterations: int = 2) -> str:
        """A configuration of a run whose agents this server plays."""
        return CONFIG.format(protocol=protocol, trainer=trainer, iterations=iterations, url=self.url)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ProofServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._reply(404, {"error": {"message": "unknown"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.bodies.append(body)
        if body["model"] == MISSING:
            self._reply(404, {"error": {"message": f"there is no model {MISSING}"}})
            return
        with self.server.lock:
            self.server.open += 1
            self.server.most_open = max(self.server.most_open, self.server.open)
        text = self.server.answer(body["messages"], body.get("seed", 0))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        with self.server.lock:
            self.server.open -= 1
        self._reply(200, {"id": "1", "object": "chat.completion", "choices": [choice]})

    def _reply(self, status: int, body: dict) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
