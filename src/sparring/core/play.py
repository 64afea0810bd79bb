"""Games, their players and what each of them did, which collectors, pools and episodes pass to each other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from sparring.core.records import others_of
from sparring.core.types import AgentSpec, GenerateResult, Rollout, Step

SampleMode = Literal[
    "mirror",
    "fixed",
    "lagged",
    "random",
    "match-quality",
    "ts-dist",
    "exploration",
    "historical",
    "pfsp",
    "meta-nash",
]
"""How a pool chooses opponents; see :class:`sparring.population.ModelPool`."""
MODES_WITHOUT_COPIES: tuple[SampleMode, ...] = ("mirror", "fixed")
"""The modes that draw no earlier versions of the policies."""
FEWEST_GAMES = 4
"""The fewest games of a group in a tournament: two deals of a game for two, in both orders of seats."""
PfspForm = Literal["hard", "variance", "linear"]
"""The weights of mode ``pfsp``; see :func:`sparring.population.opponent_choice.pfsp_weights`."""
MetaStrategy = Literal["nash", "alpharank", "prd", "uniform"]
"""How a mixture over members is computed; see :func:`sparring.population.meta_strategies.meta_strategy`."""
GameKind = Literal["train", "eval", "payoff"]
"""What a game is played for: to be learned from, to evaluate, or for the payoffs between frozen members."""
LeagueRole = Literal["main", "main_exploiter", "league_exploiter"]
"""What a player of a league learns for; see :mod:`sparring.population.league`."""
Seat = int | str
"""A place that a player holds: a seat of a game by its number, or a role of a program by its name."""


@dataclass(frozen=True)
class PlaySpec:
    """One game to play. The specification and the models' weights determine everything that happens in it."""

    env_id: str
    num_players: int
    agents: tuple[AgentSpec, ...]
    seed: int

    @property
    def trained_pids(self) -> list[int]:
        """Player ids of the seats whose steps are trained on."""
        return [pid for pid, agent in enumerate(self.agents) if agent.kind == "policy"]


@dataclass
class Opponent:
    """A member of the model pool, with its rating: (mean, standard deviation) in TrueSkill's units.

    ``kind``: ``policy`` is a policy in training, ``checkpoint`` a frozen copy of one, ``fixed`` any other
    model, ``script`` a scripted player. ``policy`` is the policy that a checkpoint is a copy of, or in whose
    place a fixed model plays. ``retired`` is the iteration of the checkpoint that permanently replaced this
    one.
    """

    uid: str
    kind: Literal["policy", "checkpoint", "fixed", "script"]
    path_or_name: str | None
    rating: tuple[float, float]
    active: bool = True
    iteration: int | None = None
    retired: int | None = None
    games: int = 0
    wins: int = 0
    draws: int = 0
    policy: str = ""


@dataclass(frozen=True)
class TaskMeta:
    """Bookkeeping of one game in flight. ``index`` counts games of its type from 0 over the whole run.

    ``ckpt_uid`` is the pool member that plays the game, ``opponent_uid`` its opponent in the pool, if any.
    ``player_id`` is the seat of ``ckpt_uid``, the first one if it has several, as in a mirror game.
    """

    type: GameKind
    env_id: str
    player_id: int
    seed: int
    ckpt_uid: str | None = None
    opponent_uid: str | None = None
    index: int = 0
    info: dict[str, Any] = field(default_factory=dict)


class GameTurn(TypedDict):
    """One move of a game. ``observation`` is what the player saw, ``text`` its answer, ``action`` the move
    found in it, and ``reasoning`` what it thought before, if it did. ``reward`` is what the player earned
    from this move until its next, in games that pay on the way."""

    pid: int
    kind: str
    model: str
    observation: str
    text: str
    action: str
    well_formed: bool
    invalid: bool
    reasoning: NotRequired[str]
    reward: NotRequired[float]


class GameSummary(TypedDict):
    """What a finished game adds to the ``extras`` of its rollout; rewards and infos are by player id.

    ``invalid_pid`` is the player whose invalid move ended the game. ``raised`` names the error of a game that
    broke on a move. A ``truncated`` game reached the turn limit.
    """

    final_rewards: dict[int, float]
    game_info: dict[int, dict[str, Any]]
    num_turns: int
    invalid_pid: int | None
    raised: str | None
    truncated: bool
    action_seq: list[str]
    turns: list[GameTurn]


@dataclass
class Trajectory:
    """One role's part of a rollout, which a replay buffer stores. ``final_rewards`` are by player id."""

    pid: int
    env_id: str
    final_reward: float
    steps: list[Step]
    final_rewards: dict[int, float] = field(default_factory=dict)
    game_info: dict[str, Any] = field(default_factory=dict)
    role_id: str = ""
    rollout_id: str = ""
    num_turns: int = 0
    places: list[int] = field(default_factory=list)
    """The number of each step in the rollout among those of all roles, from 0; empty if not known."""

    @property
    def rewards_of_all(self) -> dict[int, float]:
        """The rewards of all players by player id; only this player's where the others' are not known."""
        return {**self.final_rewards, self.pid: self.final_reward}

    @property
    def obs(self) -> list[str]:
        """The prompts, in order."""
        return [step.obs for step in self.steps]

    @property
    def actions(self) -> list[str]:
        """The raw answers, in order."""
        return [step.completion_text for step in self.steps]

    @property
    def extracted_actions(self) -> list[str]:
        """The actions that were passed to the game, in order."""
        return [step.info.get("extracted_action", step.completion_text) for step in self.steps]

    @property
    def format_feedbacks(self) -> list[dict[str, Any]]:
        """``correct_answer_format`` and ``invalid_move`` of each step."""
        return [step.info.get("format_feedback", {}) for step in self.steps]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The ``info`` of every step."""
        return [step.info for step in self.steps]


def seat_role(pid: int) -> str:
    """Return the role id of a game's seat."""
    return f"player_{pid}"


def played_steps(rollout: Rollout) -> list[Step]:
    """Return the steps with which a game went on: of several answers at one turn, the one that was played."""
    return [step for step in rollout.steps if step.info.get("is_played", True)]


def trajectories_of(rollout: Rollout) -> list[Trajectory]:
    """Split a finished game into one trajectory for each trained seat that acted, by the rollout's
    ``extras``."""
    places_by_pid: dict[int, list[int]] = {}
    for place, step in enumerate(rollout.steps):
        places_by_pid.setdefault(step.pid, []).append(place)
    final_rewards: dict[int, float] = rollout.extras["final_rewards"]
    return [
        Trajectory(
            pid=pid,
            env_id=steps[0].env_id,
            final_reward=final_rewards[pid],
            steps=steps,
            final_rewards=dict(final_rewards),
            game_info=dict(rollout.extras.get("game_info", {}).get(pid, {})),
            role_id=steps[0].role_id,
            rollout_id=rollout.id,
            num_turns=rollout.extras.get("num_turns", len(steps)),
            places=places,
        )
        for pid, places in sorted(places_by_pid.items())
        for steps in [[rollout.steps[place] for place in places]]
    ]


def trajectories_of_roles(result: GenerateResult, pids: Mapping[str, int]) -> list[Trajectory]:
    """Return a trajectory for each role of each trainable episode that a policy is trained on.

    ``pids`` are the numbers of the roles, which take the place of seats in reward transforms.
    """
    return [
        _trajectory(rollout, parent_id, role_id, pids)
        for rollout, parent_id in _with_parents(result, None)
        for role_id in dict.fromkeys(step.role_id for step in rollout.steps if step.policy)
    ]


def _with_parents(result: GenerateResult, parent_id: str | None) -> Iterator[tuple[Rollout, str | None]]:
    if result.is_trainable:
        yield result.rollout, parent_id
        for child in result.children:
            yield from _with_parents(child, result.rollout.id)


def _trajectory(rollout: Rollout, parent_id: str | None, role_id: str, pids: Mapping[str, int]) -> Trajectory:
    pid = pids[role_id]
    others, notes = others_of(rollout), {"parent_id": parent_id, "group": rollout.meta.get("group")}
    own = {place: step for place, step in enumerate(rollout.steps) if step.role_id == role_id and step.policy}
    steps = [
        step.scored(step.reward, {**others, **step.info, **notes}, rollout.episode_type)
        for step in own.values()
    ]
    for step in steps:
        step.pid = pid
    return Trajectory(
        pid=pid,
        env_id=rollout.episode_type,
        final_reward=rollout.rewards[role_id],
        steps=steps,
        final_rewards={pids[role]: reward for role, reward in rollout.rewards.items() if role in pids},
        role_id=role_id,
        rollout_id=rollout.id,
        num_turns=len(rollout.steps),
        places=list(own),
    )
