"""The documents say what is there: every column of a trace with its type, every field of a record, every command."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from mkviz.plugins import COMMANDS, plugins
from mkviz.record import RECORD
from mkviz.trace.schema import TABLES

ROOT = Path(__file__).parents[1]
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    lines = FORMATS[FORMATS.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    stop = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:stop]]


def word(kind: pa.DataType) -> str:
    return "string" if pa.types.is_dictionary(kind) else f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)


def documented_columns() -> dict[str, dict[str, str]]:
    tables, name = {}, ""
    for table, columns, types, _ in rows_after("### Tables"):
        name = table.strip("`") or name
        names, kinds = re.findall(r"`(\w+)`", columns), types.split(", ")
        if kinds[0].startswith("list of "):
            kinds = [kinds[0], *(f"list of {kind}" for kind in kinds[1:])]
        kinds = kinds * len(names) if len(kinds) == 1 else kinds
        tables.setdefault(name, {}).update(zip(names, kinds, strict=True))
    return tables


def test_every_column_of_every_table_is_described_with_its_type():
    assert documented_columns() == {name: {f.name: word(f.type) for f in schema} for name, schema in TABLES.items()}


def test_every_field_of_the_record_is_described_at_its_offset():
    described = [(int(offset), field.strip("`"), kind) for offset, field, kind, _ in rows_after("## Record")]
    assert described == [(RECORD.fields[name][1], name, "u32") for name in RECORD.names]


@pytest.mark.parametrize("command", plugins(COMMANDS))
def test_every_command_is_described(command):
    assert f"`mkviz {command} " in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "document", ["README.md", *(f"docs/{n}.md" for n in ("analyses", "cli", "formats", "why-is-this-step-slow"))]
)
def test_what_a_document_links_to_is_there(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("document", sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*.md")))
def test_a_name_that_a_document_places_in_a_file_is_made_there(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for name, file in re.findall(r"`(\w+)`\s+of\s+\[?`([\w/]+\.py)`", text):
        assert re.search(rf"^( *def |class )?{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{name} of {file}"
