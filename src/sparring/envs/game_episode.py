"""GameEpisode: one game that models and scripts play turn by turn."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from sparring.config.play import EnvSettings, GameSettings
from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    Episode,
    EpisodeError,
    EpisodeState,
    Messages,
    PlaySpec,
    Rollout,
    Rubric,
    Step,
    derive_seed,
)
from sparring.core.concurrency import all_results
from sparring.core.env_id import env_name
from sparring.core.own_code import is_from_outside, own_code
from sparring.core.play import GameSummary, GameTurn, seat_role
from sparring.core.types import UNSET
from sparring.envs.catalog import check_can_be_copied, check_playable, open_game
from sparring.envs.environment_game import EnvironmentGame
from sparring.envs.game import Game
from sparring.envs.game_table import OPENER, GameAnswer, GamePosition, GameTable
from sparring.envs.own_game import CheckedGame
from sparring.envs.scripted import RandomPlayer, check_moves_are_told, make_player
from sparring.envs.templates import PromptTemplate, calls_of, get_template

StandIn = Callable[[PlaySpec, int, str, Sequence[str], int], str | None]
"""Makes a move in an agent's place, given the game, the seat, what it is shown, its legal moves and the turn;
``None`` leaves the move to the agent."""


@dataclass(eq=False, repr=False)
class GameEpisode(Episode):
    """A game of one or more players.

    An answer is an invalid move if the game's legal moves are known and it is not one of them, if the game
    rejects it or raises on it, or if the template is strict and the answer is ill-formed. The player is then
    asked again, at most ``error_allowance`` times in a row; the next invalid move ends the game, unless the
    game's own rules decide. A move on which the game raises ends it at once, also if it raises when the next
    position is read or its rewards are not finite: models find what breaks a library. The episode fails where
    the player is not at fault: on a script's move, before any move, and in a game of your own, but for a move
    that it does not list.

    A policy that is trained may explore: where the legal moves are known, it then answers with one that is
    drawn uniformly. Such an answer is a step like others, with the policy's own log-probabilities. At every
    decision at which it may, ``info["explore"]`` is the probability, and ``info["explored"]`` whether it did.

    With ``answers_per_turn`` above 1, a policy that is trained draws as many answers at each of its turns,
    and ``goes_on`` says which of them is played. Each is followed to the end of the game in a copy, in which
    all players give one answer a turn, and the game draws the same cards and dice. All answers are steps:
    ``info["branch_rewards"]`` are the rewards of all seats, in order, at the end of the copy, and buffers
    give a step its player's. ``info["answer"]`` is the number of the answer, from 0, and
    ``info["is_played"]`` whether the game went on with it. The steps of one turn have the same
    ``info["turn"]``; the one that is played is the last of them. The first answer is the one that would have
    been drawn alone.

    In an environment, players may move at once, and they are asked at once. There, and in games that pay on
    the way, ``info["step_reward"]`` is what a step's player earned from then until its next; its reward is
    the sum.

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
        answers_per_turn: number of answers that a policy that is trained draws at each turn.
        goes_on: which of them is played: the one whose copy ended best for its player (of equal ones the
            first), or always the first. The best one is chosen with knowledge of what others hold and of
            chance to come, so in games with either only the first leaves positions as likely as in play.
        calls: how models' answers are drawn, in place of their agents' settings.
        stand_in: who may make moves, where they are listed, for agents that have a stand-in.

    An InputError is raised if the environment cannot be played here by ``num_players``, or not be copied.
    """

    env_id: str
    num_players: int
    template: PromptTemplate
    _: KW_ONLY
    max_turns: int = 200
    error_allowance: int = 0
    random_opening: int = 0
    explore: float = 0.0
    answers_per_turn: int = 1
    goes_on: Literal["best", "first"] = "first"
    calls: CallSettings = UNSET
    stand_in: StandIn | None = None

    def __post_init__(self) -> None:
        check_playable(self.env_id, self.num_players)
        if self.random_opening:
            check_moves_are_told(self.env_id, "env.random_opening", "Set 0")
        if self.explore:
            check_moves_are_told(self.env_id, "env.explore", "Set 0")
        if self.answers_per_turn > 1:
            check_can_be_copied(self.env_id, "env.answers_per_turn")
        self.name = env_name(self.env_id)
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
        if len(artifact.agents) != self.num_players:
            raise EpisodeError(
                f"{self.env_id} has {self.num_players} seats but {len(artifact.agents)} agents"
            )
        seed, allowed = derive_seed(artifact.seed, "game"), self.error_allowance
        async with open_game(self.env_id, self.num_players, seed, error_allowance=allowed) as game:
            table = self._set_table(artifact, game)
            table.pay()
            await self._play_on(arena, table, state)
            state.done = True
            state.data = {**self._summary(table)}
        return state

    async def _play_on(self, arena: Arena, table: GameTable, state: EpisodeState) -> None:
        """Play a game to its end."""
        while table.positions and not table.game.done:
            if len(table.turns) >= self.max_turns:
                table.game.truncate()
                table.truncated = True
                return
            if self._draws_several(table):
                await self._move_by_one_of_several(arena, table, state)
            else:
                await self._move(arena, table, state)
            table.pay()

    def _draws_several(self, table: GameTable) -> bool:
        mover = table.mover(table.positions[0].pid)
        return self.answers_per_turn > 1 and mover.kind == "policy" and not table.is_branch

    async def _move_by_one_of_several(self, arena: Arena, table: GameTable, state: EpisodeState) -> None:
        """Draw several answers of the player to move, follow each of them in a copy, and play one of them."""
        (position,), turn = table.positions, len(table.turns)
        agent, numbers = table.mover(position.pid), range(self.answers_per_turn)
        answers = await all_results(self._ask(arena, table, position, agent, turn, one) for one in numbers)
        steps = await all_results(
            self._follow(arena, table.branch(number), position, agent, answer, number)
            for number, answer in enumerate(answers)
        )
        played = 0
        if self.goes_on == "best":
            played = max(numbers, key=lambda number: steps[number].info["branch_rewards"][position.pid])
        state.trajectory += [step for number, step in enumerate(steps) if number != played]
        await self._take(table, state, position, agent, answers[played])
        found = steps[played].info
        state.trajectory[-1].info |= {
            "branch_rewards": found["branch_rewards"],
            "answer": played,
            "is_played": True,
        }

    async def _follow(
        self,
        arena: Arena,
        branch: GameTable,
        position: GamePosition,
        agent: AgentSpec,
        answer: GameAnswer | None,
        number: int,
    ) -> Step:
        """Play a copy of the game to its end, beginning with an answer; return the step of the answer."""
        first = EpisodeState()
        await self._take(branch, first, position, agent, answer)
        await self._play_on(arena, branch, EpisodeState())
        (step,) = first.trajectory
        rewards = [*branch.game.rewards().values()]
        step.info |= {"branch_rewards": rewards, "answer": number, "is_played": False}
        return step

    async def _move(self, arena: Arena, table: GameTable, state: EpisodeState) -> None:
        """Ask everyone who is to move, and play the answers in the order of the seats until one of them ends
        the game."""
        asked, turn = table.positions, len(table.turns)
        agents = [table.mover(position.pid) for position in asked]
        asking = (
            self._ask(arena, table, position, agent, turn + place)
            for place, (position, agent) in enumerate(zip(asked, agents, strict=True))
        )
        answers = [await one for one in asking] if len(asked) == 1 else await all_results(asking)
        for position, agent, answer in zip(asked, agents, answers, strict=True):
            if table.game.done:
                return
            await self._take(table, state, position, agent, answer)

    async def _take(
        self,
        table: GameTable,
        state: EpisodeState,
        position: GamePosition,
        agent: AgentSpec,
        answer: GameAnswer | None,
    ) -> None:
        """Play an answer, which a script gives only now, and record it."""
        game, pid, legal, turn = table.game, position.pid, position.legal, len(table.turns)
        state.current_actor = seat_role(pid)
        game.turn_to(pid)
        if answer is None:
            script = table.opener if agent is OPENER else table.players[pid]
            action = script.act(game, derive_seed(table.spec.seed, "script", pid, turn))
            answer = GameAnswer(action, action, True)
        action = answer.action
        if legal is None or action not in legal:
            action = game.normalise(action)
        if self.template.strict and legal is not None and action not in legal:
            answer.well_formed = _form(action) in map(_form, legal)
        invalid = await self._play(table, pid, action, legal, answer.well_formed)
        record: GameTurn = {
            "pid": pid,
            "kind": agent.kind,
            "model": agent.model,
            "observation": position.view,
            "text": answer.text,
            "action": action,
            "well_formed": answer.well_formed,
            "invalid": invalid,
        }
        if answer.response is not None and answer.response.reasoning is not None:
            record["reasoning"] = answer.response.reasoning.text
        step = None
        if agent.kind == "policy":
            step = self._step(position, turn, answer, action, invalid)
            step.info["others"] = _has_others(table.spec, agent)
            if invalid and not game.done:
                step.info["invalid_rewards"] = game.invalid_rewards(pid)
            state.trajectory.append(step)
        table.record(pid, record, step)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return state.data

    def _set_table(self, spec: PlaySpec, game: Game) -> GameTable:
        players = {
            pid: make_player(agent.model, self.env_id, derive_seed(spec.seed, "script", pid))
            for pid, agent in enumerate(spec.agents)
            if agent.kind == "script"
        }
        opener = RandomPlayer(derive_seed(spec.seed, "opening"))
        return GameTable(spec, game, players, self._positions(spec, game), opener, self._opening(spec))

    def _opening(self, spec: PlaySpec) -> int:
        if not spec.trained_pids:
            return 0
        return random.Random(derive_seed(spec.seed, "opening moves")).randint(0, self.random_opening)

    def _positions(self, spec: PlaySpec, game: Game) -> list[GamePosition]:
        """Read everything that the next turn needs from the game; at its end check its results instead."""
        if game.done:
            game.rewards()
            game.game_info()
            return []
        return [self._position(spec, game, pid) for pid in game.acting()]

    def _position(self, spec: PlaySpec, game: Game, pid: int) -> GamePosition:
        game.turn_to(pid)
        view, legal = game.view(pid), game.legal_actions()
        prompt = None if spec.agents[pid].kind == "script" else self.template.messages(game, pid)
        return GamePosition(pid, view, legal, prompt)

    async def _ask(
        self,
        arena: Arena,
        table: GameTable,
        position: GamePosition,
        agent: AgentSpec,
        turn: int,
        number: int = 0,
    ) -> GameAnswer | None:
        """Return the answer of a model, or of who answers in its place; ``None`` for a script.

        ``number`` is that of the answer, if several are drawn.
        """
        pid, prompt = position.pid, position.prompt
        if agent.stand_in and self.stand_in is not None and position.legal is not None:
            move = self.stand_in(table.spec, pid, position.view, position.legal, turn)
            if move is not None:
                return GameAnswer(self.template.answer(move), move, True)
        if agent.kind == "script" or prompt is None:
            return None
        trained, calls = agent.kind == "policy", self.calls.over(agent).over(calls_of(self.template))
        may_explore = bool(trained and self.explore and position.legal)
        given = self._explored(table, position, turn) if may_explore else None
        response = await arena.call_model(
            prompt,
            role_id=seat_role(pid) if trained else None,
            calls=calls,
            return_tokens=trained,
            model=agent.model,
            seed=derive_seed(table.spec.seed, "call", pid, turn, *([number] if number else [])),
            given=given,
        )
        action, well_formed = self.template.extract(response.text)
        explored = given is not None if may_explore else None
        return GameAnswer(response.text, action, well_formed, response, explored)

    def _explored(self, table: GameTable, position: GamePosition, turn: int) -> str | None:
        """Return the random legal answer with which the policy explores; ``None`` where it does not."""
        draw = random.Random(derive_seed(table.spec.seed, "explore", position.pid, turn))
        if draw.random() >= self.explore:
            return None
        return self.template.answer(draw.choice(position.legal or []))

    async def _play(
        self, table: GameTable, pid: int, action: str, legal: list[str] | None, well_formed: bool
    ) -> bool:
        """Make the move, or count it as invalid; return whether it was invalid."""
        game = table.game
        ill_formed = self.template.strict and not well_formed
        illegal = legal is not None and action not in legal
        if not ill_formed and not illegal and await self._apply(table, pid, action, listed=legal is not None):
            table.errors[pid] = 0
            return False
        table.errors[pid] += 1
        still_asked = not game.done and pid in game.acting()
        if still_asked and table.errors[pid] > self.error_allowance:
            game.forfeit(pid, "the answer was not a move" if ill_formed else f"illegal move {action!r}")
        if game.done:
            table.invalid_pid = pid
        elif not still_asked:
            table.errors[pid] = 0
        return True

    async def _apply(self, table: GameTable, pid: int, action: str, *, listed: bool) -> bool:
        """Make the move and read the next position; return whether the move was valid.

        If the game raises on the move, the player is at fault; so too if it raises on reading the position.
        A game of the user's own or an environment is itself at fault in the latter case, and also on a move
        that it has ``listed`` as legal.
        """
        game, is_made = table.game, False
        try:
            valid = game.apply(action)
            await game.settle()
            is_made = True
            table.positions = self._positions(table.spec, game)
            return valid
        except BaseException as error:
            is_own = isinstance(game, CheckedGame | EnvironmentGame)
            is_of_own_code = is_own and (is_made or listed or isinstance(error, EpisodeError))
            if is_from_outside(error) or is_of_own_code or table.mover(pid).kind == "script":
                raise
            game.break_off(pid, error)
            table.raised = game.game_info()[pid]["raised"]
            return False

    def _step(
        self, position: GamePosition, turn: int, answer: GameAnswer, action: str, invalid: bool
    ) -> Step:
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

    def _summary(self, table: GameTable) -> GameSummary:
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


def build_episode(
    env: GameSettings, temperature: float | None = None, stand_in: StandIn | None = None
) -> GameEpisode:
    """Build the episode that plays an environment; ``temperature`` replaces the agents' own."""
    of_training = {}
    if isinstance(env, EnvSettings):
        names = ("random_opening", "explore", "answers_per_turn", "goes_on")
        of_training = {name: getattr(env, name) for name in names}
    return GameEpisode(
        env.env_id,
        env.num_players,
        get_template(env.template),
        max_turns=env.max_turns,
        error_allowance=env.error_allowance,
        calls=replace(env.calls, temperature=temperature),
        stand_in=stand_in,
        **of_training,
    )


async def first_prompt(env_id: str, num_players: int, template: str) -> tuple[list[str] | None, Messages]:
    """Return the legal moves of whoever begins a game, if they are listed, and the prompt."""
    with own_code(field="env.id"):
        async with open_game(env_id, num_players, seed=0) as game:
            return game.legal_actions(), get_template(template).messages(game, game.current_pid)


def _has_others(spec: PlaySpec, own: AgentSpec) -> bool:
    return any((one.kind, one.model) != (own.kind, own.model) for one in spec.agents)


def _form(move: str) -> str:
    """Return a move with every word and number replaced, so that ``[4]`` and ``[7]`` have the same form."""
    return re.sub(r"\w+", "x", move)


def final_reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Return the reward that the game gave to each trained seat, by role id."""
    rewards = rollout.extras["final_rewards"]
    return {seat_role(pid): rewards[pid] for pid in rollout.artifact.trained_pids}
