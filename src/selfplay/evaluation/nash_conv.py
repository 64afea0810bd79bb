"""Exact NashConv of a model in a small OpenSpiel game, from its own distribution over legal answers."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from selfplay.core import InferenceClient, InputError, Messages, SelfplayError
from selfplay.core.gather import all_results
from selfplay.envs.catalog import library_of
from selfplay.envs.openspiel_game import InformationState, game_at, information_states, load_game
from selfplay.envs.templates import PromptTemplate
from selfplay.evaluation.match import by_seat

SCORED_AT_ONCE = 256
"""Maximum number of positions whose answers are scored concurrently; every kind of model call is bounded."""


PLAYABLE_LEGAL_MASS = 0.1
"""Below this probability of legal answers, a policy mostly loses by invalid moves, whatever its NashConv."""


@dataclass(frozen=True, kw_only=True)
class NashConvResult:
    """The distance of a model's policy from an equilibrium, in the game's own units (chips, in poker).

    ``nash_conv`` is the sum over seats of ``exploitability``: the gain of a best response in that seat over
    the policy itself (``best_response_values`` less ``values``), while all other seats play the policy. At 0
    the policy is an equilibrium. Lists have one entry per seat.

    The policy is the model's distribution at temperature 1 over whole legal answers, normalised.
    ``legal_mass`` is the probability of the legal answers before normalisation, averaged with equal weights
    over information states; ``min_legal_mass`` is the smallest. ``policy`` gives the probability of each
    action by name for each information state; ``observations`` gives the text that the model reads there.
    """

    env_id: str
    model: str
    nash_conv: float
    exploitability: list[float]
    values: list[float]
    best_response_values: list[float]
    legal_mass: float
    min_legal_mass: float
    policy: dict[str, dict[str, float]]
    observations: dict[str, str]

    @property
    def is_playable(self) -> bool:
        """Whether legal answers are likely enough for ``nash_conv`` to be meaningful for actual play."""
        return self.legal_mass >= PLAYABLE_LEGAL_MASS

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {
            "is_playable": self.is_playable
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "NashConvResult":
        """Return the result that ``to_dict`` wrote.

        Raises:
            KeyError: a value is missing.
        """
        return cls(**{entry.name: values[entry.name] for entry in fields(cls)})


async def nash_conv(
    client: InferenceClient,
    env_id: str,
    template: PromptTemplate,
    *,
    model: str | Sequence[str],
    timeout: float = 600.0,
) -> NashConvResult:
    """Measure ``model`` in every information state of a game and compute its NashConv.

    NashConv: Lanctot et al., "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning",
    2017, arXiv 1711.00832. The best responses are OpenSpiel's.

    Args:
        client: scores answers.
        env_id: an OpenSpiel game of any number of players, with at most 5,000 information states.
        template: gives the prompts and the form of the scored answers.
        model: uid of the model; one for each seat if they differ.
        timeout: time limit of scoring, in seconds.

    Raises:
        InputError: the game is not an OpenSpiel game with few, named information states.
        SelfplayError: scoring took too long, or the scores are not probabilities.
    """
    states = _states_of(env_id)
    slots = asyncio.Semaphore(SCORED_AT_ONCE)
    models = by_seat(model, 1 + max(state.pid for state in states))

    async def score(state: InformationState) -> list[float]:
        answers = [template.answer(action) for action in state.legal_actions]
        async with slots:
            return await client.score(prompt_of(env_id, template, state), answers, model=models[state.pid])

    try:
        async with asyncio.timeout(timeout):
            scores = await all_results(map(score, states))
    except TimeoutError as error:
        raise SelfplayError(f"scoring {len(states)} positions of {env_id} took over {timeout:g} s") from error
    measured = [_normalise(state, logprobs) for state, logprobs in zip(states, scores, strict=True)]
    chances = [chance for chance, _ in measured]
    masses = [mass for _, mass in measured]
    values, best = _best_responses(env_id, states, chances)
    gains = [high - value for high, value in zip(best, values, strict=True)]
    return NashConvResult(
        env_id=env_id,
        model=", ".join(dict.fromkeys(models)),
        nash_conv=sum(gains),
        exploitability=gains,
        values=values,
        best_response_values=best,
        legal_mass=sum(masses) / len(masses),
        min_legal_mass=min(masses),
        policy={
            state.info_state: dict(zip(state.legal_actions, chance, strict=True))
            for state, chance in zip(states, chances, strict=True)
        },
        observations={state.info_state: state.observation for state in states},
    )


def _states_of(env_id: str) -> list[InformationState]:
    """Return the information states of a game, whose names must differ between seats."""
    if library_of(env_id) != "openspiel":
        raise InputError("env.id", f"{env_id} has no exact measure", "Choose an OpenSpiel game: kuhn_poker")
    game_type = load_game(env_id).get_type()
    if game_type.chance_mode == game_type.ChanceMode.SAMPLED_STOCHASTIC:
        raise InputError(
            "env.id", f"{env_id} hides the probabilities of its chance events", "Choose kuhn_poker"
        )
    states = information_states(env_id)
    if len({state.info_state for state in states}) < len(states):
        raise InputError(
            "env.id", f"in {env_id} two seats share the name of an information state", "Choose kuhn_poker"
        )
    return states


def prompt_of(env_id: str, template: PromptTemplate, state: InformationState) -> Messages:
    """Return the prompt that a model reads in an information state."""
    return template.messages(game_at(env_id, state.history), state.pid)


def _normalise(state: InformationState, logprobs: list[float]) -> tuple[list[float], float]:
    """Return the normalised probabilities of the legal answers, and their sum before that."""
    top = max(logprobs, default=math.nan)
    if len(logprobs) != len(state.actions) or any(map(math.isnan, logprobs)) or math.isinf(top):
        raise SelfplayError(f"the model gave no probabilities at {state.info_state!r}: {logprobs}")
    # Weights are relative to the most likely answer, so that unlikely answers do not underflow.
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights], total * math.exp(top)


def _best_responses(
    env_id: str, states: list[InformationState], chances: list[list[float]]
) -> tuple[list[float], list[float]]:
    """Return for each seat the value of the policy and that of a best response to it."""
    import pyspiel

    game = load_game(env_id)
    root = game.new_initial_state()
    policy = pyspiel.TabularPolicy(
        {
            state.info_state: list(zip(state.actions, chance, strict=True))
            for state, chance in zip(states, chances, strict=True)
        }
    )
    values = pyspiel.expected_returns(root, policy, -1, True)
    best = [
        pyspiel.TabularBestResponse(game, pid, policy).value_from_state(root)
        for pid in range(game.num_players())
    ]
    return list(values), best
