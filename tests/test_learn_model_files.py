import http.server
import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from sparring.core import InputError
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.files import cache_directory
from sparring.learn.model_files import check_model_name, resolve_model
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import tiny_model

LORA = LoraSettings(4, 8.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def one_line(error: InputError) -> str:
    text = str(error)
    assert "\n" not in text
    assert text.startswith("model: ")
    return text


def change_json(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_model_directory_is_used_unchanged(model):
    assert resolve_model(str(model)) == str(model)
    assert PolicyModel(str(model), LORA).context_length == 256


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that has every file."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Write nothing."""


def test_a_hugging_face_id_is_left_to_transformers(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Hub) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        threading.Thread(target=hub.handle_request).start()
        assert resolve_model("some-org/Some_Model-0.5B") == "some-org/Some_Model-0.5B"


def truncate(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def cut_header(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "config.json").unlink(), "no config.json"),
        (lambda d: (d / "config.json").write_text('{"model_type": "llama",'), "not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "no JSON object"),
        (lambda d: (d / "config.json").write_text("{}"), "model_type"),
        (lambda d: (d / "config.json").write_text("[" * 100_000), "config.json is not valid JSON"),
        (lambda d: (d / "generation_config.json").write_text('{"eos'), "generation_config.json is not valid"),
        (lambda d: (d / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json is no JSON object"),
        (truncate, "truncated"),
        (cut_header, "truncated"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "truncated"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64), "truncated"),
    ],
)
def test_a_damaged_directory_is_rejected_before_anything_is_loaded(model, damage, reason):
    damage(model)
    with pytest.raises(InputError, match=reason) as caught:
        resolve_model(str(model))
    one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/no/such/model", "not a directory"),
        ("./nothing", "not a directory"),
        ("a/b/c", "not a directory"),
        ("two words", "cannot be"),
        ("some/model.gguf", "there is no file some/model.gguf"),
        ("smolm2-135m", f"Did you mean {BUNDLED_MODEL}"),
    ],
)
def test_a_name_that_cannot_be_a_model_is_rejected(name, reason):
    with pytest.raises(InputError, match=reason) as caught:
        check_model_name(name)
    one_line(caught.value)


def test_a_file_is_not_a_model(model):
    with pytest.raises(InputError, match="not a directory"):
        check_model_name(str(model / "config.json"))


def more_layers(directory: Path) -> None:
    change_json(directory / "config.json", num_hidden_layers=3, layer_types=None)


def template_without_text(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    change_json(directory / "tokenizer_config.json", chat_template=5)


def wider(directory: Path) -> None:
    change_json(directory / "config.json", hidden_size=64)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "model.safetensors").unlink(), "cannot be loaded"),
        (truncate, "cannot be loaded"),
        (more_layers, "do not fit its config.json: 9 are"),
        (wider, "do not fit its config.json"),
        (lambda d: change_json(d / "config.json", model_type="nonesuch"), "cannot be loaded"),
        (lambda d: (d / "tokenizer.json").write_text("{"), "no usable tokenizer"),
        (lambda d: change_json(d / "tokenizer_config.json", eos_token=None), "no eos_token"),
        (lambda d: change_json(d / "generation_config.json", eos_token_id="</s>"), "eos_token_id '</s>'"),
        (lambda d: change_json(d / "generation_config.json", eos_token_id=[1, "x"]), "has the eos_token_id"),
        (template_without_text, "chat template of .* is no text"),
    ],
)
def test_a_model_that_does_not_load_is_rejected_in_one_line(
    model: Path, damage: Callable[[Path], object], reason: str, capfd: pytest.CaptureFixture[str]
):
    damage(model)
    with pytest.raises(InputError, match=reason) as caught:
        PolicyModel(str(model), LORA)
    one_line(caught.value)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_id_without_a_network_gives_one_clear_line(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="there is no nobody/no-such-model on this machine") as caught:
        PolicyModel(resolve_model("nobody/no-such-model"), LORA)
    one_line(caught.value)


def test_the_cache_is_in_the_users_cache_directory_or_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARRING_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "sparring"
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"


def test_a_converted_model_in_the_cache_is_used_without_a_download(monkeypatch, tmp_path):
    """It is verified by the hashes beside it; a changed file makes it unusable."""
    import hashlib

    cached = Path(shutil.copytree(tiny_model("llama"), tmp_path / BUNDLED_MODEL))
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in cached.iterdir()}
    (cached / "sha256.json").write_text(json.dumps(hashes))
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    said: list[str] = []
    assert resolve_model(BUNDLED_MODEL, said.append) == str(cached)
    assert said == []


def test_a_hub_that_cannot_be_reached_is_one_line_at_once(monkeypatch, tmp_path, capsys):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # nobody listens there
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(
            InputError, match=r"no gemma3-270m on this machine, and .* cannot be reached"
        ) as caught:
            resolve_model("gemma3-270m")
        assert BUNDLED_MODEL in caught.value.fix
        assert "directory" in caught.value.fix
        copy = tmp_path / "models--some--model" / "snapshots" / "0123abc"
        copy.mkdir(parents=True)
        (copy / "config.json").write_text("{}")
        (tmp_path / "models--some--model" / "refs").mkdir()
        (tmp_path / "models--some--model" / "refs" / "main").write_text("0123abc")
        assert resolve_model("some/model") == str(copy), "a copy on this machine needs no hub"
    assert "".join(capsys.readouterr()) == ""


def test_an_empty_gguf_file_is_damaged(tmp_path):
    (tmp_path / "x.gguf").touch()
    with pytest.raises(InputError, match=r"x.gguf is no GGUF file, damaged or truncated. Download it again"):
        resolve_model(str(tmp_path / "x.gguf"))
