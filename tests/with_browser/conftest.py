"""These tests need the environment of scripts/test-browser. Elsewhere, nothing is collected."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for what is made for tests

if find_spec("playwright") is None or "CHROMIUM" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

WIDTHS = (360, 1200)


@pytest.fixture(scope="session")
def chromium():
    """A Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, as whom containers run.
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS, ids=str)
def looking(chromium, request):
    """Open an address as a phone or a desk does, where all that is asked for is of the page's own server.

    When the body ends, the page has written nothing to the console, loaded nothing, and is not too wide.
    """

    @contextmanager
    def look(address: str) -> Iterator:
        said, asked = [], []
        page = chromium.new_page(viewport={"width": request.param, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda one: asked.append(one.url))
        page.goto(address)
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= request.param
        page.close()
        assert said == []
        own = address.partition("#")[0]
        assert all(one.startswith((own, "data:")) for one in asked), asked

    return look
