"""The report in a real browser, opened from a disk: every page, picture and control, light and dark, wide and narrow.

The directories are hand-made surveys (`kit`): an ordinary one, one whose every text is hostile, one with 10,000
partitions.  A page must never ask for anything, must leave no error on the console, and axe-core must find nothing
serious in it.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import _shown
from kafkalog.report.page import html_page
from kafkalog.report.pictures import PICTURES
from kafkalog.report.tables import Survey
from kafkalog.toolbox.words import counted, span
from tests.browser import browser, until
from tests.report import kit
from tests.unit.cli_kit import Run, run
from tests.unit.cursor_kit import commit, store_home

__all__ = ["browser", "run"]

pytestmark = pytest.mark.browser

KAFKA_LOGS = Path(__file__).parents[1] / "pages" / "kafka-logs"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PAGES = (
    "#overview",
    "#topic/payments",
    "#partition/payments/1",
    "#transactions",
    "#groups",
    "#groups/billing",
    "#damage",
)
MARKS = ", ".join(f".mark-{kind} path" for kind in ("rect", "symbol", "line", "area"))
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], Survey]], Path]:
    """Writes the report of a survey, once for all tests."""
    folder = tmp_path_factory.mktemp("reports")

    def place(make: Callable[[], Survey]) -> Path:
        path = folder / f"{make.__name__}.html"
        if not path.exists():
            path.write_text(html_page(make()), "utf-8")
        return path

    return place


@pytest.fixture
def opened(browser: Any, places: Callable[[Callable[[], Survey]], Path]) -> Iterator[Open]:
    """Opens a page of a report; at the end there must be no error, no request and no dialog."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(make: Callable[[], Survey] | Path = kit.survey, at: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:,")) else problems.append(asked.url)
        )
        page.on("popup", lambda other: problems.append(f"popup {other.url}"))
        place = make if isinstance(make, Path) else places(make)
        page.goto(f"{place.as_uri()}{at}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def go(page: Any, at: str) -> None:
    page.evaluate("at => { location.hash = at; }", at)
    until(page, "at => shownPage.address === at", at)


def draw(page: Any) -> None:
    page.evaluate("drawAll()")


def reported(run: Run, directory: Path, target: Path) -> Path:
    done = run("report", directory, "--deep", "-o", target)
    assert target.exists(), done.err
    return target


def lines(run: Run, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json").lines]


def table_of(page: Any, title: str) -> Any:
    return page.get_by_role("region", name=title, exact=True).first


def column(page: Any, title: str, name: str) -> list[str]:
    """The shown cells of a column of a table."""
    return page.evaluate(
        """([title, name]) => {
          const table = document.querySelector(`.scroll[aria-label="${title}"] table`);
          const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === name);
          return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);
        }""",
        [title, name],
    )  # type: ignore[no-any-return]


@pytest.mark.parametrize("at", PAGES)
def test_every_picture_is_drawn_and_has_its_table(opened: Open, at: str) -> None:
    page = opened(at=at)
    draw(page)
    assert page.locator("h1").is_visible()
    drawn = page.evaluate(
        """marks => [...document.querySelectorAll('figure')].map((figure) => [
          figure.dataset.picture, figure.querySelectorAll(marks).length,
          figure.closest('.block').querySelectorAll('tbody tr').length,
          figure.querySelector('.canvas').getAttribute('aria-label') ?? '', figure.querySelector('svg').clientWidth,
        ])""",
        MARKS,
    )
    assert drawn
    for name, marks, rows, label, width in drawn:
        assert marks > 0, f"{name} is empty"
        assert rows > 0, f"{name} has no table"
        assert label.startswith(PICTURES[name].title), name
        assert width > 200, name


def test_what_is_unknown_is_said_where_it_matters(opened: Open) -> None:
    def partly() -> Survey:
        found = kit.survey()
        found.deep = False
        found.facts.update(
            sampled=True, transactionsUnknown=2, transactionsReadInPart=3, producersKnownInPart=4, lagsReadInPart=True,
            damagedNotVerified=5, recoveriesUnknown="no room", undecodedBatches=1, keysAreExact=False,
        )  # fmt: skip
        found.tables["partitions"].columns["openTransactions"][0] = None
        for name in ("cleanBytes", "dirtyBytes"):
            found.tables["partitions"].columns[name] = [None] * len(found.tables["partitions"])
        for values in found.tables["transactions"].columns.values():
            values.clear()
        return found

    page = opened(partly)
    for at, notes in {
        "#topic/orders": ["scaled up", "of 1 batch that", "lower bounds"],
        "#partition/orders/0": ["scaled up", "Transactions are unknown", "is not compacted"],
        "#partition/payments/0": ["scaled up", "unknown how far the partition is compacted", "No transactions."],
        "#transactions": ["The transactions of 2 partitions", "Of 3 partitions", "Of 4 partitions"],
        "#groups": ["Only the newest commits"],
        "#damage": ["Too large to be read without `--deep`: 5 partitions", "is unknown: no room"],
    }.items():
        go(page, at)
        text = page.locator("main").inner_text()
        assert [note for note in notes if note not in text] == [], at


def test_all_pictures_are_on_some_page(opened: Open) -> None:
    page = opened()
    seen: set[str] = set()
    for at in PAGES:
        go(page, at)
        seen |= set(page.evaluate("[...document.querySelectorAll('figure')].map((figure) => figure.dataset.picture)"))
    go(page, "#partition/orders/0")  # with retention, without compaction
    seen |= set(page.evaluate("[...document.querySelectorAll('figure')].map((figure) => figure.dataset.picture)"))
    assert seen == set(PICTURES)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Open, viewport: dict[str, int], scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(viewport=viewport, color_scheme=scheme)
    axe = Axe()
    for at in PAGES if viewport is WIDE else PAGES[:3]:
        go(page, at)
        draw(page)
        found = axe.run(page).response["violations"]
        serious = [
            (each["id"], node["html"][:200], node.get("failureSummary", "")[:300])
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert serious == [], at
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{at} is {wide} pixels wider than the window"


def test_a_hostile_directory_runs_nothing(opened: Open) -> None:
    page = opened(kit.hostile)
    page.evaluate("window.hostile = (number) => shownPage.survey.tables.topics.columns.topic[number]")
    for at in ("#overview", "#transactions", "#groups", "#damage"):
        go(page, at)
        draw(page)
    for number in range(len(kit.HOSTILE)):  # a number, because half of a surrogate pair cannot be sent to the page
        for what, more in (("topic", ""), ("partition", ", 0")):
            page.evaluate(f"number => go('{what}', hostile(number){more})", number)
            until(
                page,
                f"number => document.querySelector('h1')?.textContent.endsWith(hostile(number) + '{more and '-0'}')",
                number,
            )
            draw(page)
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, [onerror], [onload]').length") == 0
    page.locator("#search").fill("<img")
    assert page.locator("#hits li").count() > 0
    for mark in page.locator("figure .mark-rect path").all()[:3]:
        mark.hover(force=True)
    page.set_viewport_size(NARROW)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0


def test_words_are_those_of_the_command_line(opened: Open) -> None:
    page = opened()
    sizes = [0, 1, 1023, 1024, 1280, 1536, 1792, 2304, 10**6, 10**9 + 7, 2**40, 2**50, 2**60, -1280, -5000]
    assert page.evaluate("all => all.map(size)", sizes) == [_shown.size(each) for each in sizes]
    spans = [0, 1, 999, 1000, 1250, 1750, 59_999, 60_000, 75_000, 5_400_000, 86_400_000, 10**10, -90_000]
    assert page.evaluate("all => all.map(span)", spans) == [span(each) for each in spans]
    times = [0, 1, kit.NOW, 253_402_300_799_999, 253_402_300_800_000]
    assert page.evaluate("all => all.map(moment)", times) == [_shown.moment(each) for each in times]
    nouns = ["batch", "entry", "row", "index"]
    for number in (0, 1, 2):
        assert page.evaluate("([n, all]) => all.map((noun) => counted(n, noun))", [number, nouns]) == [
            counted(number, noun) for noun in nouns
        ]


def test_a_table_is_sorted_searched_and_paged(opened: Open) -> None:
    page = opened(at="#groups")
    rates = table_of(page, "Lag over time")
    place = page.locator(".table", has=rates).locator(".place")
    assert place.inner_text() == "1–25 of 640 rows"
    page.locator(".table", has=rates).get_by_role("button", name="Next rows").click()
    assert place.inner_text() == "26–50 of 640 rows"
    head = rates.get_by_role("columnheader", name="Lag")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    lags = [int(text.replace(",", "")) for text in column(page, "Lag over time", "Lag")]
    known = kit.survey().tables["lags"].columns["lag"]
    assert lags == sorted(known, reverse=True)[:25]
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    page.get_by_label("Search in Lag over time").fill("clicks")
    assert set(column(page, "Lag over time", "Topic")) == {"clicks"}
    page.get_by_label("Search in Lag over time").fill("nothing has this")
    assert place.inner_text() == "No row has this text."


def test_lags_are_summed_by_group(opened: Open) -> None:
    page = opened(at="#groups")
    lags: dict[str, int] = {}
    for row in kit.survey().tables["groups"].rows():
        lags[row["group"]] = lags.get(row["group"], 0) + (row["lag"] or 0)
    assert len(lags) > 1
    shown = zip(column(page, "Lag by group", "Group"), column(page, "Lag by group", "Lag"), strict=True)
    assert [(group, int(lag.replace(",", ""))) for group, lag in shown] == sorted(
        lags.items(), key=lambda each: -each[1]
    )


def test_csv_has_raw_values(opened: Open) -> None:
    page = opened(at="#groups/billing")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.written = text; }")
    page.get_by_role("button", name="Copy Groups as CSV").click()
    until(page, "window.written !== undefined")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("window.written"))))
    known = [row for row in kit.survey().tables["groups"].rows() if row["group"] == "billing"]
    assert sorted(int(row["lag"]) for row in rows) == sorted(row["lag"] for row in known)
    assert {row["commitTimestamp"] for row in rows} == {_shown.moment(row["commitTimestamp"]) for row in known}
    assert {row["member"] for row in rows} == {""}


def test_csv_has_no_formula(opened: Open) -> None:
    page = opened(at="#overview")
    rows = page.evaluate(
        """() => {
          const texts = ["=cmd|' /C calc'!A0", '+1', '@a', '-a', 'a=1', '\\t=1'];
          const found = texts.map((topic) => ({severity: 'note', topic, partition: -1}));
          const {data} = tableOf(shownPage.survey.tables.odd.kind, found);
          return toCsv(data, data.where(), data.kind.columns.filter(({name}) => ['topic', 'partition'].includes(name)));
        }"""
    )
    assert [row[0] for row in csv.reader(io.StringIO(rows))][1:] == [
        "'=cmd|' /C calc'!A0", "'+1", "'@a", "'-a", "a=1", "'\t=1",
    ]  # fmt: skip
    assert rows.count(",-1") == 6  # a number stays one


def test_the_search_and_the_pictures_lead_to_pages(opened: Open) -> None:
    page = opened()
    page.locator("#search").fill("pay")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('payments')")
    assert page.url.endswith("#topic/payments")
    go(page, "#overview")
    draw(page)
    page.locator("figure[data-picture=topics] .mark-rect path").first.click()
    page.wait_for_selector("h1 small:has-text('Topic')")
    draw(page)
    page.locator("figure[data-picture=skewBytes] .mark-rect path").nth(2).click()
    page.wait_for_selector("h1 small:has-text('Partition')")
    assert page.url.endswith("/2")
    page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link").first.click()
    page.wait_for_selector("h1:has-text('Overview')")


def test_a_mark_tells_its_numbers(opened: Open) -> None:
    page = opened()
    draw(page)
    page.locator("figure[data-picture=topics] .mark-rect path").first.hover()
    page.wait_for_selector("#tip:not([hidden])")
    first = next(iter(kit.survey().tables["topics"].rows()))
    assert first["topic"] in page.locator("#tip").inner_text()
    assert _shown.size(first["size"]) in page.locator("#tip").inner_text()


def test_theme_and_time_zone_are_chosen(opened: Open) -> None:
    page = opened(timezone_id="America/New_York")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate(ground) != light
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(ground) != light
    go(page, "#groups")
    assert column(page, "Groups", "Committed at")[0].endswith("Z")
    page.get_by_label("Times").select_option("local")
    assert column(page, "Groups", "Committed at")[0].endswith("-05:00")
    draw(page)
    assert "Time (local)" in page.locator("figure[data-picture=lagOverTime]").inner_text()


def test_it_prints_light_and_whole(opened: Open, tmp_path: Path) -> None:
    page = opened(at="#groups", color_scheme="dark")
    draw(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#1b1f24"
    assert not page.locator("header").is_visible()
    assert len(column(page, "Lag over time", "Lag")) == 50
    page.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(column(page, "Lag over time", "Lag")) == 25


@pytest.mark.parametrize("at", PAGES)
def test_tables_fit_on_paper_and_no_number_is_broken(opened: Open, at: str) -> None:
    page = opened(at=at, viewport={"width": 703, "height": 1000})  # A4 without its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    wide, broken = page.evaluate(
        """() => [document.documentElement.scrollWidth, [...document.querySelectorAll('td.number:not(.time)')].filter(
          (cell) => cell.offsetHeight && getComputedStyle(cell).whiteSpace !== 'nowrap').length]"""
    )
    assert wide <= 703
    assert broken == 0


def test_ten_thousand_partitions_are_small_and_shown_by_pages(opened: Open, places: Any) -> None:
    assert places(kit.huge).stat().st_size < 5_000_000
    page = opened(kit.huge)
    assert page.locator(".facts dd").nth(1).inner_text() == "10,000"
    assert page.evaluate("document.querySelectorAll('*').length") < 4000
    assert page.locator(".canvas[aria-busy]").count() > 0  # pictures out of view wait


def test_a_part_that_is_missing_is_said(opened: Open) -> None:
    page = opened(at="#topic/unknown")
    assert "has no topic unknown" in page.locator("#page").inner_text()
    go(page, "#partition/orders/77")
    assert "has no partition orders-77" in page.locator("#page").inner_text()


def test_an_empty_directory_is_said_in_words(opened: Open) -> None:
    def empty() -> Survey:
        return Survey(log_dirs=["/var/kafka-logs"], now_ms=kit.NOW)

    page = opened(empty)
    for at, words in (
        ("#overview", "Nothing is odd."),
        ("#transactions", "No open transactions."),
        ("#groups", "No groups."),
        ("#damage", "No damage was found."),
    ):
        go(page, at)
        assert words in page.locator("#page").inner_text()
        assert page.locator("figure").count() == 0


def test_rates_of_a_coarse_and_a_fine_topic_are_joined_exactly(opened: Open) -> None:
    week, hour = 7 * 86_400_000, 3_600_000

    def coarse() -> Survey:
        made = Survey(log_dirs=["/var/kafka-logs"], now_ms=kit.NOW)
        last = kit.NOW // week * week
        for width, topic, records in ((week, "old", 7), (hour, "new", 1)):
            for number in range(3):
                rate = {"records": records, "bytes": 100, "recordsPerHour": 1.0, "bytesPerHour": 1}
                begin = last + (number * hour if width == hour else -number * week)
                made.tables["rates"].add(topic=topic, fromTime=begin, toTime=begin + width, **rate)
        return made

    page = opened(coarse)
    title = "Records and bytes an hour"
    assert sorted(zip(column(page, title, "Topic"), column(page, title, "Records"), strict=True)) == [
        ("new", "3"), ("old", "7"), ("old", "7"), ("old", "7"),
    ]  # fmt: skip


def test_a_report_says_that_records_were_not_read(opened: Open, run: Run, tmp_path: Path) -> None:
    logs = Path(shutil.copytree(KAFKA_LOGS, tmp_path / "kafka-logs"))
    for deep in ((), ("--deep",)):
        target = tmp_path / f"report{len(deep)}.html"
        run("report", logs, *deep, "-o", target)
        page = opened(target, "#damage")
        assert ("Records were not read" in page.locator("#page").inner_text()) is not bool(deep)


def test_the_numbers_are_those_of_the_commands(opened: Open, run: Run, tmp_path: Path) -> None:
    logs = Path(shutil.copytree(KAFKA_LOGS, tmp_path / "kafka-logs"))
    page = opened(reported(run, logs, tmp_path / "report.html"))
    # The log of a cluster's controllers is no partition of a topic's survey.
    described = [row for row in lines(run, "describe", logs) if row["topic"] != "__cluster_metadata"]
    for partition in described:
        go(page, f"#partition/{partition['topic']}/{partition['partition']}")
        known = dict(zip(*(page.locator(f".facts {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
        assert known["End"] == f"{partition['logEndOffset']:,}"
        assert known["Last stable"] == f"{partition['lastStableOffset']:,}"
        assert known["Size"] == _shown.size(partition["size"])
        for title, name, words in (
            ("Base offset", "baseOffset", "{:,}".format),
            ("Size", "size", _shown.size),
            ("Batches", "batches", "{:,}".format),
            ("Records", "records", "{:,}".format),
            ("Newest record", "maxTimestamp", _shown.moment),
        ):
            assert column(page, "Segments", title) == [words(segment[name]) for segment in partition["segments"]]
    go(page, "#groups")
    cursors = [row for row in lines(run, "cursors", logs) if row["kind"] == "cursor"]
    assert sorted(column(page, "Groups", "Lag")) == sorted(f"{row['lag']:,}" for row in cursors)
    assert sorted(column(page, "Groups", "Committed at")) == sorted(row["commitTime"] for row in cursors)
    go(page, "#transactions")
    held = [row for partition in lines(run, "transactions", logs) for row in partition.get("open", [])]
    assert held
    assert column(page, "Transactions", "Records held back") == [f"{row['heldRecords']:,}" for row in held]
    assert column(page, "Transactions", "First") == [f"{row['firstOffset']:,}" for row in held]


def test_hostile_records_of_a_real_directory_run_nothing(opened: Open, run: Run, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        for topic in ("constructor", "__proto__", "orders"):
            made = store.create_topic(topic)
            for text in kit.HOSTILE:
                octets = text.encode("utf-8", "surrogatepass")
                made.append(octets, key=octets, headers=[("<b>", octets)])
    with store_home(tmp_path / "shop") as home:
        for text in kit.HOSTILE[:6]:
            commit(home, text, {kafkalog.TopicPartition("orders", 0): 3})
    page = opened(reported(run, tmp_path / "shop", tmp_path / "report.html"))
    for at in (
        "#overview",
        "#topic/constructor",
        "#topic/__proto__",
        "#topic/orders",
        "#partition/__proto__/0",
        "#groups",
    ):
        go(page, at)
        draw(page)
        assert page.locator("#page .table").count() > 0
    assert set(kit.HOSTILE[:4]) <= set(column(page, "Groups", "Group"))
    go(page, "#topic/orders")
    assert any("alert(1)" in key for key in column(page, "Keys", "Key"))
    assert page.evaluate("document.querySelectorAll('img, iframe, [onerror], [onload]').length") == 0
