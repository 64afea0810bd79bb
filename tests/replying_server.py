"""A real server on loopback that replies as a test says, also wrongly, and the answers of a good one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Reply = bytes | None | Callable[[asyncio.StreamWriter], object]


def http(body: object = "", status: int = 200, **headers: str) -> bytes:
    """Return a complete HTTP response; text is sent unchanged, anything else as JSON."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status} Said", "content-type: application/json", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + content


def completion(text: str = "4", finish_reason: str = "stop", **fields: object) -> dict:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion", "choices": [choice], **fields}


def with_tokens(prompt: list[int], ids: list[int], logprobs: list[float]) -> dict:
    """Return vLLM's answer to a request with ``return_token_ids`` and ``logprobs``."""
    answer = completion(prompt_token_ids=prompt)
    content = [{"token": "?", "logprob": logprob, "bytes": None, "top_logprobs": []} for logprob in logprobs]
    answer["choices"][0] |= {"token_ids": ids, "logprobs": {"content": content}}
    return answer


def error(message: str, **fields: object) -> dict:
    return {"error": {"message": message, "type": "some_error", **fields}}


async def dribble(writer: asyncio.StreamWriter) -> None:
    """Send bytes forever, each well within any limit on the time between two bytes."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


class Server:
    """Sends the replies in turn and repeats the last. None never answers; b"" cuts the connection."""

    def __init__(self, replies: tuple[Reply, ...]) -> None:
        self.replies = replies
        self.port = 0
        self.lines: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict] = []
        self.handlers: set[asyncio.Task] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handlers.add(asyncio.current_task())
        try:
            await self.read(reader)
            reply = self.replies[min(len(self.lines), len(self.replies)) - 1]
            if reply is None:
                await asyncio.Event().wait()
            elif callable(reply):
                await reply(writer)
            else:
                writer.write(reply)
                await writer.drain()
        except (OSError, EOFError):
            pass  # the client left first
        finally:
            writer.close()

    async def read(self, reader: asyncio.StreamReader) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(entry.lower().split(": ", 1) for entry in rest)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.lines.append(line)
        self.headers.append(headers)
        is_form = headers.get("content-type", "").startswith("multipart/")
        self.bodies.append({} if is_form else json.loads(body or b"{}"))


@asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[Server]:
    server = Server(replies)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in server.handlers:
            task.cancel()
        await asyncio.gather(*server.handlers, return_exceptions=True)
