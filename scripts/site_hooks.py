"""What mkdocs changes in a page of the site, as mkdocs.yml says: docstrings have Sphinx's roles, which it
does not know."""

import re


def on_page_content(html: str, **_: object) -> str:
    """Return a page with the names that roles such as ``:class:`` mark, without the roles."""
    html = re.sub(r":(?:attr|class|data|func|meth|mod):(?=<code>)", "", html)
    return re.sub(r"<code>~[\w.]*?(\w+)</code>", r"<code>\1</code>", html)
