"""The programs of specification 001, with its calls and names, and as its successors write them."""

import subprocess
import sys
import warnings

import pytest

from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    Artifact,
    Episode,
    EpisodeRequest,
    EpisodeState,
    GRPOCredit,
    InputError,
    MockInferenceClient,
    MultiTurnEpisode,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
)


def make_debate_rubric(aff_role: str, neg_role: str) -> Rubric:
    async def llm_judge(rollout: Rollout, arena: Arena) -> dict[str, float]:
        said = "\n".join(f"{step.role_id}: {step.completion_text}" for step in rollout.steps)
        verdict = await arena.call_model([{"role": "user", "content": f"Who wins?\n{said}"}])
        winner, loser = (aff_role, neg_role) if "Aff" in verdict.text else (neg_role, aff_role)
        return {winner: 1.0, loser: -1.0}

    return Rubric([llm_judge])


class DebateEpisode(AlternatingRolesEpisode):
    def __init__(self, aff_role_id="Aff", neg_role_id="Neg", num_rounds=3):
        super().__init__(max_turns=num_rounds * 2)
        self._rubric = make_debate_rubric(aff_role_id, neg_role_id)

    @property
    def episode_type(self) -> str:
        return "debate"

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_initial_prompt(self, arena, artifact, state) -> str:
        return f"Topic: {artifact.get('topic', 'Unknown')}"


class DebateArena(Arena):
    batch_size = 2

    def get_batch(self) -> list[EpisodeRequest]:
        topics = self.stores["topics"].sample(k=self.batch_size)
        return [EpisodeRequest("debate", topic.data) for topic in topics]


async def test_the_debate_of_the_specification():
    judge = "Who wins?"
    client = MockInferenceClient(lambda messages, seed: "Aff" if judge in str(messages) else "Because.")
    arena = DebateArena(client)
    for role_id in ("Aff", "Neg"):
        arena.add_role(Role(id=role_id, system_prompt=f"You argue for {role_id}.", temperature=0.7))
    arena.add_episode("debate", DebateEpisode(num_rounds=2))
    arena.add_store("topics")
    for topic in ("tea", "coffee"):
        arena.stores["topics"].add(Artifact({"topic": topic}))
    result = await arena.run_episode("debate", {"topic": "tea"})
    assert [step.role_id for step in result.rollout.steps] == ["Aff", "Neg", "Aff", "Neg"]
    assert result.rewards == {"Aff": 1.0, "Neg": -1.0}
    assert all(step.reward == result.rewards[step.role_id] for step in result.rollout.steps)
    batch = await arena.step(concurrency=4)
    assert (batch.meta["num_results"], batch.meta["num_records"]) == (2, len(batch.records))
    assert {record.role_id for record in batch.records} == {"Aff", "Neg"}
    assert [one.meta["step"] async for one in arena.run(num_steps=2)] == [2, 3]


def make_proposer_rubric(proposer_role: str, target_pass_rate: float = 0.5) -> Rubric:
    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        pass_rate = rollout.extras.get("pass_rate", 0.0)
        return {proposer_role: 1.0 - 2 * abs(pass_rate - target_pass_rate)}

    return Rubric([goldilocks])


def right(rollout: Rollout, arena: Arena) -> dict[str, float]:
    return {"Solver": float(rollout.steps[0].completion_text == rollout.artifact["answer"])}


class SolveEpisode(SingleTurnEpisode):
    """Does not call ``super().__init__()``."""

    def __init__(self, solver_role="Solver"):
        self.solver_role = solver_role

    @property
    def episode_type(self):
        return "solve"

    @property
    def rubric(self):
        return Rubric([right])

    def get_initial_actor(self, artifact, state):
        return self.solver_role

    def get_initial_prompt(self, arena, artifact, state):
        return artifact["question"]


class Proposer(Episode):
    """What the forms of ``rollout`` below share; the answer is the step that the specification leaves out."""

    trainable = True

    @property
    def episode_type(self):
        return "propose"

    @property
    def rubric(self):
        return make_proposer_rubric("Proposer")

    async def propose(self, arena, state):
        response = await self.call_model("Proposer", "Write a question.", arena)
        state.trajectory.append(response.to_step("Proposer", "Write a question."))
        question = {"question": response.text, "answer": "4"}
        requests = [EpisodeRequest("solve", question, is_trainable=self.trainable) for _ in range(2)]
        results = await arena.generate_rollouts(requests)
        state.child_results.extend(results)
        return state

    def get_extras(self, state):
        rewards = [child.rewards.get("Solver", 0.0) for child in state.child_results]
        return {"pass_rate": sum(reward > 0 for reward in rewards) / len(rewards), "solver_rewards": rewards}


class WithAState(Proposer):
    async def rollout(self, arena, artifact, state):
        return await self.propose(arena, state)


class WithADefault(Proposer):
    async def rollout(self, arena, artifact, state=None):
        return await self.propose(arena, state)


class ByKeyword(Proposer):
    async def rollout(self, arena, artifact, *, state=None):
        return await self.propose(arena, state)


class OfAnotherName(Proposer):
    async def rollout(self, arena, seed, progress):
        return await self.propose(arena, progress)


class WithOptions(Proposer):
    async def rollout(self, arena, artifact, **options):
        return await self.propose(arena, options["state"])


class WithoutAState(Proposer):
    async def rollout(self, arena, artifact):
        return await self.propose(arena, EpisodeState())


FORMS = [WithAState, WithADefault, ByKeyword, OfAnotherName, WithOptions, WithoutAState]


class ProposerArena(Arena):
    def get_batch(self):
        return [EpisodeRequest("propose", {}) for _ in range(2)]


def proposer_arena(form: type[Episode]) -> Arena:
    answers = {"Write a question.": "What is 2+2?", "What is 2+2?": None}

    def answer(messages, seed):
        return answers[messages[-1]["content"]] or ("4" if seed % 2 else "5")

    arena = ProposerArena(MockInferenceClient(answer), credit_assigner=GRPOCredit(normalize=False), retries=0)
    arena.add_role(Role("Proposer"))
    arena.add_role(Role("Solver"))
    arena.add_episode("propose", form())
    arena.add_episode("solve", SolveEpisode())
    return arena


@pytest.mark.parametrize("form", FORMS)
async def test_the_proposer_and_its_solvers_with_every_form_of_rollout(form):
    batch, results = await proposer_arena(form).play_step()
    assert [result.rollout.error for result in results] == [None, None]
    assert [record.role_id for record in batch.records] == ["Proposer", "Solver", "Solver"] * 2
    assert (batch.meta["num_results"], batch.meta["num_records"]) == (2, 6)
    for result in results:
        rate = sum(child.rewards["Solver"] for child in result.children) / 2
        assert result.rewards == {"Proposer": 1.0 - 2 * abs(rate - 0.5)}


async def test_solvers_that_are_not_trainable_are_played_and_not_trained_on():
    class Frozen(WithAState):
        trainable = False

    batch = await proposer_arena(Frozen).step()
    assert [record.role_id for record in batch.records] == ["Proposer", "Proposer"]


async def test_an_episode_may_be_generated_for_no_training():
    arena = proposer_arena(WithAState)
    result = await arena.episodes["propose"].generate(arena, {}, None, is_trainable=False)
    assert (result.is_trainable, result.trainable_rollouts()) == (False, [])
    assert (await arena.episodes["propose"].generate(arena, {}, meta={})).is_trainable


class Talk(MultiTurnEpisode):
    """Does not call ``super().__init__()``; its limit is a class attribute."""

    max_turns = 2
    episode_type = "talk"
    rubric = Rubric([lambda rollout, arena: {"A": 1.0}])

    def __init__(self):
        pass

    def get_initial_actor(self, artifact, state):
        return "A"

    def get_initial_prompt(self, arena, artifact, state):
        return "Hello."


class Turns(AlternatingRolesEpisode):
    """The same, of two roles; ``is_done`` decides when it ends."""

    episode_type = "turns"
    rubric = Rubric([lambda rollout, arena: {"A": 1.0, "B": 1.0}])

    def __init__(self):
        pass

    def get_initial_prompt(self, arena, artifact, state):
        return "Hello."

    def is_done(self, state, artifact):
        return state.turn == 3


@pytest.mark.parametrize(("episode", "answered"), [(Talk(), "AA"), (Turns(), "ABA")])
async def test_an_episode_works_whose_class_does_not_call_super(episode, answered):
    arena = Arena(MockInferenceClient())
    arena.add_role(Role("A"))
    arena.add_role(Role("B"))
    arena.add_episode("talk", episode)
    rollout = (await arena.run_episode("talk", {})).rollout
    assert "".join(step.role_id for step in rollout.steps) == answered


class Forgetful(Proposer):
    async def rollout(self, arena, artifact, state=None):
        await self.call_model("Proposer", "Write a question.", arena)
        return state

    def get_extras(self, state):
        return {}


class Failing(Proposer):
    async def rollout(self, arena, artifact, state=None):
        raise ValueError("no idea")


class TextOnly(MockInferenceClient):
    async def complete(self, *args, **options):
        response = await super().complete(*args, **options)
        response.completion_token_ids = None
        return response


def silent(arena):
    arena.get_batch = list


def textual(arena):
    arena.client = TextOnly(arena.client.responses)


def untrainable(arena):
    arena.get_batch = lambda: [EpisodeRequest("propose", {}, is_trainable=False)]


def frozen(arena):
    for role in arena.roles.values():
        role.policy = "base"


@pytest.mark.parametrize(
    ("form", "change", "why"),
    [
        (WithAState, silent, "get_batch returned no request"),
        (Failing, None, "every episode failed; the last: Failing.rollout failed: ValueError"),
        (WithAState, untrainable, "no request is trainable"),
        (Forgetful, None, "no episode appended"),
        (WithAState, frozen, "no step is of a policy that is trained"),
        (WithAState, textual, "the client returned no token ids"),
    ],
)
async def test_an_empty_batch_says_why(form, change, why):
    arena = proposer_arena(form)
    if change is not None:
        change(arena)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batch = await arena.step()
    assert batch.records == []
    assert why in str(said[0].message)


async def test_a_role_that_is_rewarded_and_has_no_step_is_said():
    with pytest.warns(UserWarning, match="Proposer gets rewards but has no step"):
        await proposer_arena(Forgetful).step()


async def test_a_step_in_order_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await proposer_arena(WithAState).step()


def test_the_client_of_apis_comes_from_core_which_does_not_import_it():
    code = "import sys, sparring.core; assert not {'openai', 'sparring.engine'} & {*sys.modules}; "
    code += "from sparring.core import OpenAIClient; "
    code += "assert OpenAIClient.__module__ == 'sparring.engine.openai_client'"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
    with pytest.raises(ImportError):
        from sparring.core import AnotherClient  # noqa: F401


@pytest.mark.parametrize(
    ("named", "known", "problem"),
    [
        (None, "A", "the arena has 1 (A)"),
        (None, "ABC", "the arena has 3 (A, B, C)"),
        (("A", "B", "C"), "ABC", "Turns has 3 (A, B, C)"),
        (("A",), "AB", "Turns has 1 (A)"),
        (("A", "A"), "AB", "Turns has 2 (A, A)"),
        ("AB", "AB", "are not a tuple of texts"),
        ((1, 2), "AB", "are not a tuple of texts"),
    ],
)
def test_two_roles_alternate_and_others_say_what_to_override(named, known, problem):
    episode = type("Turns", (Turns,), {} if named is None else {"roles": named})()
    arena = Arena(MockInferenceClient())
    for role_id in known:
        arena.add_role(Role(role_id))
    with pytest.raises(InputError) as raised:
        episode.turn_takers(arena)
    assert problem in str(raised.value)
    if "tuple" not in problem:
        assert "override get_next_actor(self, state, artifact) in Turns" in str(raised.value)


@pytest.mark.parametrize("named", [None, ("A", "B", "C")])
async def test_three_roles_take_turns_where_the_next_one_is_named(named):
    class Circle(Turns):
        rubric = Rubric([lambda rollout, arena: dict.fromkeys("ABC", 0.0)])

        def get_next_actor(self, state, artifact):
            return state.roles[state.turn % 3]

        def is_done(self, state, artifact):
            return state.turn == 4

    episode = Circle() if named is None else type("Circle", (Circle,), {"roles": named})()
    arena = Arena(MockInferenceClient())
    for role_id in "ABC":
        arena.add_role(Role(role_id))
    arena.add_episode("turns", episode)
    rollout = (await arena.run_episode("turns", {})).rollout
    assert [step.role_id for step in rollout.steps] == ["A", "B", "C", "A"]
