"""Debates: two sides argue about a motion in turns, and a judge names the winner.

The judge is not a role and is not trained; it may be another model, called through another client. Debates
without a verdict are counted separately from draws.
"""

from typing import Any

from sparring.config.programs import DebateSettings, OnJudgeFailure
from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    Artifact,
    CallSettings,
    CreditAssigner,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    InferenceClient,
    InputError,
    Role,
    Rollout,
    Rubric,
    SparringError,
    TrainingBatch,
    TransientError,
    Utterance,
    VerboseLogger,
)
from sparring.core.text import speech
from sparring.core.types import UNSET
from sparring.programs.judge import Judge, JudgeError, ScoreJudge, TextJudge
from sparring.programs.program_arena import ProgramArena

JUDGE_FAILED = "the judge failed"

EXAMPLE_TOPIC = "Schools should teach cooking"
EXAMPLE_DEBATE = (
    "Everybody eats, so everybody should be able to cook. Pupils who can cook eat better and spend less.",
    "A school day has no room for it. Every hour of cooking is an hour less of reading and mathematics.",
    "One hour a week is enough, and cooking is mathematics too: it is weighing, timing and planning.",
    "Most schools have no kitchen, and to build one is expensive. Parents can teach cooking at home.",
)
"""Four turns, beginning with the affirmative side."""


def make_debate_rubric(
    aff_role: str, neg_role: str, judge: Judge | None = None, on_judge_failure: OnJudgeFailure = "fail"
) -> Rubric:
    """Return a rubric that gives the winner the judge's score, and the loser its negative.

    The verdict is stored in ``rollout.extras["verdict"]``, ``None`` without one. The default judge is a
    TextJudge that calls the arena's client. Where there is no verdict, ``on_judge_failure`` raises JudgeError
    (``fail``) or gives both sides 0 (``draw``); a temporary failure of the judge's model raises
    TransientError.
    """
    decides = judge or TextJudge()

    async def verdict(rollout: Rollout, arena: Arena) -> dict[str, float]:
        debate = debate_text(rollout.extras["transcript"])
        try:
            found = await decides.decide(arena, rollout.artifact["topic"], debate, (aff_role, neg_role))
        except InputError:
            raise
        except TransientError as error:
            raise TransientError(f"{JUDGE_FAILED}: {error}") from error
        except SparringError as error:  # no verdict, or the judge's model can never give one
            if on_judge_failure == "fail":
                raise JudgeError(f"{JUDGE_FAILED}: {error}") from error
            rollout.extras["verdict"] = None
            return {aff_role: 0.0, neg_role: 0.0}
        rollout.extras["verdict"] = {"winner": found.winner, "score": found.score}
        loser = neg_role if found.winner == aff_role else aff_role
        return {found.winner: found.score, loser: -found.score}

    return Rubric([verdict])


class DebateEpisode(AlternatingRolesEpisode):
    """A debate of two sides that take turns, ``num_rounds`` each. The artifact is ``{"topic": ...}``.

    Each side sees its own stance and an example, but not the other side's instructions.
    """

    episode_type = "debate"

    def __init__(
        self,
        aff_role_id: str = "Aff",
        neg_role_id: str = "Neg",
        num_rounds: int = 3,
        judge: Judge | None = None,
        on_judge_failure: OnJudgeFailure = "fail",
    ) -> None:
        if num_rounds < 1:
            raise InputError("num_rounds", f"{num_rounds} rounds leave nothing to judge", "Give 1 or more")
        super().__init__(max_turns=2 * num_rounds)
        self.aff_role_id, self.neg_role_id = aff_role_id, neg_role_id
        self._rubric = make_debate_rubric(aff_role_id, neg_role_id, judge, on_judge_failure)

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    @property
    def roles(self) -> tuple[str, str]:
        return self.aff_role_id, self.neg_role_id

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> dict[str, str]:
        """Return each side's opening with the motion and its stance; first add example turns for its seat."""
        for role_id, stance in self._stances():
            other = self.neg_role_id if role_id == self.aff_role_id else self.aff_role_id
            for asked, answered in example_turns(role_id, other, stance):
                state.transcript += [Utterance("", asked, role_id), Utterance(role_id, answered, role_id)]
        return {role: _opening(role, stance, artifact["topic"]) for role, stance in self._stances()}

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> dict[str, str]:
        """Return a reminder for the next speaker, without which small models lose the thread."""
        next_role = self.get_next_actor(state, artifact)
        topic = artifact["topic"]
        return {role: _request(role, stance, topic) for role, stance in self._stances() if role == next_role}

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``transcript``: the words of both sides, without instructions and examples."""
        said = [one for one in state.transcript if one.author and not one.to]
        return {"transcript": [{"author": one.author, "text": one.text} for one in said]}

    def _stances(self) -> list[tuple[str, str]]:
        return [(self.aff_role_id, "for"), (self.neg_role_id, "against")]


def debate_text(transcript: list[dict[str, str]]) -> str:
    """Return the debate with one paragraph per turn; all lines of a turn but the first are indented."""
    return "\n\n".join(speech(one["author"], one["text"].strip()) for one in transcript)


def example_turns(role_id: str, other: str, stance: str) -> list[tuple[str, str]]:
    """Return the example debate from the seat of ``role_id``, as pairs of prompt and answer."""
    aff_first, neg_first, aff_second, neg_second = EXAMPLE_DEBATE
    opening = _opening(role_id, stance, EXAMPLE_TOPIC)
    request = _request(role_id, stance, EXAMPLE_TOPIC)
    if stance == "for":
        return [(opening, aff_first), (f"{other}: {neg_first}\n\n{request}", aff_second)]
    return [
        (f"{opening}\n\n{other}: {aff_first}\n\n{request}", neg_first),
        (f"{other}: {aff_second}\n\n{request}", neg_second),
    ]


def _opening(role_id: str, stance: str, topic: str) -> str:
    return f"A debate. You are {role_id}. {_task(stance, topic)}"


def _request(role_id: str, stance: str, topic: str) -> str:
    return f"{_task(stance, topic)[:-1]}, {role_id}."


def _task(stance: str, topic: str) -> str:
    return f'Argue {stance} the motion "{topic}" in two short sentences.'


class DebateArena(ProgramArena[DebateSettings]):
    """Debates on the topics of the store ``topics``, compared with others of the topic in the step
    (``meta["group"]``).

    ``judge`` takes the place of the one that ``settings`` name, whose words are drawn with ``judge_draws``.
    """

    def __init__(
        self,
        client: InferenceClient,
        settings: DebateSettings,
        *,
        judge: Judge | None = None,
        judge_draws: CallSettings = UNSET,
        seed: int = 0,
        credit_assigner: CreditAssigner | None = None,
        logger: VerboseLogger | None = None,
    ) -> None:
        super().__init__(client, settings, seed=seed, credit_assigner=credit_assigner, logger=logger)
        self.add_role(Role("Aff", max_tokens=settings.max_tokens, policy=settings.aff_policy))
        self.add_role(Role("Neg", max_tokens=settings.max_tokens, policy=settings.neg_policy))
        by_score, model = settings.judge_by_score, settings.judge_model
        named = ScoreJudge(model=model) if by_score else TextJudge(model=model, draws=judge_draws)
        decides = judge or named
        episode = DebateEpisode("Aff", "Neg", settings.num_rounds, decides, settings.on_judge_failure)
        self.add_episode("debate", episode)
        store = self.add_store("topics")
        for topic in settings.topics:
            store.add(Artifact({"topic": topic}, id=topic))

    def get_batch(self) -> list[EpisodeRequest]:
        settings, store = self.settings, self.stores["topics"]
        topics = store.sample_shared(settings.batch_size, settings.debates_per_topic)
        return [EpisodeRequest("debate", topic, {"group": topic.id}) for topic in topics]

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return the rewards of the two sides, or no match for a debate without a verdict."""
        return [] if is_unjudged(result.rollout) else super().outcomes(result)

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Add ``batch.meta["metric/debate/unjudged"]``, the share of debates without a verdict."""
        batch = super().end_step(number, results, verbose)
        unjudged = [is_unjudged(result.rollout) for result in results]
        batch.meta["metric/debate/unjudged"] = sum(unjudged) / max(len(unjudged), 1)
        return batch

    async def evaluate(self) -> dict[str, list[float]]:
        """Play debates with their own seeds; return one value per finished debate and measure.

        ``unjudged``: 1 for a debate whose judge failed, even if the episode failed for that reason, else 0.
        ``won by Aff``: 1 or 0 for each verdict. ``words a turn``: mean number of words per turn.
        """
        topics = self.settings.evaluation_topics or self.settings.topics
        requests = [
            self.evaluation_request("debate", {"topic": topics[index % len(topics)]}, index)
            for index in range(self.settings.evaluation_debates)
        ]
        rollouts = [result.rollout for result in await self.generate_rollouts(requests)]
        finished = [rollout for rollout in rollouts if rollout.error is None]
        verdicts = [rollout.extras["verdict"] for rollout in finished]
        return {
            "unjudged": [
                float(is_unjudged(one)) for one in rollouts if one.error is None or is_unjudged(one)
            ],
            "won by Aff": [float(one["winner"] == "Aff") for one in verdicts if one is not None],
            "words a turn": [_words_a_turn(rollout) for rollout in finished],
        }


def is_unjudged(rollout: Rollout) -> bool:
    """Return whether a debate has no verdict because its judge failed."""
    if rollout.error is not None:
        return rollout.error.startswith(JUDGE_FAILED)
    return rollout.extras["verdict"] is None


def _words_a_turn(rollout: Rollout) -> float:
    return sum(len(step.completion_text.split()) for step in rollout.steps) / len(rollout.steps)
