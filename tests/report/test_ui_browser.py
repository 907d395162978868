"""The live page in a real browser: its own pages, light and dark, wide and narrow, and what happens while it is open.

The server is the command itself, beside a store that writes.  No page may ask another host, leave an error on the
console, or run anything of a record; axe-core must find nothing serious.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.browser import browser, until
from tests.report import kit

__all__ = ["browser"]

pytestmark = pytest.mark.browser

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LARGE = 12345678901234567890123
PAGES = (
    "#overview",
    "#topic/orders",
    "#partition/orders/0",
    "#records",
    "#records/orders",
    "#records/orders/0/start=1&count=500",
    "#place/orders/0/offset=3",
    "#place/packed/0/offset=20",
    "#place/damaged/0/offset=2",
    "#records/damaged/0/start=1",
)
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("live") / "logs"
    with kafkalog.open(place) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(40):
            value = json.dumps({"id": number, "large": LARGE, "deep": {"items": [1, [2, {"x": None}]]}})
            orders.append(value.encode(), key=b"customer-%d" % (number % 5), partition=number % 2)
        for text in kit.HOSTILE:
            octets = text.encode("utf-8", "surrogatepass")
            name = text.encode("utf-8", "replace").decode()
            orders.append(octets, key=octets, partition=0, headers=[(name, octets)])
            orders.append(json.dumps({name: [text, name]}).encode(), partition=0)
        orders.append(None, key=b"customer-1", partition=0)
        with store.transaction("payments") as done:
            done.append("orders", b"committed", partition=0)
        packed = store.create_topic("packed", config={"compression.type": "zstd"})
        packed.append_many([b"value %d " % number * 9 for number in range(50)])
        damaged = store.create_topic("damaged")
        for number in range(6):
            damaged.append(b"value %d" % number)
    path = place / "damaged-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"value 2")] ^= 0xFF
    path.write_bytes(data)
    return place


@pytest.fixture(scope="module")
def served(logs: Path) -> Iterator[str]:
    with serving(logs) as address:
        yield address


@contextmanager
def serving(logs: Path) -> Iterator[str]:
    line = [sys.executable, "-m", "kafkalog", "ui", str(logs)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a page; at the end there must be no error, no request to another host, and no dialog."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(address: str, at: str = "", **options: Any) -> Any:
        base = address.partition("?")[0]
        context = browser.new_context(**{"viewport": WIDE, "accept_downloads": True, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: problems.append(f"popup {other.url}"))
        page.on("request", lambda asked: None if asked.url.startswith((base, "data:,")) else problems.append(asked.url))
        page.on("console", lambda said: problems.append(said.text) if is_problem(said) else None)
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        if at:
            page.goto(f"{base}{at}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def is_problem(said: Any) -> bool:
    """The browser reports an answer such as 404 or 503 as an error, and a server that is gone; the page has words."""
    return said.type == "error" and not re.match(
        "Failed to load resource: (the server responded with a status|net::ERR_CONNECTION)", said.text
    )


def settled(page: Any) -> None:
    until(page, "document.querySelectorAll('#page [aria-busy=true]:not(.canvas)').length === 0")
    until(page, "!/Reading/.test(document.querySelector('#page').textContent)")


def rows(page: Any) -> Any:
    return page.locator("table.records tbody tr.row")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_fits_and_is_accessible(opened: Open, served: str, window: dict[str, int], scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(served, viewport=window, color_scheme=scheme)
    for at in PAGES:
        page.goto(served.partition("?")[0] + at)
        settled(page)
        if at.startswith("#records/orders"):
            page.locator("button.opener").first.click()
            page.locator("tr.open").wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{at} is {wide} pixels wider than the window"
        found = Axe().run(page).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], at


def test_the_token_leaves_the_address(opened: Open, served: str) -> None:
    page = opened(served)
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""  # HttpOnly


def test_records_run_nothing_and_are_shown_as_they_are(opened: Open, served: str) -> None:
    page = opened(served, "#records/orders/0/start=1&count=500")
    rows(page).first.wait_for()
    openers = page.locator("button.opener")
    for number in range(18, openers.count()):  # the hostile ones are behind the 20 ordinary ones
        openers.nth(number).click()
        for way in page.locator("tr.open .tools button").all():
            way.click()
        openers.nth(number).click()
    page.locator("button.opener", has_text="20").first.click()
    assert "<script>alert(1)</script>" in page.locator("tr.open").inner_text()
    made = "#page script, #page img, #page iframe, #page a[href^='javascript']"
    assert page.locator(made).count() == 0


def test_json_folds_and_keeps_large_numbers(opened: Open, served: str) -> None:
    page = opened(served, "#records/orders/0/start=1")
    page.locator("button.opener").first.click()
    details = page.locator("tr.open")
    assert str(LARGE) in details.inner_text()
    summary = details.locator("summary", has_text="deep")
    is_open = summary.evaluate("each => each.parentElement.open")
    summary.click()
    assert summary.evaluate("each => each.parentElement.open") is not is_open
    details.get_by_role("button", name="Hex", exact=True).first.click()
    assert "7b 22 69 64 22" in details.inner_text()


def test_deep_and_long_json(opened: Open, served: str) -> None:
    page = opened(served, "#records")
    settled(page)
    show = "text => { const t = jsonTree(parseJson(text)); document.body.append(t); return t.innerHTML.length; }"
    assert page.evaluate(show, "[" * 100_000 + "]" * 100_000) < 10_000  # deeper branches open on a click
    assert page.evaluate("parseJson('\"' + 'a'.repeat(8e6) + '\"').text.length") == 8_000_000


def test_the_question_is_in_the_address(opened: Open, served: str) -> None:
    page = opened(served, "#records/orders")
    rows(page).first.wait_for()
    page.locator("summary", has_text="Filters").click()
    page.locator("input[name=key]").fill("customer-3")
    page.locator("select[name=place]").select_option("start")
    page.get_by_role("button", name="Show", exact=True).click()
    until(page, "location.hash.includes('customer-3')")
    settled(page)
    assert rows(page).count() == 8
    page.reload()
    rows(page).first.wait_for()
    assert rows(page).count() == 8
    assert page.locator("input[name=key]").input_value() == "customer-3"


def test_topics_to_choose_from_and_the_offsets_that_there_are(opened: Open, served: str) -> None:
    page = opened(served, "#records")
    page.locator("ul.topics").get_by_role("link", name="packed", exact=True).click()
    rows(page).first.wait_for()
    assert "packed-0 has offsets 0 to 49." in page.locator("#answer").inner_text()
    page.locator("input[name=topic]").fill("orders")
    page.get_by_role("button", name="Show", exact=True).click()
    until(page, "/orders-1 has offsets 0 to 19/.test(document.querySelector('#answer').innerText)")


def test_pages_forwards(opened: Open, served: str) -> None:
    page = opened(served, "#records/orders/0/start=1&count=25")
    rows(page).first.wait_for()
    page.get_by_role("link", name="Next records").click()
    until(page, "document.querySelector('button.opener')?.textContent === '25'")
    page.go_back()
    until(page, "document.querySelector('button.opener')?.textContent === '0'")


def test_a_place_links_bytes_and_fields(opened: Open, served: str) -> None:
    page = opened(served, "#records/packed/0/start=1")
    page.locator("button.opener").nth(20).click()
    page.get_by_role("link", name="Place in the file").click()
    value = page.locator("button.octet[title=value]")
    value.wait_for()
    page.mouse.move(0, 0)
    value.focus()
    row = page.locator("table.fields tr.marked")
    assert "value 20" in row.inner_text()
    page.locator("table.fields tr", has_text="baseTimestamp").hover()
    assert "marked" in page.locator("button.octet[title=baseTimestamp]").get_attribute("class")
    page.get_by_role("link", name="Next record").click()
    until(page, "/at offset 21/.test(document.querySelector('#page').innerText)")


def test_damage_is_shown_and_passed(opened: Open, served: str) -> None:
    page = opened(served, "#records/damaged/0/start=1")
    page.get_by_role("link", name="See the bytes").wait_for()
    assert rows(page).count() == 2
    page.get_by_role("link", name="Continue after the damage").click()
    page.locator("tr.lost").wait_for()
    assert rows(page).count() == 4
    page.locator("tr.lost a").click()
    page.locator("button.octet").first.wait_for()
    assert "wrong" in page.locator(".facts").inner_text()


def test_a_download(opened: Open, served: str, tmp_path: Path) -> None:
    page = opened(served, "#records/orders/0/start=1&key=customer-2")
    rows(page).first.wait_for()
    with page.expect_download() as begun:
        page.get_by_role("button", name="Download JSON lines").click()
    begun.value.save_as(tmp_path / "orders.jsonl")
    found = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    assert {each["key"] for each in found} == {"customer-2"}
    page.locator("text=Downloaded").wait_for()
    assert begun.value.suggested_filename == "orders.jsonl"


def test_new_records_and_a_new_survey(opened: Open, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        orders = store.create_topic("orders", partitions=12)
        for number in range(12):
            orders.append(b"value", partition=number)
        with serving(tmp_path / "logs") as address:
            page = opened(address, "#records/orders")
            rows(page).first.wait_for()
            page.get_by_label("Follow").check()
            orders.append(b"a new record", partition=3)
            page.locator("tr.row", has_text="a new record").wait_for()
            assert rows(page).count() == 13

            page.goto(address.partition("?")[0] + "#topic/orders")
            head = page.locator("section[aria-labelledby=part-partitions] thead button", has_text="Offsets").first
            head.wait_for()
            head.click()
            head.click()
            sorted_by = head.locator("xpath=..").get_attribute("aria-sort")
            search = page.locator("section[aria-labelledby=part-partitions] input[type=search]")
            search.fill("1")
            page.evaluate("scrollTo(0, 200)")
            above = page.evaluate("scrollY")
            for _ in range(3):
                orders.append(b"another one", partition=5)
            page.locator(".facts dd", has_text=re.compile("^16$")).wait_for(timeout=30_000)
            assert head.locator("xpath=..").get_attribute("aria-sort") == sorted_by
            assert search.input_value() == "1"
            assert search.evaluate("each => each === document.activeElement")
            assert page.evaluate("scrollY") == above


def test_a_directory_that_goes_and_comes_back(opened: Open, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append(b"value")
    with serving(tmp_path / "logs") as address:
        page = opened(address)
        page.locator(".facts").wait_for()
        (tmp_path / "logs").rename(tmp_path / "gone")
        page.locator("#live.wrong").wait_for(timeout=30_000)
        assert page.locator(".facts").count() == 1  # the last survey stays
        assert page.locator("#live").inner_text() == f"{tmp_path / 'logs'}: No such file or directory"
        page.reload()  # and a page without one says the same, and draws as usual later
        page.locator("#live.wrong").wait_for()
        assert page.locator("#page").inner_text() == "Overview\n\nThe directories have not been read yet."
        (tmp_path / "gone").rename(tmp_path / "logs")
        page.locator("#live:empty").wait_for(state="attached", timeout=30_000)
        page.locator("figure svg").first.wait_for()
        assert page.evaluate("source.config !== undefined")
