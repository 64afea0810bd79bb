"""``sparring export --push`` against a server of the hub's API."""

import base64
import http.server
import json
import socket
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest

from sparring.cli.main import main
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import tiny_model

SECRET = "hf_TestTokenThatNobodyMaySee"


class Hub(http.server.ThreadingHTTPServer):
    """The parts of the hub's API with which files are uploaded; large ones by LFS."""

    def __init__(self) -> None:
        self.created: list[dict] = []
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.refused: int | None = None
        super().__init__(("127.0.0.1", 0), Answers)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        hub, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        if hub.refused is not None:
            self.answer({"error": "no"}, hub.refused)
            return
        hub.tokens.add(self.headers["Authorization"])
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            self.answer({"url": f"{hub.address}/me/mine"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/models/me/mine/preupload/main":
            modes = [
                {"path": one["path"], "uploadMode": mode_of(one["path"]), "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self.answer({"files": modes})
        elif self.path == "/me/mine.git/info/lfs/objects/batch":
            wanted = [
                {**one, "actions": {"upload": {"href": f"{hub.address}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self.answer({"objects": wanted, "transfer": "basic"})
        elif self.path == "/api/models/me/mine/commit/main":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.objects[value["oid"]]
            self.answer({"commitUrl": f"{hub.address}/me/mine/commit/1", "commitOid": "1", "success": True})
        else:
            self.answer({"error": self.path}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.path.rpartition("/")[2]] = content
        self.answer({})

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Write nothing."""


def mode_of(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".gguf")) else "regular"


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # the server speaks only LFS
    with Hub() as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)  # read at the import
        monkeypatch.setenv("HF_TOKEN", SECRET)
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained") / "adapter"
    save_adapter(place, PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0)), str(tiny_model("llama")))
    return str(place)


@pytest.mark.parametrize("options", [[], ["--merge"], ["--gguf", "f16"], ["--merge", "--gguf", "q8_0"]])
def test_what_is_exported_is_uploaded_to_a_private_repository(hub, adapter, tmp_path, capsys, options):
    out = tmp_path / "out"
    assert main(["export", adapter, str(out), "--push", "me/mine", *options]) == 0
    assert hub.created == [{"name": "mine", "organization": "me", "visibility": "private"}] or (
        hub.created[0]["private"] is True  # as older versions of the hub's client say it
    )
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert hub.tokens == {f"Bearer {SECRET}"}
    said = "".join(capsys.readouterr())
    assert "me/mine" in said
    assert SECRET not in said


def refused_with(adapter: str, out: Path, capsys, repository: str = "me/mine") -> tuple[int, str]:
    status = main(["export", adapter, str(out), "--push", repository])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert SECRET not in said
    return status, said


def test_without_a_token_nothing_is_written(hub, adapter, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    status, said = refused_with(adapter, tmp_path / "out", capsys)
    assert (status, hub.created) == (2, [])
    assert "there is no token in the environment variable HF_TOKEN" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("repository", ["mine", "a/b/c", "a/", "../mine", "me/mi ne", "me/.."])
def test_a_name_that_is_no_repository_is_refused_at_once(hub, adapter, tmp_path, capsys, repository):
    status, said = refused_with(adapter, tmp_path / "out", capsys, repository)
    assert (status, hub.created) == (2, [])
    assert "Write USER/NAME" in said


@pytest.mark.parametrize(
    ("refused", "status", "reason"),
    [(401, 2, "refuses the token in HF_TOKEN"), (403, 2, "refuses the token"), (400, 1, "status 400")],
)
def test_a_refusal_is_one_line_and_keeps_what_was_written(
    hub, adapter, tmp_path, capsys, refused, status, reason
):
    hub.refused = refused
    found, said = refused_with(adapter, tmp_path / "out", capsys)
    assert found == status
    assert reason in said
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_a_hub_that_cannot_be_reached_is_one_line(hub, adapter, tmp_path, capsys, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # nobody listens there
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        status, said = refused_with(adapter, tmp_path / "out", capsys)
    assert status == 1
    assert "me/mine cannot be uploaded" in said
