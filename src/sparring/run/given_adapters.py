"""What a configuration gives: adapters that policies start from, and what only plays.

A run copies adapters and policies' files when it starts, because the run that made them may go on, prune its
checkpoints or be deleted.
"""

import filecmp
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparring.config import Config
from sparring.core import InputError
from sparring.core.adapter_config import SET_LORA, differences, read_adapter_config, shape_of
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, POLICY_FILE, AdapterRef
from sparring.core.files import put_in_place, scratch_for
from sparring.core.manifest import base_of, check_files, is_sealed, seal
from sparring.envs.policy_lines import ENDINGS
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_checkpoint, split_checkpoint

if TYPE_CHECKING:
    from sparring.learn.policy import PolicyModel

Kind = Literal["adapter", "policy", "api"]
_SHORTENED = 20
"""PEFT replaces a list of as many target modules by a shorter one that means the same layers."""


def frozen_of(config: Config, kind: Kind) -> dict[str, str]:
    """Return what ``[frozen]`` names of one kind: adapters, policies in files, or models behind an API."""
    return {name: source for name, source in config.frozen.items() if _kind_of(source) == kind}


def _kind_of(source: str) -> Kind:
    if "@http" in source:
        return "api"
    return "policy" if source.endswith(ENDINGS) else "adapter"


def _adapters(config: Config) -> dict[str, dict[str, str]]:
    return {"start": config.start, "frozen": frozen_of(config, "adapter")}


def with_own_copies(config: Config, directory: RunDirectory) -> Config:
    """Return the configuration with the run's own copies of what ``[start]`` and ``[frozen]`` name.

    A run that begins makes them; one that continues uses those that it has.
    """
    continues, given = directory.config_file.exists(), directory.given.absolute()
    names = [name for adapters in _adapters(config).values() for name in adapters]
    copies = {name: given / name for name in names}
    copies |= {name: given / name / POLICY_FILE for name in frozen_of(config, "policy")}
    made = {name: copy for name, copy in copies.items() if continues and copy.exists()}
    sources = check_given(_placed(config, made))
    sources |= {name: Path(source) for name, source in frozen_of(config, "policy").items()}
    for name, source in sources.items():
        if name not in made:
            directory.check_epoch()
            _copy(source, given / name)
    return _placed(config, copies)


def _placed(config: Config, places: Mapping[str, Path]) -> Config:
    changed = {
        field: {name: str(places.get(name, source)) for name, source in adapters.items()}
        for field, adapters in (("start", config.start), ("frozen", config.frozen))
    }
    return config.model_copy(update=changed)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        copy_adapter(source, target)
        return
    scratch = scratch_for(target)
    shutil.copyfile(source, scratch / POLICY_FILE)
    seal(scratch)
    put_in_place(scratch, target)


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter's files into a directory, or raise DamagedState if one is not what was written.

    A missing one is reported when the adapter is loaded.
    """
    files, base = (ADAPTER_FILE, ADAPTER_CONFIG), None
    if is_sealed(source):
        check_files(source, files)
        base = base_of(source)
    scratch = scratch_for(target)
    for name in files:
        if (source / name).is_file():
            shutil.copyfile(source / name, scratch / name)
    seal(scratch, base)
    put_in_place(scratch, target)


def same_adapter(one: Path, other: Path) -> bool:
    """Whether two directories hold the same adapter, or a file and a directory the same policy."""
    if one.is_file():
        return (other / POLICY_FILE).is_file() and filecmp.cmp(one, other / POLICY_FILE, False)
    return all(
        (one / name).is_file() and (other / name).is_file() and filecmp.cmp(one / name, other / name, False)
        for name in (ADAPTER_FILE, ADAPTER_CONFIG)
    )


def load_given(config: Config, model: "PolicyModel", sources: Mapping[str, Path] | None = None) -> None:
    """Load the adapters of ``[start]`` into their policies, and those of ``[frozen]`` under their names.

    Errors name the places in ``sources`` that new copies were made from: the copies are deleted with a run
    that cannot begin.
    """
    for name, directory in find_given(config).items():
        try:
            load_adapter_of(directory, model, name)
        except InputError as error:
            field = "start" if name in config.start else "frozen"
            source = (sources or {}).get(name, directory)
            problem = error.problem.replace(str(directory), str(source))
            raise InputError(f"{field}.{name}", problem, error.fix) from error


def find_given(config: Config) -> dict[str, Path]:
    """Return the directories of the adapters of ``[start]``, by policy, and of ``[frozen]``, by name.

    Raises InputError if there is no such adapter.
    """
    return {
        name: find_adapter(source, name, f"{field}.{name}")
        for field, adapters in _adapters(config).items()
        for name, source in adapters.items()
    }


def frozen_adapters(config: Config) -> dict[str, AdapterRef]:
    """Return the adapters of ``[frozen]``, by name."""
    found = find_given(config)
    return {name: AdapterRef(name, 0, str(found[name].absolute())) for name in frozen_of(config, "adapter")}


def check_given(config: Config) -> dict[str, Path]:
    """Return the directory of each adapter of ``[start]`` and ``[frozen]``; see ``checked_given``."""
    return {name: checked_given(config, name) for adapters in _adapters(config).values() for name in adapters}


def checked_given(config: Config, name: str) -> Path:
    """Return the directory of an adapter of ``[start]`` or ``[frozen]``; raise an InputError if there is none
    or it does not fit, as far as its ``adapter_config.json`` says."""
    section, lora = "start" if name in config.start else "frozen", config.lora
    field = f"{section}.{name}"
    directory = find_adapter(getattr(config, section)[name], name, field)
    run = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": lora.target_modules}
    try:
        shape = shape_of(read_adapter_config(directory))
    except InputError as error:
        raise InputError(field, error.problem, error.fix) from error
    # Once PEFT sees the model, it shortens long lists, and names stacked experts in target_parameters.
    rewritten = "target_parameters" in shape or len(lora.target_modules) >= _SHORTENED
    unknown = {"target_modules": lora.target_modules} if rewritten else {}
    wrong = differences(shape | unknown, run)
    if wrong:
        raise InputError(field, f"{directory}: {'; '.join(wrong)}", SET_LORA)
    return directory


def load_adapter_of(directory: Path, model: "PolicyModel", name: str) -> None:
    """Load an adapter from its directory into the model, under a name."""
    from sparring.learn.checkpoints import check_lora_shape, load_adapter
    from sparring.learn.model_files import check_base

    weights, settings = load_adapter(directory)
    check_base(directory, model.base)
    check_lora_shape(directory, settings, model)
    model.load_adapter_state(weights, name)


def find_adapter(source: str, policy: str, field: str) -> Path:
    """Return the directory of an adapter: ``source`` itself, or a policy's in a checkpoint of a run."""
    place = Path(source)
    if not (place / ADAPTER_CONFIG).is_file():
        run, checkpoint = split_checkpoint(source)
        if not (Path(run) / "config.toml").is_file():
            raise InputError(field, f"{source} is neither an adapter nor a run", "Name a run: RUN@40")
        place = find_checkpoint(RunDirectory.open(Path(run)), checkpoint, field)
    return adapter_in(place, policy, field)


def adapter_in(place: Path, policy: str, field: str) -> Path:
    """Return the directory of a policy's adapter: in ``place``, or ``place`` if it holds a single one."""
    found = [one for one in (place / policy, place) if (one / ADAPTER_CONFIG).is_file()]
    if not found:
        raise InputError(field, f"{place} has no adapter of a policy {policy}", "Name its directory")
    return found[0]
