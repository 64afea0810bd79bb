"""The verbose log contains every event of a run."""

import re

import pytest

from core_programs import Ask, SeedClient, make_arena, parents, played
from sparring.core import EpisodeRequest, GRPOCredit, MockInferenceClient, VerboseLogger, apply_credit


@pytest.fixture
def log(tmp_path):
    """A logger and a function that reads what it has written, without the times of day."""
    with VerboseLogger(tmp_path / "run.log") as logger:
        yield (
            logger,
            lambda: re.sub(
                r"^( *)\d\d:\d\d:\d\d ", r"\1", (tmp_path / "run.log").read_text(), flags=re.MULTILINE
            ),
        )


def test_every_event_begins_with_the_time_of_day(tmp_path):
    with VerboseLogger(tmp_path / "run.log") as logger:
        logger.log_step_start(0, 4)
        logger.log_step_start(1, 4)
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d step \d: 4 requests", line) for line in lines)
    assert len(lines) == 2


def test_a_log_can_be_read_while_it_is_written(log):
    logger, read = log
    logger.log_step_start(0, 4)
    assert read() == "step 0: 4 requests\n"


def test_runs_and_steps(log):
    logger, read = log
    logger.log_run_start({"arena": "DebateArena", "num_steps": 3})
    logger.log_step_end(2, {"episodes": 4, "reward/Aff": 0.123456})
    assert read() == "run: arena=DebateArena, num_steps=3\nstep 2 done: episodes=4, reward/Aff=0.1235\n"


def test_episodes(log):
    logger, read = log
    logger.log_episode_start("debate", {"topic": "a\nb"}, "r1")
    logger.log_episode_start("debate", "one\ntopic" + "x" * 500, "r2")
    logger.log_episode_end("debate", "r1", {"Aff": 1.0, "Neg": -0.5}, 6)
    logger.log_episode_end("debate", "r2", {}, 0, error="no judge")
    logger.log_episode_end("debate", "r3", {}, 1)
    lines = read().splitlines()
    assert lines[0] == "debate r1 begins: {'topic': 'a\\nb'}"
    assert lines[1].startswith("debate r2 begins: one topicxxx")
    assert len(lines[1]) < 350
    assert lines[2:] == [
        "debate r1 ended: 6 steps, Aff +1.000, Neg -0.500",
        "debate r2 ended: failed: no judge",
        "debate r3 ended: 1 steps, no rewards",
    ]


def test_model_calls(log):
    logger, read = log
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?\nThink."}]
    logger.log_model_call("solver", messages, "four\nor so", True)
    logger.log_model_call("solver", messages[1:], "4", False)
    assert read().splitlines() == [
        "call for solver",
        "    system> Be brief.",
        "    user> 2 + 2?",
        "    Think.",
        "    solver< four",
        "    or so",
        "call for solver (text only)",
        "    user> 2 + 2?",
        "    Think.",
        "    solver< 4",
    ]


def test_results_with_their_children_indented(log):
    logger, read = log
    children = [played("solve", {"S": 1.0}, trainable=False), played("solve", {}, error="the line went dead")]
    result = played("propose", {"P": 0.5}, steps=2, children=children)
    apply_credit([result], GRPOCredit().compute([result]))
    logger.log_result(result)
    assert re.sub(r"[0-9a-f]{32}", "ID", read()).splitlines() == [
        "propose ID",
        "    P (reward +0.500, advantage +0.000): !",
        "    P (reward +0.500, advantage +0.000): !",
        "    solve ID, not trained on",
        "        S (reward +1.000, advantage +0.000): !",
        "    solve ID",
        "        failed: the line went dead",
    ]


def test_summaries(log):
    logger, read = log
    results = [
        played("debate", {"Aff": 1.0, "Neg": -1.0}),
        played("debate", {"Aff": 0.0, "Neg": 0.0}),
        played("debate", {}, error="no judge"),
        played("propose", {"P": 1.0}, children=[played("solve", {"S": 0.25})]),
        played("broken", {}, error="dead"),
    ]
    logger.log_batch_summary(results)
    logger.log_training_records(make_arena().build_training_batch(results).records)
    assert read().splitlines() == [
        "debate: 3 episodes, 1 failed; mean rewards: Aff +0.500, Neg -0.500",
        "propose: 1 episodes, 0 failed; mean rewards: P +1.000",
        "solve: 1 episodes, 0 failed; mean rewards: S +0.250",
        "broken: 1 episodes, 1 failed; mean rewards: none",
        "6 records, 6 answers, 12 sampled tokens",
    ]


async def test_an_arena_with_a_logger_writes_a_whole_run(log):
    logger, read = log

    class OneFails(Ask):
        async def rollout(self, arena, artifact, state=None):
            if artifact == 1:
                raise RuntimeError("bad question")
            return await super().rollout(arena, artifact, state)

    arena = make_arena(SeedClient(), parents(2), child=OneFails(), retries=0, logger=logger, verbose=True)
    assert len([batch async for batch in arena.run(num_steps=1)]) == 1
    text = read()
    settings = (
        "arena=BatchArena, num_steps=1, seed=0, roles=['proposer', 'solver'], episodes=['parent', 'child']"
    )
    assert text.startswith(f"run: {settings}\n")

    wanted = [
        "step 1: 2 requests",
        "parent step-000001-00001 begins: 1",
        "call for proposer in step-000001-00001",
        "child step-000001-00001.0 begins: 0",
        "child step-000001-00001.1 ended: failed: OneFails.rollout failed: RuntimeError('bad question')",
        "call for solver in step-000001-00001.0",
        "child step-000001-00001.0 ended: 1 steps, solver +1.000",
        "parent step-000001-00001 ended: 1 steps, proposer +1.000",
        "ask proposer step-000001-00001",
        "4 records",
        "ask solver: 4 episodes, 2 failed; mean rewards: solver +1.000",
        "step 1 done: step=1, policy_version=0, episodes=6, failed=2",
    ]
    places = [text.find(one) for one in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places)


async def test_verbose_without_a_logger_goes_to_standard_error(capsys):
    arena = make_arena(MockInferenceClient(["yes"]), [EpisodeRequest("child", 0)], verbose=True)
    await arena.step()
    printed = capsys.readouterr()
    assert "call for solver in step-000001-00000\n" in printed.err
    assert printed.out == ""
