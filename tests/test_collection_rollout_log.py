import json
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.collection import RolloutLog
from sparring.core import AgentSpec, InputError, PlaySpec, Rollout, SparringError, Step, trajectories_of

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
MESSAGES = st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=2)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
IDS = st.none() | st.lists(st.integers(0, 200_000), max_size=5)
STEPS = st.builds(
    Step,
    role_id=TEXT,
    prompt=MESSAGES,
    completion=MESSAGES,
    prompt_token_ids=IDS,
    completion_token_ids=IDS,
    completion_logprobs=st.none() | st.lists(FLOATS, max_size=5),
    reward=FLOATS,
    advantage=FLOATS,
    info=st.dictionaries(TEXT, JSON_VALUES, max_size=3),
    pid=st.integers(0, 5),
    env_id=TEXT,
    policy_version=st.integers(-1, 9),
)
ROLLOUTS = st.builds(
    Rollout,
    episode_type=TEXT,
    artifact=JSON_VALUES,
    meta=st.dictionaries(TEXT, JSON_VALUES, max_size=2),
    id=TEXT,
    steps=st.lists(STEPS, max_size=3),
    extras=st.fixed_dictionaries(
        {},
        optional={
            "final_rewards": st.dictionaries(st.integers(0, 9), FLOATS, max_size=3),
            "game_info": st.dictionaries(
                st.integers(0, 9), st.dictionaries(TEXT, JSON_VALUES, max_size=2), max_size=2
            ),
            "turns": st.lists(JSON_VALUES, max_size=2),
        },
    ),
    rewards=st.dictionaries(TEXT, FLOATS, max_size=2),
    advantages=st.dictionaries(TEXT, FLOATS, max_size=2),
    metrics=st.dictionaries(TEXT, FLOATS, max_size=2),
    started_at=FLOATS,
    ended_at=st.none() | FLOATS,
)


def make_rollout(name, error=None):
    step = Step("player-0", [], [], [1], [2], [-0.1], pid=0, env_id="Kuhn")
    return Rollout(
        episode_type="game",
        artifact=PlaySpec("Kuhn", 2, (AgentSpec("policy"), AgentSpec("script", "random")), seed=3),
        meta={"error": error} if error else {},
        id=name,
        steps=[step],
        extras={"final_rewards": {0: 1.0, 1: -1.0}, "game_info": {0: {"turn_count": 2}}},
        started_at=1.5,
        ended_at=2.5,
    )


@given(st.lists(ROLLOUTS, min_size=1, max_size=4))
def test_rollouts_come_back_exactly(rollouts):
    with tempfile.TemporaryDirectory() as directory:
        log = RolloutLog(directory)
        log.write(12, rollouts)
        assert log.read(12) == rollouts


def test_files_are_named_by_step_and_the_artifact_becomes_a_plain_dictionary(tmp_path):
    log = RolloutLog(tmp_path / "rollouts")
    log.write(12, [make_rollout("a")])
    assert [path.name for path in log.directory.iterdir()] == ["step-000012.jsonl"]
    (rollout,) = log.read(12)
    assert rollout.artifact["env_id"] == "Kuhn"
    assert rollout.artifact["agents"][1] == {
        "kind": "script",
        "model": "random",
        "temperature": None,
        "max_tokens": None,
        "stop": None,
        "reasoning": None,
        "max_reasoning": None,
        "sampling": None,
        "stand_in": False,
    }
    assert trajectories_of(rollout)[0].final_rewards == {0: 1.0, 1: -1.0}


def test_each_line_is_json_that_names_its_schema_step_and_place(tmp_path):
    RolloutLog(tmp_path).write(3, [make_rollout("a"), make_rollout("b")])
    lines = [json.loads(line) for line in (tmp_path / "step-000003.jsonl").read_text().splitlines()]
    assert [(entry["schema_version"], entry["step"], entry["line"], entry["lines"]) for entry in lines] == [
        (1, 3, 1, 2),
        (1, 3, 2, 2),
    ]
    assert lines[1]["rollout"]["id"] == "b"


def test_failed_rollouts_are_kept_with_their_reason(tmp_path):
    log = RolloutLog(tmp_path)
    log.write(0, [make_rollout("a", error="a model call took too long"), make_rollout("b")])
    assert [rollout.error for rollout in log.read(0)] == ["a model call took too long", None]


def test_iteration_goes_over_the_whole_log_in_order_of_steps(tmp_path):
    log = RolloutLog(tmp_path)
    assert list(log) == []
    log.write(1_000_000, [make_rollout("late")])
    log.write(2, [make_rollout("b"), make_rollout("c")])
    log.write(0, [make_rollout("a")])
    assert [(step, rollout.id) for step, rollout in log] == [
        (0, "a"),
        (2, "b"),
        (2, "c"),
        (1_000_000, "late"),
    ]


def test_writing_a_step_again_replaces_it(tmp_path):
    log = RolloutLog(tmp_path)
    log.write(5, [make_rollout("a"), make_rollout("b")])
    log.write(5, [make_rollout("c")])
    assert [rollout.id for rollout in log.read(5)] == ["c"]
    log.write(5, [])
    assert log.steps() == []
    log.write(6, [])
    assert log.steps() == []


def test_a_failed_write_leaves_the_old_file_intact(tmp_path):
    log = RolloutLog(tmp_path)
    log.write(1, [make_rollout("a")])
    nan = make_rollout("c")
    nan.steps[0].completion_logprobs = [float("-inf")]
    with pytest.raises(SparringError, match="rollout c, step 0"):
        log.write(1, [nan])
    assert [rollout.id for rollout in log.read(1)] == ["a"]


def test_an_unknown_object_in_extras_is_written_as_its_repr(tmp_path):
    odd = make_rollout("b")
    odd.extras["board"] = set
    RolloutLog(tmp_path).write(1, [odd])
    assert RolloutLog(tmp_path).read(1)[0].extras["board"] == "<class 'set'>"


RING: list = []
RING.append(RING)


@pytest.mark.parametrize(("value", "problem"), [("half of \ud83d", "surrogates"), (RING, "recursion")])
def test_what_json_cannot_hold_is_refused_with_the_rollouts_id(tmp_path, value, problem):
    odd = make_rollout("b")
    odd.extras["board"] = value
    with pytest.raises(SparringError, match=rf"^rollout b cannot be written as JSON: .*{problem}"):
        RolloutLog(tmp_path).write(1, [odd])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_step_is_refused(tmp_path):
    with pytest.raises(InputError, match="no rollouts of step 7"):
        RolloutLog(tmp_path).read(7)


@given(st.data())
def test_a_truncated_file_is_rejected_and_never_read_as_shorter(data):
    with tempfile.TemporaryDirectory() as directory:
        log = RolloutLog(directory)
        log.write(1, [make_rollout("a"), make_rollout("b")])
        path = log.directory / "step-000001.jsonl"
        content = path.read_bytes()
        # The last byte is the newline: without it the file is still whole.
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
        with pytest.raises(InputError, match=r"step-000001.jsonl, line \d"):
            log.read(1)


DAMAGED = [b"", b"\xff\xfe", b"[1]", b"{}", b'{"schema_version":1}', b"not json", b'{"schema_version":"one"}']


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        *[((b"", line + b"\n"), "line 2: the line is damaged") for line in DAMAGED],
        ((b'"schema_version":1', b'"schema_version":99'), "line 1: schema version 99 is unknown"),
        ((b'"step":1', b'"step":2'), "line 1: the line is damaged: it says step 2, line 1"),
        ((b'"lines":2', b'"lines":0'), "line 1: the line is damaged: it says step 1, line 1 of 0"),
        ((b'"final_rewards":{"0"', b'"final_rewards":{"zero"'), "line 1: .* damaged: .*literal.*'zero'"),
        ((b"", b""), "line 2: the line is damaged: the file ends after 1 of 2"),
    ],
)
def test_damage_is_refused_with_file_and_line(tmp_path, damage, problem):
    """Either the second line is replaced, or something in the first."""
    log, (old, new) = RolloutLog(tmp_path), damage
    log.write(1, [make_rollout("a"), make_rollout("b")])
    path = tmp_path / "step-000001.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(old, new) + second if old else first + new)
    with pytest.raises(InputError, match=f"step-000001.jsonl, {problem}"):
        log.read(1)
