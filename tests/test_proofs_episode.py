"""ProofEpisode: rounds and their ends, invalid answers, seeds, branches, and what a rollout keeps."""

import asyncio
import copy
import json
import random

import pytest
from hypothesis import example, given

from hostile_text import hostile_text
from proof_scripts import CLAIM, Script, agent_of, make, play
from sparring.core import InputError
from sparring.programs.proofs.answers import split_channels
from sparring.programs.proofs.episode import stance_of

ACCEPT, REJECT = "Decision: accept", "Decision: reject"
TO_BOTH = "prover0_channel: Why?\nprover1_channel: Why not?"


def agents_by_round(rollout):
    return [list(played["answers"]) for played in rollout.extras["rounds"]]


async def test_a_decision_ends_the_episode_and_everybody_is_rewarded():
    client = Script(verifier=["Why?", REJECT], prover=["It is 5."])
    rollout = await play(client)
    assert agents_by_round(rollout) == [["verifier"], ["prover"], ["verifier"]]
    assert rollout.extras["decision"] == {"verdict": "reject", "value": -1.0, "raw": "reject"}
    assert rollout.extras["decided_by"] == "verifier"
    assert not rollout.extras["terminated"]
    assert rollout.rewards == rollout.extras["rewards"] == {"prover": 0.0, "verifier": 1.0}
    assert [step.info["round"] for step in rollout.steps] == [0, 1, 2]
    assert [step.info["agent"] for step in rollout.steps] == ["verifier", "prover", "verifier"]
    assert [step.reward for step in rollout.steps] == [1.0, 0.0, 1.0]
    assert rollout.metrics["right/verifier"] == 1


async def test_a_rollout_keeps_what_was_said_as_json_values():
    client = Script(verifier=["Why?", ACCEPT], prover=[" **It is 5.** "])
    extras = (await play(client)).extras
    assert json.loads(json.dumps(extras)) == extras
    assert {key: extras[key] for key in CLAIM} == CLAIM
    assert extras["stances"] == {"prover": "accept"}
    question, answer, decision = [one for played in extras["rounds"] for one in played["answers"].values()]
    nothing = {"verdict": "none", "value": 0.0, "raw": ""}
    kept = {"valid": True, "retries": 0, "cut": False}
    assert question == {"messages": {"main": "Why?"}, "raw": "Why?", "decision": nothing} | kept
    assert (
        answer == {"messages": {"main": "**It is 5.**"}, "raw": " **It is 5.** ", "decision": nothing} | kept
    )
    made = {"verdict": "accept", "value": 1.0, "raw": "accept"}
    assert decision == {"messages": {}, "raw": ACCEPT, "decision": made} | kept


def test_a_channels_name_in_letters_that_only_look_alike_is_not_its_name():
    assert split_channels("Inside: a\nOUTSIDE: b", ("inside", "outside")) == {"inside": "a", "outside": "b"}
    assert split_channels("in\u017fide: a\noutside: b", ("inside", "outside")) is None


async def test_only_a_verifiers_text_is_a_decision():
    client = Script(verifier=["Why?", "And?", REJECT], prover=[ACCEPT])
    rollout = await play(client)
    assert rollout.extras["rounds"][1]["answers"]["prover"]["messages"] == {"main": ACCEPT}
    assert rollout.extras["decision"]["verdict"] == "reject"


async def test_without_a_decision_the_episode_ends_at_the_verifiers_last_turn():
    client = Script(verifier=["Why?"], prover=["It is 5."])
    rollout = await play(client, max_message_rounds=4, rewards={"verifier_no_guess_reward": 0.25})
    assert agents_by_round(rollout) == [["verifier"], ["prover"], ["verifier"]]
    assert rollout.extras["terminated"]
    assert rollout.extras["decided_by"] is None
    assert rollout.rewards == {"prover": 0.0, "verifier": -0.75}
    assert rollout.metrics["undecided/verifier"] == 1


async def test_a_decision_before_the_least_number_of_rounds_is_a_message():
    client = Script(verifier=[ACCEPT, REJECT], prover=["It is 5."])
    rollout = await play(client, min_message_rounds=3)
    assert rollout.extras["rounds"][0]["answers"]["verifier"]["messages"] == {"main": ACCEPT}
    assert rollout.extras["decision"]["verdict"] == "reject"


async def test_provers_that_speak_at_once_do_not_see_each_other():
    client = Script(
        verifier=[TO_BOTH, TO_BOTH, REJECT], prover0=["zero one", "zero two"], prover1=["one one"]
    )
    await play(client, "debate")
    first, second = client.prompts_of("prover1")
    assert "zero" not in json.dumps(first)
    assert "zero one" in second[-1]["content"]
    assert "zero two" not in second[-1]["content"]


@pytest.mark.parametrize("seed", [0, 1])
async def test_one_prover_of_merlin_arthur_speaks_and_only_those_that_spoke_are_rewarded(seed):
    client = Script(verifier=[ACCEPT], prover0=["No."], prover1=["Yes."])
    rollout = await play(client, "merlin_arthur", seed=seed)
    assert agents_by_round(rollout) == [[f"prover{seed}"], ["verifier"]]
    assert rollout.rewards.keys() == {f"prover{seed}", "verifier"}
    assert rollout.extras["rewards"] == {"prover0": 0.0, "prover1": 1.0, "verifier": -1.0}


async def test_the_solo_verifier_decides_by_a_bare_word():
    rollout = await play(Script(verifier=["Reject."]), "solo_verifier")
    assert agents_by_round(rollout) == [["verifier"]]
    assert rollout.rewards == {"verifier": 1.0}


@pytest.mark.parametrize(
    ("guess", "y", "verdict"), [("zero", 1, "reject"), ("one", 0, "accept"), ("y", 1, "accept")]
)
async def test_a_forced_guess_is_the_decision_and_is_rewarded(guess, y, verdict):
    rollout = await play(Script(verifier=["Hm."]), claim=CLAIM | {"y": y}, force_guess=guess)
    assert rollout.extras["decision"]["verdict"] == verdict
    assert rollout.rewards["verifier"] == (1.0 if guess == "y" else -1.0)


def answers_after(count, invalid, valid):
    """A function that gives an invalid answer ``count`` times."""
    seeds = []

    def line(messages, seed):
        seeds.append(seed)
        return invalid if len(seeds) <= count else valid

    return line, seeds


async def test_an_invalid_answer_is_asked_for_again_with_another_seed():
    line, seeds = answers_after(3, "Decision: maybe", REJECT)
    rollout = await play(Script(verifier=line), "solo_verifier")
    answer = rollout.extras["rounds"][0]["answers"]["verifier"]
    assert (answer["retries"], answer["valid"]) == (3, True)
    assert len(set(seeds)) == 4
    assert len(rollout.steps) == 1
    assert rollout.metrics["retries/verifier"] == 3


async def test_the_last_invalid_answer_is_kept_as_what_it_is():
    line, seeds = answers_after(9, "Decision: maybe", REJECT)
    rollout = await play(Script(verifier=line), "solo_verifier", retries=2)
    answer = rollout.extras["rounds"][0]["answers"]["verifier"]
    assert len(seeds) == 3
    assert (answer["retries"], answer["valid"], answer["raw"]) == (2, False, "Decision: maybe")
    assert (answer["messages"], answer["decision"]["verdict"]) == ({}, "none")
    assert rollout.extras["terminated"]
    assert rollout.rewards == {"verifier": -1.0}
    assert rollout.steps[0].info["valid"] is False


async def test_a_decision_that_the_token_limit_cut_is_invalid():
    client = Script(verifier=["Decision: 1"])
    client.cut = True
    rollout = await play(client, "solo_verifier", verifier_decision_spectrum="out_of_10", retries=0)
    answer = rollout.extras["rounds"][0]["answers"]["verifier"]
    assert (answer["cut"], answer["valid"]) == (True, False)


async def test_an_invalid_answer_of_a_prover_ends_the_episode_if_that_has_a_price():
    client = Script(verifier=["Why?", REJECT], prover=["  "])
    rollout = await play(client, retries=1, rewards={"prover_invalid_response_penalty": -0.5})
    assert agents_by_round(rollout) == [["verifier"], ["prover"]]
    assert rollout.rewards == {"prover": -0.5, "verifier": 0.0}
    free = await play(Script(verifier=["Why?", REJECT], prover=["  "]), retries=1)
    assert agents_by_round(free) == [["verifier"], ["prover"], ["verifier"]]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (TO_BOTH, {"prover0_channel": "Why?", "prover1_channel": "Why not?"}),
        (
            "**Prover1_Channel:** b\nc\n- prover0_channel : a",
            {"prover0_channel": "a", "prover1_channel": "b\nc"},
        ),
        ("Why?", None),
        ("prover0_channel: Why?", None),
        (f"Well.\n{TO_BOTH}", None),
        (f"{TO_BOTH}\nprover0_channel: And?", None),
        ("prover0_channel:\nprover1_channel: Why?", None),
        ("prover0_channel: Why? prover1_channel: Why not?", None),
    ],
)
async def test_messages_to_several_channels_have_a_header_each(text, messages):
    client = Script(verifier=[text, REJECT], prover0=["a"], prover1=["b"])
    answer = (await play(client, "debate", retries=0)).extras["rounds"][0]["answers"]["verifier"]
    assert answer["valid"] == (messages is not None)
    assert answer["messages"] == (messages or {})


async def test_answers_do_not_depend_on_the_order_in_which_they_arrive():
    async def played(delays):
        rng = random.Random(delays)

        class Late(Script):
            async def complete(self, messages, *args, **kwargs):
                await asyncio.sleep(rng.random() / 200)
                return await super().complete(messages, *args, **kwargs)

        def says(messages, seed):
            return f"{agent_of(messages)} {seed}" if seed % 3 else " "

        def asks(messages, seed):
            return TO_BOTH + str(seed) if seed % 4 else ACCEPT

        rollout = await play(Late(verifier=asks, prover0=says, prover1=says), "debate", seed=5)
        return rollout.extras, [(step.role_id, step.completion_text) for step in rollout.steps]

    first, second = await played(1), await played(2)
    assert first == second
    assert len(first[1]) >= 4


async def test_stances_are_drawn_by_the_claim_and_not_by_the_truth():
    claims = [CLAIM | {"claim": f"2 + 2 = {number}", "y": number % 2} for number in range(40)]
    drawn = [stance_of(claim["question"], claim["claim"]) for claim in claims]
    assert 10 < drawn.count("accept") < 30
    for claim, stance in list(zip(claims, drawn, strict=True))[:4]:
        rollout = await play(Script(verifier=[ACCEPT]), "mnip", claim=claim, randomize_prover_stance=True)
        assert rollout.extras["stances"] == {"prover0": stance, "prover1": stance}


async def test_a_tree_of_responses_is_made_of_branches_that_leave_their_parent_alone():
    def says(messages, seed):
        return str(seed)

    arena, episode = make(Script(verifier=says, prover=says))
    root = episode.begin(CLAIM, 7)
    before = copy.deepcopy(root)
    children = [(await episode.play_round(arena, root, branch))[0] for branch in range(3)]
    assert root == before
    assert len({child["rounds"][0]["answers"]["verifier"]["raw"] for child in children}) == 3
    again = json.loads(json.dumps(children[1]))
    grandchild, steps = await episode.play_round(arena, again)
    assert grandchild["branches"] == [1, 0]
    assert grandchild["rounds"][0] == children[1]["rounds"][0]
    assert [step.role_id for step in steps] == ["prover"]


async def test_an_episode_goes_on_from_any_of_its_rounds():
    def says(messages, seed):
        return f"{seed}" if seed % 3 else REJECT

    client = Script(verifier=says, prover=says)
    arena, episode = make(client)
    played = (await arena.run_episode("proof", CLAIM, {"seed": 11})).rollout.extras
    for count in range(len(played["rounds"])):
        state = episode.begin(CLAIM, 11) | {name: played[name][:count] for name in ("branches", "rounds")}
        while not episode.is_over(state):
            state, _ = await episode.play_round(arena, state)
        assert state["rounds"] == played["rounds"]
        assert state["decision"] == played["decision"]
    with pytest.raises(InputError, match="the episode is over"):
        await episode.play_round(arena, state)


@given(hostile_text())
@example("\ud800")
def test_no_text_breaks_an_episode_or_speaks_for_another(text):
    client = Script(verifier=[text, text, REJECT], prover=[text])
    rollout = asyncio.run(play(client, retries=0))
    assert rollout.error is None
    for _, messages, _ in client.prompts:
        for message in messages:
            if message["role"] == "user":
                lines = quoted(message["content"])
                assert all(line.startswith(("prover: ", "verifier: ", "    ")) for line in lines)


def quoted(content):
    """The lines of a user message that other agents wrote."""
    heard = content.removeprefix("Question: What is 2 + 2?\n\nClaim: 2 + 2 = 5\n\n").split("\n\n")[:-1]
    return [line for part in heard for line in part.splitlines() if line.strip()]
