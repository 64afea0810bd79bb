"""Failures: each costs one episode, is retried and kept with its reason; wrong input stops everything."""

import asyncio

import pytest

from core_programs import Ask, Family, SeedClient, make_arena, parents
from sparring.core import (
    ContextError,
    EpisodeError,
    EpisodeRequest,
    InputError,
    MockInferenceClient,
    Rubric,
    SparringError,
    TransientError,
)


class Failing(Ask):
    """Fails with ``error`` as long as ``fails()`` is true."""

    def __init__(self, error, fails=lambda: True):
        super().__init__()
        self.error = error
        self.fails = fails

    def get_initial_prompt(self, arena, artifact, state):
        if self.fails():
            raise self.error
        return super().get_initial_prompt(arena, artifact, state)


async def test_a_failure_is_retried_and_then_kept_with_its_reason():
    arena = make_arena(child=Failing(TransientError("the line went dead")), retries=2)
    result = await arena.try_episode("child", "sums", {"rollout_id": "mine"})
    rollout = result.rollout
    assert (rollout.error, rollout.error_type) == ("the line went dead", "TransientError")
    assert (rollout.id, rollout.episode_type, rollout.artifact) == ("mine", "ask solver", "sums")
    assert (rollout.meta["retried"], rollout.steps, result.children, rollout.rewards) == (2, [], [], {})


@pytest.mark.parametrize("error", [EpisodeError("no judge"), KeyError("topic"), OverflowError()], ids=repr)
async def test_a_permanent_failure_is_not_retried(error):
    tries = []
    arena = make_arena(child=Failing(error, lambda: tries.append(1) or True))
    rollout = (await arena.try_episode("child", "sums")).rollout
    assert rollout.error is not None
    assert rollout.error_type == type(error).__name__
    assert (len(tries), "retried" in rollout.meta) == (1, False)


@pytest.mark.parametrize("error", [TransientError("busy"), TimeoutError(), ConnectionResetError()], ids=repr)
async def test_a_transient_failure_is_retried(error):
    tries = []
    arena = make_arena(child=Failing(error, lambda: tries.append(1) or True), retries=3)
    assert (await arena.try_episode("child", "sums")).rollout.meta["retried"] == 3
    assert len(tries) == 4


class Breaking(MockInferenceClient):
    """Raises ``error`` at its first ``times`` calls."""

    def __init__(self, error, times):
        super().__init__(["yes"])
        self.error = error
        self.times = times

    async def complete(self, *args, **options):
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return await super().complete(*args, **options)


async def test_an_error_of_a_clients_own_type_counts_as_temporary():
    class Http(Exception):
        pass

    rollout = (await make_arena(Breaking(Http(502), 2), retries=2).try_episode("child", "sums")).rollout
    assert (rollout.error, rollout.meta["retried"]) == (None, 2)
    rollout = (await make_arena(Breaking(Http(502), 9), retries=2).try_episode("child", "sums")).rollout
    assert rollout.error.startswith("the client failed: Http(502) in test_core_failures.py, line ")


async def test_a_permanent_error_of_a_client_is_not_retried():
    client = Breaking(ContextError("a prompt of 9 tokens exceeds the context"), 1)
    rollout = (await make_arena(client, retries=2).try_episode("child", "sums")).rollout
    assert rollout.error == "a prompt of 9 tokens exceeds the context"
    assert rollout.error_type == "ContextError"


async def test_a_reward_function_that_raises_fails_its_episode_once_and_is_named():
    calls = []

    def strict(rollout, arena):
        calls.append(rollout.id)
        return {"solver": 1.0 / int(rollout.steps[0].completion_text)}

    class Strict(Ask):
        rubric = Rubric([strict])

    rollout = (await make_arena(child=Strict(), retries=2).try_episode("child", "sums")).rollout
    assert rollout.error.startswith("strict failed: ValueError(")
    assert "in test_core_failures.py, line " in rollout.error
    assert len(calls) == 1


@pytest.mark.parametrize("error", [KeyError("question"), TimeoutError("not the episode's limit")], ids=repr)
async def test_the_reason_of_a_bug_names_its_location(error):
    arena = make_arena(child=Failing(error), retries=0)
    reason = (await arena.try_episode("child", "sums")).rollout.error
    assert reason.startswith(f"Failing.get_initial_prompt failed: {error!r} in test_core_failures.py, line ")


def failing_reward(rollout, arena):
    raise ZeroDivisionError("no solver answered")


class FailingRubric(Ask):
    rubric = Rubric([failing_reward])


class FailingExtras(Ask):
    def get_extras(self, state):
        raise LookupError("no extras")


class UnscoredRole(Ask):
    rubric = Rubric([lambda rollout, arena: {}])


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (FailingRubric(), "no solver answered"),
        (FailingExtras(), "no extras"),
        (UnscoredRole(), "role solver acted but no reward function scored it"),
    ],
    ids=["rubric", "extras", "unscored role"],
)
async def test_a_failure_after_play_costs_the_episode_and_nothing_else(child, reason):
    arena = make_arena(requests=parents(2), child=child, retries=0)
    batch, results = await arena.play_step()
    assert [record.role_id for record in batch.records] == ["proposer", "proposer"]
    assert (batch.meta["episodes"], batch.meta["failed"]) == (6, 4)
    assert all(reason in child.rollout.error for result in results for child in result.children)


class FailsOn(Ask):
    """Fails for one artifact only."""

    async def rollout(self, arena, artifact, state=None):
        if artifact == 1:
            raise EpisodeError("not this one")
        return await super().rollout(arena, artifact, state)


async def test_results_come_in_the_order_of_the_requests_failures_included():
    arena = make_arena(SeedClient(order=3), child=FailsOn(), retries=0)
    results = await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(5)])
    assert [result.rollout.artifact for result in results] == [0, 1, 2, 3, 4]
    assert [result.rollout.error for result in results] == [None, "not this one", None, None, None]


async def test_a_parent_may_fail_because_of_its_children_and_be_retried_with_them():
    attempts = []

    class Strict(Family):
        def get_extras(self, state):
            attempts.append([child.rollout.id for child in state.child_results])
            if len(attempts) == 1:
                raise TransientError("try again")
            return {}

    batch = await make_arena(requests=parents(1), parent=Strict()).step()
    assert (len(batch.records), batch.meta["episodes"], batch.meta["retried"]) == (3, 3, 1)
    assert attempts[0] == attempts[1], "the same ids and seeds"


async def test_an_artifact_that_cannot_be_resolved_costs_its_episode():
    arena = make_arena(retries=1)
    tries = []

    async def fetch(request):
        tries.append(request.artifact)
        if request.artifact == 1:
            raise ConnectionError("no such question")
        return f"question {request.artifact}"

    arena.resolve_artifact = fetch
    results = await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(3)])
    assert [result.rollout.artifact for result in results] == ["question 0", 1, "question 2"]
    assert "no such question" in results[1].rollout.error
    assert tries.count(1) == 2


class Stuck(MockInferenceClient):
    """Answers prompts about anything but 1; calls about 1 wait forever."""

    def __init__(self):
        super().__init__(["yes"])
        self.stuck = 0
        self.cancelled = 0

    async def complete(self, messages, *args, **options):
        if messages[-1]["content"] == "about 1":
            self.stuck += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return await super().complete(messages, *args, **options)


async def test_an_episode_that_hangs_ends_at_its_limit():
    arena = make_arena(Stuck(), episode_timeout=1.0, retries=1)
    results = await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(3)])
    assert [result.rollout.error for result in results] == [None, "the episode took longer than 1 s", None]
    assert arena.client.cancelled == 2


async def test_a_child_that_hangs_does_not_fail_its_parent():
    """The parent's clock stops while its children play, including their retries."""
    arena = make_arena(Stuck(), episode_timeout=1.0, retries=2, parent=Family(children=3))
    result = (await arena.generate_rollouts([EpisodeRequest("parent", "sums")]))[0]
    assert result.rollout.error is None
    errors = [child.rollout.error for child in result.children]
    assert errors == [None, "the episode took longer than 1 s", None]
    assert arena.client.cancelled == 3


async def test_time_in_the_queue_for_a_call_does_not_count_either():
    """Children are not held at the entrance: they wait for the slot of their calls."""
    arena = make_arena(Stuck(), episode_timeout=1.0, retries=0, max_calls=1, parent=Family(children=4))
    result = (await arena.generate_rollouts([EpisodeRequest("parent", "sums")]))[0]
    errors = [child.rollout.error for child in result.children]
    assert errors == [None, "the episode took longer than 1 s", None, None]


async def test_a_parents_clock_continues_after_its_children():
    class ThenHangs(Family):
        async def rollout(self, arena, artifact, state=None):
            await super().rollout(arena, artifact, state)
            await asyncio.Event().wait()

    arena = make_arena(episode_timeout=1.0, retries=0, parent=ThenHangs())
    result = (await arena.generate_rollouts([EpisodeRequest("parent", "sums")]))[0]
    assert result.rollout.error == "the episode took longer than 1 s"


async def test_a_cancellation_from_within_costs_the_episode():
    """A client with a shared connection may cancel a call that another episode awaits."""
    arena = make_arena(child=Failing(asyncio.CancelledError()), retries=0)
    results = await arena.generate_rollouts([EpisodeRequest("child", 0), *parents(1)])
    reason = "a call that the episode awaited was cancelled: Failing.get_initial_prompt failed: "
    assert results[0].rollout.error.startswith(reason)
    assert results[0].rollout.error_type == "CancelledError"
    assert results[1].rollout.error is None


async def test_a_cancellation_from_outside_stops_everything():
    arena = make_arena(Stuck(), retries=5, max_calls=3)
    requests = [EpisodeRequest("child", 1) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(arena.generate_rollouts(requests))
        while arena.client.stuck < 3:
            await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert arena.client.cancelled == 3
    assert len((await arena.generate_rollouts([EpisodeRequest("child", 0)]))[0].rollout.steps) == 1


async def test_wrong_input_stops_everything_and_cancels_the_rest():
    class Unknown(Ask):
        async def rollout(self, arena, artifact, state=None):
            while arena.client.stuck < 3:
                await asyncio.sleep(0)
            await arena.call_model([], "nobody")

    arena = make_arena(Stuck(), child=Unknown())
    requests = [*(EpisodeRequest("parent", 1) for _ in range(3)), EpisodeRequest("child", 0)]
    with pytest.raises(InputError, match="no role nobody"):
        await arena.generate_rollouts(requests)
    assert arena.client.cancelled == 3


async def test_a_run_without_an_end_stops_when_every_episode_fails():
    arena = make_arena(MockInferenceClient(["yes"]), parents(2), parent=FailingExtras())
    with pytest.raises(SparringError, match="every episode failed; the last: "):
        async for _ in arena.run():
            pass
    assert [batch.meta["failed"] async for batch in arena.run(num_steps=2)] == [2, 2]


async def test_half_a_surrogate_pair_in_an_answer_is_replaced():
    """An API may send one; no tokenizer, prompt or file can take it."""
    arena = make_arena(MockInferenceClient(["a\ud800b\ud83d\ude00"]))
    (step,) = (await arena.try_episode("child", "sums")).rollout.steps
    assert step.completion_text == "a\ufffdb\U0001f600"
