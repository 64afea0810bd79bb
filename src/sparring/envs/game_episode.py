"""GameEpisode: one game that models and scripts play turn by turn."""

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from sparring.config.play import EnvSettings, GameSettings
from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    Episode,
    EpisodeError,
    EpisodeState,
    Messages,
    ModelResponse,
    PlaySpec,
    Rollout,
    Rubric,
    Step,
    derive_seed,
)
from sparring.core.own_code import is_from_outside, name_of
from sparring.core.play import GameSummary, GameTurn, seat_role
from sparring.core.types import UNSET
from sparring.envs.catalog import check_playable, make_game
from sparring.envs.game import Game
from sparring.envs.own_game import CheckedGame
from sparring.envs.scripted import RandomPlayer, ScriptedPlayer, check_moves_are_told, make_player
from sparring.envs.templates import PromptTemplate, calls_of, get_template

OPENER = AgentSpec(kind="script", model="random")
"""Who makes the random moves at the beginning of a game."""


@dataclass(frozen=True)
class _Position:
    """What the game shows the player to move, its legal moves, and the prompt if the player is a model."""

    pid: int
    view: str
    legal: list[str] | None
    prompt: Messages | None


@dataclass
class _Answer:
    """A seat's answer: the text, the action in it, whether it is well formed, and the response, if any.

    ``explored`` is whether it was a random legal one; ``None`` where it could not have been.
    """

    text: str
    action: str
    well_formed: bool
    response: ModelResponse | None = None
    explored: bool | None = None


@dataclass
class _Table:
    """One game in progress and its record. Its first ``opening`` moves are random, whoever has the seat."""

    spec: PlaySpec
    game: Game
    players: dict[int, ScriptedPlayer]
    position: _Position | None
    opener: ScriptedPlayer
    opening: int
    turns: list[GameTurn] = field(default_factory=list)
    action_seq: list[str] = field(default_factory=list)
    errors: int = 0
    invalid_pid: int | None = None
    raised: str | None = None
    truncated: bool = False

    @property
    def in_opening(self) -> bool:
        return len(self.turns) < self.opening

    def mover(self, pid: int) -> AgentSpec:
        """Return who makes the next move, of seat ``pid``."""
        return OPENER if self.in_opening else self.spec.agents[pid]

    def script(self, pid: int) -> ScriptedPlayer:
        return self.opener if self.in_opening else self.players[pid]


class GameEpisode(Episode):
    """A game of one or more players.

    An answer is an invalid move if the game's legal moves are known and it is not one of them, if the game
    rejects it or raises on it, or if the template is strict and the answer is ill-formed. The player is then
    asked again, at most ``error_allowance`` times in a row; the next invalid move ends the game, unless the
    game's own rules decide. A move on which the game raises ends it at once, also if it raises when the next
    position is read or its rewards are not finite: models find what breaks a library. In a game of your own,
    or on a script's move, or before any move, the episode fails.

    A policy that is trained may explore: where the legal moves are known, it then answers with one that is
    drawn uniformly. Such an answer is a step like others, with the policy's own log-probabilities. At every
    decision at which it may, ``info["explore"]`` is the probability, and ``info["explored"]`` whether it did.

    ``info["others"]`` is whether anyone but the step's policy has a seat: another policy, or who is not
    trained.

    If the game continues after an invalid move, the move's step has ``info["invalid_rewards"]``: the rewards
    of all seats, in order, if the move had ended the game. Buffers give the step at most its player's.

    Args:
        env_id: the environment to play; see catalog.make_game.
        num_players: number of seats.
        template: builds prompts and reads answers.
        max_turns: the game ends as a draw after this many turns in total.
        error_allowance: maximum number of consecutive invalid moves after which the player is asked
            again.
        random_opening: a game in which a policy is trained begins with between 0 and this many random
            legal moves.
        explore: the probability with which a policy that is trained explores.
        calls: how models' answers are drawn, in place of their agents' settings.

    An InputError is raised if the environment cannot be played here by ``num_players``.
    """

    def __init__(
        self,
        env_id: str,
        num_players: int,
        template: PromptTemplate,
        *,
        max_turns: int = 200,
        error_allowance: int = 0,
        random_opening: int = 0,
        explore: float = 0.0,
        calls: CallSettings = UNSET,
    ) -> None:
        check_playable(env_id, num_players)
        if random_opening:
            check_moves_are_told(env_id, "env.random_opening", "Set 0")
        if explore:
            check_moves_are_told(env_id, "env.explore", "Set 0")
        self.env_id = env_id
        self.name = name_of(env_id)
        self.num_players = num_players
        self.template = template
        self.max_turns = max_turns
        self.error_allowance = error_allowance
        self.random_opening = random_opening
        self.explore = explore
        self.calls = calls
        self._rubric = Rubric([final_reward])

    @property
    def episode_type(self) -> str:
        """The environment's id, or the name of a class of your own."""
        return self.name

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    async def rollout(
        self, arena: Arena, artifact: PlaySpec, state: EpisodeState | None = None
    ) -> EpisodeState:
        """Play the game that ``artifact`` describes. Its seed determines everything except the weights."""
        state = state or EpisodeState()
        table = self._set_table(artifact)
        game = table.game
        turn = 0
        while (position := table.position) is not None and not game.done:
            if turn == self.max_turns:
                game.truncate()
                table.truncated = True
                break
            pid, legal = position.pid, position.legal
            agent = table.mover(pid)
            state.current_actor = seat_role(pid)
            answer = await self._ask(arena, table, position, agent)
            action = answer.action
            if legal is None or action not in legal:
                action = game.normalise(action)
            if self.template.strict and legal is not None and action not in legal:
                answer.well_formed = _form(action) in map(_form, legal)
            invalid = self._play(table, pid, action, legal, answer.well_formed)
            table.turns.append(
                {
                    "pid": pid,
                    "kind": agent.kind,
                    "model": agent.model,
                    "observation": position.view,
                    "text": answer.text,
                    "action": action,
                    "well_formed": answer.well_formed,
                    "invalid": invalid,
                }
            )
            if answer.response is not None and answer.response.reasoning is not None:
                table.turns[-1]["reasoning"] = answer.response.reasoning.text
            table.action_seq.append(action)
            if agent.kind == "policy":
                step = self._step(position, turn, answer, action, invalid)
                step.info["others"] = _has_others(artifact, agent)
                if invalid and not game.done:
                    step.info["invalid_rewards"] = game.invalid_rewards(pid)
                state.trajectory.append(step)
            turn += 1
        state.done = True
        state.data = {**self._summary(table)}
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return state.data

    def _set_table(self, spec: PlaySpec) -> _Table:
        if len(spec.agents) != self.num_players:
            raise EpisodeError(f"{self.env_id} has {self.num_players} seats but {len(spec.agents)} agents")
        game_seed = derive_seed(spec.seed, "game")
        game = make_game(self.env_id, self.num_players, game_seed, error_allowance=self.error_allowance)
        players = {
            pid: make_player(agent.model, self.env_id, derive_seed(spec.seed, "script", pid))
            for pid, agent in enumerate(spec.agents)
            if agent.kind == "script"
        }
        opener = RandomPlayer(derive_seed(spec.seed, "opening"))
        return _Table(spec, game, players, self._position(spec, game), opener, self._opening(spec))

    def _opening(self, spec: PlaySpec) -> int:
        if not spec.trained_pids:
            return 0
        return random.Random(derive_seed(spec.seed, "opening moves")).randint(0, self.random_opening)

    def _position(self, spec: PlaySpec, game: Game) -> _Position | None:
        """Read everything that the next turn needs from the game; at its end check its results instead."""
        if game.done:
            game.rewards()
            game.game_info()
            return None
        pid = game.current_pid
        view, legal = game.view(pid), game.legal_actions()
        prompt = None if spec.agents[pid].kind == "script" else self.template.messages(game, pid)
        return _Position(pid, view, legal, prompt)

    async def _ask(self, arena: Arena, table: _Table, position: _Position, agent: AgentSpec) -> _Answer:
        pid, prompt, turn = position.pid, position.prompt, len(table.turns)
        if agent.kind == "script" or prompt is None:
            seed = derive_seed(table.spec.seed, "script", pid, turn)
            action = table.script(pid).act(table.game, seed)
            return _Answer(action, action, True)
        trained, calls = agent.kind == "policy", self.calls.over(agent).over(calls_of(self.template))
        may_explore = bool(trained and self.explore and position.legal)
        given = self._explored(table, position) if may_explore else None
        response = await arena.call_model(
            prompt,
            role_id=seat_role(pid) if trained else None,
            calls=calls,
            return_tokens=trained,
            model=agent.model,
            seed=derive_seed(table.spec.seed, "call", pid, turn),
            given=given,
        )
        action, well_formed = self.template.extract(response.text)
        explored = given is not None if may_explore else None
        return _Answer(response.text, action, well_formed, response, explored)

    def _explored(self, table: _Table, position: _Position) -> str | None:
        """Return the random legal answer with which the policy explores; ``None`` where it does not."""
        draw = random.Random(derive_seed(table.spec.seed, "explore", position.pid, len(table.turns)))
        if draw.random() >= self.explore:
            return None
        return self.template.answer(draw.choice(position.legal or []))

    def _play(self, table: _Table, pid: int, action: str, legal: list[str] | None, well_formed: bool) -> bool:
        """Make the move, or count it as invalid; return whether it was invalid."""
        game = table.game
        ill_formed = self.template.strict and not well_formed
        illegal = legal is not None and action not in legal
        if not ill_formed and not illegal and self._apply(table, pid, action):
            table.errors = 0
            return False
        table.errors += 1
        still_asked = not game.done and game.current_pid == pid
        if still_asked and table.errors > self.error_allowance:
            game.forfeit(pid, "the answer was not a move" if ill_formed else f"illegal move {action!r}")
        if game.done:
            table.invalid_pid = pid
        elif not still_asked:
            table.errors = 0
        return True

    def _apply(self, table: _Table, pid: int, action: str) -> bool:
        """Make the move and read the next position; return whether the move was valid.

        If the game raises on the move, the player is at fault; so too if it raises on reading the position,
        unless it is a game of the user's own.
        """
        game, is_made = table.game, False
        try:
            valid = game.apply(action)
            is_made = True
            table.position = self._position(table.spec, game)
            return valid
        except BaseException as error:
            is_of_own_code = isinstance(game, CheckedGame) and (is_made or isinstance(error, EpisodeError))
            if is_from_outside(error) or is_of_own_code or table.mover(pid).kind == "script":
                raise
            game.break_off(pid, error)
            table.raised = game.game_info()[pid]["raised"]
            return False

    def _step(self, position: _Position, turn: int, answer: _Answer, action: str, invalid: bool) -> Step:
        assert answer.response is not None
        assert position.prompt is not None
        feedback = {"correct_answer_format": answer.well_formed, "invalid_move": invalid}
        step = answer.response.to_step(
            seat_role(position.pid),
            position.prompt,
            turn=turn,
            extracted_action=action,
            format_feedback=feedback,
            legal_answers=list(map(self.template.answer, position.legal or ())),
        )
        step.pid, step.env_id = position.pid, self.name
        if answer.explored is not None:
            step.info |= {"explore": self.explore, "explored": answer.explored}
        return step

    def _summary(self, table: _Table) -> GameSummary:
        return {
            "final_rewards": table.game.rewards(),
            "game_info": table.game.game_info(),
            "num_turns": len(table.turns),
            "invalid_pid": table.invalid_pid,
            "raised": table.raised,
            "truncated": table.truncated,
            "action_seq": table.action_seq,
            "turns": table.turns,
        }


def build_episode(env: GameSettings, temperature: float | None = None) -> GameEpisode:
    """Build the episode that plays an environment; ``temperature`` replaces the agents' own."""
    return GameEpisode(
        env.id,
        env.num_players,
        get_template(env.template),
        max_turns=env.max_turns,
        error_allowance=env.error_allowance,
        calls=replace(env.calls, temperature=temperature),
        random_opening=env.random_opening if isinstance(env, EnvSettings) else 0,
        explore=env.explore if isinstance(env, EnvSettings) else 0.0,
    )


def _has_others(spec: PlaySpec, own: AgentSpec) -> bool:
    return any((one.kind, one.model) != (own.kind, own.model) for one in spec.agents)


def _form(move: str) -> str:
    """Return a move with every word and number replaced, so that ``[4]`` and ``[7]`` have the same form."""
    return re.sub(r"\w+", "x", move)


def final_reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Return the reward that the game gave to each trained seat, by role id."""
    rewards = rollout.extras["final_rewards"]
    return {seat_role(pid): rewards[pid] for pid in rollout.artifact.trained_pids}
