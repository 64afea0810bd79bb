"""Members: who takes part in a game, by the names that users write. Torch is not needed to find them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Literal

from sparring.commands.member_sampling import member_calls, split_sampling
from sparring.commands.model_source import (
    ALL,
    MAX_TOKENS,
    ModelSource,
    base_difference,
    find_player,
    is_possible_model,
)
from sparring.commands.reference_adapters import OWN_REFERENCE, pool_members
from sparring.config.model import ModelSettings
from sparring.config.play import GameSettings
from sparring.core import AgentSpec, CallSettings, InputError
from sparring.core.adapters import ADAPTER_FILE, BASE, BUNDLED_MODEL, TRAINED
from sparring.core.errors import renaming
from sparring.core.files import open_regular
from sparring.core.types import UNSET
from sparring.engine.api_models import api_client, is_api_model, refuse_credentials
from sparring.envs.policy_lines import is_policy_file
from sparring.envs.scripted import PLAYER_NAMES, make_player
from sparring.evaluation.match import Agent, Mixture
from sparring.evaluation.reference import REFERENCE, reference_pool
from sparring.evaluation.venues import Venue
from sparring.run.checks import check_opponent
from sparring.run.evaluation_opponents import OPPONENTS
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import close_run, find_run, is_run_or_adapter, last_part, split_checkpoint

MODEL = "model"
"""The uid of a model that plays alone or against one opponent: its own name may be ``base``."""


@dataclass(frozen=True)
class Member:
    """Who takes part, in any seat.

    Attributes:
        uid: its name in every result.
        kind: ``model`` is served here, ``api`` behind an API, ``script`` needs no model.
        name: as the user wrote it, without what is written behind it.
        source: what a ``model`` consists of; ``None`` for the base model, and for other kinds.
        calls: how it draws, as is written behind its name.
        base_tokens: the token limit of an answer if this is the base model: that of the first other model.
    """

    uid: str
    kind: Literal["model", "api", "script"]
    name: str
    source: ModelSource | None = None
    base_tokens: int = MAX_TOKENS
    calls: CallSettings = UNSET

    def adapters(self) -> dict[str, Path]:
        """Return the adapters to serve, by the name under which this member's seats ask for them."""
        found = {} if self.source is None else self.source.adapters()
        return {self._served(policy): path for policy, path in found.items()}

    def models(self, venue: Venue, field: str = "members") -> tuple[str | Mixture[str], ...]:
        """Return the name by which each seat asks for this model; see :meth:`ModelSource.models`."""
        if self.source is None:
            return (self.uid if self.kind == "api" else BASE,) * len(venue.seats)
        return self.source.models(venue, field, self._served)

    def agents(self, venue: Venue, field: str = "members") -> tuple[Agent, ...]:
        """Return who answers in each seat of the venue; errors are as in :meth:`models`."""
        if self.kind == "script":
            return (AgentSpec("script", self.name),) * len(venue.seats)
        calls = self.calls.over(CallSettings(max_tokens=self.max_tokens))
        return venue.agents(self.models(venue, field), calls)

    @property
    def max_tokens(self) -> int | None:
        """The token limit of an answer; ``None`` for a script or a model behind an API."""
        if self.kind != "model":
            return None
        return self.base_tokens if self.source is None else self.source.max_tokens

    def weights(self) -> str:
        """Return a fingerprint of adapters and mixture, by which a tournament knows the member again."""
        digest = sha256()
        files = {name: path / ADAPTER_FILE for name, path in self.adapters().items()}
        if self.kind == "script" and is_policy_file(self.name):
            files[self.name] = Path(self.name)
        for name, path in files.items():
            try:
                with open_regular(path) as file:
                    weights = file.read()
            except OSError as error:  # a run that still trains deletes old checkpoints
                problem = f"the weights of {self.name} cannot be read ({error.strerror})"
                raise InputError("members", problem, "Name a checkpoint that is there") from error
            digest.update(name.encode() + b"\0" + weights)
        mixed = () if self.source is None else self.source.members
        for one in mixed:
            digest.update(f"{one.name} {one.weight}".encode())
        return digest.hexdigest()[:16] if files or mixed else ""

    def _served(self, policy: str) -> str:
        return self.uid if policy == TRAINED else f"{self.uid}/{policy}"


def find_members(names: Sequence[str], env_id: str | None) -> list[Member]:
    """Find the members that are named, of a game or, without one, of a program.

    Raises:
        InputError: a name means nothing or cannot play ``env_id``, two names are the same, there are fewer
            than two members, or two models have different base models.
    """
    written = [one for name in names for one in _expanded(name, env_id)]
    for place, name in enumerate(written):
        if name in written[:place]:
            raise InputError("members", f"{name} is named twice", "Name each member once")
    if len(written) < 2:
        raise InputError("members", f"{len(written)} member plays against nobody", "Name two or more")
    named = [split_sampling(one) for one in written]
    members = [_find(name, uid, env_id) for (name, _), uid in zip(named, _uids(written), strict=True)]
    base = base_of(members)
    for member in members:
        source = member.source
        if source and (difference := base_difference(source.model, base, trained=source.trained)):
            problem = f"the base model of {member.name} {difference}"
            raise InputError("members", problem, "All models of a tournament have one base model")
    # The first one, so that further members change nothing.
    first = next((one.source for one in members if one.source is not None), ModelSource(base))
    limit = first.max_tokens if env_id is None else first.for_game(env_id).max_tokens
    if env_id is not None:
        members = [
            one if one.source is None else replace(one, source=one.source.for_game(env_id)) for one in members
        ]
    return [
        replace(one, base_tokens=limit, calls=_calls(one, settings, base.name, "members"))
        for one, (_, settings) in zip(members, named, strict=True)
    ]


def _calls(member: Member, settings: str, base: str, field: str) -> CallSettings:
    if settings and member.kind == "script":
        problem = f"{member.name} draws from no model, so it has no {settings[1:]}"
        raise InputError(field, problem, "Leave that out")
    return member_calls(settings, base if member.kind == "model" else None, field)


def check_match_opponent(written: str, env_id: str) -> None:
    """Check, as far as that takes no time, that a name is one of an opponent in a match.

    Raises:
        InputError: it means nothing, or a scripted player who cannot play ``env_id``.
    """
    name, _ = split_sampling(written)
    if name in OPPONENTS:
        with renaming({"env.id": "opponent"}):
            check_opponent(name, env_id)
    elif not (is_run_or_adapter(name) or is_possible_model(name)):
        fix = f"Use {', '.join(OPPONENTS)} or a run"
        raise InputError("opponent", f"{name!r} is neither an opponent nor a run", fix)


def find_opponent(written: str, model: ModelSource, env_id: str) -> Member:
    """Find who plays a match of a game against a model: a scripted player, ``base``, or another model.

    Raises:
        InputError: it has another base model.
    """
    name, settings = split_sampling(written)
    if name in OPPONENTS:
        kind: Literal["model", "script"] = "model" if name == BASE else "script"
        member = Member(name, kind, name, base_tokens=model.max_tokens)
        return replace(member, calls=_calls(member, settings, model.model.name, "opponent"))
    source = find_player(name).for_game(env_id)
    both = source.trained and model.trained
    if difference := base_difference(source.model, model.model, trained=both):
        problem = f"the base model of {name} {difference}"
        raise InputError("opponent", problem, "Name an opponent with the same base model.")
    calls = member_calls(settings, source.model.name, "opponent")
    return Member("opponent", "model", name, source, calls=calls)


def base_of(members: Sequence[Member]) -> ModelSettings:
    """Return the base on which the members play: that of the first run, or model, or the bundled one."""
    sources = [one.source for one in members if one.source is not None]
    first = [one for one in sources if one.trained] or sources
    return first[0].model if first else ModelSettings(name=BUNDLED_MODEL)


def environment_of(
    members: Sequence[Member], env_id: str, template: str | None, players: int = 2
) -> GameSettings:
    """Return how ``env_id`` is played: as the runs among the members trained in it.

    Raises:
        InputError: the runs trained with different templates, and ``template`` does not choose one, or under
            different rules.
    """
    trained = [(one, env) for one in members for env in _trained(one, env_id, players)]
    templates = list(dict.fromkeys(env.template for _, env in trained))
    if template is None and len(templates) > 1:
        problem = f"the runs trained with different ones: {', '.join(templates)}"
        raise InputError("template", problem, "Name one")
    for one, env in trained[1:]:
        _check_same_rules(*trained[0], one, env)
    source = trained[0][0].source if trained else None
    return (source or ModelSource(ModelSettings(name=BUNDLED_MODEL))).environment(env_id, template, players)


def _trained(member: Member, env_id: str, players: int) -> list[GameSettings]:
    source = member.source
    envs = () if source is None else source.envs if source.config is None else source.config.envs
    return [env for env in envs if env.env_id == env_id and env.num_players == players]


def _check_same_rules(first: Member, first_env: GameSettings, other: Member, other_env: GameSettings) -> None:
    for name in ("max_turns", "error_allowance", "stop"):
        mine, theirs = getattr(first_env, name), getattr(other_env, name)
        if mine != theirs:
            problem = f"{first.name} trained with {name} = {mine}, and {other.name} with {theirs}"
            raise InputError("members", problem, "Leave one of them out: all games have the same rules")


def find_agent(name: str, uid: str, env_id: str | None, field: str) -> Member:
    """Find who is named, as :func:`find_members` does, to play a game or a program; it draws as it learned.

    Raises:
        InputError: the name means nothing, or cannot play there; it calls the name ``field``.
    """
    with renaming({"members": field}):
        return _find(name, uid, env_id)


def _expanded(name: str, env_id: str | None) -> list[str]:
    """Return the checkpoints of ``RUN@all``, oldest first, the members of the game's pool for ``@reference``,
    or the name itself."""
    if name in (REFERENCE, OWN_REFERENCE):
        if env_id is None:
            raise InputError("members", f"{name} plays games, not programs", "Name a run, or a game")
        with renaming({"env.id": "members"}):
            return pool_members(reference_pool(env_id), name)
    member, settings = split_sampling(name)
    run, checkpoint = split_checkpoint(member)
    if checkpoint != ALL:
        return [name]
    directory = RunDirectory.open(find_run(run, "members"))
    steps = sorted({*directory.saved_steps(), *directory.best_steps()})
    if not steps:
        raise InputError("members", f"{run} has no checkpoint yet", "Train it first")
    return [f"{run}@{step}{settings}" for step in steps]


def _find(name: str, uid: str, env_id: str | None) -> Member:
    if env_id is None and name in PLAYER_NAMES:
        raise InputError("members", f"{name} plays games, not programs", f"Name a run, or {BASE}")
    if env_id is not None and name in OPPONENTS:
        with renaming({"opponent": "members", "env.id": "members"}):
            check_opponent(name, env_id)
    if name in OPPONENTS:
        return Member(uid, "model" if name == BASE else "script", name)
    if is_policy_file(name):
        if env_id is None:
            raise InputError("members", f"{name} plays games, not programs", f"Name a run, or {BASE}")
        with renaming({"opponent": "members", "env.id": "members"}):
            make_player(name, env_id, seed=0)
        return Member(uid, "script", name)
    if is_api_model(name) and not is_run_or_adapter(name) and not Path(name).exists():
        _check_is_no_path(name)
        refuse_credentials(name, "members")
        api_client(name)
        return Member(uid, "api", name)
    with renaming({"MODEL_OR_RUN": "members"}):
        try:
            return Member(uid, "model", name, find_player(name))
        except InputError as error:
            meant = get_close_matches(name, [*PLAYER_NAMES, BASE], n=1, cutoff=0.75)
            if not meant or close_run(name) or Path(name).exists():
                raise
            raise InputError(error.field, error.problem, f"Did you mean {meant[0]}?") from error


def _check_is_no_path(name: str) -> None:
    """Raise an InputError if a name begins like a path that is not there, which OpenRouter cannot know."""
    first = name.partition("/")[0]
    if "@http" not in name and (first in ("", ".", "..", "~") or Path(first).is_dir()):
        close = close_run(split_checkpoint(name)[0].rpartition("/")[2])
        fix = "Correct the path" if close is None else f"Did you mean {close}?"
        raise InputError("members", f"{name} is neither a run nor a directory", fix)


def _uids(names: Sequence[str]) -> list[str]:
    """Return a name in results for each member: short, or else as written, or else with a number.

    It depends on the members before it alone, so that a tournament with one more knows its games again.
    """
    uids: list[str] = []
    scripted = {*PLAYER_NAMES, BASE}
    for name in names:
        member, settings = split_sampling(name)
        short = f"{last_part(member)}{settings}"
        choices = chain((short, name), (f"{name}-{number}" for number in count(2)))
        taken = {*uids} if name in scripted else {*uids, *scripted}
        uids.append(next(choice for choice in choices if choice not in taken))
    return uids
