"""Who acts and how (AgentSpec, Role), and what episodes produce for learning (Step, Rollout, GenerateResult,
records)."""

import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from sparring.core.adapters import TRAINED
from sparring.core.errors import shown
from sparring.core.messages import History, Messages
from sparring.core.reasoning import ReasoningTags, checked_tags
from sparring.core.sampling import Sampling

AgentKind = Literal["policy", "model", "script"]


@dataclass(frozen=True)
class CallSettings:
    """How answers are drawn and read; ``None`` leaves a setting open."""

    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    reasoning: ReasoningTags | None = None
    max_reasoning: int | None = None
    sampling: Sampling | None = None

    def over(self, others: "CallSettings | AgentSpec | Role") -> "CallSettings":
        """Return these settings, and those of a game, an agent or a role where these leave one open."""
        return CallSettings(
            others.temperature if self.temperature is None else self.temperature,
            others.max_tokens if self.max_tokens is None else self.max_tokens,
            others.stop if self.stop is None else self.stop,
            others.reasoning if self.reasoning is None else self.reasoning,
            others.max_reasoning if self.max_reasoning is None else self.max_reasoning,
            others.sampling if self.sampling is None else self.sampling,
        )


UNSET = CallSettings()


@dataclass(frozen=True)
class AgentSpec:
    """How one seat or role acts; ``kind`` is one of three.

    ``policy``: its steps are trained on; ``model`` names the policy. ``model``: it is not trained; ``model``
    is the inference client's name of a checkpoint, a fixed model or a person. ``script``: a scripted player
    of a game (``random``, ``optimal``). The other settings take the place of the role's unless ``None``.
    With ``stand_in``, the game's episode has somebody who may make its moves (``GameEpisode.stand_in``).
    """

    kind: AgentKind
    model: str = TRAINED
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    reasoning: ReasoningTags | None = None
    max_reasoning: int | None = None
    sampling: Sampling | None = None
    stand_in: bool = False


seated: ContextVar[Mapping[str, AgentSpec]] = ContextVar("seated", default={})  # noqa: B039 - never changed
"""The agents of the episode that runs now, by role id. A sub-episode has those of its parent."""


@dataclass
class Role:
    """A trainable seat. ``policy`` names the adapter that it plays with and trains.

    An answer ends before the first of the ``stop`` strings, if one appears in what is said. ``history`` says
    what later prompts show of its answers. ``reasoning`` are the tags around its thoughts, which nobody else
    sees, and ``max_reasoning`` the tokens after which the engine ends a thought. Only a role whose policy is
    not trained may have a ``sampling``: what is learned from is drawn from the distribution that learns.
    """

    id: str
    system_prompt: str = ""
    temperature: float = 1.0
    max_tokens: int | None = None
    policy: str = TRAINED
    stop: tuple[str, ...] = ()
    history: History = "keep"
    reasoning: ReasoningTags = "auto"
    max_reasoning: int | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        self.reasoning = checked_tags(self.reasoning)

    def build_messages(self, user_content: str, history: Messages | None = None) -> Messages:
        """Return OpenAI-style messages: the system prompt (if any), ``history``, then ``user_content``."""
        system: Messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, *(history or []), {"role": "user", "content": user_content}]


@dataclass
class Step:
    """One model call in a rollout.

    Token ids and log-probabilities are exactly those of sampling: ``completion_token_ids`` includes the stop
    token, and ``completion_logprobs`` has one natural logarithm for each id. They are ``None`` where the
    client could not provide them; a token learner cannot train on such a step. ``policy`` is the policy that
    answered and is trained on this step, or ``""``; ``temperature`` is the one of sampling.

    A subclass may add fields, with defaults; replay buffers keep them. Games set ``pid`` and ``env_id``.
    """

    role_id: str
    prompt: Messages
    completion: Messages
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    completion_logprobs: list[float] | None = None
    reward: float = 0.0
    advantage: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    pid: int = 0
    env_id: str = ""
    policy_version: int = 0
    policy: str = TRAINED
    temperature: float = 1.0

    @property
    def completion_text(self) -> str:
        """What was said: the text of the completion messages, joined."""
        return "".join([message["content"] for message in self.completion])

    @property
    def reasoning(self) -> str:
        """What the model thought before it spoke; nobody else sees it."""
        return "".join([message.get("reasoning", "") for message in self.completion])

    @property
    def written(self) -> str:
        """The whole answer, with what the model thought between its tags if the client gave them."""
        return "".join([message.get("written", message["content"]) for message in self.completion])

    @property
    def text_only(self) -> bool:
        """Whether token ids or log-probabilities are missing, so that no token learner can train on it."""
        return not self.completion_token_ids or self.completion_logprobs is None or not self.prompt_token_ids

    def scored(self, reward: float, info: dict[str, Any], env_id: str) -> Self:
        """Return a copy of the same class with these three fields; everything else is shared."""
        made = copy(self)
        made.reward, made.info, made.env_id = reward, info, env_id
        return made

    @property
    def obs(self) -> str:
        """The contents of the prompt's messages, joined by line feeds."""
        return "\n".join(message["content"] for message in self.prompt)

    @property
    def act(self) -> str:
        """The same as ``completion_text``."""
        return self.completion_text

    @property
    def step_info(self) -> dict[str, Any]:
        """The same dictionary as ``info``."""
        return self.info


@dataclass(kw_only=True)
class Rollout:
    """The complete trace of one executed episode. ``agents`` are those that the request gave, by role id."""

    episode_type: str
    artifact: Any = None
    meta: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    steps: list[Step] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    advantages: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    agents: dict[str, AgentSpec] = field(default_factory=dict)
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None

    @property
    def error(self) -> str | None:
        """The reason why the episode failed, or ``None`` if it was played to its end."""
        return self.meta.get("error")

    @property
    def error_type(self) -> str | None:
        """The class of that error."""
        return self.meta.get("error_type")

    def set_reward(self, role_id: str, reward: float) -> None:
        """Set the role's reward, in the rollout and in each of the role's steps."""
        self.rewards[role_id] = reward
        for step in self.steps:
            if step.role_id == role_id:
                step.reward = reward


@dataclass
class GenerateResult:
    """A rollout and the results of the episodes that it spawned.

    If ``is_trainable`` is false, the result and all its descendants are left out of credit and training.
    """

    rollout: Rollout
    children: list["GenerateResult"] = field(default_factory=list)
    is_trainable: bool = True

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards by role id, from the rollout."""
        return self.rollout.rewards

    def all_rollouts(self) -> list[Rollout]:
        """Return the rollout and those of all descendants, parents first."""
        rollouts = [self.rollout]
        for child in self.children:
            rollouts += child.all_rollouts()
        return rollouts

    def trainable_rollouts(self) -> list[Rollout]:
        """Like :meth:`all_rollouts`, without results that are not trainable and their descendants."""
        if not self.is_trainable:
            return []
        rollouts = [self.rollout]
        for child in self.children:
            rollouts += child.trainable_rollouts()
        return rollouts


@dataclass(kw_only=True)
class Answer:
    """One answer in a training record: the ids before it, the ids drawn, and what it earned.

    ``prompt_token_ids`` are the ids since the record's previous answer, or since the beginning. ``reward`` is
    what the answer earned before any baseline was subtracted, ``advantage`` what is left of it. ``turn`` is
    the number of the answer among those of its role in the rollout, from 0, and ``place`` the number of its
    step among those of all roles. ``alternatives`` are completions (token ids, including the stop token) that
    were acceptable here; ``legal_answers`` are the same as texts, of which the learner makes them, and
    ``prompt`` is what they answer.
    """

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    logprobs: list[float]
    reward: float
    advantage: float
    turn: int = 0
    place: int = 0
    alternatives: list[list[int]] = field(default_factory=list)
    legal_answers: list[str] = field(default_factory=list)
    prompt: Messages = field(default_factory=list)
    policy_version: int = 0
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class TrainingRecord(Answer):
    """The input of a learner, independent of games: a sequence of token ids with one answer or several.

    The fields of the base class are those of the first answer. ``later`` are the further answers of a
    conversation whose prompts each begin with the last prompt and the answer to it. ``temperature`` is the
    one of sampling.
    """

    role_id: str
    rollout_id: str
    later: list[Answer] = field(default_factory=list)
    policy: str = TRAINED
    temperature: float = 1.0

    @property
    def answers(self) -> list[Answer]:
        """All answers, in their order; the record itself is the first."""
        return [self, *self.later]

    @property
    def input_ids(self) -> list[int]:
        """All ids: of each answer, what comes before it and what was drawn."""
        ids: list[int] = []
        for answer in self.answers:
            ids += answer.prompt_token_ids
            ids += answer.completion_token_ids
        return ids

    @property
    def action_mask(self) -> list[int]:
        """1 for each id that was drawn, 0 for the others."""
        mask: list[int] = []
        for answer in self.answers:
            mask += [0] * len(answer.prompt_token_ids) + [1] * len(answer.completion_token_ids)
        return mask


@dataclass
class TrainingBatch:
    """The output of one step of an arena, for a learner.

    ``meta`` accounts for all episodes and steps: ``episodes``, ``failed``, ``steps``, ``text_only_steps``
    (left out because they have no token ids), ``broken_prefixes`` (answers whose prompt does not begin with
    the role's last prompt and answer), ``policy_version``, mean ``reward/ROLE`` and the rubrics'
    ``metric/NAME``; ``num_results`` (requests played, without sub-episodes) and ``num_records``.
    """

    records: list[TrainingRecord]
    meta: dict[str, Any]


@dataclass
class EpisodeRequest:
    """A request to run an episode. If ``is_trainable`` is false, its result is never trained on.

    ``agents`` says who answers for a role in this episode and its sub-episodes; any other role plays and
    trains its own policy. ``meta`` is checked: a TypeError names an entry of the wrong type (a ``group`` must
    be hashable), a ValueError one that belongs to failed episodes.
    """

    episode_type: str
    artifact: Any
    meta: dict[str, Any] = field(default_factory=dict)
    is_trainable: bool = True
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.meta is None:
            self.meta = {}
        if not isinstance(self.episode_type, str):
            raise TypeError(f"an episode type is a text, not {shown(self.episode_type)}")
        for name in ("error", "error_type", "retried"):
            if isinstance(self.meta, dict) and name in self.meta:
                raise ValueError(f"the meta of a request has {name}, which belongs to failed episodes")
        check_meta(self.meta)


_META = {"rollout_id": str, "seed": int, "policy_version": int, "step": int, "retried": int}
"""The entries of ``meta`` that this package reads, with their types."""


def check_meta(meta: object) -> None:
    """Raise a TypeError if the ``meta`` of a request or rollout has an entry of the wrong type."""
    if not isinstance(meta, dict):
        raise TypeError(f"meta is a dictionary, not {shown(meta)}")
    for name, kind in _META.items():
        if not isinstance(meta.get(name), kind | None):
            raise TypeError(f"{name} in meta is {shown(meta[name])}, not of the type {kind.__name__}")
    try:
        hash(meta.get("group"))
    except TypeError as error:
        raise TypeError(f"a group is a text or a number, not {shown(meta['group'])}") from error
