"""Run the evaluations of a run: matches and exact measures, written to its directory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rich.console import RenderableType

from sparring.collection.rollout_log import write_rollouts
from sparring.config import Config, dump_config
from sparring.config.play import EvaluatedGameSettings
from sparring.config.toml_files import parse_toml
from sparring.core import AgentSpec, Arena, Rollout, derive_seed
from sparring.core.sampling import AS_LEARNED
from sparring.envs.game_episode import build_episode
from sparring.envs.scripted import PLAYER_NAMES
from sparring.envs.templates import get_template
from sparring.evaluation.match import Mixture, play_match
from sparring.evaluation.nash_conv import TooSlow, nash_conv
from sparring.evaluation.results import MatchResult, evaluation_path, failures_text, write_evaluation
from sparring.run.assembly import evaluated_uid
from sparring.run.evaluation_opponents import (
    MIXTURE,
    evaluation_calls,
    evaluation_opponents,
    lasting_opponents,
    measures_nash_conv,
    opponent_calls,
)
from sparring.run.given_adapters import frozen_of
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory
from sparring.view.evaluations import EvaluationFiles, Figures
from sparring.view.run_view import RunView
from sparring.view.tables import before_and_after
from sparring.view.watch.text import table_text


class Evaluations:
    """Measures what the training of each policy produces, in its seats, against the configured opponents.

    A frozen seat is the opponent's, so that every game of a match measures a policy that is trained.

    The client of ``arena`` serves the ``results``, the model of each policy.

    Attributes:
        played: the games of matches for two, for the pool to rate: (uid, other uid, reward, environment).
    """

    def __init__(
        self,
        config: Config,
        arena: Arena,
        results: Mapping[str, str],
        directory: RunDirectory,
    ) -> None:
        self.config = config
        self.arena = arena
        self.results = results
        self.directory = directory
        self.played: list[tuple[str, str, float, str]] = []
        self._rated_step = -1
        self._rated: set[tuple[str, int]] = set()
        """The games of that update which are rated: the match and the number of each."""

    async def run(self, step: int, games: int, progress: RunProgress) -> dict[str, str]:
        """Measure after update ``step``; return the headline figures by name.

        If an update is measured again with more games, the first of them are played again as they were. Each
        game is rated once. Raises InputError if NashConv cannot be computed, or takes too long in the first
        evaluation.
        """
        summary, directory = {}, self.directory.evaluation
        trained = [self.config.label(env) for env in self.config.envs]
        for env in self.config.evaluated:
            label = self.config.label(env)
            shown_env = self.config.shown(label)
            of_env = "" if trained == [label] and len(self.config.evaluated) == 1 else f" in {shown_env}"
            alone: list[str | None] = [None]
            played = env.games or games
            for opponent in evaluation_opponents(self.config, env) if env.num_players > 1 else alone:
                progress.say(f"{shown_env}: {played} games against {opponent or 'the environment'}")
                rollouts: dict[int, Rollout] = {}
                finished: list[int] = []
                result = await self._match(env, opponent, played, progress, rollouts, finished)
                name = f"{label}-{opponent or 'alone'}"
                self.directory.check_epoch()
                write_evaluation(directory, step, name, result)
                shown = [rollouts[index] for index in sorted(rollouts)]
                if shown:
                    write_rollouts(evaluation_path(directory, step, name, ".jsonl"), step, shown)
                self._rate(step, name, env, result, opponent, sorted(finished))
                won = f"win against {opponent}" if opponent else "solved"
                summary[won + of_env] = _headline(result)
            if measures_nash_conv(self.config, env):
                summary |= await self._nash_conv(env, step, progress, of_env)
        return summary

    async def _nash_conv(
        self, env: EvaluatedGameSettings, step: int, progress: RunProgress, of_env: str
    ) -> dict[str, str]:
        """Compute NashConv and return its headline figures.

        If it takes too long in a later evaluation than the run's first, it is left out with a warning: what
        was learned must not be lost because the machine is busy now.
        """
        label = self.config.label(env)
        try:
            exact = await nash_conv(
                self.arena.client,
                env.id,
                get_template(env.template),
                model=self._models(env),
                timeout=60 * self.config.evaluation.nash_conv_minutes,
                progress=progress,
            )
        except TooSlow as error:
            if step == 0:
                raise
            progress.warn_of(step, f"NashConv of {label} is left out: {error.problem}")
            return {}
        self.directory.check_epoch()
        exact = replace(exact, env_id=label)
        write_evaluation(self.directory.evaluation, step, f"{label}-nash-conv", exact)
        summary = {f"NashConv{of_env}": f"{exact.nash_conv:.3f}"}
        if not exact.is_playable:
            summary[f"legal mass{of_env}"] = f"{exact.legal_mass:.2%} (too low to play)"
        return summary

    async def _match(
        self,
        env: EvaluatedGameSettings,
        opponent: str | None,
        games: int,
        progress: RunProgress,
        rollouts: dict[int, Rollout],
        finished: list[int],
    ) -> MatchResult:
        """Play a match; keep the numbers of its games in ``finished`` and the first games in ``rollouts``."""

        def keep(index: int, rollout: Rollout) -> None:
            finished.append(index)
            if index < self.config.tracking.games_logged:
                rollouts[index] = rollout

        seats, on_game = self._seats(env), progress.evaluation_game
        result = await self._play("evaluation", env, opponent, self._models(env), seats, games, keep, on_game)
        return replace(result, env_id=self.config.label(env), opponent=opponent or "")

    async def rewards(self, policy: str, seats: Sequence[int], games: int) -> dict[str, float]:
        """Play a policy in these seats against the opponents that stay the same; return its rewards by game.

        The games are the same for every policy, and at every update, but not those of :meth:`run`. Failed
        ones are missing.
        """
        found = {}
        for env in self.config.evaluated:
            held = [seat for seat in seats if seat < env.num_players]
            for opponent in lasting_opponents(self.config, env) if held else []:
                played: dict[int, Rollout] = {}
                model, keep = self.results[policy], played.__setitem__
                await self._play("evolution", env, opponent, model, held, games, keep)
                named = f"{self.config.label(env)} {opponent}"
                for index, rollout in played.items():
                    rewards = rollout.extras["final_rewards"]
                    found[f"{named} {index}"] = float(rewards[held[index % len(held)]])
        return found

    async def _play(
        self,
        purpose: str,
        env: EvaluatedGameSettings,
        opponent: str | None,
        model: str | list[str],
        seats: Sequence[int],
        games: int,
        on_rollout: Callable[[int, Rollout], None],
        on_game: Callable[[int, int], None] | None = None,
    ) -> MatchResult:
        calls = evaluation_calls(self.config, env)
        return await play_match(
            self.arena,
            build_episode(env),
            model=model,
            opponent=self._opponents(env, opponent) if opponent else None,
            games=games,
            seats=seats,
            seed=derive_seed(self.config.seed, purpose, env.name, opponent or ""),
            concurrency=self.config.collection.concurrency,
            temperature=1.0 if calls.temperature is None else calls.temperature,
            max_tokens=self.config.inference.max_tokens,
            sampling=calls.sampling or AS_LEARNED,
            on_game=on_game,
            on_rollout=on_rollout,
        )

    def _opponents(self, env: EvaluatedGameSettings, name: str) -> list[AgentSpec | Mixture[AgentSpec]]:
        if name != MIXTURE:
            return [self._opponent(name)] * env.num_players
        return [self._mixture(policy) for policy in env.seats]

    def _opponent(self, name: str) -> AgentSpec:
        files, calls = frozen_of(self.config, "policy"), opponent_calls(self.config)
        if name in (*PLAYER_NAMES, *files):
            return AgentSpec("script", files.get(name, name))
        return AgentSpec("model", name, calls.temperature, sampling=calls.sampling)

    def _mixture(self, policy: str) -> Mixture[AgentSpec]:
        """Return the fixed opponents that take the place of a policy."""
        population = self.config.population
        weights = population.weights_by_name
        here = [name for name in weights if population.places.get(name, policy) == policy]
        return Mixture(tuple(map(self._opponent, here)), tuple(weights[name] for name in here))

    def _seats(self, env: EvaluatedGameSettings) -> list[int]:
        """Return the seats whose policies are measured: those that are trained, or all if none is."""
        trained = [seat for seat, policy in enumerate(env.seats) if policy in self.results]
        return trained or list(range(env.num_players))

    def _models(self, env: EvaluatedGameSettings) -> list[str]:
        return [self.results.get(policy, policy) for policy in env.seats]

    def _rate(
        self,
        step: int,
        name: str,
        env: EvaluatedGameSettings,
        result: MatchResult,
        opponent: str | None,
        finished: list[int],
    ) -> None:
        if opponent is None or result.num_players != 2:
            return
        if step != self._rated_step:
            self._rated_step, self._rated = step, set()
        seats = self._seats(env)
        for number, outcome in zip(finished, result.outcomes, strict=True):
            if (name, number) in self._rated:
                continue
            self._rated.add((name, number))
            reward = {"w": 1.0, "d": 0.0, "l": -1.0}[outcome]
            policy = env.seats[seats[number % len(seats)]]
            is_trained = policy in self.results
            uid = evaluated_uid(self.config, policy) if is_trained else f"fixed-{policy}"
            if policy != opponent:
                self.played.append((uid, f"fixed-{opponent}", reward, result.env_id))


def comparison_of(run: RunDirectory, config: Config) -> RenderableType:
    """Compare the first evaluation of a run with the last, its tasks included, as a table."""
    figures: Figures = {}
    for directory in (run.evaluation, run.tasks):
        files = EvaluationFiles(directory)
        files.read()
        while files.unread:
            files.read()
        figures |= files.figures()
    table = before_and_after(RunView("", parse_toml(dump_config(config)), figures=figures))
    return "nothing was evaluated" if table is None else table_text(table)


def _headline(result: MatchResult) -> str:
    if not result.games:
        return f"no game was finished ({failures_text(result.failure_reasons)})"
    return f"{result.win_rate.mid:.0%} ({result.invalid_move_rate.mid:.1%} of moves invalid)"
