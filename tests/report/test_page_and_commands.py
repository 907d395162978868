"""The numbers in a report's page are those that the commands print as JSON, for directories that a real broker wrote.

A broker closed the first directory.  The others are copies of it as a kill leaves it, with a torn end, and with a
flipped byte.  The last is that of a broker which is running, and then killed in a transaction.  The page is read as a
user reads it: each table is copied as CSV in Chromium.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafkalog.report.survey import survey
from kafkalog.report.tables import Survey
from tests.broker import clients, kraft
from tests.browser import browser, until
from tests.report.test_report_browser import Open, go, opened, places
from tests.unit.cli_kit import Run, run

__all__ = ["browser", "opened", "places", "run"]

pytestmark = pytest.mark.browser

RECORDED = Path(__file__).parents[1] / "pages" / "kafka-logs"
Row = Mapping[str, Any]


def closed(place: Path) -> Path:
    return Path(shutil.copytree(RECORDED, place / "closed"))


def killed(place: Path) -> Path:
    """As a kill leaves it: no sign of a clean end, and recovery points before the last segments."""
    root = Path(shutil.copytree(RECORDED, place / "killed"))
    (root / ".kafka_cleanshutdown").unlink()
    (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    return root


def torn(place: Path) -> Path:
    root = killed(place).rename(place / "torn")
    log = max((root / "payments-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-9])
    return root


def flipped(place: Path) -> Path:
    root = Path(shutil.copytree(RECORDED, place / "flipped"))
    log = min((root / "payments-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x10
    log.write_bytes(data)
    return root


def copied(page: Any, title: str) -> list[dict[str, str]]:
    """The rows of a table, as its button copies them."""
    page.evaluate(
        """() => {
          window.written = undefined;
          navigator.clipboard.writeText = async (text) => { window.written = text; };
        }"""
    )
    page.get_by_role("button", name=f"Copy {title} as CSV").first.click()
    until(page, "window.written !== undefined")
    return list(csv.DictReader(io.StringIO(page.evaluate("window.written"))))


def chosen(rows: Iterable[Row], names: Iterable[str]) -> list[dict[str, str]]:
    """Rows with some columns, as CSV writes them, in an order that does not depend on the table's."""
    found = [{name: "" if row[name] is None else str(row[name]) for name in names} for row in rows]
    return sorted(found, key=lambda row: list(row.values()))


class Said:
    """Runs commands with --json on a directory."""

    def __init__(self, run: Run, root: Path) -> None:
        self._run, self._root = run, root

    def rows(self, command: str, *options: str, kind: str) -> list[dict[str, Any]]:
        lines = self._run(command, self._root, *options, "--json").lines
        return [row for row in map(json.loads, lines) if row["kind"] == kind]


def judge(page: Any, said: Said, *, deep: bool, files: bool = True) -> None:
    """Compares page by page.  `files` compares the sizes of all files too, which a running broker may change."""
    partitions = said.rows("describe", kind="partition")
    assert partitions
    if files:
        usage = said.rows("du", kind="topic")
        sums = ["files", "allocated"]
        topics = {row["topic"]: row for row in copied(page, "Topics") if row["topic"]}
        shown = [{"name": topic, **{name: topics[topic][name] for name in sums}} for topic in topics]
        assert chosen(shown, ["name", *sums]) == chosen(
            [row for row in usage if row["name"] in topics], ["name", *sums]
        )
        kinds = ["files", "size", "allocated"]
        assert chosen(copied(page, "Kinds of files"), kinds) == chosen(said.rows("du", kind="fileKind"), kinds)
    for topic in {row["topic"] for row in partitions}:
        go(page, f"#topic/{topic}")
        places = ["partition", "logStartOffset", "lastStableOffset", "logEndOffset", "size"]
        known = [row for row in partitions if row["topic"] == topic]
        assert chosen(copied(page, "Partitions"), places) == chosen(known, places)
        for partition in known:
            go(page, f"#partition/{topic}/{partition['partition']}")
            if partition["segments"]:
                sizes = ["baseOffset", "size", "batches", "records"]
                assert chosen(copied(page, "Segments"), sizes) == chosen(partition["segments"], sizes)
    go(page, "#transactions")
    open_now = [
        {"topic": row["topic"], "partition": row["partition"], **each}
        for row in said.rows("transactions", kind="partition")
        for each in row["open"]
    ]
    # Without depth no checksum is read, so damage does not end the walk as it ends that of `transactions`.
    damaged = any(row["damage"] for row in said.rows("transactions", kind="partition"))
    if open_now and (deep or not damaged):
        facts = [
            "topic",
            "partition",
            "producerId",
            "producerEpoch",
            "firstOffset",
            "lastOffset",
            "records",
            "heldRecords",
        ]
        assert chosen(copied(page, "Transactions"), facts) == chosen(open_now, facts)
    go(page, "#groups")
    cursors = said.rows("cursors", kind="cursor")
    if cursors:
        facts = ["group", "topic", "partition", "offset", "lag"]
        assert chosen(copied(page, "Groups"), facts) == chosen(cursors, facts)
    if deep:
        go(page, "#damage")
        findings = said.rows("verify", "--deep", kind="finding")
        if findings:
            facts = ["path", "position", "length", "what"]
            assert chosen(copied(page, "Findings"), facts) == chosen(findings, facts)


@pytest.mark.parametrize("make", [closed, killed, torn, flipped])
@pytest.mark.parametrize("deep", [False, True])
def test_of_recorded_directories(
    opened: Open, run: Run, tmp_path: Path, make: Callable[[Path], Path], deep: bool
) -> None:
    root = make(tmp_path)

    def found() -> Survey:
        return survey([str(root)], deep=deep)

    found.__name__ = f"{make.__name__}-{deep}"
    judge(opened(found), Said(run, root), deep=deep)


@pytest.mark.jvm
@pytest.mark.broker
def test_beside_a_broker_and_after_its_kill(opened: Open, run: Run, tmp_path: Path) -> None:
    with kraft.broker(tmp_path / "node") as broker:
        broker.start()
        clients.create_topics(broker.bootstrap, {"orders": (2, {}), "txns": (1, {})})
        for partition in range(2):
            clients.ConfluentProducer(broker.bootstrap, "lz4").send("orders", partition, clients.rows(partition, 200))
        sure = clients.ConfluentProducer(broker.bootstrap, transactional_id="sure")
        for commits in (True, False, True):
            sure.begin()
            sure.send("txns", 0, clients.rows(7, 20))
            sure.commit() if commits else sure.abort()
        sure.begin()
        sure.send("txns", 0, clients.rows(9, 5))
        for moment in ("running", "killed"):

            def found() -> Survey:
                return survey([str(broker.log_dir)], deep=True)

            found.__name__ = f"broker-{moment}"
            page = opened(found)
            judge(page, Said(run, broker.log_dir), deep=True, files=moment == "killed")
            go(page, "#transactions")
            states = [row["state"] for row in copied(page, "Transactions")]
            assert states == ["hanging"]  # the records of `clients.rows` are years old
            broker.kill()
