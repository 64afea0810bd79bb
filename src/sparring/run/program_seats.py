"""Who sits where in a program's episodes: the role that is trained, and members of the pool in the others."""

import random
from dataclasses import replace
from typing import Any

from sparring.collection.scheduler import agent_of
from sparring.config import Config
from sparring.core import Arena, EpisodeRequest, GenerateResult, derive_seed
from sparring.core.own_code import list_of, method_of
from sparring.core.played import finite_reward
from sparring.population.model_pool import ModelPool
from sparring.run.draws import opponent_calls


class ProgramSeats:
    """Gives the roles of each request their agents, and rates the members of the pool that played.

    In mirror games every role plays and trains its own policy; these are all groups of requests in mode
    ``mirror``, and a share of them in other modes. Otherwise one of the configured roles, drawn for each
    group, is trained; the pool chooses an opponent for each of the others, which
    takes the place of that role's policy. Roles that are not configured play and train as in ``mirror``.

    Args:
        config: the run's configuration.
        pool: the pool, with every policy.
        arena: the program.
    """

    def __init__(self, config: Config, pool: ModelPool, arena: Arena) -> None:
        self.config = config
        self.pool = pool
        self.arena = arena
        roles = arena.roles.values()
        self.policy_of = {role.id: role.policy for role in roles if role.policy not in arena.frozen}
        self.others = opponent_calls(config)
        self.roles = config.population.roles or list(self.policy_of)

    def seat(self, requests: list[EpisodeRequest]) -> list[EpisodeRequest]:
        """Return the requests of a step with their agents. Requests of one group have the same.

        ``meta["uids"]`` names the pool's member in each configured role, except in mirror games.
        """
        if self.config.population.sample_mode == "mirror":
            return requests
        drawn: dict[Any, tuple[str, dict[str, str]] | None] = {}
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
            trained, uids = seats
            agents = {
                role: agent_of(self.pool, uid, self.others) for role, uid in uids.items() if role != trained
            }
            meta = {**request.meta, "uids": uids}
            seated.append(replace(request, meta=meta, agents={**agents, **request.agents}))
        return seated

    def rate(self, result: GenerateResult) -> None:
        """Rate the members that met in an episode. Roles of a single member are one player."""
        uids = self.policy_of | result.rollout.meta.get("uids", {})
        source = method_of(self.arena, "outcomes")
        for rewards in list_of(dict, self.arena.outcomes(result), f"what {source} returned"):
            for role, reward in rewards.items():
                finite_reward(reward, f"{source} for role {role}")
            met = {role: uids[role] for role in rewards if role in uids}
            if len(set(met.values())) > 1:
                scores = [rewards[role] for role in met]
                self.pool.push_result([*met.values()], scores, result.rollout.episode_type, [])

    def _drawn(self, rng: random.Random) -> tuple[str, dict[str, str]] | None:
        """Return the role that is trained, and the member in each role; ``None`` for a mirror game."""
        if self.pool.draw_mirror(rng):
            self.pool.count_drawn({self.policy_of[role] for role in self.roles})
            return None
        trained = rng.choice(self.roles)
        mine = self.policy_of[trained]
        others = {
            role: self.pool.sample(mine, rng, self.policy_of[role]) for role in self.roles if role != trained
        }
        self.pool.count_drawn({*others.values()})
        return trained, {trained: mine, **others}
