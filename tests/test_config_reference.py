"""docs/configuration.md matches the source."""

from pathlib import Path

from configuration_page import config_reference
from sparring.config.fields import config_fields

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == config_reference(), (
        "run: python tests/configuration_page.py > docs/configuration.md"
    )


def test_the_page_has_a_row_or_a_heading_for_every_field():
    lines = config_reference().splitlines()
    rows = {line.split("`")[1] for line in lines if line.startswith("| `")}
    headings = {line.strip("# `[]") for line in lines if line.startswith("## ")}
    for field in config_fields():
        path = ".".join(field.written).replace("*", "NAME")
        in_list = ".".join(part for part in field.written if part != "*")  # as TOML names an entry's table
        assert field.name in rows or {path, in_list, f"{path}.NAME"} & headings


def test_types_bounds_and_defaults_are_given():
    page = config_reference()
    assert "| `rank` | whole number, at least 1, at most 8192 | `16` | Rank of the two factors. |" in page
    assert '| `dtype` | `"auto"`, `"float32"`, `"bfloat16"` | `"auto"` |' in page
    assert "| `id` | text | required |" in page
    assert "| `lag_range` | list of 2 whole numbers | `[1, 7]` |" in page
    assert "| `average_decay` | number, at least 0, less than 1 | `0.0` |" in page
    assert 'Default: `[{type = "same_prompt_baseline"}]`.' in page
