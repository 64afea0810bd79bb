"""Arrays of rollouts: their keys and shapes, their contents by hand, trees, and transcripts beside them."""

import asyncio
import json

import msgspec
import numpy as np
import pytest

from finetune_runs import Jobs, guesses, run
from proof_scripts import CLAIM, Script, make, play
from sparring.compat.nip_arrays import rollout_arrays
from sparring.config.finetune import PureTextMaltParameters, RlParameters, TextRlParameters
from sparring.core import Arena, InputError, Role
from sparring.finetune import PureTextEiTrainer, PureTextMaltTrainer
from sparring.finetune.trees import expected_rewards, select_pairs
from sparring.programs.proofs.episode import ProofEpisode
from sparring.programs.proofs.protocol import Agent, Channel, Protocol, Turn
from sparring.programs.proofs.state import ProofState

DECIDES = Script(verifier=["Why?", " Decision: reject "], prover=["It is.", "So it is."])
BOTH = "prover0_channel: What of you?\nprover1_channel: And you?"
DEBATES = Script(verifier=[BOTH, "Decision: accept"], prover0=["No."], prover1=["Yes."])


def arrays_of(client, name="nip", rollouts=1, **options):
    played = [asyncio.run(play(client, name, seed=seed, **options)) for seed in range(rollouts)]
    return rollout_arrays(make(client, name, **options)[1].protocol, played)


def test_every_key_has_its_shape():
    arrays = arrays_of(DEBATES, "debate", rollouts=2, max_message_rounds=5, retries=0)
    each, agents, channels = (2, 5), 3, 2
    assert {key: array.shape for key, array in arrays.items()} == {
        **dict.fromkeys([("round",), ("seed",), ("y",), ("datapoint_id",), ("question",)], each),
        **dict.fromkeys([("solution",), ("prover_stance",)], each),
        **dict.fromkeys([("done",), ("terminated",), ("padding",)], each),
        **dict.fromkeys([("message_history",), ("message_agent_id",)], (*each, 5, channels)),
        ("raw_message_history",): (*each, 5, agents),
        **{
            ("agents", name): (*each, agents)
            for name in (
                *("raw_message", "decision", "continuous_decision", "raw_decision", "reward"),
                *("valid_response", "done"),
            )
        },
        **{("agents", name): (*each, agents, channels) for name in ("message", "retry_count", "token_limit")},
        ("agents", "prompt"): (*each, agents, 4, 3),
    }


def test_a_proof_is_written_round_by_round_and_padded_to_its_end():
    arrays = arrays_of(DECIDES, max_message_rounds=4)
    prover, verifier = 0, 1
    said = arrays["agents", "message"][0, :, :, 0]
    assert said.tolist() == [[None, "Why?"], ["It is.", None], [None, None], [None, None]]
    assert arrays["agents", "raw_message"][0, :, verifier].tolist() == [
        *("Why?", None, " Decision: reject ", None)
    ]
    assert arrays["agents", "decision"][0].tolist() == [[2, 2], [2, 2], [2, 0], [2, 2]]
    assert arrays["agents", "continuous_decision"][0, :, verifier].tolist() == [0, 0, -1, 0]
    assert arrays["agents", "raw_decision"][0, :, verifier].tolist() == [None, None, "reject", None]
    assert arrays["agents", "reward"][0].tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert arrays[("done",)][0].tolist() == [False, False, True, True]
    assert arrays["agents", "done"][0, :, prover].tolist() == [False, False, True, True]
    assert arrays[("padding",)][0].tolist() == [False, False, False, True]
    assert not arrays[("terminated",)].any()
    assert arrays[("round",)][0].tolist() == [0, 1, 2, 3]
    for key, value in {
        "question": CLAIM["question"],
        "solution": CLAIM["claim"],
        "datapoint_id": "sum",
    }.items():
        assert arrays[(key,)][0].tolist() == [value] * 4
    assert (arrays[("y",)] == 0).all()
    assert (arrays[("prover_stance",)] == 1).all()


def test_histories_hold_what_was_said_in_the_rounds_before():
    arrays = arrays_of(DECIDES, max_message_rounds=4)
    history = arrays[("message_history",)][0, :, :, 0]
    assert history[2].tolist() == ["Why?", "It is.", None, None]
    assert arrays[("message_agent_id",)][0, 2, :, 0].tolist() == [1, 0, -1, -1]
    assert arrays[("raw_message_history",)][0, 3, :, 1].tolist() == ["Why?", None, " Decision: reject ", None]
    assert history[0].tolist() == [None] * 4


def test_a_prompt_has_the_fields_of_its_messages():
    client = Script(verifier=["Why?", "Decision: reject"], prover=["It is."])
    arrays = arrays_of(client, max_message_rounds=4)
    asked = client.prompts_of("verifier")[1]
    written = arrays["agents", "prompt"][0, 2, 1].tolist()
    assert written == [[message["content"], message["role"], None] for message in asked]
    assert written != [[None] * 3] * 4
    assert arrays["agents", "prompt"][0, 2, 0].tolist() == [[None] * 3] * len(asked)


def test_the_stance_is_that_of_the_provers():
    claims = [CLAIM | {"claim": f"2 + 2 = {n}"} for n in range(8)]
    played = [asyncio.run(play(DECIDES, claim=one, randomize_prover_stance=True)) for one in claims]
    stances = rollout_arrays(make(DECIDES)[1].protocol, played)[("prover_stance",)][:, 0].tolist()
    assert stances == [int(one.extras["stances"]["prover"] == "accept") for one in played]
    assert set(stances) == {0, 1}


def test_opposite_stances_are_no_stance_and_channels_are_apart():
    arrays = arrays_of(DEBATES, "debate", max_message_rounds=5, retries=0)
    assert (arrays[("prover_stance",)] == -1).all()
    assert arrays["agents", "message"][0, 0].tolist() == [
        *([None, None], [None, None], ["What of you?", "And you?"])
    ]
    assert arrays["agents", "message"][0, 1].tolist() == [["No.", None], [None, "Yes."], [None, None]]
    assert arrays["agents", "reward"][0].sum(axis=0).tolist() == [0, 1, -1]


def test_answers_that_are_cut_or_invalid_are_marked_in_the_channels_they_could_go_to():
    client = Script(verifier=["Decision: perhaps"], prover=["Yes."])
    arrays = arrays_of(client, "adp", retries=3)
    assert arrays["agents", "retry_count"][0, 1].tolist() == [[0], [3]]
    assert arrays["agents", "valid_response"][0].tolist() == [[True, True], [True, False]]
    assert arrays[("terminated",)][0].tolist() == [False, True]
    client.cut = True
    assert arrays_of(client, "adp", retries=0)["agents", "token_limit"][0].tolist() == [
        *([[True], [False]], [[False], [True]])
    ]


def test_failed_rollouts_have_no_row_and_no_rollouts_are_no_rows():
    protocol = make(DECIDES)[1].protocol
    good, failed = (asyncio.run(play(DECIDES, seed=seed)) for seed in range(2))
    failed.meta["error"] = "the network is gone"
    failed.extras = {}
    assert rollout_arrays(protocol, [failed, good])[("y",)].shape == (1, 8)
    assert rollout_arrays(protocol, [])["agents", "message"].shape == (0, 8, 2, 1)


async def test_two_agents_in_one_channel_at_once_are_refused():
    room = Channel("room", ("ann", "bob"))
    turns = (Turn("ann", ("room",)), Turn("bob", ("room",)))
    protocol = Protocol(
        "both", (Agent("ann", "verifier"), Agent("bob", "prover")), (room,), (turns,), max_rounds=2
    )
    arena = Arena(Script(ann=["Hm.", "Decision: accept"], bob=["Yes."]))
    arena.add_episode("proof", ProofEpisode(protocol, examples=False))
    for name in ("ann", "bob"):
        arena.add_role(Role(name))
    result = await arena.run_episode("proof", CLAIM, {"seed": 0})
    with pytest.raises(InputError, match="two agents wrote to one channel"):
        rollout_arrays(protocol, [result.rollout])


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """The trainer of a finished MALT run, and its first iteration's trees."""
    directory = tmp_path_factory.mktemp("malt") / "run"
    trainer = run(PureTextMaltTrainer, directory, Jobs(), client=guesses(), rl=RlParameters(num_iterations=1))
    return trainer, trainer._load_rollouts(0)


def test_a_tree_has_a_row_for_each_end_and_rows_share_nodes(trees):
    trainer, rollouts = trees
    arrays = rollout_arrays(trainer.protocol_handler, rollouts)
    transcripts, _, _ = trainer._extract_transcripts_and_prompts(rollouts, trainer.train_environment)
    assert len(arrays[("_node_id",)]) == len(transcripts) > len(rollouts)
    nodes, parents = arrays[("_node_id",)], arrays[("_parent_node_id",)]
    count = sum(len(one.extras["nodes"]) for one in rollouts)
    assert len({node for row in nodes.tolist() for node in row if node is not None}) == count
    assert (
        parents[:, 1:].tolist()
        == np.where(arrays[("padding",)][:, 1:], None, nodes[:, :-1].astype(object)).tolist()
    )
    assert set(parents[:, 0].tolist()) == {one.id for one in rollouts}
    assert ("agents", "is_pair_positive") not in arrays


def test_nodes_have_their_expected_rewards_and_pairs_are_marked(trees):
    trainer, rollouts = trees
    malt = PureTextMaltParameters(pair_selection_method="positive_negative")
    arrays = rollout_arrays(trainer.protocol_handler, rollouts, malt)
    rows, rounds = np.nonzero(~arrays[("padding",)])
    marked = {"is_pair_positive": set(), "is_pair_negative": set()}
    expected = {one.id: expected_rewards(one.extras["nodes"]) for one in rollouts}
    for row, place in zip(rows, rounds, strict=True):
        tree, _, node = arrays[("_node_id",)][row, place].partition("/")
        for number, name in enumerate(trainer.agent_names):
            assert arrays["agents", "expected_reward"][row, place, number] == expected[tree][node][name]
            for side, found in marked.items():
                if arrays["agents", side][row, place, number]:
                    found.add((tree, name, node))
    pairs = {
        (one.id, name, *pair)
        for one in rollouts
        for name in trainer.agent_names
        for pair in select_pairs(
            trainer.protocol_handler, one.extras["nodes"], name, malt, one.extras["seed"]
        )
    }
    assert pairs
    assert marked["is_pair_positive"] == {(tree, name, high) for tree, name, high, _ in pairs}
    assert marked["is_pair_negative"] == {(tree, name, low) for tree, name, _, low in pairs}


def test_transcripts_are_of_agents_and_of_channels_and_have_what_the_environment_says(trees):
    trainer, _ = trees

    class Noted(type(trainer.train_environment)):
        def get_datapoint_from_env_state_as_dict(self, env_state: ProofState):
            return super().get_datapoint_from_env_state_as_dict(env_state) | {"note": "mine"}

    environment = Noted(
        trainer.train_environment.arena,
        trainer.protocol_handler,
        trainer.train_environment.claims,
        1,
        trainer.train_environment.agents,
        seed=0,
        train=True,
    )
    rollout = asyncio.run(play(DECIDES))
    (raw,), (processed,), (prompts,) = trainer._extract_transcripts_and_prompts([rollout], environment)
    assert raw["transcript"] == [
        {"verifier": "Why?"},
        {"prover": "It is."},
        {"verifier": " Decision: reject "},
    ]
    assert processed["transcript"] == [
        {"verifier@main": "Why?"},
        {"prover@main": "It is."},
        {"verifier.decision": "reject (-1)"},
    ]
    assert [list(spoke) for spoke in prompts] == [["verifier"], ["prover"], ["verifier"]]
    assert {message["role"] for message in prompts[2]["verifier"]} == {"system", "user", "assistant"}
    for one in (raw, processed):
        assert one["reward"] == {"prover": 0.0, "verifier": 1.0}
        assert (one["note"], one["y"], one["solution"]) == ("mine", 0, CLAIM["claim"])


def test_transcripts_are_written_in_either_format_or_not_at_all(tmp_path):
    def written(**given):
        text_rl = TextRlParameters(test_scheme="last", **given)
        name = "-".join(map(str, given.values()))
        one = RlParameters(num_iterations=1)
        run(PureTextEiTrainer, tmp_path / name, Jobs(), rl=one, text_rl=text_rl)
        found = {path for kind in ("*transcripts", "prompts") for path in (tmp_path / name).glob(f"{kind}/*")}
        return {path.stem: (path.suffix, path.read_bytes()) for path in found}

    yaml, as_json = written(transcript_format="yaml"), written(transcript_format="json")
    kinds = ("raw", "processed", "prompts")
    assert set(yaml) == set(as_json) == {f"{kind}_{base}" for kind in kinds for base in ("0", "test_0")}
    for name, (suffix, content) in yaml.items():
        assert (suffix, as_json[name][0]) == (".yaml", ".json")
        assert msgspec.yaml.decode(content) == json.loads(as_json[name][1])
    assert written(save_transcripts=False) == {}
