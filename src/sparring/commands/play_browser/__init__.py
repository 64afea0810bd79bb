"""``sparring play --browser``: a person against the model on a page of this machine."""

from sparring.commands.play_browser.games import games_in_browser, program_in_browser

__all__ = ["games_in_browser", "program_in_browser"]
