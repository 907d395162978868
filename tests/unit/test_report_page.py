"""The report's file without a browser: what it contains, its policy, its data, its pictures, and the command."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, USAGE
from kafkalog.report.page import html_page, page_data, page_script
from kafkalog.report.pictures import PICTURES
from kafkalog.report.survey import survey
from kafkalog.report.tables import KINDS, Survey
from kafkalog.report.vega import config
from tests.report import kit
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import tiered

__all__ = ["run"]

vl_convert = pytest.importorskip("vl_convert")


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def block(text: str, name: str) -> str:
    found = re.search(f'id="{name}">([^<]*)</script>', text)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def plain(column: Any) -> list[Any]:
    """Undoes the encodings of columns, as source.js does."""
    if isinstance(column, list):
        return column
    if "same" in column:
        return [column["same"]] * column["count"]
    if "steps" in column:
        total = 0
        return [total := total + step for step in column["steps"]]
    return [column["words"][place] for place in column["at"]]


def test_the_policy_permits_two_scripts_and_no_request() -> None:
    text = html_page(kit.hostile())
    page = Parsed(text)
    (policy,) = [each["content"] or "" for each in page.attributes("meta") if each.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    code = [script for script in page.scripts if script.startswith("'use strict'")] + [block(text, "vega")]
    assert rules["script-src"].split() == [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in code
    ]
    assert "connect-src" not in rules
    assert rules["img-src"] == "data:"
    asked = [each.get("src") or each.get("href") for _, each in page.found if "src" in each or "href" in each]
    assert [address for address in asked if address and not address.startswith(("#", "data:"))] == []


def test_no_text_of_a_survey_becomes_markup() -> None:
    hostile, ordinary = (Parsed(html_page(make())) for make in (kit.hostile, kit.survey))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in ordinary.found]
    assert hostile.attributes("meta") == ordinary.attributes("meta")
    assert len(hostile.attributes("script")) == 3


def expected(value: Any) -> Any:
    if isinstance(value, float):
        return pytest.approx(value)
    return str(value) if isinstance(value, int) and value > 2**53 else value


@pytest.mark.parametrize("make", [kit.survey, kit.hostile, kit.huge])
def test_the_data_is_whole(make: Any) -> None:
    made = make()
    data = json.loads(block(html_page(made), "survey"))
    for name, table in made.tables.items():
        for column, values in table.columns.items():
            found = plain(data["tables"][name][column])
            assert found == [expected(value) for value in values]


def test_numbers_that_a_browser_cannot_keep() -> None:
    made = Survey(log_dirs=["/var/kafka-logs"], now_ms=kit.NOW)
    for offset in (2**53 - 1, 2**53, 2**63 - 1, 1, 2):
        made.tables["gaps"].add(topic="orders", partition=0, firstOffset=offset, why="compaction")
    made.tables["rates"].add(topic="orders", recordsPerHour=float("nan"))
    found = page_data(made)["tables"]
    assert plain(found["gaps"]["firstOffset"]) == [2**53 - 1, str(2**53), str(2**63 - 1), 1, 2]
    assert plain(found["rates"]["recordsPerHour"]) == [None]
    json.dumps(found, allow_nan=False)


def test_ten_thousand_partitions_fit_in_five_megabytes() -> None:
    made = kit.huge()
    assert len(made.tables["partitions"]) == 10_000
    assert len(html_page(made).encode()) < 5_000_000


def test_the_script_makes_no_html_of_text() -> None:
    script = page_script()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"):
        assert way not in script
    assert script.count("'use strict';") == 1
    assert script.startswith("'use strict';")


def test_more_scripts_come_before_the_start() -> None:
    script = page_script(["registerPage('records', {});"])
    assert script.index("registerPage('records'") < script.index("async function start()")


def fields(value: Any) -> set[str]:
    """The names of fields in a specification, without those that its transforms compute."""
    if isinstance(value, list):
        return set().union(*map(fields, value))
    if not isinstance(value, dict):
        return set()
    found = {value["field"]} if isinstance(value.get("field"), str) else set()
    return found.union(*map(fields, value.values()))


def computed(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(computed, value))
    if not isinstance(value, dict):
        return set()
    names = value.get("as", [])
    found = {names} if isinstance(names, str) else set(names)
    return found.union(*map(computed, value.values()))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_names_columns_of_its_table(name: str) -> None:
    picture = PICTURES[name]
    columns = {column.name for column in KINDS[picture.table].columns}
    assert picture.name == name
    assert picture.spec["data"] == {"name": picture.table}
    assert fields(picture.spec) <= columns | computed(picture.spec)
    assert set(re.findall(r"datum\.(\w+)", json.dumps(picture.spec))) <= columns | computed(picture.spec) | {"value"}
    assert set(picture.needs) <= columns
    assert picture.about.endswith(".")


@pytest.mark.parametrize(("name", "theme"), [*((name, "light") for name in PICTURES), ("topics", "dark")])
def test_a_picture_is_an_svg_without_a_browser(name: str, theme: str) -> None:
    altair = pytest.importorskip("altair")
    picture = PICTURES[name]
    altair.Chart.from_dict(picture.spec)  # validates it
    rows = [
        row for row in kit.survey().tables[picture.table].rows()
        if all(row[column] not in (None, -1) for column in picture.needs)
    ]  # fmt: skip
    spec = {**picture.spec, "datasets": {picture.table: rows}, "width": 600}
    svg = vl_convert.vegalite_to_svg(spec, config=config(theme))
    marks = re.findall(r'<path aria-label|class="mark-(?:rect|symbol|line|area)[^>]*>\s*<(?:path|g)', svg)
    assert rows
    assert marks, svg[:500]


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("orders", partitions=2).append_many([b"tea", b"coffee"] * 50)
        store.create_topic("prices").append(b"4.20", key=b"tea")
    return tmp_path / "shop"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_it_writes_one_file_and_changes_nothing(run: Run, shop: Path, tmp_path: Path) -> None:
    before = contents(shop)
    target = tmp_path / "report.html"
    done = run("report", shop, "-o", target)
    assert (done.code, done.err) == (CLEAN, "")
    assert done.out.startswith(f"{target}: 2 topics, 3 partitions")
    assert contents(shop) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "shop"]
    data = json.loads(block(target.read_text("utf-8"), "survey"))
    assert plain(data["tables"]["topics"]["topic"]) == ["orders", "prices"]
    assert data["logDirs"] == [str(shop)]


def test_it_asks_before_it_replaces(run: Run, shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("kept")
    done = run("report", shop, "-o", target)
    assert done.code == USAGE
    assert "--force" in done.err
    assert target.read_text() == "kept"
    assert run("report", shop, "-o", target, "--force").code == CLEAN
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("place", ["report.html", "orders-0/report.html"])
def test_it_writes_nothing_into_a_log_directory(run: Run, shop: Path, place: str) -> None:
    before = contents(shop)
    done = run("report", shop, "-o", shop / place)
    assert done.code == USAGE
    assert "log directory" in done.err
    assert contents(shop) == before


def test_a_missing_folder_is_said_before_the_reading(run: Run, shop: Path, tmp_path: Path) -> None:
    done = run("report", shop, "-o", tmp_path / "none" / "report.html")
    assert done.code == USAGE
    assert "found no directory" in done.err


def test_a_full_disk_leaves_no_half_file(run: Run, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(survey: Survey, *, version: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kafkalog.report.page.html_page", full)
    assert run("report", shop, "-o", tmp_path / "report.html").code != CLEAN
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_json_has_the_rows_of_the_tables(run: Run, shop: Path) -> None:
    done = run("report", shop, "orders", "--json")
    assert done.code == CLEAN
    rows = [json.loads(line) for line in done.lines]
    assert rows[0]["kind"] == "facts"
    assert rows[0]["logDirs"] == [str(shop)]
    made = survey([str(shop)], ["orders"])
    for name, table in made.tables.items():
        found = [{key: value for key, value in row.items() if key != "kind"} for row in rows if row["kind"] == name]
        assert len(found) == len(table)
    partitions = [row for row in rows if row["kind"] == "partitions"]
    assert [(row["topic"], row["partition"]) for row in partitions] == [("orders", 0), ("orders", 1)]
    assert sum(row["records"] for row in partitions) == 100
    assert {row["name"] for row in rows if row["kind"] == "kinds"} == set(made.tables["kinds"].columns["kind"])


def test_json_and_a_file_are_not_wanted_together(run: Run, shop: Path, tmp_path: Path) -> None:
    done = run("report", shop, "--json", "-o", tmp_path / "report.html")
    assert done.code == USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_an_unknown_name_is_said(run: Run, shop: Path, tmp_path: Path) -> None:
    assert run("report", shop, "ordres", "-o", tmp_path / "report.html").code == USAGE
    assert not (tmp_path / "report.html").exists()


def test_a_tier_is_reported_like_a_directory(run: Run, tmp_path: Path) -> None:
    copied = tiered(tmp_path / "store", tmp_path / "tier")
    done = run("report", tmp_path / "tier", "--json")
    assert done.code == CLEAN, done.err
    assert sum(json.loads(line)["kind"] == "segments" for line in done.lines) == copied
    target = tmp_path / "report.html"
    assert run("report", tmp_path / "tier", "-o", target).code == CLEAN
    assert plain(json.loads(block(target.read_text("utf-8"), "survey"))["tables"]["topics"]["topic"]) == ["orders"]
    both = run("report", tmp_path / "store", "--remote", tmp_path / "tier", "--json")
    assert both.code == CLEAN, both.err
    assert sum(json.loads(line)["kind"] == "segments" for line in both.lines) >= copied
