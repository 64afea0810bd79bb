"""Addresses of clusters: which servers are accepted as Ray."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparring.cluster import connect as addresses
from sparring.core import InputError

HTTP2_SERVERS_GREETING = b"\0\0\0\4\0\0\0\0\0"


@contextmanager
def server(first_words: bytes | None) -> Iterator[str]:
    """Yield the address of a server that accepts one connection and sends this, or hangs up (``None``)."""
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


def test_a_server_that_greets_like_grpc_may_be_ray():
    with server(HTTP2_SERVERS_GREETING) as address:
        addresses.knock(address)


@pytest.mark.parametrize("first_words", [b"HTTP/1.0 400 Bad request syntax", b"", None])
def test_any_other_server_is_rejected_in_one_line(first_words, monkeypatch):
    monkeypatch.setattr(addresses, "KNOCK_SECONDS", 0.2)
    with server(first_words) as address, pytest.raises(InputError) as refused:
        addresses.knock(address)
    assert refused.value.field == "--address"
    assert f"the cluster at {address} cannot be joined" in str(refused.value)


def test_behind_tls_the_greeting_is_not_checked(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with server(b"") as address:
        addresses.knock(address)


@pytest.fixture
def no_token(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "Token"}])
def test_a_cluster_that_requires_a_token_gets_one_that_only_its_user_can_read(
    no_token, monkeypatch, tmp_path, mode
):
    for name, value in ({"HOME": str(tmp_path)} | mode).items():
        monkeypatch.setenv(name, value)
    addresses.make_token()
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "ab" * 32), ("RAY_AUTH_TOKEN_PATH", "a-token")],
)
def test_no_token_is_made_if_none_is_required_or_one_is_given(no_token, monkeypatch, tmp_path, name, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv(name, value)
    addresses.make_token()
    assert not (tmp_path / ".ray").exists()


def test_a_token_that_another_run_has_just_made_is_kept(no_token, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    addresses.make_token()
    token = tmp_path / ".ray" / "auth_token"
    made = token.read_text()
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as if it did not exist a moment ago
    addresses.make_token()
    assert token.read_text() == made
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_a_token_that_cannot_be_written_is_reported_in_one_line(no_token, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"the token .* cannot be written"):
        addresses.make_token()
