"""The documented defaults of ``sparring finetune`` against a real ``sparring serve``, and at other APIs."""

import asyncio
import json

import pytest

from finetune_commands import words_of
from job_commands import TOKEN, Server
from replying_server import completion, http, serving
from sparring.cli.main import main
from tiny_models import roomy_model

DEFAULTS = """
[program]
type = "proofs"
protocol = "solo_verifier"
num_invalid_generation_retries = 0
max_tokens_per_message = 8

[program.claims]
type = "arithmetic_claims"
count = 10

[finetune.provider]
base_url = "{url}"
least_examples = 1
poll_seconds = 0.05

[finetune.rl]
rollouts_per_iteration = 2
num_iterations = 2

[finetune.text_rl]
verifier_guess_replacement_proportion = 1.0
"""
"""No agent is named: each starts from the documented ``default``."""


@pytest.mark.slow
def test_agents_start_from_the_servers_default_if_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARRING_API_KEY", TOKEN)
    server = Server(tmp_path / "jobs", model=roomy_model())
    try:
        config = DEFAULTS.format(url=f"http://127.0.0.1:{server.port}/v1")
        (tmp_path / "plain.toml").write_text(config)
        assert main(["finetune", "plain.toml", "--name", "plain"]) == 0, capsys.readouterr().err
    finally:
        server.kill()
    rollouts = (tmp_path / "runs/plain/rollouts/step-000001.jsonl").read_text().splitlines()
    played = [json.loads(line) for line in rollouts]
    assert len(played) == 2
    assert "error" not in {name for one in played for name, value in one.items() if value}
    (group,) = json.loads((tmp_path / "runs/plain/state.json").read_text())["shared_model_groups"].values()
    assert group["fine_tuned_model_name"].startswith("ft:")


async def test_a_server_is_asked_for_its_default_if_no_model_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(http(completion("Decision: accept"))) as server:
        (tmp_path / "plain.toml").write_text(DEFAULTS.format(url=f"http://127.0.0.1:{server.port}/v1"))
        fields = ["--finetune.provider.type", "dry_run"]
        assert await asyncio.to_thread(main, ["finetune", "plain.toml", *fields]) == 0
    assert {body["model"] for body in server.bodies} == {"default"}


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier"])
def test_a_dry_run_needs_no_server_no_key_and_no_model(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = 'base_url = "{url}"\n'
    assert url in DEFAULTS
    (tmp_path / "plain.toml").write_text(DEFAULTS.replace(url, ""))
    fields = {
        "finetune.provider.type": "dry_run",
        "finetune.rl.rollouts_per_iteration": "16",
        "program.protocol": protocol,
        "program.num_invalid_generation_retries": "20",
    }
    assert main(["finetune", "plain.toml", "--name", "dry", *words_of(fields)]) == 0
    for iteration in (0, 1):
        lines = (tmp_path / f"runs/dry/rollouts/step-00000{iteration}.jsonl").read_text().splitlines()
        played = [json.loads(line)["rollout"]["extras"] for line in lines]
        assert {one["decision"]["verdict"] for one in played} >= {"accept", "reject"}
        answers = [answer for one in played for turn in one["rounds"] for answer in turn["answers"].values()]
        assert all(answer["valid"] for answer in answers)
    assert list((tmp_path / "runs/dry/jobs").iterdir())


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    ],
)
def test_another_api_is_not_asked_for_a_model_that_nobody_named(url, key, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(key, "a-key")
    (tmp_path / "plain.toml").write_text(DEFAULTS.format(url=url))
    for more in ([], ["--dry-run"], ["--finetune.provider.type", "dry_run"]):
        assert main(["finetune", "plain.toml", *more]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"error: finetune.agents.verifier.model_name: is 'default', which {url} does")
    assert not (tmp_path / "runs").exists()
