"""Runs on three hosts that share nothing end with the adapters of one process."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from game_runs import SMALL
from hosts.network import Network
from hosts.nodes import Nodes, adapters_of, same, sizes_for
from league_runs import LEAGUE
from program_files import write_program
from program_runs import SMALL as PROGRAM
from sparring.core.adapters import BUNDLED_MODEL
from sparring.learn.model_files import resolve_model

PLACES = {
    "a learner beside the command": {"learner": 1, "engine": 2, "collector": 3},
    "a learner elsewhere": {"learner": 2, "engine": 2, "collector": 3},
}


def options(*settings: dict[str, str]) -> list[str]:
    """Settings, of which the later ones count, as options of the command."""
    values = {name.replace("__", "."): value for some in settings for name, value in some.items()}
    return [f"--{name}={value}" for name, value in values.items()]


SHORTER = {"learning__steps": "3", "collection__games_per_step": "24"}
TINY = {"model__name": "model"}
RUNS = {
    "game": ["quickstart", *options(SMALL, TINY)],
    "league": ["quickstart", *options(SMALL, LEAGUE, SHORTER, TINY)],
    "program": ["program.toml", *options(PROGRAM, TINY)],
    "SmolLM2": ["kuhn", *options(SMALL, {"model__name": "smollm2"})],
}


@pytest.fixture(scope="module", params=PLACES)
def nodes(request: pytest.FixtureRequest, playing: Path) -> Iterator[Nodes]:
    """Three hosts, which have a tiny model and a program; the first also has SmolLM2."""
    with Network(3) as network:
        shutil.copytree(resolve_model(BUNDLED_MODEL), network[1].home / "smollm2")
        for host in network.hosts.values():
            shutil.copytree(playing, host.home / "model")
            write_program(host.home)
        configuration = '[program]\ntype = "python"\npath = "hide_and_seek.py:HideAndSeek"\n'
        (network[1].home / "program.toml").write_text(configuration)
        yield Nodes(network, sizes_for(PLACES[request.param].items()))


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_on_three_hosts_ends_with_the_adapters_of_one_process(nodes, kind):
    code, said = nodes.train(f"{kind}-apart", *RUNS[kind]).end()
    assert code == 0, said
    code, said = nodes.sparring("train", *RUNS[kind], f"--name={kind}-alone").end()
    assert code == 0, said
    apart, alone = (adapters_of(nodes.runs / f"{kind}-{where}") for where in ("apart", "alone"))
    assert same(apart, alone)
    assert len(apart) == {"league": 3, "program": 2}.get(kind, 1)
