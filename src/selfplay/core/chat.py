"""ChatEpisode: roles that talk in turns. Each sees the conversation from its own seat."""

from abc import abstractmethod
from typing import Any

from selfplay.core.arena import Arena
from selfplay.core.episode import Episode, EpisodeState, Utterance
from selfplay.core.errors import EpisodeError
from selfplay.core.types import Messages

EVERYBODY = ""
Said = str | dict[str, str]
"""What the environment says: one text for everybody, or one for each role id (others hear nothing)."""


class ChatEpisode(Episode):
    """The turn-taking loop: a role answers, the environment responds, the next role answers.

    A role's own answers stand in its prompt as the assistant's, everything else it heard as the user's. The
    environment may tell each role something else, so private observations are possible everywhere.
    """

    @abstractmethod
    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """The role that speaks first."""

    @abstractmethod
    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> Said:
        """What is said before anybody answers."""

    @abstractmethod
    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        """What the environment says to the latest answer; an empty text for nothing.

        Set ``state.done`` to end the episode.
        """

    @abstractmethod
    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Whether the latest answer was the last; asked before ``env_response``."""

    @abstractmethod
    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The role that speaks next."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Let the roles talk until ``is_done`` or ``state.done``."""
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
        """Let ``role_id`` answer: a model call, a step, and something said to everybody.

        Raises:
            InputError: the arena has no such role.
            EpisodeError: the role has heard nothing that it could answer.
        """
        messages = self.messages_for(role_id, arena, state)
        if not messages:
            raise EpisodeError(f"{role_id} is to answer but has no system prompt and has heard nothing")
        response = await self.call_model(role_id, messages, arena)
        state.trajectory.append(response.to_step(role_id, messages, turn=state.turn))
        state.transcript.append(Utterance(role_id, response.text))

    def messages_for(self, role_id: str, arena: Arena, state: EpisodeState) -> Messages:
        """The conversation as ``role_id`` heard it, with its system prompt."""
        role = arena.get_role(role_id)
        messages: Messages = []
        if role.system_prompt:
            messages.append({"role": "system", "content": role.system_prompt})
        for one in state.transcript:
            if one.to not in (EVERYBODY, role_id):
                continue
            speaker = "assistant" if one.author == role_id else "user"
            named = one.author not in ("", role_id)
            text = f"{one.author}: {one.text}" if named else one.text
            if messages and messages[-1]["role"] == speaker == "user":
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{text}"}
            else:
                messages.append({"role": speaker, "content": text})
        return messages

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The transcript, for rubrics and readers."""
        return {"transcript": [{"author": u.author, "to": u.to, "text": u.text} for u in state.transcript]}


class MultiTurnEpisode(ChatEpisode):
    """A conversation of one role with the environment, or of several, of at most ``max_turns`` answers."""

    def __init__(self, max_turns: int | None = None) -> None:
        self.max_turns = max_turns

    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Whether ``max_turns`` answers were given."""
        return self.max_turns is not None and state.turn >= self.max_turns

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        """Nothing, unless overridden."""
        return ""

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The same role again, unless overridden."""
        return state.current_actor


class SingleTurnEpisode(MultiTurnEpisode):
    """One prompt, one answer."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)


class AlternatingRolesEpisode(MultiTurnEpisode):
    """Two roles take turns; the first of ``roles`` begins, unless ``get_initial_actor`` is overridden."""

    @property
    @abstractmethod
    def roles(self) -> tuple[str, str]:
        """The two role ids."""

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """The first role."""
        return self.roles[0]

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The other role."""
        first, second = self.roles
        return second if state.current_actor == first else first
