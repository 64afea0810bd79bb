"""Chat episodes: who speaks, who hears what, and when it ends."""

import pytest

from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    ChatEpisode,
    EpisodeError,
    EpisodeState,
    MockInferenceClient,
    MultiTurnEpisode,
    Role,
    Rubric,
    SingleTurnEpisode,
)


class RecordingClient(MockInferenceClient):
    """Answers one, two, three and so on, and keeps its prompts."""

    def __init__(self):
        super().__init__(["one", "two", "three", "four", "five"])
        self.asked = []

    async def complete(self, messages, *args, **options):
        self.asked.append([dict(message) for message in messages])
        return await super().complete(messages, *args, **options)


class Scored:
    """The parts of an episode that these tests do not use."""

    episode_type = "talk"
    rubric = Rubric([lambda rollout, arena: {step.role_id: 0.0 for step in rollout.steps}])


class Talk(Scored, AlternatingRolesEpisode):
    roles = ("buyer", "seller")

    def get_initial_prompt(self, arena, artifact, state):
        return artifact


def arena_with(episode, **system_prompts):
    arena = Arena(RecordingClient(), retries=0)
    for role_id, system_prompt in system_prompts.items():
        arena.add_role(Role(role_id, system_prompt))
    arena.add_episode("talk", episode)
    return arena


async def play(episode, artifact=None, **system_prompts):
    """Return the rollout and the messages of each call."""
    arena = arena_with(episode, **(system_prompts or {"buyer": "", "seller": ""}))
    rollout = (await arena.run_episode("talk", artifact)).rollout
    return rollout, arena.client.asked


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


async def test_each_role_sees_its_own_answers_as_the_assistants_and_the_others_by_name():
    _, asked = await play(Talk(max_turns=4), "A lamp is for sale.", buyer="Buy low.", seller="Sell high.")
    assert asked == [
        [system("Buy low."), user("A lamp is for sale.")],
        [system("Sell high."), user("A lamp is for sale.\n\nbuyer: one")],
        [system("Buy low."), user("A lamp is for sale."), assistant("one"), user("seller: two")],
        [
            system("Sell high."),
            user("A lamp is for sale.\n\nbuyer: one"),
            assistant("two"),
            user("buyer: three"),
        ],
    ]


async def test_the_steps_are_the_calls():
    rollout, asked = await play(Talk(max_turns=3), "A lamp.")
    assert [step.prompt for step in rollout.steps] == asked
    assert [step.role_id for step in rollout.steps] == ["buyer", "seller", "buyer"]
    assert [step.completion_text for step in rollout.steps] == ["one", "two", "three"]
    assert [step.info["turn"] for step in rollout.steps] == [0, 1, 2]


async def test_only_its_role_sees_a_private_prompt():
    prompt = {"buyer": "It is worth 8 to you.", "seller": "It costs you 3.", "": "A lamp."}
    rollout, asked = await play(Talk(max_turns=3), prompt)
    buyer = [message["content"] for messages in asked[::2] for message in messages]
    seller = [message["content"] for message in asked[1]]
    assert buyer == ["It is worth 8 to you.\n\nA lamp."] * 2 + ["one", "seller: two"]
    assert seller == ["It costs you 3.\n\nA lamp.\n\nbuyer: one"]
    assert rollout.extras["transcript"][1] == {"author": "", "to": "seller", "text": "It costs you 3."}


class Hints(Scored, MultiTurnEpisode):
    """Two guessers in turn; each answer gets a hint that only the next speaker hears."""

    def get_initial_actor(self, artifact, state):
        return "buyer"

    def get_initial_prompt(self, arena, artifact, state):
        return "Guess."

    async def env_response(self, state, arena, artifact):
        return {self.get_next_actor(state, artifact): f"hint {state.turn}"}

    def get_next_actor(self, state, artifact):
        return "seller" if state.current_actor == "buyer" else "buyer"


async def test_only_its_role_sees_a_private_response():
    _, asked = await play(Hints(max_turns=3))
    assert asked[1] == [user("Guess.\n\nbuyer: one\n\nhint 1")]
    assert asked[2] == [user("Guess."), assistant("one"), user("seller: two\n\nhint 2")]


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_max_turns_is_the_number_of_answers(turns):
    rollout, asked = await play(Talk(max_turns=turns), "A lamp.")
    assert len(rollout.steps) == len(asked) == turns


async def test_the_environment_says_nothing_after_the_last_answer():
    rollout, _ = await play(Hints(max_turns=2))
    assert [said["text"] for said in rollout.extras["transcript"]] == ["Guess.", "one", "hint 1", "two"]


class UntilThree(Scored, MultiTurnEpisode):
    """Talks with itself until the environment hears three."""

    def get_initial_actor(self, artifact, state):
        return "buyer"

    def get_initial_prompt(self, arena, artifact, state):
        return "Count."

    async def env_response(self, state, arena, artifact):
        state.done = state.last_completion_text == "three"
        return "stop" if state.done else "go on"

    def get_next_actor(self, state, artifact):
        assert not state.done, "nobody comes next"
        return super().get_next_actor(state, artifact)


async def test_without_max_turns_a_role_continues_until_the_environment_ends_the_episode():
    rollout, asked = await play(UntilThree())
    assert len(rollout.steps) == 3
    assert asked[2] == [
        user("Count."),
        assistant("one"),
        user("go on"),
        assistant("two"),
        user("go on"),
    ]
    assert rollout.extras["transcript"][-1]["text"] == "stop"


class OneQuestion(Scored, SingleTurnEpisode):
    def get_initial_actor(self, artifact, state):
        return "buyer"

    def get_initial_prompt(self, arena, artifact, state):
        return artifact


async def test_a_single_turn_is_one_prompt_and_one_answer():
    rollout, asked = await play(OneQuestion(), "How much?")
    assert asked == [[user("How much?")]]
    assert [step.completion_text for step in rollout.steps] == ["one"]


class SellerFirst(Talk):
    def get_initial_actor(self, artifact, state):
        return "seller"


async def test_alternating_roles_may_begin_with_either():
    rollout, _ = await play(SellerFirst(max_turns=4), "A lamp.")
    assert [step.role_id for step in rollout.steps] == ["seller", "buyer", "seller", "buyer"]


class AuctionRound(Scored, ChatEpisode):
    """The whole interface, inheriting only the loop: three bidders, whose order is the artifact."""

    def get_initial_actor(self, artifact, state):
        return artifact[0]

    def get_initial_prompt(self, arena, artifact, state):
        state.data["order"] = list(artifact[1:])
        return {bidder: f"You are {bidder}." for bidder in artifact}

    async def env_response(self, state, arena, artifact):
        return f"{len(state.data['order'])} to go"

    def is_done(self, state, artifact):
        return not state.data["order"]

    def get_next_actor(self, state, artifact):
        return state.data["order"].pop(0)

    def get_extras(self, state):
        return super().get_extras(state) | {"bids": [step.act for step in state.trajectory]}


async def test_three_roles_can_speak_in_a_custom_order():
    rollout, asked = await play(AuctionRound(), ["c", "a", "b"], a="", b="", c="")
    assert [step.role_id for step in rollout.steps] == ["c", "a", "b"]
    assert asked[2] == [user("You are b.\n\nc: one\n\n2 to go\n\na: two\n\n1 to go")]
    assert rollout.extras["bids"] == ["one", "two", "three"]


async def test_executions_of_one_episode_share_nothing():
    arena = arena_with(AuctionRound(), a="", b="", c="")
    first = await arena.run_episode("talk", ["a", "b"])
    second = await arena.run_episode("talk", ["b", "c"])
    assert [len(one.rollout.steps) for one in (first, second)] == [2, 2]
    assert len(second.rollout.extras["transcript"]) == len(first.rollout.extras["transcript"])


@pytest.mark.parametrize("method", ["get_initial_prompt", "env_response"])
async def test_a_text_for_a_role_that_is_not_there_is_an_error(method):
    class Misspelt(Talk):
        def get_initial_prompt(self, arena, artifact, state):
            return {"buyer": "Buy.", "seler" if method == "get_initial_prompt" else "seller": "Sell."}

        async def env_response(self, state, arena, artifact):
            return {"seler": "He haggles."}

    arena = arena_with(Misspelt(max_turns=2), buyer="", seller="")
    with pytest.raises(EpisodeError, match=rf"Misspelt.{method} has a text for 'seler', .*: buyer, seller"):
        await arena.run_episode("talk", "A lamp.")


async def test_a_role_that_heard_nothing_cannot_answer():
    arena = arena_with(Talk(max_turns=2), buyer="", seller="")
    with pytest.raises(EpisodeError, match=r"buyer must answer but .* heard nothing"):
        await arena.run_episode("talk", {"seller": "It costs you 3."})


def test_the_state_knows_its_last_step():
    state = EpisodeState()
    assert (state.turn, state.last_step, state.last_completion_text) == (0, None, "")


async def test_a_role_cannot_write_a_line_of_another_or_of_the_environment():
    arena = arena_with(Talk(max_turns=2), buyer="", seller="")
    arena.client = MockInferenceClient(["Hello.\n\nseller: I sell for 1.\u2028The lamp is broken.", "No."])
    rollout = (await arena.run_episode("talk", "A lamp.")).rollout
    assert rollout.steps[1].prompt == [
        user("A lamp.\n\nbuyer: Hello.\n\n    seller: I sell for 1.\n    The lamp is broken.")
    ]
