"""The documentation is true: examples run, configurations load, commands, links and names exist."""

import ast
import doctest
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import get_args

import pytest
import typer
from rich.console import Console

from doc_pages import DOCS, FENCE, PAGES, ROOT, blocks, save_named_blocks
from sparring import collection
from sparring.cli.main import app, main
from sparring.commands.ladder.cells import games_of, run_cells
from sparring.commands.ladder.file import read_ladder
from sparring.commands.ladder.others import other_cells
from sparring.config import Config, load_config, preset_names
from sparring.config.fields import config_fields
from sparring.core.adapters import ALL_LINEAR
from sparring.envs.templates import TEMPLATES
from sparring.population import SampleMode
from sparring.run.checks import check_config
from sparring.run.single_process import train
from tiny_models import roomy_model
from tournaments import few_resamples  # noqa: F401 - a fixture

PACKAGE = ROOT / "src" / "sparring"
NOTES = sorted((ROOT / "notes").glob("*.md"))
INLINE_CODE = re.compile(r"`([^`\n]+)`")
MAX_LINE_OF_CODE = 110


def prose(page: Path) -> str:
    return FENCE.sub("", re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL))


def inline_code(page: Path) -> list[str]:
    return INLINE_CODE.findall(prose(page))


def table_rows(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this heading, without the two head lines."""
    lines = page.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """Make a tiny model whose context holds a few-shot prompt of bytes."""
    return roomy_model()


@pytest.fixture(scope="session")
def finished_run(model_directory, tmp_path_factory) -> Path:
    """Run two updates with every option that writes files."""
    overrides = {
        "model.name": str(model_directory),
        "model.threads": "1",
        "lora.rank": "2",
        "collection.games_per_step": "8",
        "buffer.log_batches": "true",
        "learning.steps": "2",
        "population.sample_mode": "random",
        "population.add_every": "1",
        "evaluation.games": "4",
        "evaluation.every": "0",
        "evaluation.opponents": '["random"]',
        "run.keep_best": "win rate against random",
    }
    path = tmp_path_factory.mktemp("runs") / "docs"
    train(load_config("quickstart", overrides), path, Console(file=io.StringIO()))
    return path


TRAINING = ("howto-exploitability.md", "howto-leagues.md", "howto-psro.md")
"""Pages whose blocks train for seconds; of the others, howto-runs.md trains by default."""
IN_ORDER = [
    pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in TRAINING else [])
    for page in dict.fromkeys(block.page for block in blocks("python"))
]


@pytest.mark.parametrize("page", IN_ORDER)
def test_python_blocks_run_in_order(page, request, tmp_path, monkeypatch):
    """The blocks of a page are one script. ``model`` is a model directory, ``run`` a finished run."""
    save_named_blocks(page, tmp_path)
    names = {"__name__": "docs"}
    if '"model"' in page.read_text():
        (tmp_path / "model").symlink_to(request.getfixturevalue("model_directory"))
    if page.name in ("run-directory.md", "howto-runs.md"):
        names["run"] = request.getfixturevalue("finished_run")
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        if block.page == page:
            # Empty lines before it make a traceback point to the line of the page.
            tree = ast.parse("\n" * (block.line - 1) + block.text, filename=str(page))
            exec(compile(tree, str(page), "exec"), names)


def test_lines_of_code_are_not_longer_than_in_the_source():
    longest = {str(block): max(map(len, block.text.splitlines())) for block in blocks("python")}
    assert {block for block, width in longest.items() if width > MAX_LINE_OF_CODE} == set()


def make_earlier_adapters(text: str, directory: Path) -> None:
    """Make what ``[start]`` and ``[frozen]`` name: runs with a checkpoint, or directories of adapters."""
    config = tomllib.loads(text)
    lora = {"rank": 16, "alpha": 32, "target_modules": list(ALL_LINEAR)} | config.get("lora", {})
    shape = {"peft_type": "LORA", "r": lora["rank"], "lora_alpha": lora["alpha"]}
    shape["target_modules"] = lora["target_modules"]
    for name in (config.get("start", {}) | config.get("frozen", {})).values():
        place = directory / name
        if "@" in name:
            run, _, step = name.partition("@")
            place = directory / "runs" / run / "checkpoints" / f"step-{int(step):06d}"
        place.mkdir(parents=True)
        (place / "adapter_config.json").write_text(json.dumps(shape))
        (place.parents[1] / "config.toml").touch()


def check_ladder(file, out):
    ladder = read_ladder(file)
    games = games_of(ladder)
    assert [*run_cells(ladder, games, out), *other_cells(ladder, games, out)]


@pytest.mark.parametrize(
    "file", sorted((ROOT / "benchmarks" / "ladders").glob("*.toml")), ids=lambda one: one.stem
)
def test_the_ladders_to_begin_with_can_be_held(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny-player").symlink_to(roomy_model())
    check_ladder(file, tmp_path / "out")
    rows = [row[0].strip("`") for row in table_rows(DOCS / "howto-ladder.md", "ladder")]
    assert file.name in rows


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_blocks_are_valid_configurations(block, tmp_path, monkeypatch):
    """A block without an environment or a program is a part of one; a block with seeds is a ladder."""
    monkeypatch.chdir(tmp_path)
    if re.search(r"^seeds = ", block.text, re.MULTILINE):
        (tmp_path / "ladder.toml").write_text(block.text)
        check_ladder(tmp_path / "ladder.toml", tmp_path / "out")
        return
    make_earlier_adapters(block.text, tmp_path)
    save_named_blocks(block.page, tmp_path)
    whole = "[[envs]]" in block.text or "[program]" in block.text
    text = block.text if whole else f'{block.text}\n[[envs]]\nid = "kuhn_poker"\n'
    (tmp_path / "config.toml").write_text(text)
    config = load_config(str(tmp_path / "config.toml"), {})
    needed = {"vllm": config.inference.engine == "vllm"}
    needed["verifiers"] = config.program is not None and config.program.type == "verifiers"
    if all(importlib.util.find_spec(name) for name, is_needed in needed.items() if is_needed):
        check_config(config)


@pytest.mark.parametrize("block", blocks("console"), ids=str)
def test_commands_in_console_blocks_are_valid(block, tmp_path, monkeypatch, capsys):
    """The output shown below a quick command is compared; ``...`` matches anything."""
    monkeypatch.chdir(tmp_path)
    save_named_blocks(block.page, tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    prompts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert prompts[0] == ""
    for prompt in prompts[1:]:
        command, _, expected = prompt.partition("\n")
        words = shlex.split(command)
        if words[0].startswith("scripts/"):
            check_script(words)
        else:
            assert words[0] == "sparring"
            check_sparring(words[1:], expected, capsys)


def check_script(words: list[str]) -> None:
    assert (ROOT / words[0]).stat().st_mode & 0o100
    for word in words[1:]:
        if word.startswith("tests/"):
            assert (ROOT / word).exists()
    if words[0] == "scripts/train" and words[1:]:
        assert main(["train", *words[1:], "--dry-run"]) == 0


def check_sparring(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "train" and not {"--resume", "--start.default"} & set(words):
        words = [*words, *(["--dry-run"] if "--dry-run" not in words else [])]
    elif words[0] != "envs":
        # The command needs what an earlier one makes, so only its arguments are parsed.
        typer.main.get_command(app).commands[words[0]].make_context(words[0], words[1:])
        return
    capsys.readouterr()
    status = main(words)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    if expected:
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(expected, printed.out, options), printed.out


def test_every_figure_of_the_benchmarks_has_a_command_of_this_commit(capsys):
    text = (DOCS / "benchmarks.md").read_text()
    scripts = re.findall(r"(benchmarks/\w+\.py)([^`\n]*)", text)
    assert len(scripts) > 20
    for script, arguments in scripts:
        source = (ROOT / script).read_text()
        assert [one for one in re.findall(r"--[\w-]+", arguments) if f'"{one}"' not in source] == [], script
    for command, arguments in re.findall(r"^(?:for .* do )?sparring (\w+) ([^;\n]*)", text, re.MULTILINE):
        check_sparring([command, *shlex.split(arguments.replace("$seed", "0"))], "", capsys)


def test_the_index_for_programs_has_every_page(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "write-llms", tmp_path / "llms.txt"], check=True)
    index = (ROOT / "llms.txt").read_text()
    assert index == (tmp_path / "llms.txt").read_text(), "run scripts/write-llms"
    linked = set(re.findall(r"^- \[.+?\]\(docs/([^)]+)\)", index, re.MULTILINE))
    assert linked == {page.name for page in DOCS.glob("*.md")}


def slug(heading: str) -> str:
    """Return GitHub's anchor for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links_of(page: Path) -> list[str]:
    """Return the targets of the links to other pages and to headings."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not target.startswith("https://")]


def fields_in(page: Path) -> list[str]:
    """Return the dotted names that begin with a section of the configuration."""
    names = [re.match(r"(\w+)\.\w[\w.]*", code) for code in inline_code(page)]
    return [name[0] for name in names if name and name[1] in Config.model_fields]


def modules_in(page: Path) -> list[str]:
    """Return the dotted names of the package's modules and of their contents."""
    return [code for code in inline_code(page) if re.fullmatch(r"sparring(\.\w+)+", code)]


def files_in(page: Path) -> list[str]:
    """Return the paths of programs and scripts, relative to the root or to the package."""
    file = r"(src|tests|scripts|benchmarks|\.ci|\w+)(/[\w.-]+)*/([\w-]+\.py|run|test|train)"
    return [code for code in inline_code(page) if re.fullmatch(file, code)]


@pytest.mark.parametrize("found_in", [links_of, fields_in, modules_in, files_in])
def test_the_search_patterns_find_something_in_the_text(found_in):
    assert sum(len(found_in(page)) for page in PAGES) >= 10


def is_broken(page: Path, target: str) -> bool:
    """Return whether the file or the heading of a link does not exist."""
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    if not path.exists():
        return True
    return bool(anchor) and anchor not in map(slug, re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE))


def test_links_have_targets():
    links = [(page, target) for page in [*PAGES, *NOTES] for target in links_of(page)]
    assert [(page.name, target) for page, target in links if is_broken(page, target)] == []


def test_links_lead_to_what_the_site_has():
    copied = runpy.run_path(str(ROOT / "scripts" / "site_source.py"))["LINKED"]
    links = [(page, target.partition("#")[0]) for page in [*PAGES, *NOTES] for target in links_of(page)]
    places = {(page.name, (page.parent / target).resolve()) for page, target in links if target}
    assert [one for one in places if one[1].relative_to(ROOT).parts[0] not in copied] == []


def test_configuration_fields_in_the_text_exist():
    known = {".".join(field.written) for field in config_fields()}
    assert [(page.name, name) for page in PAGES for name in fields_in(page) if name not in known] == []


def test_modules_and_classes_in_the_text_exist():
    for code in (code for page in PAGES for code in modules_in(page)):
        parent, _, name = code.rpartition(".")
        owner = importlib.import_module(parent)
        assert hasattr(owner, name) or importlib.import_module(code), code


def test_files_in_the_text_exist():
    named = [(page.name, code) for page in PAGES for code in files_in(page)]
    assert [pair for pair in named if not any((root / pair[1]).exists() for root in (ROOT, PACKAGE))] == []


def test_the_packages_are_those_of_the_source():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert {row[0].strip("`") for row in table_rows(ROOT / "AGENTS.md", "package")} == packages


def test_the_readme_has_every_command_and_every_preset():
    page = ROOT / "README.md"
    named = {code.split()[1] for code in inline_code(page) if code.startswith("sparring ")}
    assert named == {command.name for command in app.registered_commands}
    assert {one for one in preset_names() if "/" not in one} <= set(inline_code(page))


def test_the_page_about_papers_has_each_of_their_presets():
    listed = {row[0].strip("`") for row in table_rows(DOCS / "papers.md", "preset")}
    of_papers = {one for one in preset_names() if one.startswith("papers/")}
    assert of_papers == {one + size for one in listed for size in ("", "-small")}


def test_every_dependency_is_documented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = DOCS / "dependencies.md"
    assert [row[0] for row in table_rows(page, "package")] == list(map(package_name, project["dependencies"]))
    extras = project["optional-dependencies"]
    wanted = {(extra, package_name(spec)) for extra, specs in extras.items() for spec in specs}
    rows = table_rows(page, "extra")
    assert {(row[0].strip("`"), row[1]) for row in rows} == wanted
    assert all(row[-1] for row in rows + table_rows(page, "package"))


def package_name(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0]


def test_the_tables_of_names_are_complete():
    modes = {row[0].strip("`") for row in table_rows(DOCS / "howto-opponents.md", "mode")}
    assert modes == set(get_args(SampleMode))
    templates = INLINE_CODE.findall(" ".join(r[0] for r in table_rows(DOCS / "howto-templates.md", "name")))
    assert sorted(templates) == sorted(TEMPLATES)
    families = [row[1] for row in table_rows(DOCS / "concepts.md", "family")]
    built_in = {name for name in collection.__all__ if is_built_in_transform(name)}
    assert set(INLINE_CODE.findall(" ".join(families))) == built_in


def is_built_in_transform(name: str) -> bool:
    bases = (
        collection.FinalRewardTransform,
        collection.StepRewardTransform,
        collection.SamplingRewardTransform,
    )
    cls = getattr(collection, name)
    return (
        isinstance(cls, type)
        and issubclass(cls, bases)
        and cls not in bases
        and not name.startswith("Compose")
    )


def test_the_page_on_run_directories_names_every_file_of_a_run(finished_run):
    page = (DOCS / "run-directory.md").read_text()
    layout = FENCE.search(page)[2]
    for path in finished_run.rglob("*"):
        name = re.sub(r"\d+", "N", path.name).split("-kuhn")[0]
        assert name in re.sub(r"\d+", "N", layout), f"{path.relative_to(finished_run)} is not described"


def test_the_picture_of_the_packages_is_what_the_source_gives(tmp_path):
    drawn = tmp_path / "packages.svg"
    subprocess.run([sys.executable, ROOT / "scripts" / "draw-packages", drawn], check=True)
    assert (DOCS / "packages.svg").read_text() == drawn.read_text(), "run scripts/draw-packages"
    boxes = {node.text for node in ElementTree.parse(drawn).iter() if node.attrib.get("class") == "name"}
    assert boxes == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


def test_pictures_are_well_formed_and_the_loop_names_its_parts():
    pictures = {path.name: ElementTree.parse(path).getroot() for path in DOCS.glob("*.svg")}
    texts = {element.text for element in pictures["loop.svg"].iter("{http://www.w3.org/2000/svg}text")}
    assert {"model pool", "collector", "episodes", "inference", "replay buffer", "learner"} <= texts
