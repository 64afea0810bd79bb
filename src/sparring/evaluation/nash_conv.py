"""Exact NashConv of a model in a small OpenSpiel game, from its own distribution over legal answers."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from time import perf_counter
from typing import Any

from sparring.core import InferenceClient, InputError, Messages, SparringError
from sparring.core.gather import all_results
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import (
    InformationState,
    game_at,
    information_states,
    load_game,
    previous_decisions,
)
from sparring.envs.templates import PromptTemplate
from sparring.evaluation.match import Models, by_seat, names_of
from sparring.evaluation.mixture import Mixture, average_policy
from sparring.evaluation.played_gains import GameAsPlayed
from sparring.evaluation.progress import Progress

SCORED_AT_ONCE = 256
"""Maximum number of positions whose answers are scored concurrently; every kind of model call is bounded."""


MAX_STATES_KEPT = 5000
"""Above this number of information states, a result leaves out the policy and what is read in each."""

LONG_LIMIT = 3600.0
"""Time limit of a measure that a user asks for by itself, in seconds."""
TIME_LIMIT = 600.0
"""Seconds that scoring may take unless told otherwise."""

FASTER = "Allow more time (evaluation.nash_conv_minutes in a configuration), or choose a smaller game"
"""What to do if scoring takes too long."""

PLAYABLE_LEGAL_MASS = 0.1
"""Below this probability of legal answers, a policy mostly loses by invalid moves, whatever its NashConv."""
UNPLAYABLE_NOTE = (
    "NashConv treats the policy as if it gave only legal answers. With so little probability on them, it "
    "cannot be played: it loses by invalid moves."
)


class TooSlow(InputError):
    """An exact measure takes longer than its time limit."""


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
    Both are empty for a game with more than 5,000 information states. ``played_gains`` is ``exploitability``
    if every other answer is invalid and loses, as in games that are played; ``None`` unless asked for.
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
    played_gains: list[float] | None = None

    @property
    def is_playable(self) -> bool:
        """Whether legal answers are likely enough for ``nash_conv`` to be meaningful for actual play."""
        return self.legal_mass >= PLAYABLE_LEGAL_MASS

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.played_gains is None:
            del values["played_gains"]
        return values | {"is_playable": self.is_playable}


async def nash_conv(
    client: InferenceClient,
    env_id: str,
    template: PromptTemplate,
    *,
    model: Models,
    timeout: float = TIME_LIMIT,
    progress: Progress | None = None,
    as_played: bool = False,
) -> NashConvResult:
    """Measure ``model`` in every information state of a game and compute its NashConv.

    NashConv: Lanctot et al., "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning",
    2017, arXiv 1711.00832. The best responses are OpenSpiel's.

    Args:
        client: scores answers.
        env_id: an OpenSpiel game of any number of players whose positions can be listed.
        template: gives the prompts and the form of the scored answers.
        model: uid of the model, or a mixture; one for each seat if they differ. A mixture is measured by its
            average policy; see :func:`sparring.evaluation.mixture.average_policy`.
        timeout: time limit of scoring, in seconds. What the first positions took tells at once whether the
            rest would exceed it.
        progress: told of the positions, those of a mixture once for each member, and of the time that
            more than the first of them will take.
        as_played: also compute ``played_gains``; not of a mixture, or of more than 5,000 information states.

    Raises:
        InputError: the game is not an OpenSpiel game with named information states, or has too many; see
            envs.openspiel_game.
        TooSlow: scoring would take longer than the time limit, or did.
        SparringError: the scores are not probabilities.
    """
    states = states_of(env_id)
    models = by_seat(model, 1 + max(state.pid for state in states))
    asked = [(place, name) for place, state in enumerate(states) for name in _members(models[state.pid])]
    slots, done = asyncio.Semaphore(SCORED_AT_ONCE), 0

    async def score(place: int, name: str) -> list[float]:
        nonlocal done
        answers = [template.answer(action) for action in states[place].legal_actions]
        async with slots:
            prompt = prompt_of(env_id, template, states[place])
            logprobs = await client.score(prompt, answers, model=name)
        done += 1
        count(done, len(asked))
        return logprobs

    started, progress = perf_counter(), progress or Progress()
    doing = f"{env_id}: NashConv of {names_of(models)}"
    try:
        async with asyncio.timeout(timeout):
            with progress.doing(doing, "positions", len(asked)) as count:
                scores = await all_results(starmap(score, asked[:SCORED_AT_ONCE]))
                if len(asked) > SCORED_AT_ONCE:
                    seconds_each = (perf_counter() - started) / SCORED_AT_ONCE
                    progress.say(_estimate(env_id, len(asked), seconds_each, timeout))
                    scores += await all_results(starmap(score, asked[SCORED_AT_ONCE:]))
    except TimeoutError as error:
        problem = f"scoring the {len(asked):,} positions of {env_id} took over {timeout:g} s"
        raise TooSlow("env.id", problem, FASTER) from error
    measured = {
        (place, name): _normalise(states[place], logprobs)
        for (place, name), logprobs in zip(asked, scores, strict=True)
    }
    chances = _policy(env_id, states, models, {key: chance for key, (chance, _) in measured.items()})
    masses = [
        sum(share * measured[place, name][1] for name, share in _members(models[state.pid]).items())
        for place, state in enumerate(states)
    ]
    values, best = _best_responses(env_id, states, chances)
    gains = [high - value for high, value in zip(best, values, strict=True)]
    kept = len(states) <= MAX_STATES_KEPT
    played = None
    if as_played and kept and not any(isinstance(model, Mixture) for model in models):
        chosen = {
            state.info_state: (dict(zip(state.actions, chance, strict=True)), mass)
            for state, chance, mass in zip(states, chances, masses, strict=True)
        }
        played = GameAsPlayed(load_game(env_id), chosen).gains()
    return NashConvResult(
        env_id=env_id,
        model=names_of(models),
        nash_conv=sum(gains),
        exploitability=gains,
        values=values,
        best_response_values=best,
        legal_mass=sum(masses) / len(masses),
        min_legal_mass=min(masses),
        policy={
            state.info_state: dict(zip(state.legal_actions, chance, strict=True))
            for state, chance in zip(states, chances, strict=True)
            if kept
        },
        observations={state.info_state: state.observation for state in states if kept},
        played_gains=played,
    )


def _members(model: str | Mixture[str]) -> dict[str, float]:
    """Return the members that may be drawn, with their probabilities."""
    if not isinstance(model, Mixture):
        return {model: 1.0}
    total, found = sum(model.weights), dict[str, float]()
    for one, share in zip(model.members, model.weights, strict=True):
        if share:
            found[one] = found.get(one, 0.0) + share / total
    return found


def _policy(
    env_id: str,
    states: list[InformationState],
    models: Sequence[str | Mixture[str]],
    chances: Mapping[tuple[int, str], list[float]],
) -> list[list[float]]:
    """Return the chance of each legal action by state: the model's, or that of a mixture's average policy.

    ``chances`` are those of each member, by the state's place and the member's name.
    """
    if not any(isinstance(model, Mixture) for model in models):
        return [chances[place, str(models[state.pid])] for place, state in enumerate(states)]
    earlier = previous_decisions(env_id, states)
    policy: list[list[float]] = [[]] * len(states)
    for pid, model in enumerate(models):
        members = _members(model)
        places = [place for place, state in enumerate(states) if state.pid == pid]
        within = {place: number for number, place in enumerate(places)}
        averages = average_policy(
            [[chances[place, name] for place in places] for name in members],
            list(members.values()),
            [None if (one := earlier[place]) is None else (within[one[0]], one[1]) for place in places],
        )
        for place, average in zip(places, averages, strict=True):
            policy[place] = average
    return policy


def _estimate(env_id: str, positions: int, seconds_each: float, limit: float) -> str:
    """Return how long the positions after the first will take; raise TooSlow if all exceed the limit."""
    total, rest = positions * seconds_each, (positions - SCORED_AT_ONCE) * seconds_each
    if total > limit:
        raise TooSlow(
            "env.id",
            f"scoring the {positions:,} positions of {env_id} would take about {total:,.0f} s, and the limit "
            f"is {limit:,.0f} s",
            FASTER,
        )
    return f"{env_id}: NashConv, {positions:,} positions, about {rest:,.0f} s"


def states_of(env_id: str) -> list[InformationState]:
    """Return the information states of a game that has an exact measure.

    Raises:
        InputError: it has none: it is no OpenSpiel game, hides the probabilities of its chance events, is too
            large, or two of its seats share the name of an information state.
    """
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
        raise SparringError(f"the model gave no probabilities at {state.info_state!r}: {logprobs}")
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
