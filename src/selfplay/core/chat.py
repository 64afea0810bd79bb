"""ChatEpisode: roles that talk in turns. Each role sees the conversation from its own seat."""

from abc import abstractmethod
from typing import Any

from selfplay.core.arena import Arena
from selfplay.core.episode import Episode, EpisodeState, Utterance
from selfplay.core.errors import EpisodeError, InputError
from selfplay.core.history import shown
from selfplay.core.joined_records import mark_prefix
from selfplay.core.messages import Messages, said
from selfplay.core.text import speech

EVERYBODY = ""
Said = str | dict[str, str]
"""The environment's words: one text for every role, or one text per role id (other roles hear nothing)."""


class ChatEpisode(Episode):
    """The turn-taking loop: a role answers, the environment responds, the next role answers.

    In a role's prompt its own answers are assistant messages, and everything else that it heard is a user
    message: the environment's words unchanged, another role's words after its name, with further lines
    indented. The environment may tell each role something different, so any observation can be private.
    """

    @abstractmethod
    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """Return the role that speaks first."""

    @abstractmethod
    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> Said:
        """Return what the environment says before the first answer."""

    @abstractmethod
    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        """Return the environment's response to the latest answer; an empty text says nothing.

        Set ``state.done`` to end the episode.
        """

    @abstractmethod
    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Return whether the latest answer was the last one; checked before ``env_response``."""

    @abstractmethod
    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """Return the role that speaks next."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Let the roles talk until ``is_done`` returns true or ``state.done`` is set."""
        state = state or EpisodeState()
        state.say(self.get_initial_prompt(arena, artifact, state))
        state.current_actor = self.get_initial_actor(artifact, state)
        while not state.done:
            await self.take_turn(state.current_actor, arena, state)
            if self.is_done(state, artifact):
                break
            state.say(await self.env_response(state, arena, artifact))
            if not state.done:
                state.current_actor = self.get_next_actor(state, artifact)
        state.done = True
        return state

    async def take_turn(self, role_id: str, arena: Arena, state: EpisodeState) -> None:
        """Let ``role_id`` answer: make a model call, record the step, and say the answer to every role.

        Raises:
            InputError: the arena has no such role.
            EpisodeError: the role has no system prompt and has heard nothing, so there is no prompt.
        """
        messages = self.messages_for(role_id, arena, state)
        if not messages:
            raise EpisodeError(f"{role_id} must answer but has no system prompt and has heard nothing")
        response = await self.call_model(role_id, messages, arena)
        step = response.to_step(role_id, messages, turn=state.turn)
        mark_prefix(state.trajectory, step)
        state.trajectory.append(step)
        state.transcript.append(Utterance(role_id, response.text, token_ids=response.drawn))

    def messages_for(self, role_id: str, arena: Arena, state: EpisodeState) -> Messages:
        """Return the conversation as ``role_id`` heard it, after its system prompt.

        Its own answers have the token ids with which they were drawn, or what the role's ``history`` leaves.
        """
        role = arena.get_role(role_id)
        messages: Messages = []
        if role.system_prompt:
            messages.append({"role": "system", "content": role.system_prompt})
        beginning = len(messages) + 1
        for one in state.transcript:
            if one.to not in (EVERYBODY, role_id):
                continue
            speaker = "assistant" if one.author == role_id else "user"
            named = one.author not in ("", role_id)
            text = speech(one.author, one.text) if named else one.text
            if messages and messages[-1]["role"] == speaker == "user":
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{text}"}
            else:
                messages.append(said(speaker, text, one.token_ids if speaker == "assistant" else None))
        return shown(messages, role.history, beginning)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the transcript, for rubrics and for display."""
        return {"transcript": [{"author": u.author, "to": u.to, "text": u.text} for u in state.transcript]}


class MultiTurnEpisode(ChatEpisode):
    """A conversation of one or several roles with the environment, of at most ``max_turns`` answers."""

    def __init__(self, max_turns: int | None = None) -> None:
        self.max_turns = max_turns

    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Return whether ``max_turns`` answers have been given."""
        return self.max_turns is not None and state.turn >= self.max_turns

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        """Return an empty text, unless overridden."""
        return ""

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """Return the same role again, unless overridden."""
        return state.current_actor


class SingleTurnEpisode(MultiTurnEpisode):
    """One prompt, one answer."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)


class AlternatingRolesEpisode(MultiTurnEpisode):
    """Two roles that take turns; the first of ``roles`` begins unless ``get_initial_actor`` is overridden."""

    @property
    def roles(self) -> tuple[str, str] | None:
        """The two role ids. The default ``None`` means the arena's two roles, in the order of addition."""
        return None

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Let the two roles talk.

        Raises:
            InputError: ``roles`` is not overridden, and the arena does not have exactly two roles.
        """
        state = state or EpisodeState()
        state.roles = self.roles or _two_roles_of(arena)
        return await super().rollout(arena, artifact, state)

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """Return the first role."""
        return state.roles[0]

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """Return the other role."""
        first, second = state.roles
        return second if state.current_actor == first else first


def _two_roles_of(arena: Arena) -> tuple[str, str]:
    if len(arena.roles) != 2:
        raise InputError(
            "roles",
            f"two roles take turns, but the arena has {len(arena.roles)}",
            'Name the two: roles = ("A", "B")',
        )
    first, second = arena.roles
    return first, second
