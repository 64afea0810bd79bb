"""ProofEpisode: plays any protocol, round by round."""

from typing import Any

from sparring.core import Arena, Episode, EpisodeState, InputError, Rubric, Step, derive_seed
from sparring.core.concurrency import all_results
from sparring.core.current_episode import current_episode
from sparring.core.records import mark_prefix
from sparring.programs.proofs.answers import NO_DECISION, Decision, legal_answers, read_answer
from sparring.programs.proofs.prompts import messages_for
from sparring.programs.proofs.protocol import Protocol, Stance, Turn
from sparring.programs.proofs.rewards import RoundOutcome, round_rewards
from sparring.programs.proofs.state import (
    ProofState,
    RoundAnswer,
    first_state,
    make_proof_rubric,
    total_rewards,
    without_token_ids,
)


class ProofEpisode(Episode):
    """An interactive proof. The artifact is a claim: ``question``, ``claim``, ``y`` (1 or 0) and ``id``.

    An invalid answer is asked for again, with another seed, at most ``num_invalid_generation_retries`` times;
    the last one is kept as what it is, with no message and no decision. Only answers that are kept are steps.
    ``examples``: prompts begin with two short proofs, which show small models the form.

    ``extras`` are a ProofState and the ``rewards`` of all agents. A state is plain data, so a tree of
    responses is made of :meth:`begin`, :meth:`play_round` with several branches, and :meth:`is_over`.
    """

    episode_type = "proof"

    def __init__(
        self,
        protocol: Protocol,
        *,
        max_response_words: int = 150,
        num_invalid_generation_retries: int = 20,
        examples: bool = True,
    ) -> None:
        self.protocol = protocol
        self.max_response_words = max_response_words
        self.num_invalid_generation_retries = num_invalid_generation_retries
        self.examples = examples
        self._rubric = make_proof_rubric(protocol)

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def begin(self, claim: dict[str, Any], seed: int) -> ProofState:
        """Return the state before the first round."""
        stances = {agent.name: agent.stance for agent in self.protocol.agents if agent.stance is not None}
        if self.protocol.random_stance:
            stances = dict.fromkeys(stances, stance_of(claim["question"], claim["claim"]))
        return first_state(self.protocol.name, claim, seed, stances)

    def is_over(self, state: ProofState) -> bool:
        """Return whether a verifier has decided or cannot decide any more."""
        return state["decided_by"] is not None or state["terminated"]

    async def play_round(
        self, arena: Arena, state: ProofState, branch: int = 0
    ) -> tuple[ProofState, list[Step]]:
        """Play one round and return the state after it and its steps; ``state`` is not changed.

        The agents of a round answer at once, and do not see each other's answers of that round. Seeds follow
        from the state's seed, the round, the branches, the agent and the attempt, so neither the order in
        which answers arrive nor other branches change an answer.
        """
        if self.is_over(state):
            raise InputError("state", "the episode is over", "Ask is_over first")
        number = len(state["rounds"])
        turns = self.protocol.turns(number, state["seed"])
        branches = [*state["branches"], branch]
        answered = await all_results(self._take_turn(arena, state, turn, branches) for turn in turns)
        answers = {turn.agent: answer for turn, (answer, _) in zip(turns, answered, strict=True)}
        outcome, decided_by = self._outcome(number, answers)
        rewards = round_rewards(self.protocol, outcome, state["y"], state["stances"])
        after: ProofState = {
            **state,
            "branches": branches,
            "rounds": [*state["rounds"], {"answers": answers, "rewards": rewards}],
            "decision": outcome.decision.to_dict(),
            "decided_by": decided_by,
            "terminated": outcome.terminated,
        }
        return after, [step for _, step in answered]

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        state = state or EpisodeState()
        proof = self.begin(artifact, seed_of(arena, artifact))
        while not self.is_over(proof):
            proof, steps = await self.play_round(arena, proof)
            for step in steps:
                mark_prefix(state.trajectory, step)
            state.trajectory += steps
        state.data["proof"] = proof
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        proof: ProofState = state.data["proof"]
        return {**without_token_ids(proof), "rewards": total_rewards(proof)}

    async def _take_turn(
        self, arena: Arena, state: ProofState, turn: Turn, branches: list[int]
    ) -> tuple[RoundAnswer, Step]:
        number = len(state["rounds"])
        words = self.max_response_words
        history = arena.get_role(turn.agent).history
        messages = messages_for(
            self.protocol, state, turn, words, with_examples=self.examples, history=history
        )
        retries = 0
        while True:
            seed = derive_seed(state["seed"], "turn", number, *branches, turn.agent, retries)
            response = await self.call_model(turn.agent, messages, arena, seed=seed)
            cut = response.finish_reason == "length"
            answer = read_answer(self.protocol, turn, number, state["y"], response.text, cut=cut)
            if answer["valid"] or retries >= self.num_invalid_generation_retries:
                break
            retries += 1
        answer["retries"] = retries
        if response.drawn is not None:
            answer["token_ids"] = response.drawn
        if response.written is not None:
            answer["written"] = response.written
        step = response.to_step(turn.agent, messages, round=number, agent=turn.agent, valid=answer["valid"])
        step.info["legal_answers"] = legal_answers(self.protocol, turn.agent, number)
        return answer, step

    def _outcome(self, number: int, answers: dict[str, RoundAnswer]) -> tuple[RoundOutcome, str | None]:
        """Return how a round ended, and which verifier's decision counts, if one does."""
        protocol, spoke = self.protocol, tuple(answers)
        if protocol.settings.prover_invalid_response_penalty is not None:
            invalid = tuple(name for name in protocol.provers if name in spoke and not answers[name]["valid"])
            if invalid:
                return RoundOutcome(spoke, terminated=True, invalid=invalid), None
        for name in protocol.verifiers:
            decision = Decision(**answers[name]["decision"]) if name in spoke else NO_DECISION
            if decision.is_made:
                return RoundOutcome(spoke, decision), name
        return RoundOutcome(spoke, terminated=number >= protocol.last_round), None


def stance_of(question: str, claim: str) -> Stance:
    """Return the verdict that provers argue for where stances are drawn: it depends on the text alone."""
    return "accept" if derive_seed(0, "stance", question, claim) % 2 else "reject"


def seed_of(arena: Arena, claim: Any) -> int:
    """Return the seed of an episode about a claim: its own if it has one, else one of the arena's."""
    episode = current_episode.get()
    if episode is not None and episode.seed is not None:
        return episode.seed
    return derive_seed(arena.seed, "proof", claim["id"])
