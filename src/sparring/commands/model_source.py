"""What a model's name on the command line means: a run, a checkpoint, an adapter, a base model or a mixture.

A name is found without torch, so that a wrong one is reported at once.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from pydantic import Field, ValidationError

from sparring.commands.member_sampling import split_sampling
from sparring.config import Config
from sparring.config.base import Settings
from sparring.config.loading import load_config, toml_value
from sparring.config.model import ModelSettings
from sparring.config.play import DEFAULT_TEMPLATE, EnvSettings, GameSettings
from sparring.config.problems import read_settings
from sparring.core import InputError
from sparring.core.adapter_config import read_adapter_config
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, BASE, BUNDLED_MODEL, TRAINED, is_reserved
from sparring.envs.catalog import longest_move
from sparring.envs.policy_lines import is_policy_file
from sparring.evaluation.match import Mixture
from sparring.evaluation.venues import ProgramVenue, Venue
from sparring.learn.adapter_weights import read_shapes
from sparring.run.checks import default_seats
from sparring.run.evaluation_opponents import OPPONENTS
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import close_run, find_checkpoint, find_mixture, paths_of, split_checkpoint

MAX_TOKENS = 16
"""Token limit of an answer of a model that no run limits."""
ALL = "all"
"""``RUN@all`` is every checkpoint that a run keeps."""


@dataclass(frozen=True)
class MixtureMember:
    """A member of a mixture that may be drawn; without an adapter it is the base model.

    ``adapter`` is a directory with an adapter, or with one for each policy.
    """

    name: str
    adapter: Path | None
    weight: float

    def policies(self) -> dict[str, Path]:
        """Return its adapters by policy; see :func:`adapters_in`."""
        return {} if self.adapter is None else adapters_in(self.adapter)

    def adapters(self) -> dict[str, Path]:
        """Return its adapters by the names that they have beside the other members'."""
        return {self._named(policy): path for policy, path in self.policies().items()}

    def model(self, policy: str, served: Callable[[str], str]) -> str:
        """Return the name by which a policy's seat asks for this member."""
        found = self.policies()
        if not found:
            return BASE
        return served(self._named(policy if len(found) > 1 else next(iter(found))))

    def _named(self, policy: str) -> str:
        return self.name if policy == TRAINED else f"{self.name}-{policy}"


class MixtureEntry(Settings):
    """A member in the file. The adapter's directory is relative to the file; ``None`` is the base model.

    The directory may hold an adapter for each policy.
    """

    name: str
    adapter: str | None = None
    weight: float = Field(ge=0)


class MixtureContent(Settings):
    """The file of a mixture: its members' adapters and weights, and how they play."""

    model: ModelSettings = ModelSettings()
    max_tokens: int = Field(default=MAX_TOKENS, ge=1)
    envs: tuple[EnvSettings, ...] = Field(default=(), strict=False)
    members: list[MixtureEntry] = Field(min_length=1)

    def to_bytes(self) -> bytes:
        """Return the file."""
        return f"{self.model_dump_json(indent=1, exclude_none=True)}\n".encode()


@dataclass(frozen=True)
class ModelSource:
    """What a name on the command line means: a base model, and what was trained on it.

    Attributes:
        model: the base model.
        adapter: the adapter, or the checkpoint with an adapter for each policy; ``None`` for the base.
        max_tokens: token limit of an answer.
        envs: the environments that a run or a mixture trained in, then those it was evaluated in.
        members: those of a mixture; empty for anything else.
        config: the configuration of a run; ``None`` for anything else.
        frozen: the adapters that hold seats of a run's games and were not trained, by name.
    """

    model: ModelSettings
    adapter: Path | None = None
    max_tokens: int = MAX_TOKENS
    envs: tuple[GameSettings, ...] = ()
    members: tuple[MixtureMember, ...] = ()
    config: Config | None = None
    frozen: Mapping[str, Path] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether ``model`` is what a run trained on.

        An adapter or a base model alone does not say how the base was quantized, and plays on any.
        """
        return self.config is not None or bool(self.members)

    def for_game(self, env_id: str) -> "ModelSource":
        """Return this model with room in its answers for the moves of a game that it did not train in.

        A token is at least a character, so the characters of the longest move are enough.
        """
        if any(env.env_id == env_id for env in self.envs):
            return self
        room = longest_move(env_id, default_seats(env_id))
        return replace(self, max_tokens=max(self.max_tokens, room))

    def environment(self, env_id: str, template: str | None, num_players: int | None) -> GameSettings:
        """Return how to play ``env_id``: as the run did, unless the arguments ask otherwise."""
        for env in self.envs:
            if env.env_id == env_id and num_players in (None, env.num_players):
                return env.model_copy(update={"template": template or env.template})
        players = num_players or default_seats(env_id)
        return EnvSettings(id=env_id, num_players=players, template=template or DEFAULT_TEMPLATE)

    def adapters(self) -> dict[str, Path]:
        """Return the adapters by policy, or by member of a mixture; a single one is that of ``default``."""
        if self.members:
            return {name: path for one in self.members for name, path in one.adapters().items()}
        if self.adapter is None:
            return {}
        found = adapters_in(self.adapter) | dict(self.frozen)
        return dict(sorted(found.items())) if len(found) > 1 else {TRAINED: next(iter(found.values()))}

    @property
    def has_several_policies(self) -> bool:
        """Whether different seats may have different policies."""
        if self.members:
            return any(len(one.policies()) > 1 for one in self.members)
        return len(self.adapters()) > 1

    def policies(self, venue: Venue) -> tuple[str, ...]:
        """Return the policy of each seat, as it was trained: ``default`` in a game with one policy."""
        if isinstance(venue, ProgramVenue):
            return venue.policies
        seats = len(venue.seats)
        several = self.has_several_policies
        return self.environment(venue.env.id, None, seats).seats if several else (TRAINED,) * seats

    def models(
        self, venue: Venue, field: str, served: Callable[[str], str] = str
    ) -> tuple[str | Mixture[str], ...]:
        """Return who plays each seat: what the run trained for it, or ``default`` if it has one policy.

        ``served`` gives the name under which a policy is served, by its own; a base model is ``base``.
        """
        policies = self.policies(venue)
        if self.members:
            weights = tuple(one.weight for one in self.members)
            return tuple(
                Mixture(tuple(one.model(policy, served) for one in self.members), weights)
                for policy in policies
            )
        adapters = self.adapters()
        if len(adapters) < 2:
            return (served(TRAINED) if adapters else BASE,) * len(policies)
        if not adapters.keys() >= set(policies):
            seats = f"the {len(policies)} seats of {venue.name}"
            problem = f"this run trained several policies, but not for {seats}"
            raise InputError(field, problem, f"Name one: {' or '.join(map(str, adapters.values()))}")
        return tuple(map(served, policies))


def adapters_in(place: Path) -> dict[str, Path]:
    """Return the adapters of a checkpoint by policy, or the only one of a directory as ``default``."""
    found = {config.parent.name: config.parent for config in place.glob(f"*/{ADAPTER_CONFIG}")}
    return found or {TRAINED: place}


def base_difference(model: ModelSettings, base: ModelSettings, *, trained: bool) -> str | None:
    """Return how a model's base differs from another, as the end of a sentence; ``None`` if one serves both.

    Only if both are of runs, ``trained``, do both tell how they were quantized.
    """
    if model.name != base.name:
        return f"is {model.name}, not {base.name}"
    if trained and model.quantization != base.quantization:
        return f"has the quantization {model.quantization}, not {base.quantization}"
    return None


def is_possible_model(name: str) -> bool:
    """Return whether ``name`` may be a base model: a path that exists, or a name with an organisation."""
    return bool(name) and (name == BUNDLED_MODEL or "/" in name or Path(os.path.expanduser(name)).exists())


def first_environment(name: str) -> str | None:
    """Return the first environment of a run or mixture; ``None`` if it plays a program.

    Raises:
        InputError: it is neither, or nothing.
    """
    player, _ = split_sampling(name)
    run, checkpoint = split_checkpoint(player)
    if player in OPPONENTS or is_policy_file(player) or "@http" in player:
        raise InputError("--env", f"is missing, and {name} is not a run", "Name an environment")
    source = find_player(run if checkpoint == ALL else player)
    if not source.trained:
        raise InputError("--env", f"is missing, and {name} is not a run", "Name an environment")
    if source.config is not None:
        return source.config.envs[0].env_id if source.config.envs else None
    if not source.envs:
        problem = f"is missing, and {name} is a mixture that names none"
        hint = (
            "Name an environment; a mixture in a program plays only in tournaments, with a run of the program"
        )
        raise InputError("--env", problem, hint)
    return source.envs[0].env_id


def first_environment_of(names: Sequence[str]) -> str | None:
    """Return what :func:`first_environment` finds for the first of the names for which it finds something.

    Raises:
        InputError: it finds nothing; what it says of the first name.
    """
    errors = []
    for name in names:
        try:
            return first_environment(name)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def find_player(name: str) -> ModelSource:
    """Find what ``name`` means where a mixture can play too; see :func:`find_model`."""
    file = find_mixture(name)
    return find_model(name) if file is None else _read_mixture(file)


def find_model(name: str) -> ModelSource:
    """Find the model that ``name`` means: a run, an adapter or a base model.

    ``RUN@120`` is the run after 120 updates, ``RUN@best`` its best adapter and ``RUN`` its newest checkpoint.

    Raises:
        InputError: the run has no such checkpoint, or the name is none of these, or a mixture.
    """
    if find_mixture(name) is not None:
        fix = "Name one of its members; eval, play, tournament and exploit take mixtures"
        raise InputError("MODEL_OR_RUN", f"{name} is a mixture of several models", fix)
    run_name, checkpoint = split_checkpoint(name)
    for path in paths_of(run_name):
        if (path / "config.toml").is_file():
            run = RunDirectory.open(path)
            config = load_config(str(run.config_file), {})
            envs = (*config.envs, *(config.evaluated if config.evaluation.envs else ()))
            seats = {seat for env in envs for seat in env.seats}
            return ModelSource(
                config.model,
                find_checkpoint(run, checkpoint, name),
                config.inference.max_tokens,
                envs,
                config=config,
                frozen={policy: run.given / policy for policy in config.frozen if policy in seats},
            )
        if run_name == name and (path / ADAPTER_CONFIG).is_file():
            base = _base_of(path)
            read_shapes(path)
            return ModelSource(ModelSettings(name=base), path)
    _check_base_model(name)
    return ModelSource(ModelSettings(name=name))


def _check_base_model(name: str) -> None:
    path = Path(os.path.expanduser(name))
    if not name or (path.is_dir() and not (path / "config.json").is_file() and not any(path.glob("*.gguf"))):
        nothing = f"{name!r} is neither a run, an adapter nor a model"
        problem = f"{nothing}: it has no config.toml and no config.json"
        raise InputError("MODEL_OR_RUN", problem, "Name one that is")
    if not is_possible_model(name):
        close = close_run(name) or next(iter(get_close_matches(name.lower(), [BUNDLED_MODEL])), None)
        where = "A Hugging Face id has the form organisation/name; runs are in ./runs."
        fix = where if close is None else f"Did you mean {close}?"
        raise InputError("MODEL_OR_RUN", f"{name!r} is neither a run, a directory nor {BUNDLED_MODEL}", fix)


def _base_of(adapter: Path) -> str:
    """Return the base model that an adapter names."""
    base = read_adapter_config(adapter).get("base_model_name_or_path")
    if not isinstance(base, str) or not is_possible_model(base):
        problem = f"its base model {ascii(base)[:200]} is no directory here and no Hugging Face id"
        fix = f"Write the base model's directory into base_model_name_or_path in {adapter / ADAPTER_CONFIG}"
        raise InputError("adapter", problem, fix)
    return base


def _read_mixture(file: Path) -> ModelSource:
    """Return the mixture of the members whose weight is not 0."""
    try:
        content = MixtureContent.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        problem = f"is not the file of a mixture ({type(error).__name__})"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            problem = f"is not the file of a mixture: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(str(file), problem, "Name one that sparring psro wrote") from error
    names = [one.name for one in content.members]
    wrong = [name for name in names if not re.fullmatch(r"[\w-]+", name) or is_reserved(name)]
    if wrong or len({*names}) < len(names):
        problem = f"{(wrong or names)[0]!r} is not a valid name, or two members have the same"
        raise InputError(str(file), problem, "Use letters, digits, _ and -, once each")
    members = tuple(_member(file, one) for one in content.members if one.weight)
    if not members:
        raise InputError(str(file), "no member has a weight above 0", "Correct it")
    adapters = [name for one in members for name in one.adapters()]
    if len({*adapters}) < len(adapters):
        raise InputError(str(file), "two members' policies have one name together", "Rename a member")
    return ModelSource(content.model, None, content.max_tokens, content.envs, members)


def _member(file: Path, entry: MixtureEntry) -> MixtureMember:
    if entry.adapter is None:
        return MixtureMember(entry.name, None, entry.weight)
    member = MixtureMember(entry.name, file.parent / entry.adapter, entry.weight)
    for adapter in member.policies().values():
        if not all((adapter / part).is_file() for part in (ADAPTER_CONFIG, ADAPTER_FILE)):
            raise InputError(str(file), f"{adapter} is not an adapter", "Put it back, or correct the file")
    return member


def loaded_as(model: ModelSettings, threads: int | None, dtype: str | None) -> ModelSettings:
    """Return the settings of a model with those of the command line."""
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise InputError("--dtype", f"there is no type {dtype!r}", "Use auto, float32 or bfloat16")
    given = {"threads": threads, "dtype": dtype}
    return model.model_copy(update={name: value for name, value in given.items() if value is not None})


def with_template_options(model: ModelSettings, options: str | None) -> ModelSettings:
    """Return a model whose chat template has options, a table of TOML; with ``None``, its own.

    Raises:
        InputError: it is no such table. Whether the template has them is seen when the model is loaded.
    """
    if options is None:
        return model
    content = model.model_dump() | {"template_options": toml_value("--template-options", options)}
    try:
        return read_settings(ModelSettings, content)
    except InputError as error:
        raise InputError("--template-options", error.problem, error.fix) from error


def base_model(name: str) -> ModelSettings:
    """Find the base model that ``name`` means. Raises InputError: it means none, or one with an adapter."""
    source = find_model(name)
    if source.adapter is not None:
        raise InputError("MODEL_OR_RUN", f"{name} has an adapter already", f"Give {source.model.name}")
    return source.model
