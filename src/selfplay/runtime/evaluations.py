"""The evaluations of a run: matches and exact measures, written to its directory."""

from pathlib import Path
from typing import Protocol

from rich.console import Group

from selfplay.config.settings import Config, EnvSettings
from selfplay.core import AgentSpec, Arena, derive_seed
from selfplay.envs.scripted import PLAYER_NAMES
from selfplay.envs.templates import get_template
from selfplay.evaluation.match import play_match
from selfplay.evaluation.match_result import MatchResult
from selfplay.evaluation.nash_conv import nash_conv
from selfplay.evaluation.report_files import read_evaluation, write_evaluation
from selfplay.evaluation.tables import comparison_table
from selfplay.runtime.progress import RunProgress


def opponent_agent(name: str) -> AgentSpec:
    """The agent behind an opponent's name: a scripted player, or a model that the engine serves."""
    return AgentSpec("script" if name in PLAYER_NAMES else "model", name)


class Ratings(Protocol):
    """The part of a model pool that evaluations use."""

    def current_uid(self) -> str | None:
        """Uid of the latest checkpoint."""

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: list[str], env_id: str
    ) -> None:
        """Rate a game."""


class Evaluations:
    """Measures a served model against the configured opponents.

    Args:
        config: of the run.
        arena: whose client serves ``model``.
        pool: its fixed members are rated by the matches against them.
        model: which served model is measured.
        directory: where results are written.
    """

    def __init__(self, config: Config, arena: Arena, pool: Ratings, model: str, directory: Path) -> None:
        self.config = config
        self.arena = arena
        self.pool = pool
        self.model = model
        self.directory = directory

    async def run(self, step: int, games: int, progress: RunProgress) -> dict[str, str]:
        """Measure after update ``step``; returns the headline figures by name."""
        summary = {}
        for env in self.config.envs:
            of_env = f" in {env.id}" if len(self.config.envs) > 1 else ""
            for opponent in self.config.evaluation.opponents if env.num_players > 1 else [None]:
                progress.say(f"{env.id}: {games} games against {opponent or 'the environment'}")
                result = await self._match(env, opponent, games, progress)
                write_evaluation(self.directory, step, f"{env.id}-{opponent or 'alone'}", result)
                self._rate(result, opponent)
                won = f"win against {opponent}" if opponent else "solved"
                summary[won + of_env] = f"{result.win_rate.mid:.0%}"
                summary[f"invalid{of_env}"] = f"{result.invalid_move_rate.mid:.1%}"
            if self.config.evaluation.nash_conv:
                progress.say(f"{env.id}: NashConv")
                exact = await nash_conv(
                    self.arena.client, env.id, get_template(env.template), model=self.model
                )
                write_evaluation(self.directory, step, f"{env.id}-nash-conv", exact)
                summary[f"NashConv{of_env}"] = f"{exact.nash_conv:.3f}"
        return summary

    async def _match(
        self, env: EnvSettings, opponent: str | None, games: int, progress: RunProgress
    ) -> MatchResult:
        return await play_match(
            self.arena,
            env.id,
            env.num_players,
            get_template(env.template),
            model=self.model,
            opponent=opponent_agent(opponent) if opponent else None,
            games=games,
            seed=derive_seed(self.config.seed, "evaluation", env.id, opponent or ""),
            concurrency=self.config.collection.concurrency,
            temperature=self.config.evaluation.temperature,
            max_tokens=self.config.inference.max_tokens,
            max_turns=env.max_turns,
            error_allowance=env.error_allowance,
            on_game=progress.evaluation_game,
        )

    def _rate(self, result: MatchResult, opponent: str | None) -> None:
        """Let the pool learn from a match, game by game."""
        current = self.pool.current_uid()
        uid = f"fixed-{opponent}"
        if opponent is None or current is None or result.num_players != 2:
            return
        for outcome in result.outcomes:
            reward = {"w": 1.0, "d": 0.0, "l": -1.0}[outcome]
            self.pool.push_game_outcome(current, uid, reward, [], result.env_id)

    def tables(self) -> Group | str:
        """First against last evaluation on disk."""
        return comparison_of(self.directory)


def comparison_of(directory: Path) -> Group | str:
    """The first evaluation in a directory against the last, as a table."""
    results = [read_evaluation(path) for path in sorted(directory.glob("step-*.json"))]
    if not results:
        return "nothing was evaluated"
    first = min(step for step, _ in results)
    last = max(step for step, _ in results)
    before = [result for step, result in results if step == first]
    after = [result for step, result in results if step == last]
    return comparison_table(before, after)
