"""``sparring play --browser`` over real HTTP: the token, the person's moves, what is hidden until the end."""

import asyncio
import re
from contextlib import contextmanager

import pytest

from hostile_text import ACTS_ON_A_TERMINAL, HOSTILE_PIECES
from live_server import TOKEN, Live, running
from program_runs import configure, run
from sparring.cli.main import main
from sparring.commands.persons_games import Dealt, ModelPlayer
from sparring.commands.play_browser import server
from sparring.commands.play_browser.games import play_game_at, play_role_at
from sparring.commands.play_browser.server import MAX_TEXT, PageSession, build_page_app
from sparring.commands.play_browser.table import WAIT_SECONDS, PersonsTable
from sparring.commands.programs import PERSON, ProgramRun
from sparring.core import CallSettings, MockInferenceClient, ModelResponse, SparringError
from sparring.core.reasoning import Reasoning
from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template
from sparring.evaluation.match import Progress
from sparring.evaluation.venues import started

SECRET, WORDS = "I hold the king", "I shall say"


class Thinking(MockInferenceClient):
    """Thinks something secret, then bets."""

    async def complete(self, messages, *asked, **options) -> ModelResponse:
        text = f"{WORDS} \\boxed{{bet}}"
        return ModelResponse(text, [{"role": "assistant", "content": text}], reasoning=Reasoning(SECRET))


def dealing(client=None, *, seat=0, max_turns=200):
    """Return what plays games of this seat, each with other cards."""
    numbers = iter(range(100))

    async def play(table: PersonsTable) -> None:
        game = make_game("kuhn_poker", 2, next(numbers))
        template = get_template("qwen3-zs")
        model = ModelPlayer(client or Thinking(), ["base"] * 2, template, CallSettings(max_tokens=9))
        await play_game_at(table, Dealt(game, seat, model, 1), max_turns)

    return play


@contextmanager
def page_of(play):
    with running(build_page_app(PageSession(play), TOKEN), None) as live:
        yield live


def asked(live: Live) -> dict:
    """Return the state when the person is asked or the game has ended."""
    for _ in range(1000):
        state = live.get("/state", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        if state["asking"] or state["outcome"]:
            return state
    raise AssertionError("the game does not go on")


def test_nothing_but_the_empty_page_is_had_without_the_token():
    with page_of(dealing()) as live:
        page = live.get("/")
        assert page.status_code == 200
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert TOKEN not in page.text
        assert f'maxlength="{MAX_TEXT}"' in page.text, "what is typed is not too long to be taken"
        assert not re.findall(r"(?:src|href)=\"(?!data:)", page.text), "it loads nothing"
        live.post("/new", json={})
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"}):
            assert live.get("/state", headers=headers).status_code == 401
            assert live.get(f"/state?token={TOKEN}", headers=headers).status_code == 401
            for path in ("/new", "/answer", "/docs", "/state/"):
                assert live.post(path, json={"turn": 1, "text": "bet"}, headers=headers).status_code == 401
        assert asked(live)["turn"] == 1, "none of these changed the game"


def test_the_person_plays_and_sees_what_the_model_said_and_thought_only_at_the_end():
    with page_of(dealing(seat=1)) as live:
        live.post("/new", json={})
        state = asked(live)
        assert state["title"] == "kuhn_poker: you have seat 1 of 2"
        assert state["legal"] == ["fold", "call"]
        assert "they bet" in state["heard"]
        before = live.get("/state", headers={"Authorization": f"Bearer {TOKEN}"}).text
        assert SECRET not in before
        assert WORDS not in before
        live.post("/answer", json={"turn": state["turn"], "text": " call "})
        ended = asked(live)
        assert re.match(r"you (won|lost) \(you [+-]2, player 0 [+-]2\)", ended["outcome"])
        model, mine = ended["revealed"]
        assert (model["who"], model["thought"], model["said"]) == (
            "player 0",
            SECRET,
            f"{WORDS} \\boxed{{bet}}",
        )
        assert (mine["who"], mine["action"]) == ("you", "call")
        live.post("/new", json={})
        assert asked(live)["outcome"] == ""


def test_an_illegal_move_is_refused_and_a_late_answer_changes_nothing():
    with page_of(dealing()) as live:
        assert live.post("/answer", json={"turn": 1, "text": "bet"}).status_code == 409
        live.post("/new", json={})
        first = asked(live)
        live.post("/answer", json={"turn": 1, "text": "jump"})
        again = asked(live)
        assert again["problem"] == "jump is not legal; choose one of: check, bet"
        assert (again["turn"], again["heard"], again["mine"]) == (2, first["heard"], [])
        assert live.post("/answer", json={"turn": 1, "text": "bet"}).status_code == 409
        assert live.post("/answer", json={"turn": 2, "text": "x" * (MAX_TEXT + 1)}).status_code == 422
        assert live.post("/answer", json={"turn": 2, "text": ""}).status_code == 422
        assert live.post("/answer", json={"turn": 2, "text": " \n"}).status_code == 422
        assert asked(live)["turn"] == 2
        live.post("/new", json={})
        new = asked(live)
        assert (new["turn"], new["problem"]) == (3, ""), "a new game takes the place of the one in progress"
        assert live.post("/answer", json={"turn": 2, "text": "bet"}).status_code == 409, (
            "it is of the last one"
        )


def test_a_game_ends_at_its_turn_limit():
    with page_of(dealing(max_turns=1)) as live:
        live.post("/new", json={})
        live.post("/answer", json={"turn": asked(live)["turn"], "text": "check"})
        ended = asked(live)
        assert ended["outcome"] == "you drew (you +0, player 1 +0)"
        assert [told["action"] for told in ended["revealed"]] == ["check"]


def test_hostile_text_has_no_control_characters_and_every_game_can_be_left():
    told = "".join(HOSTILE_PIECES)

    async def play(table: PersonsTable) -> None:
        table.title = table.rules = told
        await table.ask(told, [told])
        raise SparringError(told)

    with page_of(play) as live:
        live.post("/new", json={})
        state = asked(live)
        assert len(state["heard"]) == len(told)
        live.post("/answer", json={"turn": 1, "text": "\x1b[2J<script>"})
        ended = asked(live)
        assert ended["outcome"] == "the game was broken off"
        for text in (*state["legal"], state["heard"], state["title"], *ended["mine"], ended["problem"]):
            assert not ACTS_ON_A_TERMINAL.search(text.replace("\t", ""))


@pytest.mark.parametrize(
    ("error", "line"),
    [(SparringError("the engine is gone"), "the engine is gone"), (KeyError("a\nb"), "KeyError: 'a\\nb'")],
    ids=["of the engine", "any other"],
)
def test_a_fault_of_a_game_is_one_line_of_the_page_and_the_next_game_begins(error, line):
    async def play(table: PersonsTable) -> None:
        table.title = "kuhn_poker"
        raise error

    with page_of(play) as live:
        for _ in range(2):
            live.post("/new", json={})
            state = asked(live)
            assert (state["problem"], state["outcome"]) == (line, "the game was broken off")


async def test_of_two_games_begun_at_once_one_is_left_and_the_session_leaves_that():
    playing = []

    async def play(table: PersonsTable) -> None:
        playing.append(table)
        try:
            await table.ask("?")
        finally:
            playing.remove(table)

    session = PageSession(play)
    await session.begin()
    await asyncio.gather(session.begin(), session.begin())
    assert playing == [session.table]
    await session.leave()
    assert playing == []


async def test_a_game_that_takes_a_while_to_start_has_begun():
    session = PageSession(lambda table: asyncio.Event().wait())
    await session.begin()
    assert session.table.to_dict()["title"], "the page waits for a game with a title"
    await session.leave()


async def test_of_two_questions_at_once_the_second_waits_for_the_first():
    table = PersonsTable()
    asking = [asyncio.create_task(table.ask(heard)) for heard in "ab"]
    for turn, heard in enumerate("ab", 1):
        while not table.asking:
            await asyncio.sleep(0)
        assert table.heard == heard
        table.answer(turn, heard.upper())
        await asking[turn - 1]
    assert [one.result() for one in asking] == ["A", "B"]


async def test_a_question_waits_for_an_hour_and_no_longer(monkeypatch):
    monkeypatch.setattr("sparring.commands.play_browser.table.WAIT_SECONDS", 0.0)
    with pytest.raises(SparringError, match="nobody answered for an hour"):
        await PersonsTable().ask("?")


def test_the_command_serves_one_page_whose_address_has_a_new_token(model, monkeypatch, capsys):
    seen = []

    async def serve_no_longer(uvicorn_server, listener) -> None:
        seen.append(listener.getsockname())

    monkeypatch.setattr(server, "serve_until_ended", serve_no_longer)
    monkeypatch.setattr("sparring.commands.persons_games.build_engine", lambda *_: Thinking())
    for _ in range(2):
        assert main(["play", str(model), "--env", "kuhn_poker", "--browser"]) == 0
    said = capsys.readouterr().out
    found = re.findall(r"play at http://127\.0\.0\.1:(\d+)/#([\w-]{32})", said)
    assert [int(port) for port, _ in found] == [port for _, port in seen]
    assert {host for host, _ in seen} == {"127.0.0.1"}
    assert len({token for _, token in found}) == 2


@pytest.mark.slow
def test_a_person_plays_a_role_at_the_page(model, tmp_path):
    settings = {"learning__steps": "1", "collection__game_timeout": "500"}
    run(configure(model, tmp_path, "Measured", **settings), tmp_path / "run")
    program = ProgramRun(str(tmp_path / "run"), {"Hider": PERSON}, 0, Progress())
    assert program.arena.episode_timeout > WAIT_SECONDS, "a person takes longer than a model"
    table = PersonsTable()

    async def play() -> None:
        async with started(program.arena, program.checkpoint):
            playing = asyncio.create_task(play_role_at(table, program, "Hider"))
            while not table.asking:
                await asyncio.sleep(0)
            assert "user: " in table.heard
            table.answer(table.turn, "ace")
            await playing

    asyncio.run(play())
    assert "reward of Hider: " in table.outcome
    assert [told.said for told in table.revealed if told.who == "you"] == ["ace"]
