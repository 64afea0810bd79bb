"""Exact NashConv of a model in a small OpenSpiel game, from its own distribution over legal answers."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import starmap
from time import perf_counter

from sparring.core import InferenceClient, InputError, Messages, SparringError
from sparring.core.concurrency import all_results
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import (
    InformationState,
    game_at,
    information_states,
    load_game,
    previous_decisions,
)
from sparring.envs.templates import PromptTemplate
from sparring.evaluation.match import Mixture, Models, Progress, by_seat, names_of
from sparring.evaluation.played_gains import GameAsPlayed
from sparring.evaluation.results import NashConvResult

SCORED_AT_ONCE = 256
"""Maximum number of positions whose answers are scored concurrently."""
MAX_STATES_KEPT = 5000
"""Above this number of information states, a result leaves out the policy and what is read in each."""

LONG_LIMIT = 3600.0
"""Time limit of a measure that a user asks for by itself, in seconds."""
TIME_LIMIT = 600.0
"""Seconds that scoring may take unless told otherwise."""

FASTER = "Allow more time (evaluation.nash_conv_minutes in a configuration), or choose a smaller game"


class TooSlow(InputError):
    """An exact measure takes longer than its time limit."""


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
        env_id: an OpenSpiel game of any number of players whose positions can be listed.
        template: gives the prompts and the form of the scored answers.
        model: uid of the model, or a mixture, which is measured by its :func:`average_policy`; one for each
            seat if they differ.
        timeout: seconds that scoring may take. The first positions tell at once whether the rest would.
        progress: told of the positions, those of a mixture once for each member.
        as_played: also compute ``played_gains``; not of a mixture, or of more than 5,000 information states.

    Raises:
        InputError: the game is not an OpenSpiel game with named information states, or has too many.
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
    played = None
    if (
        as_played
        and len(states) <= MAX_STATES_KEPT
        and not any(isinstance(model, Mixture) for model in models)
    ):
        chosen = {
            state.info_state: (dict(zip(state.actions, chance, strict=True)), mass)
            for state, chance, mass in zip(states, chances, masses, strict=True)
        }
        played = GameAsPlayed(load_game(env_id), chosen).gains()
    return replace(nash_conv_of_policy(env_id, names_of(models), chances, masses), played_gains=played)


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
    """Return the chance of each legal action by state, from each member's by state and name."""
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


def average_policy(
    chances: Sequence[Sequence[Sequence[float]]],
    weights: Sequence[float],
    parents: Sequence[tuple[int, int] | None],
) -> list[list[float]]:
    """Return the policy that plays as a mixture does, whose members are drawn once for each game.

    In each information state it is the average over members, weighted by the member's probability and by the
    probability of the member's own earlier moves that lead there. By Kuhn's theorem, in a game of perfect
    recall nobody can tell it from the mixture. OpenSpiel's ``policy_aggregator`` computes the same.

    ``chances`` are by member, information state and legal action. ``parents`` are the same player's decision
    before each state, as the places of the earlier state and of the action there; ``None`` for the player's
    first. Earlier states come first. A state that no member reaches has the average by ``weights`` alone.
    """
    reaches: list[list[float]] = []
    averages: list[list[float]] = []
    for place, parent in enumerate(parents):
        if parent is None:
            reach = list(weights)
        else:
            state, action = parent
            reach = [own * one[state][action] for own, one in zip(reaches[state], chances, strict=True)]
        reaches.append(reach)
        shares = reach if any(reach) else weights
        total = sum(shares)
        averages.append(
            [
                sum(share * one[place][action] for share, one in zip(shares, chances, strict=True)) / total
                for action in range(len(chances[0][place]))
            ]
        )
    return averages


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


@lru_cache(maxsize=8)
def states_of(env_id: str) -> list[InformationState]:
    """Return the information states of a game that has an exact measure.

    Raises:
        InputError: it has none, or too many states.
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


def nash_conv_of_policy(
    env_id: str, model: str, chances: Sequence[Sequence[float]], masses: Sequence[float] = (1.0,)
) -> NashConvResult:
    """Return the exact measure of a policy by information state, in the order of :func:`states_of`.

    ``masses`` are the probabilities of the legal answers, if others may be given.
    """
    states = states_of(env_id)
    values, best = _best_responses(env_id, states, chances)
    gains = [high - value for high, value in zip(best, values, strict=True)]
    kept = len(states) <= MAX_STATES_KEPT
    return NashConvResult(
        env_id=env_id,
        model=model,
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
    )


def nash_conv_of_table(env_id: str, chances: Sequence[Sequence[float]] | None = None) -> float:
    """Return NashConv of a policy by information state, in the order of :func:`states_of`.

    ``chances`` are those of the legal actions of each; ``None`` for uniform play.
    """
    states = states_of(env_id)
    uniform = [[1 / len(state.actions)] * len(state.actions) for state in states]
    values, best = _best_responses(env_id, states, uniform if chances is None else chances)
    return sum(best) - sum(values)


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
    env_id: str, states: Sequence[InformationState], chances: Sequence[Sequence[float]]
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
