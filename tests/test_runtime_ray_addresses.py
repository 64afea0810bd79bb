"""Addresses of clusters: who is taken for Ray, and who is not."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from selfplay.core import InputError
from selfplay.runtime.ray import addresses

HTTP2_SERVERS_GREETING = b"\0\0\0\4\0\0\0\0\0"


@contextmanager
def server(first_words: bytes | None) -> Iterator[str]:
    """Somebody who takes one connection and says this, or hangs up (``None``); its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                if first_words is not None:
                    connection.sendall(first_words)
                    connection.recv(1000)
                    over.wait(10)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join()


def test_who_greets_as_grpc_does_may_be_ray():
    with server(HTTP2_SERVERS_GREETING) as address:
        addresses.knock(address)


@pytest.mark.parametrize("first_words", [b"HTTP/1.0 400 Bad request syntax", b"", None])
def test_who_does_not_is_refused_in_one_line(first_words, monkeypatch):
    monkeypatch.setattr(addresses, "KNOCK_SECONDS", 0.2)
    with server(first_words) as address, pytest.raises(InputError) as refused:
        addresses.knock(address)
    assert refused.value.field == "--address"
    assert f"the cluster at {address} cannot be joined" in str(refused.value)


def test_behind_tls_nobody_looks(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with server(b"") as address:
        addresses.knock(address)
