"""What a model's name on the command line means: a run, a checkpoint, an adapter, a base model or a mixture.

A name is found without torch, so that a wrong one is reported at once.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from sparring.commands.mixture_file import MixtureMember, read_mixture
from sparring.config.loading import load_config
from sparring.config.model import LoraSection, ModelSettings
from sparring.config.play import DEFAULT_TEMPLATE, EnvSettings, GameSettings
from sparring.core import InputError
from sparring.core.adapter_config import read_adapter_config
from sparring.core.adapters import ADAPTER_CONFIG, BASE, TRAINED
from sparring.evaluation.mixture import Mixture
from sparring.learn.adapter_weights import read_shapes
from sparring.learn.model_files import BUNDLED_MODEL
from sparring.run.checks import default_seats
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import close_run, find_checkpoint, find_mixture, paths_of, split_checkpoint

MAX_TOKENS = 16
"""Token limit of an answer of a model that no run limits."""


@dataclass(frozen=True)
class ModelSource:
    """What a name on the command line means: a base model, and what was trained on it.

    Attributes:
        model: the base model.
        adapter: the adapter, or the checkpoint with an adapter for each policy; ``None`` for the base.
        max_tokens: token limit of an answer.
        envs: the environments of the run.
        members: those of a mixture; empty for anything else.
        trained: whether ``model`` is what a run trained on; an adapter or a base model alone does not say how
            the base was quantized, and plays on any.
        evaluated: other games that the run was evaluated in.
        lora: how a run sets the shape of its adapters; ``None`` for anything else.
        frozen: the adapters that hold seats of a run's games and were not trained, by name.
    """

    model: ModelSettings
    adapter: Path | None = None
    max_tokens: int = MAX_TOKENS
    envs: tuple[EnvSettings, ...] = ()
    members: tuple[MixtureMember, ...] = ()
    trained: bool = False
    evaluated: tuple[GameSettings, ...] = ()
    lora: LoraSection | None = None
    frozen: Mapping[str, Path] = field(default_factory=dict)

    def environment(self, env_id: str, template: str | None, num_players: int | None) -> GameSettings:
        """Return how to play ``env_id``: as the run trained in it, or else was evaluated in it, unless the
        arguments ask otherwise.
        """
        for env in (*self.envs, *self.evaluated):
            if env.id == env_id and num_players in (None, env.num_players):
                return env.model_copy(update={"template": template or env.template})
        players = num_players or default_seats(env_id)
        return EnvSettings(id=env_id, num_players=players, template=template or DEFAULT_TEMPLATE)

    def adapters(self) -> dict[str, Path]:
        """Return the directory of each policy's adapter; a single adapter is that of ``default``.

        Of a mixture, those of its members by their names.
        """
        if self.members:
            return {one.name: one.adapter for one in self.members if one.adapter is not None}
        if self.adapter is None:
            return {}
        found = {config.parent.name: config.parent for config in self.adapter.glob(f"*/{ADAPTER_CONFIG}")}
        found = (found or {TRAINED: self.adapter}) | dict(self.frozen)
        return dict(sorted(found.items())) if len(found) > 1 else {TRAINED: next(iter(found.values()))}

    def seats(
        self, env: GameSettings, field: str, served: Callable[[str], str] = str
    ) -> tuple[str | Mixture[str], ...]:
        """Return who plays each seat: what the run trained for it, or ``default`` if it has one policy.

        Args:
            env: how the game is played.
            field: what names the run, for the error.
            served: gives the name under which a policy is served, by its own.

        Raises:
            InputError: the run has several policies, but none for a seat.
        """
        if self.members:
            names = (BASE if one.adapter is None else served(one.name) for one in self.members)
            return (Mixture(tuple(names), tuple(one.weight for one in self.members)),) * env.num_players
        return tuple(map(served, self._policies(env, field)))

    def _policies(self, env: GameSettings, field: str) -> tuple[str, ...]:
        adapters = self.adapters()
        if len(adapters) < 2:
            return (TRAINED,) * env.num_players
        if not adapters.keys() >= set(env.seats):
            problem = (
                f"this run trained several policies, but not for the {env.num_players} seats of {env.name}"
            )
            raise InputError(field, problem, f"Name one: {' or '.join(map(str, adapters.values()))}")
        return env.seats


def base_difference(model: ModelSettings, base: ModelSettings, *, trained: bool) -> str | None:
    """Return how the base of a model differs from another; ``None`` if one engine serves both.

    Args:
        model: the base of the model, to begin the sentence with.
        base: the other one.
        trained: whether both are of runs, so that both say how they were quantized.
    """
    if model.name != base.name:
        return f"is {model.name}, not {base.name}"
    if trained and model.quantization != base.quantization:
        return f"has the quantization {model.quantization}, not {base.quantization}"
    return None


def _base_of(adapter: Path) -> str:
    """Return the base model that an adapter names.

    Raises:
        InputError: it names none, or one that is neither here nor an id of the hub.
    """
    base = read_adapter_config(adapter).get("base_model_name_or_path")
    if not isinstance(base, str) or not is_possible_model(base):
        problem = f"its base model {ascii(base)[:200]} is no directory here and no Hugging Face id"
        fix = f"Write the base model's directory into base_model_name_or_path in {adapter / ADAPTER_CONFIG}"
        raise InputError("adapter", problem, fix)
    return base


def is_possible_model(name: str) -> bool:
    """Return whether ``name`` may be a base model: a path that exists, or a name with an organisation."""
    return bool(name) and (name == BUNDLED_MODEL or "/" in name or Path(os.path.expanduser(name)).exists())


def find_player(name: str) -> ModelSource:
    """Find what ``name`` means where a mixture can play too; see :func:`find_model`.

    Raises:
        InputError: the run has no such checkpoint, or the name is none of these.
    """
    file = find_mixture(name)
    if file is None:
        return find_model(name)
    content, members = read_mixture(file)
    return ModelSource(content.model, None, content.max_tokens, content.envs, members, trained=True)


def check_base_model(name: str) -> None:
    """Check, as far as that takes no time, that ``name`` may be a base model.

    Raises:
        InputError: it is a directory without a model, or neither a path nor a name of a model.
    """
    path = Path(os.path.expanduser(name))
    if not name or (path.is_dir() and not (path / "config.json").is_file()):
        problem = (
            f"{name!r} is neither a run, an adapter nor a model: it has no config.toml and no config.json"
        )
        raise InputError("MODEL_OR_RUN", problem, "Name one that is")
    if not is_possible_model(name):
        close = close_run(name) or next(iter(get_close_matches(name.lower(), [BUNDLED_MODEL])), None)
        where = "A Hugging Face id has the form organisation/name; runs are in ./runs."
        fix = where if close is None else f"Did you mean {close}?"
        raise InputError("MODEL_OR_RUN", f"{name!r} is neither a run, a directory nor {BUNDLED_MODEL}", fix)


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
            adapter = find_checkpoint(run, checkpoint, name)
            games = config.evaluated if config.evaluation.envs else []
            seats = {name for env in (*config.envs, *games) for name in env.seats}
            return ModelSource(
                config.model,
                adapter,
                config.inference.max_tokens,
                tuple(config.envs),
                trained=True,
                lora=config.lora,
                evaluated=tuple(games),
                frozen={name: run.given / name for name in config.frozen if name in seats},
            )
        if run_name == name and (path / ADAPTER_CONFIG).is_file():
            base = _base_of(path)
            read_shapes(path)
            return ModelSource(ModelSettings(name=base), path)
    check_base_model(name)
    return ModelSource(ModelSettings(name=name))
