"""``@reference``: tournaments and evaluations against the pool, whose ratings are one and the same."""

import json

import pytest

from sparring.cli.main import main
from sparring.evaluation.reference import reference_pool
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
