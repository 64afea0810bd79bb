"""Who sits where in a program's episodes: who is trained, and members of the pool in the other roles."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparring.collection.scheduler import agent_of
from sparring.config import Config
from sparring.core import AgentSpec, Arena, EpisodeRequest, GenerateResult, derive_seed
from sparring.core.own_code import list_of, method_of
from sparring.core.played import finite_reward
from sparring.evaluation.match import earned_by_role
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.run.evaluation_opponents import opponent_calls
from sparring.run.programs import seats_of_program


@dataclass(frozen=True)
class SeatedRoles:
    """The pool's member in each role of a program, and the roles that learn."""

    uids: dict[str, str]
    learning: set[str]


class ProgramSeats:
    """Gives the roles of each request their agents, and rates the members of the pool that played.

    In mirror games every role plays and trains its own policy; these are all groups of requests in mode
    ``mirror``, and a share of them in other modes. Otherwise one of the configured roles, drawn for each
    group, is trained; the pool chooses an opponent for each of the others, which
    takes the place of that role's policy. Roles that are not configured play and train as in ``mirror``.

    A league takes the place of the mode: for each group it draws who has each role, and who learns in it.

    Args:
        config: the run's configuration.
        pool: the pool, with every policy.
        league: the run's league, if it has one.
        arena: the program.
    """

    def __init__(self, config: Config, pool: ModelPool, league: League | None, arena: Arena) -> None:
        self.config = config
        self.pool = pool
        self.league = league
        self.arena = arena
        self.policy_of = {str(role): policy for role, policy in seats_of_program(arena).items()}
        self.others = opponent_calls(config)
        self.roles = config.population.roles or list(self.policy_of)

    def seat(self, requests: list[EpisodeRequest]) -> list[EpisodeRequest]:
        """Return the requests of a step with their agents. Requests of one group have the same.

        ``meta["uids"]`` names the pool's member in each configured role, except in mirror games.
        """
        if self.config.sample_mode == "mirror":
            return requests
        drawn: dict[Any, SeatedRoles | None] = {}
        seated = []
        for number, request in enumerate(requests):
            group = request.meta.get("group", ("alone", number))
            if group not in drawn:
                seed = derive_seed(self.config.seed, "program seats", self.arena.step_num, len(drawn))
                drawn[group] = self._drawn(random.Random(seed))
            seats = drawn[group]
            if seats is None:
                seated.append(request)
                continue
            meta = {**request.meta, "uids": seats.uids}
            seated.append(replace(request, meta=meta, agents={**self._agents(seats), **request.agents}))
        return seated

    def rate(self, result: GenerateResult) -> None:
        """Rate the members that met in an episode of a step; see :func:`rate_members`."""
        rate_members(self.pool, self.arena, result, self.policy_of | result.rollout.meta.get("uids", {}))

    def _drawn(self, rng: random.Random) -> SeatedRoles | None:
        """Return who has each role, and which learn; ``None`` for a mirror game."""
        if self.league is not None:
            pairing = self.league.draw(rng, self.arena.step_num)
            self.league.count(pairing.player, pairing.reason)
            uids = {str(role): uid for role, uid in pairing.uids.items()}
            learning = {role for role, uid in uids.items() if uid == pairing.player}
            self.pool.count_drawn({*uids.values()} - {pairing.player} or {pairing.player})
            return SeatedRoles(uids, learning)
        if self.pool.draw_mirror(rng):
            self.pool.count_drawn({self.policy_of[role] for role in self.roles})
            return None
        trained = rng.choice(self.roles)
        mine = self.policy_of[trained]
        others = {
            role: self.pool.sample(mine, rng, self.policy_of[role]) for role in self.roles if role != trained
        }
        self.pool.count_drawn({*others.values()})
        return SeatedRoles({trained: mine, **others}, {trained})

    def _agents(self, seats: SeatedRoles) -> dict[str, AgentSpec]:
        """Return who answers for each role, unless its own policy does, and learns."""
        learning = {role: AgentSpec("policy", seats.uids[role]) for role in seats.learning}
        agents = {role: agent_of(self.pool, uid, self.others) for role, uid in seats.uids.items()}
        own = {role for role in learning if seats.uids[role] == self.policy_of[role]}
        return {role: agent for role, agent in {**agents, **learning}.items() if role not in own}


def rate_members(pool: ModelPool, arena: Arena, result: GenerateResult, uids: Mapping[str, str]) -> None:
    """Rate the members that met in an episode, given by role. Roles of a single member are one player.

    They are rated by the matches of the program's ``outcomes``. What each role that is trained earned goes to
    the payoffs that the pool keeps.
    """
    source = method_of(arena, "outcomes")
    for rewards in list_of(dict, arena.outcomes(result), f"what {source} returned"):
        for role, reward in rewards.items():
            finite_reward(reward, f"{source} for role {role}")
        met = {role: uids[role] for role in rewards if role in uids}
        if len(set(met.values())) > 1:
            scores = [rewards[role] for role in met]
            pool.push_result([*met.values()], scores, result.rollout.episode_type, [])
    roles = [str(role) for role in seats_of_program(arena)]
    if len(roles) < 2:
        return
    seating, earned = [uids[role] for role in roles], earned_by_role(result, roles)
    if isinstance(earned, str):
        pool.played.append_failure(seating)
    else:
        pool.played.append(seating, earned)
