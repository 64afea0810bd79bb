"""Put the pages of the site below build/site-source: python scripts/site_source.py

They keep their places in the repository, so that their links hold. The list of pages is that of the README; a
page of the API is what a package's ``__all__`` names. build/mkdocs.yml adds this list to mkdocs.yml.
"""

import ast
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site-source"
LINKED = ("AGENTS.md", "CHANGELOG.md", "README.md", "benchmarks", "docs", "llms.txt", "notes")
STYLE = """/* A table's names are whole; it scrolls where that makes it too wide. */
.md-typeset td code { word-break: normal; }
"""
API = """# {package}

::: {package}
    options:
      members: {names}
"""


def main() -> None:
    """Copy the pages, write those of the API, and the settings with the list of all."""
    index = runpy.run_path(str(ROOT / "scripts" / "write-llms"))
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir(parents=True)
    for name in LINKED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, SITE / name)
    (SITE / "extra.css").write_text(STYLE)
    nav: list[Any] = [{"sparring": "README.md"}]
    for name, pages in index["sections"]():
        nav.append({name: [{index["title_of"](page): str(page)} for page in pages]})
    nav.append({"API": [{package: write_api(package, names)} for package, names in packages()]})
    settings = {"INHERIT": "../mkdocs.yml", "docs_dir": "site-source", "site_dir": "site", "nav": nav}
    (ROOT / "build" / "mkdocs.yml").write_text(json.dumps(settings, indent=1))


def packages() -> list[tuple[str, list[str]]]:
    """Return the packages that list what users import, with these names."""
    found = []
    for file in sorted((ROOT / "src" / "sparring").rglob("__init__.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                package = ".".join(file.parent.relative_to(ROOT / "src").parts)
                found.append((package, ast.literal_eval(node.value)))
    return found


def write_api(package: str, names: list[str]) -> str:
    """Write the page of a package; return its place."""
    page = Path("api") / f"{package}.md"
    (SITE / page).parent.mkdir(exist_ok=True)
    (SITE / page).write_text(API.format(package=package, names=json.dumps(names)))
    return str(page)


if __name__ == "__main__":
    main()
