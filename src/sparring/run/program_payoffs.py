"""The episodes between frozen members of a program's pool, for the payoffs of mode ``meta-nash``."""

from dataclasses import replace
from statistics import pstdev

from sparring.collection.scheduler import agent_of
from sparring.config import Config
from sparring.core import Arena, EpisodeRequest, SparringError, derive_seed
from sparring.core.own_code import list_of, method_of, own_code, state_of
from sparring.evaluation.match import earned_by_role
from sparring.population.model_pool import ModelPool
from sparring.population.payoff_games import PayoffGame
from sparring.run.evaluation_opponents import opponent_calls
from sparring.run.program_seats import rate_members
from sparring.run.programs import NOTHING_TO_PLAY, seats_of_program

FAR = 0.5
"""How much what two roles earn together may vary, relative to their difference, before a line warns."""


class ProgramPayoffs:
    """Plays requests of a program, under seeds of their own, with members of the pool in both roles."""

    def __init__(self, config: Config, pool: ModelPool, arena: Arena) -> None:
        self.config = config
        self.pool = pool
        self.arena = arena
        self.roles = [str(role) for role in seats_of_program(arena)]
        self.others = opponent_calls(config)
        self._earned: list[list[float]] = []
        self._warned = False

    async def play(self) -> list[str]:
        """Play every game that waits, add what they earned to the pool, and return why some failed."""
        batch, failed = self._batch(), []
        games = list(self.pool.payoffs.waiting)
        results = await self.arena.generate_rollouts([self._request(one, batch) for one in games])
        for game, result in zip(self.pool.payoffs.take(), results, strict=True):
            seating = [game.first, game.second]
            earned = earned_by_role(result, self.roles)
            if isinstance(earned, str):
                failed.append(earned)
                self.pool.payoffs.add_failure(game.number, seating)
                self.pool.played.append_failure(seating)
                continue
            self._earned.append(earned)
            self.pool.payoffs.add(game.number, seating, earned)
            with own_code("the program's outcomes failed"):
                rate_members(self.pool, self.arena, result, dict(zip(self.roles, seating, strict=True)))
        return failed

    def warning(self) -> str:
        """Return a line, once, if one role's gain is not the other's loss; empty otherwise."""
        together = pstdev([first + second for first, second in self._earned] or [0.0])
        apart = pstdev([first - second for first, second in self._earned] or [0.0])
        if self._warned or together <= FAR * apart:
            return ""
        self._warned = True
        both = " and ".join(self.roles)
        return (
            f"warning: what {both} earn together varies, so the mixture of meta-nash is an equilibrium "
            "only of half of what one earns more than the other"
        )

    def _batch(self) -> list[EpisodeRequest]:
        """Return the requests of the next step, of which the arena forgets that it was asked."""
        with own_code("the program's state_dict failed"):
            state = state_of(self.arena, "the program's state_dict")
        with own_code():
            asked = self.arena.get_batch()
            self.arena.load_state_dict(state)
        batch = list_of(EpisodeRequest, asked, f"what {method_of(self.arena, 'get_batch')} returned")
        if not batch:
            raise SparringError(NOTHING_TO_PLAY)
        return batch

    def _request(self, game: PayoffGame, batch: list[EpisodeRequest]) -> EpisodeRequest:
        request = batch[game.number % len(batch)]
        seating = zip(self.roles, (game.first, game.second), strict=True)
        agents = {role: agent_of(self.pool, uid, self.others) for role, uid in seating}
        seed = derive_seed(self.config.seed, "program payoff", game.number)
        meta = request.meta | {"seed": seed, "rollout_id": f"payoff-{game.number:08d}"}
        return replace(request, meta=meta, agents={**request.agents, **agents}, is_trainable=False)
