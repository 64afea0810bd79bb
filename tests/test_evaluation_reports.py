import json
import re
from io import StringIO

import pytest
from rich.console import Console

from evaluation_client import TabularClient, legal_moves, uniform
from sparring.commands.tables import results_table
from sparring.core import AgentSpec, Arena, EpisodeError, InputError
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.evaluation import (
    GameRecord,
    MatchResult,
    nash_conv,
    play_match,
    read_evaluation,
    write_evaluation,
)
from sparring.view.evaluations import EvaluationFiles, of_measure
from sparring.view.watch.text import table_text

TEMPLATE = get_template("fewshot-chat")


async def play(policy=uniform, **options):
    settings = {"model": "hero", "opponent": AgentSpec("script", "random"), "games": 20, "seed": 1, **options}
    return await play_match(Arena(TabularClient(policy)), GameEpisode("kuhn_poker", 2, TEMPLATE), **settings)


async def measure(policy=uniform):
    return await nash_conv(TabularClient(policy), "kuhn_poker", TEMPLATE, model="hero")


def match_of(wins: int, losses: int, **fields) -> MatchResult:
    result = MatchResult(
        **{
            "env_id": "kuhn_poker",
            "num_players": 2,
            "model": "hero",
            "opponent": "random",
            "seed": 0,
            "requested_games": wins + losses,
            **fields,
        }
    )
    for number in range(wins + losses):
        won = number < wins
        result.add(GameRecord(number % 2, 1.0 if won else -1.0, "win" if won else "loss", None, False, 2, 0))
    return result


def printed(table, width=160) -> str:
    lines = StringIO()
    Console(file=lines, width=width).print(table_text(table))
    return lines.getvalue()


def text_of(table) -> str:
    return " ".join(printed(table).split())


async def test_what_is_written_is_read_back_unchanged(tmp_path):
    for result in (await play(), await measure()):
        path = write_evaluation(tmp_path / "evaluation", 20, "random", result)
        assert path == tmp_path / "evaluation" / "step-000020-random.json"
        assert read_evaluation(path) == (20, result)


async def test_rates_are_in_the_file_for_other_readers(tmp_path):
    result = await play()
    values = json.loads(write_evaluation(tmp_path, 3, "random", result).read_text())
    assert values["kind"] == "match"
    assert values["win_rate"] == list(result.win_rate)
    assert values["by_seat"]["1"]["win_rate"] == list(result.by_seat[1].win_rate)


async def test_the_report_reads_written_evaluations(tmp_path):
    match, exact = await play(), await measure()
    write_evaluation(tmp_path, 20, "exact", exact)
    write_evaluation(tmp_path, 10, "random", match)
    files = EvaluationFiles(tmp_path, whole=True)
    files.read()
    (won,) = of_measure(files.figures(), "win rate").values()
    assert {step: figure.interval for step, figure in won.items()} == {10: match.win_rate}
    assert files.exact() == {"kuhn_poker": {20: exact}}


async def test_an_evaluation_replaces_that_of_the_same_name_and_leaves_nothing_else(tmp_path):
    write_evaluation(tmp_path, 1, "random", match_of(1, 1))
    path = write_evaluation(tmp_path, 1, "random", match_of(2, 2))
    assert list(tmp_path.iterdir()) == [path]
    assert read_evaluation(path)[1].wins == 2


def test_names_that_no_file_can_have_are_changed(tmp_path):
    path = write_evaluation(tmp_path, 1, "kuhn_poker(players=3)/Qwen/Qwen3-0.6B", match_of(1, 1))
    assert re.fullmatch(r"step-000001-kuhn_poker-players-3-Qwen-Qwen3-0\.6B-[0-9a-f]{8}\.json", path.name)
    assert path.parent == tmp_path


def test_games_whose_names_differ_in_special_characters_only_have_a_file_each(tmp_path):
    names = ["Maze(size=5)-random", "Maze(size,5)-random", "Maze-size-5--random", "Maze size 5 -random"]
    paths = [write_evaluation(tmp_path, 1, name, match_of(1, 1)) for name in names]
    assert len({*paths}) == len(names)


@pytest.mark.parametrize(
    "content", ["", "[]", "3", '{"kind": "match"}', '{"kind": "match", "step": 1, "by_seat": 3}', "\xff"]
)
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "step-000001-random.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"step-000001-random\.json"):
        read_evaluation(path)
    path.unlink()
    with pytest.raises(InputError, match=r"step-000001-random\.json"):
        read_evaluation(path)


def test_a_matchs_rates_have_intervals():
    text = text_of(results_table([match_of(10, 10)]))
    assert "50.0% 29.9 to 70.1" in text
    assert "failed" not in text
    assert "rounded" not in text


async def test_failures_and_rounding_are_told():
    class FailingClient(TabularClient):
        async def complete(self, messages, *args, **kwargs):
            raise EpisodeError("no [red] power")

    arena = Arena(FailingClient(uniform))
    options = {"model": "hero", "opponent": AgentSpec("model", "villain"), "games": 3, "seed": 1}
    result = await play_match(arena, GameEpisode("kuhn_poker", 2, TEMPLATE), **options)
    text = text_of(results_table([result]))
    assert "4 games failed and did not count: 4 x no [red] power" in text
    assert "The games were rounded up from 3 to 4" in text
    assert "%" not in text.replace("95%", "")


async def test_nash_conv_of_a_policy_that_cannot_be_played_is_marked():
    def babbles(observation):
        moves = legal_moves(observation)
        return {"so": 0.99, **dict.fromkeys(moves, 0.01 / len(moves))}

    exact = await measure(babbles)
    assert not exact.is_playable
    text = text_of(results_table([exact]))
    assert "NashConv 0.9167 cannot be played" in text
    assert "Mass on legal moves 0.0100" in text
    assert "it loses by invalid moves" in text
    assert "cannot be played" not in text_of(results_table([await measure(uniform)]))


async def test_legal_answers_that_are_likely_and_games_that_invalid_moves_end_are_explained():
    invalid, exact = match_of(0, 0), await measure(uniform)
    invalid.add(GameRecord(0, -2.0, "loss", "model", False, 1, 1))
    assert "where a chat template may open a thought" in text_of(results_table([exact, invalid]))
    for results in ([exact], [invalid], [exact, match_of(1, 1)]):
        assert "a thought" not in text_of(results_table(results))


async def test_a_long_id_leaves_room_for_the_figures():
    long = "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))"
    lines = printed(results_table([match_of(5, 15, env_id=long)]), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "25.0% 11.2 to 46.9" in " ".join(next(line for line in lines if "Win" in line).split())
    assert long in "".join(lines)
