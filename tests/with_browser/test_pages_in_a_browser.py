"""Reports, games side by side and the page to play, in Chromium on a phone's and a desk's width."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from transformers import AutoTokenizer

from hostile_text import HOSTILE_PIECES
from live_server import TOKEN, running
from report_pages import write_run
from report_programs import write_log
from sparring.commands.persons_games import Dealt, ModelPlayer
from sparring.commands.play_browser.games import play_game_at
from sparring.commands.play_browser.server import PageSession, build_page_app
from sparring.commands.play_browser.table import PersonsTable
from sparring.commands.side_by_side import side_by_side, side_by_side_html
from sparring.core import CallSettings, MockInferenceClient, ModelResponse, Rollout, Step
from sparring.core.reasoning import Reasoning
from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template
from sparring.evaluation.match import Progress
from sparring.view.report.page import build_report
from tiny_models import roomy_model

HOSTILE = "".join(HOSTILE_PIECES).encode("utf-8", "replace").decode()
THOUGHT = "<think>I count</think>"


def hostile_report(directory):
    """Write a report of two conversations by token, one of which is hostile and thinks."""
    tokenizer = AutoTokenizer.from_pretrained(roomy_model())
    rollouts = []
    for said, thought, reward in ((HOSTILE, THOUGHT, 1.0), ("plain words", "", -1.0)):
        ids = tokenizer(thought + said, add_special_tokens=False).input_ids[:900]
        written = tokenizer.decode(ids, skip_special_tokens=False)
        message = {"role": "assistant", "content": written.removeprefix(thought), "written": written}
        logprobs = [-float(place % 7) for place in range(len(ids))]
        step = Step(
            "Solver", [{"role": "user", "content": said}], [message], [1], ids, logprobs, reward, reward
        )
        if thought:
            message["reasoning"] = thought
            step.info["reasoning"] = {"tokens": len(tokenizer(thought).input_ids), "ended": True}
        rollouts.append(
            Rollout(
                episode_type="talk", artifact=said, steps=[step], rewards={"Solver": reward}, id=str(reward)
            )
        )
    write_log(directory, 1, rollouts)
    config = directory / "config.toml"
    config.write_text(config.read_text().replace("smollm2-135m", str(roomy_model())))
    return build_report(directory)


def test_a_report_shows_tokens_by_colour_and_filters_whatever_was_written(looking, tmp_path):
    with looking(hostile_report(tmp_path).as_uri()) as page:
        games = page.locator("details.game")
        assert page.locator(".by-token span").count() == 0
        page.select_option("select[name=colours]", "logprob")
        tokens = games.nth(0).locator(".by-token span")
        assert tokens.count() > 100
        colours = {tokens.nth(place).evaluate("one => one.style.background") for place in range(7)}
        assert len(colours) == 7
        fold = games.nth(0).locator(".by-token details")
        assert "Thought (" in fold.inner_text()
        fold.locator("summary").click()
        assert (
            fold.evaluate("one => [...one.querySelectorAll('span')].map((s) => s.textContent).join('')")
            == THOUGHT
        )
        fold.locator("span").nth(3).click()
        assert page.inner_text(".figures-of-token") == (
            'token 4: "i", log-prob -3 (4.98%), advantage of the answer 1.00, thought'
        )
        page.select_option("select[name=colours]", "advantage")
        assert page.inner_text(".scale").split() == ["-1.0", "+1.0"]
        page.select_option("select[name=colours]", "")
        assert page.locator(".as-text").first.is_visible()
        for name, value, left in (
            ("reward-from", "0", [0]),
            ("length-to", "20", [1]),
            ("length-from", "20", [0]),
        ):
            page.fill(f"[name={name}]", value)
            assert [place for place in range(2) if games.nth(place).is_visible()] == left
            page.fill(f"[name={name}]", "")
        page.fill("input[type=search]", "plain")
        assert page.inner_text(".shown") == "1 of 2"


def test_a_report_of_games_is_filtered_by_seat_and_outcome(looking, tmp_path):
    with looking(build_report(write_run(tmp_path / "run", games_per_step=6)).as_uri()) as page:
        cut = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
        assert page.evaluate(f"{cut}.length") == 0
        section = page.locator("section", has=page.locator("select[name=outcome]")).last
        section.locator("select[name=seat]").select_option(label="seat 0")
        section.locator("select[name=outcome]").select_option("win")
        for game in section.locator("details.game:not([hidden]) > summary").all():
            assert "seat 0 +" in game.inner_text().replace("\n", " ")
        assert " of " in section.locator(".shown").inner_text()


def test_games_side_by_side_open_together(looking, tmp_path):
    members = ["random", "optimal", str(roomy_model())]
    with ThreadPoolExecutor(1) as thread:  # Playwright has the event loop of this one
        found = thread.submit(side_by_side, members, "kuhn_poker", 2, 0, Progress()).result()
    (tmp_path / "beside.html").write_text(side_by_side_html(found))
    with looking((tmp_path / "beside.html").as_uri()) as page:
        second = page.locator(".beside").nth(1)
        assert second.locator("details.game[open]").count() == 0
        second.locator("summary").nth(1).click()
        page.wait_for_function(
            "document.querySelectorAll('.beside')[1].querySelectorAll('.game[open]').length == 3"
        )
        tops = {second.locator("details.game").nth(place).bounding_box()["y"] for place in range(3)}
        assert len(tops) == (3 if page.viewport_size["width"] < 700 else 2)


class Hostile(MockInferenceClient):
    """Says hostile things, and bets."""

    async def complete(self, *asked, **options) -> ModelResponse:
        await asyncio.sleep(0)
        text = f"{HOSTILE} \\boxed{{bet}}"
        return ModelResponse(text, [{"role": "assistant", "content": text}], reasoning=Reasoning(HOSTILE))


async def play(table: PersonsTable) -> None:
    template, calls = get_template("qwen3-zs"), CallSettings(max_tokens=9)
    model = ModelPlayer(Hostile(), ["base"] * 2, template, calls)
    await play_game_at(table, Dealt(make_game("kuhn_poker", 2, 3), 1, model, 1), 9)
    table.problem = HOSTILE


def test_a_person_plays_a_game_against_hostile_text_and_sees_thoughts_at_the_end(looking):
    with (
        running(build_page_app(PageSession(play), TOKEN), None) as live,
        looking(f"{live.url}/#{TOKEN}") as page,
    ):
        page.click("text=New game")
        page.wait_for_selector("#legal button")
        assert page.locator("#legal button").all_inner_texts() == ["fold", "call"]
        assert "they bet" in page.inner_text("#heard")
        assert "onerror" not in page.inner_text("main")
        page.fill("textarea", "nothing legal")
        page.click("text=Send")
        page.wait_for_selector("text=nothing legal is not legal")
        page.click("#legal button >> text=call")
        page.wait_for_selector("#end:not([hidden])")
        assert "<img src=x onerror=alert(1)>" in page.inner_text("#revealed")
        assert page.locator("#revealed img").count() == 0
        page.click("#revealed summary")
        assert page.locator("#revealed details .text").is_visible()
        page.click("text=New game")
        page.wait_for_selector("#legal button")


def test_without_its_token_the_page_says_what_to_open(chromium):
    with running(build_page_app(PageSession(play), TOKEN), None) as live:
        page = chromium.new_page()
        page.goto(live.url)
        page.wait_for_selector("text=no valid token")
        page.close()
