"""Environments of verifiers as programs: their rewards, who is trained, what is refused, and whole runs."""

import asyncio
import random
from importlib.util import find_spec

import pytest
from safetensors.torch import load_file

from program_runs import SMALL, logged, run
from sparring.config import load_config
from sparring.config.programs import VerifiersSettings
from sparring.core import InputError, MockInferenceClient
from sparring.programs.verifiers_arena import VerifiersArena


def arena_of(answer, taskset, **settings):
    sizes = {"tasks": 8, "batch_size": 4, "episodes_per_task": 2} | settings
    arena = VerifiersArena(MockInferenceClient(answer), VerifiersSettings(taskset=taskset, **sizes))
    arena.retries = 0
    return arena


def play(arena):
    batch, results = asyncio.run(arena.play_step())
    return batch, results


def test_one_agent_is_scored_by_its_task():
    def answer(messages, seed):
        return "aabb" if seed % 2 else "zzzz"

    batch, results = play(arena_of(answer, "counting"))
    for result in results:
        (step,) = result.rollout.steps
        letter = step.prompt[-1]["content"][6]
        assert [one["role"] for one in step.prompt] == ["system", "user"]
        assert result.rewards == {"agent": step.completion_text.count(letter) / 4 * 0.5}
        assert result.rollout.metrics["measured/agent/length"] == 4
    assert len(batch.records) == 4


def bid(messages, seed):
    return "7" * (seed % 4)


def test_two_agents_in_turns_are_two_roles_with_their_own_conversations():
    batch, results = play(arena_of(bid, "bidding"))
    for result in results:
        steps = result.rollout.steps
        assert [step.role_id for step in steps] == ["first", "second"] * 2
        said = [step.completion_text for step in steps]
        totals = [len(said[0] + said[2]), len(said[1] + said[3])]
        assert result.rewards == {"first": totals[0] - totals[1], "second": totals[1] - totals[0]}
        assert result.rollout.extras["runs"][0]["info"] == {"totals": totals}
        assert result.rollout.metrics["measured/first/agents"] == 2
        later = steps[2].prompt
        assert [one["content"] for one in later[1:]] == ["Begin.", said[0], said[1] or "nothing"]
        assert later[2]["role"] == "assistant"
    assert {record.role_id for record in batch.records} == {"first", "second"}


def test_an_agent_that_the_environment_does_not_train_is_not_trained():
    batch, results = play(arena_of(bid, "bidding", options={"trains_second": False}))
    assert {record.role_id for record in batch.records} == {"first"}
    assert {step.role_id for step in results[0].rollout.steps} == {"first", "second"}


def test_a_limit_of_the_environment_ends_an_agents_turns():
    _, results = play(arena_of(bid, "bidding", options={"rounds": 4}))
    for result in results:
        roles = [step.role_id for step in result.rollout.steps]
        assert (roles.count("first"), roles.count("second")) == (4, 2)
        ends = {run["agent"]: run["ended"] for run in result.rollout.extras["runs"]}
        assert ends == {"first": "user_closed", "second": "max_turns"}


def propose(messages, seed):
    return random.Random(seed).choice(["yes", "no", "now"])


def test_runs_of_one_agent_are_compared_with_each_other():
    batch, results = play(arena_of(propose, "asking"))
    for result in results:
        assert [one.role_id for one in result.rollout.steps] == ["proposer"]
        solved = [child.rollout.rewards["solver"] for child in result.children]
        assert len(solved) == 3
        assert result.rewards == {"proposer": pytest.approx(1 - sum(solved) / 3)}
        assert sum(child.rollout.advantages["solver"] for child in result.children) == pytest.approx(0)
    assert (batch.meta["episodes"], len(batch.records)) == (16, 16)


def test_runs_do_not_depend_on_the_order_in_which_answers_come():
    class Late(MockInferenceClient):
        async def complete(self, messages, *args, seed=None, **options):
            for _ in range(seed % 7):
                await asyncio.sleep(0)
            return await super().complete(messages, *args, seed=seed, **options)

    found = []
    for kind in (MockInferenceClient, Late):
        arena = arena_of(propose, "asking")
        arena.client = kind(propose)
        _, results = play(arena)
        runs = [child.rollout for result in results for child in result.children]
        found.append([(one.id, one.rewards, one.steps[0].completion_text) for one in runs])
    assert found[0] == found[1]


def test_an_environment_that_raises_costs_its_episode():
    batch, results = play(arena_of(lambda messages, seed: "break", "asking"))
    assert batch.meta["failed"] == 4
    assert results[0].rollout.error.startswith("AskingEnv.run failed: ValueError('no word') in asking.py")


def test_only_held_out_tasks_measure():
    asked = []

    def answer(messages, seed):
        asked.append(messages[-1]["content"])
        return "a"

    arena = arena_of(answer, "counting", tasks=10, test_size=0.3)
    measures = asyncio.run(arena.evaluate())
    held_out = {*asked}
    assert [len(one) for one in measures.values()] == [3]
    asked.clear()
    for _ in range(4):
        play(arena)
    assert len({*asked}) == 7
    assert not held_out & {*asked}


@pytest.mark.parametrize(
    ("kind", "need"),
    [
        ("Boxed", "a container"),
        ("Prepared", "a runtime"),
        ("Inspected", "a runtime"),
        ("Rewritten", "interception of messages"),
    ],
)
def test_a_task_that_needs_more_than_talk_is_refused(kind, need):
    with pytest.raises(InputError, match=f"{kind}.* of verifiers needs {need}"):
        arena_of(bid, "handling", options={"taskset": {"kind": kind}})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"taskset": "nowhere"}, "verifiers cannot load it: taskset 'nowhere' not found"),
        ({"taskset": "bidding", "options": {"round": 3}}, "verifiers cannot load it"),
        ({"taskset": "counting", "environment": "best-of-m"}, "environment 'best-of-m' not found"),
        ({"taskset": "counting", "options": {"agent": {"model": "other"}}}, "agent names a model of its own"),
        (
            {"taskset": "counting", "options": {"agent": {"harness": {"id": "bash"}}}},
            "agent runs the harness bash",
        ),
        ({"taskset": "running"}, "agent runs the harness running"),
        ({"taskset": "broken"}, "verifiers cannot load it: no account here"),
        ({"taskset": "bidding", "options": {"rounds": "many"}}, "rounds: Input should be a valid integer"),
        ({"taskset": "bidding", "options": {"taskset": "bidding"}}, "taskset.id are not options"),
        ({"taskset": "bidding", "options": {"timeout": {"episode": 5}}}, "timeout has no effect here"),
        (
            {"taskset": "bidding", "options": {"first": {"retries": {"max_retries": 5}}}},
            "retries of first has no effect",
        ),
        (
            {"taskset": "bidding", "options": {"first": {"sampling": {"temperature": 0.5}}}},
            "sampling of first sets more than max_tokens",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(settings, problem):
    with pytest.raises(InputError, match=problem) as refused:
        arena_of(bid, **settings)
    assert "\n" not in str(refused.value)


TABLES = {
    "counting": "",
    "best-of-n": 'environment = "best-of-n"\noptions = {n = 2}\n',
    "user-sim": 'environment = "user-sim"\noptions = {user = {max_turns = 2}}\n',
}


@pytest.mark.parametrize("name", [*TABLES, "bidding"])
def test_two_updates_train_a_tiny_model(name, tmp_path):
    from tiny_models import roomy_model

    taskset = "bidding" if name == "bidding" else "counting"
    (tmp_path / "own.toml").write_text(
        f'[program]\ntype = "verifiers"\ntaskset = "{taskset}"\n{TABLES.get(name, "")}'
        "tasks = 10\nbatch_size = 4\nepisodes_per_task = 2\n"
    )
    changes = {"model.name": str(roomy_model()), "learning.steps": "2", "learning.learning_rate": "0.01"}
    changes["tracking.games_logged"] = "100"
    printed = run(load_config(str(tmp_path / "own.toml"), SMALL | changes), tmp_path / "run")
    assert "0 failed" in printed
    steps = [step for one in logged(tmp_path / "run") for step in one.steps if step.policy]
    assert all(step.completion_token_ids and step.completion_logprobs for step in steps)
    trained = len([step for step in steps if step.role_id != "user"])
    assert trained >= 8
    assert f"trained on: {trained} answers" in printed
    if name == "bidding":  # digits are said often enough for rewards to differ
        weights = load_file(tmp_path / "run" / "checkpoints" / "step-000002" / "adapter_model.safetensors")
        assert any(weights[key].any() for key in weights if "lora_B" in key)


CARDS = {"J": 0, "Q": 1, "K": 2}
MOVES = {"check": 0, "fold": 0, "bet": 1, "call": 1}


@pytest.mark.skipif(
    find_spec("kuhn_poker") is None, reason="kuhn_poker of verifiers' repository is not installed"
)
def test_kuhn_poker_of_verifiers_pays_as_ours_under_the_same_moves():
    import pyspiel

    def answer(messages, seed):
        legal = [word.strip("[].") for word in messages[-1]["content"].split() if word.startswith("[")]
        legal = legal[-2:]
        return f"[{random.Random(seed).choice(legal)}]"

    arena = arena_of(answer, "kuhn-poker", tasks=300, batch_size=200, episodes_per_task=1, test_size=0.1)
    _, results = play(arena)
    assert len(results) == 200
    seen = set()
    game = pyspiel.load_game("kuhn_poker")
    for result in results:
        notes = [one["info"]["kuhn"] for one in result.rollout.extras["runs"]]
        cards = [CARDS[one["card"]] for one in sorted(notes, key=lambda one: one["seat"])]
        history = notes[0]["history"].split("-")
        state = game.new_initial_state()
        for action in [*cards, *(MOVES[move] for move in history)]:
            assert not state.is_terminal()
            state.apply_action(action)
        assert state.is_terminal()
        assert state.returns() == [result.rewards["player0"], result.rewards["player1"]]
        seen.add((*cards, *history))
    assert len(seen) == 30  # all deals, all histories
