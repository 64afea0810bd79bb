"""Where sampling is set, and who draws with it: evaluations, opponents, judges, members; never who learns."""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import GenerationConfig

from game_runs import FEWER_GAMES, configure, run
from openai_http import httpx2
from program_runs import configure as configure_program
from program_runs import run as run_program
from sparring.cli.main import main
from sparring.commands.evaluate import evaluate
from sparring.config import load_config
from sparring.config.programs import DebateSettings
from sparring.core import AgentSpec, Arena, CallSettings, InputError, MockInferenceClient, Role, Sampling
from sparring.core.types import seated
from sparring.engine.engine import EmbeddedEngine
from sparring.evaluation.results import MatchResult, MeasureResult, read_evaluation
from sparring.programs.debate import DebateArena
from sparring.run.checks import check_config
from sparring.run.programs import build_program
from tiny_models import tiny_model
from tournaments import few_resamples, payoffs, play  # noqa: F401 - a fixture

PLAIN = Sampling()
OWN = Sampling(0.9, 30, 0.0, 1.2)
ASK = [{"role": "user", "content": "rules"}]


@pytest.fixture(scope="module")
def asking(model, tmp_path_factory) -> Path:
    """The tiny model with generation settings of its own."""
    directory = tmp_path_factory.mktemp("asking") / "model"
    shutil.copytree(model, directory)
    own = {"temperature": 0.6, "top_p": 0.9, "top_k": 30, "repetition_penalty": 1.2}
    GenerationConfig(do_sample=True, **own).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def trained(asking, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "kuhn"
    run(configure(asking, learning__steps="1", evaluation__nash_conv="false", **FEWER_GAMES), path)
    return path


@pytest.fixture
def asked(monkeypatch):
    """Every call that an engine of this process answers."""
    calls, answer = [], EmbeddedEngine.answer

    async def kept(engine, call):
        calls.append(call)
        return await answer(engine, call)

    monkeypatch.setattr(EmbeddedEngine, "answer", kept)
    return calls


def drawn(calls):
    return {(call.temperature, call.options.shaping.sampling) for call in calls}


# Runs


def test_evaluations_and_opponents_draw_as_they_are_told_and_who_learns_does_not(asking, tmp_path, asked):
    config = configure(
        asking,
        learning__steps="2",
        evaluation__nash_conv="false",
        evaluation__opponents='["base", "random"]',
        evaluation__sampling="{from_model = true, top_k = 5}",
        population__sample_mode="random",
        population__add_every="1",
        population__sampling="{top_p = 0.7}",
        **FEWER_GAMES,
    )
    run(config, tmp_path / "run")
    learned = [call for call in asked if call.return_tokens]
    copies = [call for call in asked if not call.return_tokens and "ckpt" in call.model]
    base = [call for call in asked if not call.return_tokens and call.model == "base"]
    measured = [call for call in asked if not any(call is one for one in (*learned, *copies, *base))]
    assert drawn(learned) == {(1.0, PLAIN)}
    assert drawn(copies) == drawn(base) == {(1.0, Sampling(top_p=0.7))}
    assert drawn(measured) == {(0.6, Sampling(0.9, 5, 0.0, 1.2))}
    for file in (tmp_path / "run" / "evaluation").glob("*.json"):
        _, result = read_evaluation(file)
        assert isinstance(result, MatchResult)
        assert (result.temperature, result.sampling) == (0.6, Sampling(0.9, 5, 0.0, 1.2))
    said = (tmp_path / "run" / "report.html").read_text()
    assert "temperature 0.6, top_p 0.9, top_k 5, repetition_penalty 1.2" in said


def test_a_game_of_evaluations_has_a_sampling_of_its_own(asking, tmp_path, asked):
    (tmp_path / "kuhn.toml").write_text(
        f"""
[model]
name = "{asking}"
dtype = "float32"
threads = 1
[lora]
rank = 2
[inference]
max_tokens = 4
[[envs]]
id = "kuhn_poker"
[collection]
games_per_step = 4
[learning]
steps = 1
[evaluation]
games = 2
temperature = 0.3
sampling = {{min_p = 0.1}}
[[evaluation.envs]]
id = "kuhn_poker"
[[evaluation.envs]]
id = "leduc_poker"
sampling = {{from_model = true}}
"""
    )
    run(load_config(str(tmp_path / "kuhn.toml"), {}), tmp_path / "run")
    files = (tmp_path / "run" / "evaluation").glob("step-000001-*.json")
    results = {result.env_id: result for _, result in map(read_evaluation, files)}
    found = {name: (one.temperature, one.sampling) for name, one in results.items()}
    assert found == {"kuhn_poker": (0.3, Sampling(min_p=0.1)), "leduc_poker": (0.3, OWN)}
    assert drawn(asked) == {(1.0, PLAIN), *found.values()}


def test_a_programs_tests_and_frozen_roles_have_a_sampling(asking, tmp_path, asked):
    changes = {"roles__Seeker__test_sampling": "{from_model = true}", "learning__steps": "1"}
    changes |= {"roles__Hider__policy": "base", "roles__Hider__sampling": "{top_p = 0.5}"}
    run_program(configure_program(asking, tmp_path, "Measured", **changes), tmp_path / "run")
    learned = [call for call in asked if call.return_tokens]
    base = [call for call in asked if call.model == "base"]
    measured = [call for call in asked if not call.return_tokens and call.model != "base"]
    assert drawn(learned) == {(1.0, PLAIN)}
    assert drawn(base) == {(1.0, Sampling(top_p=0.5))}
    assert drawn(measured) == {(0.6, OWN)}
    for file in (tmp_path / "run" / "evaluation").glob("*.json"):
        _, result = read_evaluation(file)
        assert isinstance(result, MeasureResult)
        own = "temperature 0.6, top_p 0.9, top_k 30, repetition_penalty 1.2"
        assert result.drawn == {"Hider": "top_p 0.5", "Seeker": own}


@pytest.mark.parametrize(
    ("draws", "temperatures"),
    [
        (CallSettings(sampling=Sampling(repetition_penalty=1.1)), [0.0, 0.7, 0.7]),
        (CallSettings(0.6, sampling=OWN), [0.6, 0.6, 0.6]),
        (CallSettings(), [0.0, 0.7, 0.7]),
    ],
)
async def test_a_judge_draws_as_it_is_told(draws, temperatures):
    asked = []

    class Client(MockInferenceClient):
        async def complete(self, messages, temperature=1.0, max_tokens=None, *args, sampling=None, **options):
            if messages[0]["content"].startswith("You judge"):
                asked.append((temperature, sampling))
            return await super().complete(messages, temperature, max_tokens, *args, **options)

    settings = DebateSettings(topics=["Cats are better than dogs"], batch_size=1, num_rounds=1)
    arena = DebateArena(Client(["no verdict"]), settings, judge_draws=draws)
    arena.retries = 0
    await arena.step()
    assert asked == [(temperature, draws.sampling) for temperature in temperatures]


async def test_the_judge_of_a_configuration_draws_as_the_model_asks(asking):
    asked = []

    class Client(MockInferenceClient):
        async def complete(self, messages, temperature=1.0, *args, sampling=None, **options):
            asked.append((messages[0]["content"].startswith("You judge"), temperature, sampling))
            return await super().complete(messages, temperature, *args, **options)

    changes = {
        "program.judge_by_score": "false",
        "program.judge_sampling": "{from_model = true, min_p = 0.1}",
    }
    arena = build_program(load_config("debate", {"model.name": str(asking), **changes}))
    arena.client, arena.retries = Client(["Winner: Aff, score: 0.9"]), 0
    await arena.step()
    assert {one for one in asked if one[0]} == {(True, 0.6, Sampling(0.9, 30, 0.1, 1.2))}
    assert {one[2] for one in asked if not one[0]} == {None}


def test_a_judge_by_score_draws_nothing_so_it_has_no_sampling(asking):
    changes = {"program.judge_by_score": "true", "program.judge_sampling.top_k": "1"}
    line = "program.judge_sampling: has no effect, because program.judge_by_score is true"
    with pytest.raises(InputError, match=line):
        load_config("debate", {"model.name": str(asking), **changes})


# Who learns


async def test_an_answer_that_is_learned_from_has_no_sampling():
    arena = Arena(MockInferenceClient())
    arena.add_role(Role("speaker", sampling=Sampling(top_k=3)))
    arena.add_role(Role("frozen", policy="base", sampling=Sampling(top_k=3)))
    with pytest.raises(InputError, match="sampling: top_k 3 is for an answer that default learns from"):
        await arena.call_model(ASK, "speaker")
    with pytest.raises(InputError, match="it learns what it draws from"):
        await arena.call_model(ASK, "speaker", calls=CallSettings(sampling=Sampling(min_p=0.1)))
    await arena.call_model(ASK, "speaker", calls=CallSettings(sampling=Sampling()))
    await arena.call_model(ASK, "frozen")
    await arena.call_model(ASK, calls=CallSettings(sampling=Sampling(min_p=0.1)))
    playing = seated.set({"speaker": AgentSpec("model", "base")})
    await arena.call_model(ASK, "speaker")
    seated.reset(playing)


async def test_a_client_of_ones_own_is_asked_for_a_sampling_only_if_there_is_one():
    asked = []

    class Client(MockInferenceClient):
        async def complete(self, *args, **options):
            asked.append(options.get("sampling", "nothing"))
            return await super().complete(*args, **options)

    arena = Arena(Client())
    for sampling in (None, Sampling(), Sampling(top_p=0.5)):
        await arena.call_model(ASK, calls=CallSettings(sampling=sampling))
    assert asked == ["nothing", "nothing", Sampling(top_p=0.5)]


@pytest.mark.parametrize(
    "field",
    ["inference.top_p", "inference.sampling.top_k", "envs.0.sampling.min_p", "envs.0.repetition_penalty"],
)
def test_a_configuration_that_asks_for_it_in_training_is_refused(field):
    with pytest.raises(InputError) as error:
        load_config("quickstart", {field: "1"})
    assert "is not for training, which draws from the distribution that is learned" in str(error.value)
    assert "evaluation.sampling or population.sampling" in str(error.value)


def test_a_role_that_is_trained_is_refused_a_sampling(model, tmp_path):
    config = configure_program(model, tmp_path, roles__Seeker__sampling="{top_p = 0.9}")
    with pytest.raises(InputError, match=r"roles.Seeker.sampling: the policy seeker is trained"):
        check_config(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation__sampling": "{from_model = true}"},
        {"population__sampling": "{from_model = true}", "evaluation__opponents": '["base"]'},
    ],
)
def test_a_model_that_says_nothing_is_found_out_before_the_run(model, changes):
    with pytest.raises(InputError, match=r"sampling.from_model: generation_config.json of .* has none of"):
        check_config(configure(model, **changes))


# Commands


def test_a_match_is_played_as_is_written_behind_the_names(trained, asked, capsys):
    played = evaluate(f"{trained},top_k=2", "kuhn_poker", "base,sampling=model,top_p=0.5", 4, temperature=0.4)
    result = played.to_dict()
    assert result["sampling"] == {"top_p": 1.0, "top_k": 2, "min_p": 0.0, "repetition_penalty": 1.0}
    assert result["temperature"] == 0.4
    base = [call for call in asked if call.model == "base"]
    assert drawn(base) == {(0.6, Sampling(0.5, 30, 0.0, 1.2))}
    assert drawn([call for call in asked if call.model != "base"]) == {(0.4, Sampling(top_k=2))}
    assert main(["eval", f"{trained},temperature=0", "--env", "kuhn_poker", "--games", "2"]) == 0
    assert "temperature 0" in capsys.readouterr().out


def test_two_models_with_their_own_settings_meet_in_a_tournament(trained, tmp_path, asked, capsys):
    names = [f"{trained}@0,sampling=model", f"{trained},temperature=0.5,min_p=0.1", "base", "random"]
    play(tmp_path / "out", *names, "--games", 4)
    uids = ["kuhn@0,sampling=model", "kuhn,temperature=0.5,min_p=0.1", "base", "random"]
    assert payoffs(tmp_path / "out")["members"] == uids
    found = {name: drawn([call for call in asked if call.model == name]) for name in uids[:3]}
    assert found == {
        uids[0]: {(0.6, OWN)},
        uids[1]: {(0.5, Sampling(min_p=0.1))},
        "base": {(1.0, PLAIN)},
    }
    written = json.loads((tmp_path / "out" / "tournament.json").read_text())["members"]
    own = "temperature 0.6, top_p 0.9, top_k 30, repetition_penalty 1.2"
    assert [one["drawn"] for one in written] == [own, "temperature 0.5, min_p 0.1", "", ""]
    count = len(asked)
    play(tmp_path / "out", *names, "--games", 4)
    assert len(asked) == count, "finished games are not played again"


def test_a_member_that_draws_otherwise_than_before_is_refused(asking, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(asking, model)
    play(tmp_path / "out", f"{model},sampling=model", "random", "--games", 4)
    GenerationConfig(do_sample=True, top_k=3).save_pretrained(model)
    capsys.readouterr()
    play(tmp_path / "out", f"{model},sampling=model", "random", "--games", 4, status=2)
    assert "another limit of tokens or another sampling" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ("random,top_p=0.9", "random draws from no model, so it has no top_p=0.9"),
        ("base,top_q=0.9", "there is no setting 'top_q'"),
        ("base,sampling=own", "there is no sampling 'own'. Use model or plain"),
        ("base,top_p=2", "top_p must be at most 1"),
        ("base,top_p=much", "top_p"),
        ("small@http://127.0.0.1:9/v1,sampling=model", "is for models that are served here"),
    ],
)
def test_a_wrong_setting_behind_a_name_is_one_line(member, line, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", "a-key")
    play(tmp_path / "out", trained, member, "--games", 4, status=2)
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_nash_conv_is_of_the_models_own_distribution(trained, tmp_path, capsys):
    exact = [
        evaluate(f"{trained}{behind}", "kuhn_poker", "random", 2, nash_conv=True).exact.nash_conv
        for behind in ("", ",top_k=1", ",temperature=0")
    ]
    assert exact[0] == exact[1] == exact[2]
    capsys.readouterr()
    play(tmp_path / "out", trained, "base,top_k=1", "--games", 4, "--nash-conv", status=2)
    line = "is that of a model's own distribution, and base,top_k=1 draws with top_k 1"
    assert line in capsys.readouterr().err


def test_a_directory_whose_name_looks_like_settings_is_a_directory(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "kuhn,top_k=1")
    for checkpoint in ("", "@0", "@last"):
        played = evaluate(f"{tmp_path}/kuhn,top_k=1{checkpoint}", "kuhn_poker", "random", 2)
        assert played.result.sampling == PLAIN


def test_the_command_serves_with_the_models_own_sampling(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_API_KEY", "a-key")
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    GenerationConfig(do_sample=True, top_k=1).save_pretrained(model)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    ended = threading.Event()

    def answers() -> list[str]:
        """The answers to two seeds, first as the model asks, then with the whole distribution."""
        client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer a-key"})
        try:
            up = None
            while up is None:
                with contextlib.suppress(httpx2.ConnectError):
                    up = client.get("/health")
            found = []
            for asked in ({"seed": 1}, {"seed": 2}, {"seed": 1, "top_k": -1}, {"seed": 2, "top_k": -1}):
                body = {"model": "default", "messages": ASK, "max_tokens": 12, **asked}
                answer = client.post("/v1/chat/completions", json=body, timeout=60).json()
                found.append(answer["choices"][0]["message"]["content"])
            return found
        finally:
            if not ended.is_set():  # without a server, the test itself would be interrupted
                os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(answers)
        options = ["--port", str(port), "--threads", "1", "--sampling", "model"]
        status = main(["serve", str(model), *options])
        ended.set()
        assert status == 0
        first, second, *others = asking.result()
    assert first == second
    assert len({first, *others}) == 3


@pytest.mark.parametrize(
    ("sampling", "line"),
    [("own", "there is no sampling 'own'. Use model or plain"), ("model", "has none of temperature")],
)
def test_a_server_without_such_settings_is_one_line(sampling, line, model, capsys):
    assert main(["serve", str(model), "--port", "0", "--sampling", sampling]) == 2
    assert line in capsys.readouterr().err
