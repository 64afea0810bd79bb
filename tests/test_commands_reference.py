"""``@reference``: tournaments and evaluations against the pool, whose ratings are one and the same."""

import json
import os
import subprocess
import sys
from hashlib import sha256

import pytest

from sparring.cli.main import main
from sparring.commands.members import find_members
from sparring.commands.reference_adapters import OWN_REFERENCE, own_hashes, pool_members, run_of
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_FILE, BUNDLED_MODEL
from sparring.evaluation.reference import REFERENCE, ReferencePool, reference_pool
from sparring.learn.model_files import resolve_model
from sparring.run.run_directory import RunDirectory
from tournaments import few_resamples, payoffs, play  # noqa: F401 - a fixture


def anchored(out):
    return {one["uid"]: one["anchored"] for one in payoffs(out)["rankings"]["members"]}


def test_a_model_has_one_anchored_rating_whoever_else_plays_and_whichever_command_asks(
    playing, tmp_path, capsys
):
    model, pool = str(playing), reference_pool("kuhn_poker")
    play(tmp_path / "out", model, "@reference", f"{model},temperature=0.5", "--games", 4)
    said = " ".join(capsys.readouterr().out.split())
    assert f"by games against reference pool {pool.version} alone" in said
    found = anchored(tmp_path / "out")
    words = ["eval", model, "--env", "kuhn_poker", "--opponent", "@reference", "--games", "4", "--json"]
    assert main(words) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["anchored"] == next(rating for uid, rating in found.items() if uid not in pool.members)
    assert [*alone["against"]] == pool.members
    assert len({mean for _, mean, _ in alone["against"].values()}) > 1
    assert alone["reference_pool"] == payoffs(tmp_path / "out")["rankings"]["reference_pool"] == pool.version
    ratings = dict(zip(pool.members, pool.ratings, strict=True))
    assert {name: found[name][1] for name in pool.members} == alone["ratings"] == ratings
    assert "Anchored" in (tmp_path / "out" / "tournament.html").read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tournament", "base", "@reference", "--env", "chess"], "MEMBER: chess has no reference pool"),
        (["tournament", "random", "@reference", "--env", "nim"], "MEMBER: random is named twice"),
        (
            ["eval", "smollm2-135m", "--env", "chess", "--opponent", "@reference"],
            "--env: chess has no reference pool. Games with one: kuhn_poker, ",
        ),
        (
            ["eval", "smollm2-135m", "--env", "nim", "--opponent", "@reference", "--nash-conv"],
            "--nash-conv: is not for @reference",
        ),
    ],
)
def test_what_has_no_reference_pool_is_one_line(words, line, capsys):
    assert main(words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said


def test_a_pool_plays_games_and_not_programs():
    with pytest.raises(InputError, match="members: @reference plays games, not programs"):
        find_members(["base", "@reference"], None)


# Adapters


def pool_with(hashes):
    return ReferencePool("liars_dice", ["random", *hashes], [], [], [], hashes)


@pytest.fixture
def trained_here(tmp_path, monkeypatch):
    """The hashes of two adapters that this machine has, which are files of no content that matters."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    run, hashes = RunDirectory(run_of("liars_dice")), {}
    for step in (2, 6):
        file = run.checkpoint(step) / ADAPTER_FILE
        file.parent.mkdir(parents=True)
        file.write_bytes(content := f"after {step} updates".encode())
        hashes[f"reference@{step}"] = sha256(content).hexdigest()
    return hashes


def test_adapters_with_the_bytes_that_ship_are_members(trained_here):
    pool = pool_with(trained_here)
    place = run_of("liars_dice").parent
    assert pool_members(pool) == ["random", f"{place}/reference@2", f"{place}/reference@6"]
    assert pool.with_adapters(own_hashes(pool)) is pool


def test_adapters_with_other_bytes_play_only_if_that_is_asked_for_and_make_another_version(trained_here):
    pool = pool_with(trained_here | {"reference@6": "0" * 64})
    with pytest.raises(InputError, match=r"were trained here to other bytes .*With @own-reference they play"):
        pool_members(pool, REFERENCE)
    assert pool_members(pool, OWN_REFERENCE) == pool_members(pool_with(trained_here))
    own = pool.with_adapters(own_hashes(pool))
    assert own.version.endswith("(with other adapters than those that ship)")
    assert own.version != pool.version != pool_with(trained_here).version


@pytest.mark.parametrize("name", [REFERENCE, OWN_REFERENCE])
def test_adapters_that_are_not_trained_say_how(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    words = ["tournament", "base", name, "--env", "liars_dice", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        "error: MEMBER: the adapters of the reference pool of liars_dice are not trained here. "
        "Train them: sparring reference --env liars_dice --train"
    )
    assert main(["reference", "--env", "liars_dice"]) == 0
    assert capsys.readouterr().out.count("not trained here") == 2


@pytest.mark.slow
def test_two_processes_train_the_same_bytes(tmp_path):
    """That these are those that ship holds on a machine of the same kind with the same libraries."""
    found = []
    for number in range(2):
        place = tmp_path / str(number)
        place.mkdir()
        (place / BUNDLED_MODEL).symlink_to(resolve_model(BUNDLED_MODEL))
        words = ["-m", "sparring", "reference", "--env", "liars_dice", "--train"]
        subprocess.run([sys.executable, *words], env={**os.environ, "SPARRING_CACHE": str(place)}, check=True)
        files = place.rglob(f"step-*/{ADAPTER_FILE}")
        found.append({file.parent.name: file.read_bytes() for file in files})
    assert found[0] == found[1]
    assert len(found[0]) == 4
