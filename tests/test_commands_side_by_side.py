"""``sparring compare --deals``: the same deals, games beside each other."""

import json
import re

import pytest

from hostile_text import HTML
from program_runs import configure, run
from report_pages import Page
from sparring.cli.main import main
from sparring.commands.side_by_side import SideBySide, side_by_side, side_by_side_html
from sparring.core import GenerateResult, Rollout, Step
from sparring.evaluation.match import Progress, SeatedGame
from tiny_models import roomy_model


def cards_dealt(game: SeatedGame) -> dict[int, str]:
    return {turn["pid"]: turn["observation"][-2:] for turn in game.rollout.extras["turns"]}


def test_members_play_the_same_deals_in_every_seat_and_the_first_difference_is_marked():
    found = side_by_side(["random", "optimal", str(roomy_model())], "kuhn_poker", 6, 3, Progress())
    assert found.members[:2] == ["random", "optimal"]
    assert len(found.deals) == 6
    for deal in found.deals:
        known: dict[int, set[str]] = {}
        for game in deal:
            for seat, card in cards_dealt(game).items():
                known.setdefault(seat, set()).add(card)
        assert all(len(cards) == 1 for cards in known.values()), "a seat has one card in a deal"
    assert len({str(cards_dealt(deal[1])) for deal in found.deals}) > 1
    again = side_by_side(["random", "optimal"], "kuhn_poker", 6, 3, Progress())
    assert [[one.rewards for one in deal] for deal in again.deals] == [
        [one.rewards for one in deal[:2]] for deal in found.deals
    ]
    html = side_by_side_html(found)
    assert html.count('<div class="beside">') == 6
    model = str(roomy_model().name)
    for part in html.split('<div class="beside">')[1:]:
        names = re.findall(r'class="game-name">([^<]*)<', part)
        assert names == ["random", "optimal", model]
        assert part.count("plays otherwise from here") in (0, 3)
    answers = json.loads(html.split('id="answers" type="application/json">')[1].split("</script>")[0])
    assert answers, "the model's answers are shown by token"
    assert {one["advantage"] for one in answers} == {None}


def test_the_command_writes_a_page_and_prints_means(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "random", "optimal", "--env", "kuhn_poker", "--deals", "2", "--out", "page.html"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"^random +[+-]\S+ +[+-]\S+ +0 +0", said, re.MULTILINE)
    assert "page: page.html" in said
    assert Page((tmp_path / "page.html").read_text()).open == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["random", "--deals", "2", "--env", "kuhn_poker"], "1 member plays against nobody"),
        (["random", "optimal", "--env", "kuhn_poker"], "add --deals"),
        (["random", "nobody-here", "--deals", "2", "--env", "kuhn_poker"], "nobody-here"),
        (["random", "optimal", "--deals", "2", "--env", "no_game"], "no_game"),
    ],
)
def test_what_cannot_be_compared_is_one_line(words, problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_failed_games_and_hostile_names_are_text():
    game = SeatedGame(
        [1.0], None, Rollout(episode_type=HTML[0], extras={"turns": HTML[1]}, rewards={HTML[2]: 1.0})
    )
    result = SideBySide(HTML[3], [HTML[0], HTML[4]], (HTML[5],), [[game, HTML[0]]], "", 0)
    page = Page(side_by_side_html(result))
    assert page.open == []
    assert not [
        tag for tag, attrs in page.elements if tag == "img" or any(one.startswith("on") for one in attrs)
    ]
    assert any("failed" in text for text in page.text)


def test_a_game_that_failed_hides_no_difference_between_the_others():
    games: list[SeatedGame | str] = ["the engine is gone"]
    for said in ("check", "bet"):
        step = Step("A", [], [{"role": "assistant", "content": said}])
        games.append(SeatedGame([1.0], None, Rollout(episode_type="talk", steps=[step])))
    html = side_by_side_html(SideBySide("talk", ["a", "b", "c"], ("A",), [games], "", 0))
    assert html.count("plays otherwise from here") == 2
    assert "the engine is gone" in html


def saying(*words, children=()):
    steps = [Step("A", [], [{"role": "assistant", "content": word}]) for word in words]
    return GenerateResult(Rollout(episode_type="talk", steps=steps), [*children])


def test_the_episodes_that_an_episode_has_started_stand_beside_each_other_too():
    games = [
        SeatedGame([1.0], None, asked.rollout, asked.children)
        for asked in (
            saying("riddle-1", children=[saying("hint-2", children=[saying(last)]), saying("guess-3")])
            for last in ("yes", "no")
        )
    ]
    page = Page(side_by_side_html(SideBySide("talk", ["a", "b"], ("A",), [games], "", 0)))
    text = " ".join(page.text)
    first, second = text.split("plays otherwise from here")[1:]
    told = text.partition("plays otherwise from here")[0]
    assert "riddle-1" in told
    assert "hint-2" in told
    assert "guess-3" not in told
    assert "guess-3" in first
    assert "guess-3" in second


@pytest.mark.slow
def test_checkpoints_of_a_program_play_the_same_requests(model, tmp_path):
    run(configure(model, tmp_path, learning__steps="2", learning__learning_rate="0.1"), tmp_path / "hiding")
    found = side_by_side([f"{tmp_path / 'hiding'}@0", str(tmp_path / "hiding")], None, 3, 0, Progress())
    for deal in found.deals:
        first, second = (game.rollout for game in deal)
        assert first.artifact == second.artifact
        assert first.steps[0].prompt == second.steps[0].prompt
