"""ChatEpisode: roles that talk in turns. Each role sees the conversation from its own seat."""

import asyncio
from abc import abstractmethod
from typing import Any

from sparring.core.arena import Arena
from sparring.core.client import ModelResponse
from sparring.core.episode import Episode, EpisodeState, Utterance
from sparring.core.errors import EpisodeError, InputError
from sparring.core.messages import Messages, remembered, said
from sparring.core.own_code import awaitable, messages_of, method_of, returned, text_of, truth
from sparring.core.records import mark_prefix
from sparring.core.text import speech

EVERYBODY = ""
Said = str | dict[str, str]
"""The environment's words: one text for every role, or one text per role id (other roles hear nothing)."""


class ChatEpisode(Episode):
    """The turn-taking loop: a role answers, the environment responds, the next role answers.

    In a role's prompt its own answers are assistant messages. Everything else that it heard is a user
    message: the environment's words unchanged, another role's after its name, with further lines indented.
    The environment may tell each role something different, so any observation can be private.
    """

    @abstractmethod
    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """Return the role that speaks first."""

    @abstractmethod
    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> Said:
        """Return what the environment says before the first answer."""

    @abstractmethod
    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        """Return the response to the latest answer, or an empty text. Set ``state.done`` to end the
        episode."""

    @abstractmethod
    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Return whether the latest answer was the last one; checked before ``env_response``."""

    @abstractmethod
    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """Return the role that speaks next."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Let the roles talk until ``is_done`` returns true or ``state.done`` is set."""
        state = state or EpisodeState()
        state.say(_texts(self.get_initial_prompt(arena, artifact, state), arena, self, "get_initial_prompt"))
        state.current_actor = _role(self.get_initial_actor(artifact, state), arena, self, "get_initial_actor")
        while not state.done:
            await asyncio.sleep(0)  # lets the time limit end a chat whose answers come at once
            await awaitable(self.take_turn(state.current_actor, arena, state), method_of(self, "take_turn"))
            if truth(self.is_done(state, artifact), method_of(self, "is_done")):
                break
            answering = self.env_response(state, arena, artifact)
            answer = await awaitable(answering, method_of(self, "env_response"))
            state.say(_texts(answer, arena, self, "env_response"))
            if not state.done:
                following = self.get_next_actor(state, artifact)
                state.current_actor = _role(following, arena, self, "get_next_actor")
        state.done = True
        return state

    async def take_turn(self, role_id: str, arena: Arena, state: EpisodeState) -> None:
        """Let ``role_id`` answer: make a model call, record the step, and say the answer to every role."""
        source = method_of(self, "messages_for")
        messages = messages_of(self.messages_for(role_id, arena, state), source)
        if not messages:
            raise EpisodeError(f"{role_id} must answer but has no system prompt and has heard nothing")
        calling = self.call_model(role_id, messages, arena)
        source = method_of(self, "call_model")
        response = returned(await awaitable(calling, source), ModelResponse, source)
        step = response.to_step(role_id, messages, turn=state.turn)
        mark_prefix(state.trajectory, step)
        state.trajectory.append(step)
        utterance = Utterance(role_id, response.text, token_ids=response.drawn, written=response.written)
        state.transcript.append(utterance)

    def messages_for(self, role_id: str, arena: Arena, state: EpisodeState) -> Messages:
        """Return the conversation as ``role_id`` heard it, after its system prompt, with the token ids of its
        own answers, or what the role's ``history`` leaves."""
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
                own = speaker == "assistant"
                kept = (one.token_ids, one.written) if own else (None, None)
                messages.append(said(speaker, text, *kept))
        return remembered(messages, role.history, beginning)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the transcript, for rubrics and for display."""
        return {"transcript": [{"author": u.author, "to": u.to, "text": u.text} for u in state.transcript]}


class MultiTurnEpisode(ChatEpisode):
    """A conversation of one or several roles with the environment, of at most ``max_turns`` answers."""

    max_turns: int | None = None

    def __init__(self, max_turns: int | None = None) -> None:
        self.max_turns = max_turns

    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        return self.max_turns is not None and state.turn >= self.max_turns

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Said:
        return ""

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        return state.current_actor


class SingleTurnEpisode(MultiTurnEpisode):
    """One prompt, one answer."""

    max_turns = 1

    def __init__(self) -> None:
        super().__init__(max_turns=1)


class AlternatingRolesEpisode(MultiTurnEpisode):
    """Two roles that take turns. With another number of roles, override ``get_next_actor``."""

    @property
    def roles(self) -> tuple[str, ...] | None:
        """The role ids, the first of which begins. ``None`` means the arena's, in the order of addition."""
        return None

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        state = state or EpisodeState()
        state.roles = self.turn_takers(arena)
        return await super().rollout(arena, artifact, state)

    def turn_takers(self, arena: Arena) -> tuple[str, ...]:
        """Return the roles that take turns; raise an InputError if they are not two and the next is not
        chosen by an override."""
        own, name = self.roles, type(self).__name__
        if isinstance(own, str) or not all(isinstance(role, str) for role in own or ()):
            raise InputError(
                "roles", f"those of {name} are not a tuple of texts", 'Write: roles = ("A", "B")'
            )
        roles = tuple(arena.roles if own is None else own)
        overridden = type(self).get_next_actor is not AlternatingRolesEpisode.get_next_actor
        if len(set(roles)) == 2 or (overridden and roles):
            return roles
        where = f"the arena has {len(roles)}" if own is None else f"{name} has {len(roles)}"
        raise InputError(
            "roles",
            f"two roles take turns, but {where} ({', '.join(roles) or 'none'})",
            f'Name two, roles = ("A", "B"), or override get_next_actor(self, state, artifact) in {name}',
        )

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return state.roles[0]

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        first, second = state.roles
        return second if state.current_actor == first else first


def _texts(value: object, arena: Arena, episode: ChatEpisode, method: str) -> Said:
    """Return what a method says; raise an EpisodeError if it is not a text, or texts by role."""
    source = method_of(episode, method)
    texts = {EVERYBODY: value} if isinstance(value, str) else returned(value, dict, source)
    for role, text in texts.items():
        if not isinstance(role, str) or not isinstance(text, str):
            raise EpisodeError(f"{source} returned a dictionary that does not hold texts by role")
        if role != EVERYBODY and role not in arena.roles:
            known = ", ".join(arena.roles)
            raise EpisodeError(f"{source} has a text for {role!r:.50}, which is no role; there are: {known}")
        text_of(text, source)
    return texts


def _role(value: object, arena: Arena, episode: ChatEpisode, method: str) -> str:
    """Return the role that a method names; raise an error if it is no text or no role."""
    source = method_of(episode, method)
    role = returned(value, str, source)
    if role not in arena.roles:
        known = ", ".join(arena.roles) or "none"
        raise InputError(source, f"there is no role {role}", f"Add it with add_role; there are: {known}")
    return role
