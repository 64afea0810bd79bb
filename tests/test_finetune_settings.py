"""What a configuration of ``sparring finetune`` may say: agents, trainers of one's own; dry runs, Ctrl-C."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from finetune_commands import SMALL, finetune, words_of
from finetune_runs import files_of
from replying_server import serving
from sparring.cli.main import main
from sparring.config import load_config
from sparring.config.finetune import parameters_of
from sparring.config.loading import dump_config
from terminal_sessions import IN_BACKGROUND

AGENTS = """
[program]
type = "proofs"
[program.claims]
type = "arithmetic_claims"
[finetune.agents._default]
model_name = "large"
dpo_beta = 0.3
hyperparameters = {n_epochs = 2}
[finetune.agents.prover]
freeze_agent = true
[finetune.agents.verifier]
model_name = "small"
hyperparameters = {batch_size = 4}
"""
OWN_TRAINER = """
from sparring.finetune import PureTextRlTrainer


class Questions(PureTextRlTrainer):
    \"\"\"Imitates everything that the verifier says.\"\"\"

    async def _stage_create_fine_tune_jobs(self, rollouts, only_failed=False):
        group = self.shared_model_groups["verifier"]
        examples = [
            {"messages": [*step.prompt, {"role": "assistant", "content": step.completion_text}]}
            for rollout in rollouts
            for step in rollout.steps
            if step.role_id == "verifier"
        ]
        await group.create_supervised_fine_tune_job(examples, self._get_fine_tune_job_name(group))


def function():
    pass
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_an_agents_table_needs_only_what_differs_from_the_default(tmp_path):
    file = tmp_path / "agents.toml"
    file.write_text(AGENTS)
    for _ in range(2):
        agents = load_config(str(file), {"finetune.agents.verifier.temperature": "0.5"}).finetune.agents
        prover, verifier = parameters_of(agents, "prover"), parameters_of(agents, "verifier")
        assert (prover.model_name, prover.dpo_beta, prover.freeze_agent) == ("large", 0.3, True)
        assert (verifier.model_name, verifier.dpo_beta, verifier.temperature) == ("small", 0.3, 0.5)
        assert (prover.hyperparameters, verifier.hyperparameters) == ({"n_epochs": 2}, {"batch_size": 4})
        assert parameters_of(agents, "another").model_name == "large"
        file.write_text(dump_config(load_config(str(file), {})))


async def test_a_configuration_names_a_trainer_of_ones_own(runs):
    (runs.parent / "own.py").write_text(OWN_TRAINER)
    fields = {"finetune.trainer": "own.py:Questions", "finetune.provider.least_examples": "1"}
    assert await finetune("one", **fields) == 0
    state = json.loads((runs / "one" / "state.json").read_text())["shared_model_groups"]
    assert state["verifier"]["fine_tune_job_id"].startswith("dry-run:one_iter_0_verifier")
    assert state["prover"]["fine_tune_job_id"] is None
    assert await asyncio.to_thread(main, ["finetune", "--resume", "one"]) == 0


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (
            "grpo",
            "finetune.trainer: there is no trainer grpo. Use pure_text_ei or pure_text_malt, or my_file.py",
        ),
        ("none.py:Mine", "finetune.trainer: there is no file"),
        ("own.py:function", "has no PureTextRlTrainer named 'function'"),
    ],
)
def test_a_trainer_that_is_none_is_one_line(runs, trainer, words, capsys):
    (runs.parent / "own.py").write_text(OWN_TRAINER)
    assert main(["finetune", "nip", "--finetune.trainer", trainer]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not runs.exists()


def test_a_dry_run_shows_the_configuration_and_what_it_would_do(runs, capsys):
    fields = SMALL | {"finetune.agents.prover.freeze_agent": "true"}
    assert main(["finetune", "nip", "--dry-run", *words_of(fields)]) == 0
    said = capsys.readouterr()
    assert "rollouts_per_iteration = 2" in said.out
    assert said.err.splitlines() == [
        "ok nip: prover, verifier",
        "ok 2 iterations with 2 rollouts each",
        "ok 8 rollouts in a test; tests: all",
        "ok jobs after each iteration but the last: verifier",
        f"ok run directory {runs.relative_to(runs.parent) / 'nip'}",
    ]
    assert files_of(runs.parent) == {}
    assert main(["finetune", "nip", "--dry-run", "--finetune.agents.judge.temperature", "1"]) == 2
    assert "the protocol has no agent judge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked_by", "start"),
    [(signal.SIGINT, ()), pytest.param(signal.SIGTERM, IN_BACKGROUND, marks=pytest.mark.slow)],
    ids=["Ctrl-C", "SIGTERM in the background"],
)
async def test_an_interrupted_run_says_how_to_continue_it(runs, asked_by, start):
    async with serving(None) as server:
        address = f"http://127.0.0.1:{server.port}/v1"
        words = words_of(SMALL | {"finetune.provider.base_url": address})
        command = [
            *start,
            sys.executable,
            "-c",
            "from sparring.cli.main import run; run()",
            "finetune",
            "nip",
            *words,
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(120):
            while not server.lines:
                await asyncio.sleep(0.05)
            os.kill(process.pid, asked_by)
            said, _ = await process.communicate()
    assert process.returncode == 130
    lines = said.decode().splitlines()
    assert "run directory: runs/nip" in lines
    assert "continue with: sparring finetune --resume runs/nip" in " ".join(lines[-2:])


async def test_a_run_behind_an_api_says_where_its_models_are(runs, capsys):
    assert await finetune("one") == 0
    for command in (["export", "one", "model"], ["serve", "one"]):
        capsys.readouterr()
        assert await asyncio.to_thread(main, command) == 2
        said = capsys.readouterr().err
        assert "its models are at the API that trained them, not in the run" in said
        assert "Traceback" not in said


APIS = {
    "Tinker's API": ["--finetune.provider.type", "tinker"],
    "api.openai.com": ["--finetune.provider.base_url", "https://api.openai.com/v1"],
}
NOT_OFFERED = {
    "--inference.max_reasoning": "5",
    "--roles.prover.max_reasoning": "5",
    "--roles.verifier.test_sampling.min_p": "0.1",
    "--roles.verifier.test_sampling.repetition_penalty": "1.2",
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("field", NOT_OFFERED)
def test_what_an_api_does_not_offer_is_refused_before_anything_is_played(
    field, api, runs, monkeypatch, capsys
):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    words = ["finetune", "nip", *APIS[api], "--finetune.agents._default.model_name", "Qwen/Qwen3-8B"]
    for dry in (["--dry-run"], []):
        assert main([*words, field, NOT_OFFERED[field], *dry]) == 2
        error = capsys.readouterr().err
        written = field[2:] if "sampling" not in field else field[2:].rpartition(".")[0]
        assert error.startswith(f"error: {written}: ")
        assert api in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("provider", ["local", "tinker"])
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("n_epochs", "0", "n_epochs: give a number from 1 to 1000, or auto"),
        ("batch_size", "many", "batch_size: "),
        ("supervised.learning_rate_multiplier", "0", "learning_rate_multiplier: give a number above 0"),
        ("rnk", "3", "rnk: "),
    ],
)
def test_a_job_that_no_provider_makes_is_refused_before_anything_is_played(
    field, value, problem, provider, runs, capsys
):
    words = ["finetune", "nip", "--dry-run", "--finetune.provider.type", provider]
    words += ["--finetune.agents._default.model_name", {"local": "base", "tinker": "Qwen/Qwen3-8B"}[provider]]
    assert main([*words, f"--finetune.agents._default.hyperparameters.{field}", value]) == 2
    assert f"finetune.agents.prover.hyperparameters: {problem}" in capsys.readouterr().err


def test_only_the_methods_of_jobs_that_are_made_are_checked(runs, capsys):
    words = ["finetune", "nip", "--dry-run", "--finetune.provider.type", "local"]
    words += ["--finetune.agents._default.hyperparameters.dpo.n_epochs", "0"]
    assert main(words) == 0
    assert main([*words, "--finetune.trainer", "pure_text_malt"]) == 2
