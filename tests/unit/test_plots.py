"""`plot()` of stores, topics and partitions: the report's pictures, with the numbers of the log."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    MissingPackageException,
    UnknownTopicOrPartitionException,
)
from tests.file_doubles import UnsyncedFiles

altair = pytest.importorskip("altair")
vl_convert = pytest.importorskip("vl_convert")

from kafkalog.report import plots  # noqa: E402 (needs altair)
from kafkalog.report.pictures import PICTURES  # noqa: E402
from kafkalog.report.survey import survey  # noqa: E402

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    """A store with segments, codecs, a gap, transactions, a cursor, and keys that are HTML."""
    with kafkalog.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        topic = store.create_topic("orders", 2, config={"segment.bytes": "1048576"})
        for number in range(3):
            rows = [(b"%d" % each * 90, SCRIPT.encode()) for each in range(6000)]
            topic.partition(number % 2).append_many(rows)
        with store.transaction("job") as txn:
            txn.append("orders", b"x", partition=0)
        with store.reader("billing", topics=["orders"]) as reader:
            reader.poll(10)
            reader.commit()
        store.create_topic("empty")
        yield store


def drawn(chart: Any) -> str:
    """The chart as SVG; fails for what Vega does not understand."""
    spec = chart.to_dict(validate=False)  # the schema takes longer than the picture
    svg = vl_convert.vegalite_to_svg(spec)
    assert "undefined" not in svg
    assert "NaN" not in svg
    return str(svg)


def of(page: str) -> list[str]:
    return [each.name for each in PICTURES.values() if each.page == page]


def rows_of(chart: Any, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.to_dict(validate=False)["datasets"][table]
    return found


# --- what they show --------------------------------------------------------------------------------------


def test_numbers_are_those_of_describe(store: kafkalog.Store) -> None:
    topic = store.topic("orders")
    for number in range(2):
        told = topic.partition(number).describe(sample_rows=0)
        segments = rows_of(topic.partition(number).plot("segments"), "segments")
        assert len(segments) == told.local_segments > 1
        assert sum(each["size"] for each in segments) == told.local_bytes
    partitions = rows_of(topic.plot("skewBytes"), "partitions")
    assert [each["size"] for each in partitions] == [each.local_bytes for each in topic.describe().partitions]
    topics = {each["topic"]: each["size"] for each in rows_of(store.plot("topics"), "topics")}
    assert topics["orders"] == topic.describe().local_bytes


def test_every_picture_is_drawn_alone_and_with_the_others(
    store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: dict[Any, Any] = {}

    def once(log_dirs: Any, wanted: Any, **options: Any) -> Any:
        key = (wanted, options["deep"])
        if key not in looks:
            looks[key] = survey(log_dirs, wanted, **options)
        return looks[key]

    monkeypatch.setattr(plots, "survey", once)  # one look for all the pictures of an object
    topic = store.topic("orders")
    for thing, page in ((store, "overview"), (topic, "topic"), (topic.partition(0), "partition")):
        more = [*of("transactions"), *of("groups"), *of("damage")] if thing is store else []
        for name in (*of(page), *more):
            drawn(thing.plot(name))
        chart = thing.plot()
        assert isinstance(chart, altair.VConcatChart)
        svg = drawn(chart)
        assert re.search(r">\d+(\.\d+)? [KM]iB<", svg), page  # the axes of bytes have their ticks
        for title in re.findall(
            r'"text": "([^"]+)"',
            json.dumps([each["title"] for each in chart.to_dict()["vconcat"]]),  # by the schema
        ):
            assert f">{title}<" in svg
    drawn(store.plot(deep=True))


def test_of_nothing(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "store") as store:
        drawn(store.plot())
        topic = store.create_topic("t")
        for each in (store, topic, topic.partition(0)):
            drawn(each.plot())
        chart = topic.partition(0).plot("gaps")
        assert "nothing to show" in drawn(chart)
        assert rows_of(chart, "gaps") == []


def test_only_the_rows_of_the_object_are_in_a_chart(store: kafkalog.Store) -> None:
    for table, rows in store.topic("orders").partition(1).plot().to_dict(validate=False)["datasets"].items():
        assert all(row.get("topic", "orders") == "orders" and row.get("partition", 1) == 1 for row in rows), table
    for table, rows in store.topic("empty").plot().to_dict(validate=False)["datasets"].items():
        assert all(row.get("topic", "empty") == "empty" for row in rows), table


def test_a_chart_is_bounded(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(store.topic("orders").partition(0).plot("segments"), "segments")
    monkeypatch.setattr(plots, "ROWS_MAX", 2)
    chart = store.topic("orders").partition(0).plot("segments")
    thin = rows_of(chart, "segments")
    assert len(thin) == 2 < len(whole)
    assert all(each in whole for each in thin)
    assert chart.to_dict()["title"]["subtitle"] == f"2 of {len(whole)} rows are shown"


def test_altair_accepts_as_many_rows_as_a_chart_may_have(
    store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = survey

    def many(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        row = next(iter(found.tables["segments"].rows()))
        for number in range(2 * plots.ROWS_MAX):
            found.tables["segments"].add(**(row | {"baseOffset": number}))
        return found

    monkeypatch.setattr(plots, "survey", many)
    chart = store.topic("orders").partition(0).plot("segments")
    assert len(rows_of(chart, "segments")) == plots.ROWS_MAX
    with altair.renderers.enable("mimetype"):
        assert chart._repr_mimebundle_()


# --- hostile records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["default", "html", "mimetype"])
def test_no_record_runs_in_a_notebook(store: kafkalog.Store, renderer: str) -> None:
    chart = store.topic("orders").plot("keys", deep=True)
    keys = [each["key"] for each in rows_of(chart, "keys")]
    assert keys
    assert all("alert(1)" in each for each in keys)  # it is there, as a text that ends no script
    with altair.renderers.enable(renderer):
        bundle = chart._repr_mimebundle_()
    content = json.dumps(bundle)
    assert "alert(1)" in content
    assert "<script>alert" not in content
    assert "</script><" not in content.replace("\\n", "").split("alert(1)")[1][:80]
    assert "<img" not in content
    svg = drawn(chart)
    assert "<script" not in svg
    assert "<img" not in svg


# --- in a notebook ---------------------------------------------------------------------------------------


def test_a_notebook_shows_a_chart_without_a_network(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = store.topic("orders").plot().properties(background="white")
    shown = chart._repr_mimebundle_()
    assert set(shown) == {"application/vnd.vegalite.v6+json", "image/svg+xml", "text/plain"}
    assert shown["application/vnd.vegalite.v6+json"] == chart.to_dict(validate=False)
    assert "orders" in shown["image/svg+xml"]
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", shown["image/svg+xml"])
    assert shown["text/plain"] == "<VConcatChart of kafkalog>"
    monkeypatch.setattr("kafkalog.report.charts.SVG_BYTES_MAX", 1000)
    shown = store.topic("orders").plot("skewBytes")._repr_mimebundle_()
    assert "image/svg+xml" not in shown
    assert shown["image/png"].startswith(b"\x89PNG")


def test_a_renderer_that_the_user_has_chosen_is_used(store: kafkalog.Store) -> None:
    with altair.renderers.enable("html"):
        assert set(store.plot("topics")._repr_mimebundle_()) == {"text/html"}
    assert altair.renderers.active == "default"


def test_a_chart_is_altairs(store: kafkalog.Store) -> None:
    """It can be changed, copied and saved like any other."""
    chart = store.topic("orders").plot()
    assert pickle.loads(pickle.dumps(chart)).to_dict(validate=False) == chart.to_dict(validate=False)
    for each in (store.plot("kinds"), store.plot("topics")):
        changed = each.properties(title="x").interactive().configure_axis(labelColor="red")
        assert type(changed) is type(each)
        drawn(changed)
    assert json.loads(chart.to_json(validate=False)) == chart.to_dict(validate=False)


@pytest.mark.parametrize("transformer", ["json", "csv"])
def test_rows_stay_in_the_chart(
    tmp_path: Path, store: kafkalog.Store, transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other data transformers of altair write rows to files."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with altair.data_transformers.enable(transformer):
        for name in ("segments", "gaps"):
            store.topic("orders").partition(0).plot(name).to_dict()
    assert sorted(tmp_path.iterdir()) == before


# --- names and errors ------------------------------------------------------------------------------------


def test_a_name_that_no_picture_has(store: kafkalog.Store) -> None:
    topic = store.topic("orders")
    for thing, page in ((store, "overview"), (topic, "topic"), (topic.partition(0), "partition")):
        with pytest.raises(IllegalArgumentException, match="name: found str 'zzz', expected one of ") as error:
            thing.plot("zzz")
        for name in of(page):
            assert name in str(error.value)
    with pytest.raises(IllegalArgumentException, match="name: found str 'segments'"):
        store.plot("segments")


@pytest.mark.parametrize(
    "given", [{"name": 5}, {"name": b"segments"}, {"deep": "yes"}, {"deep": None}, {"name": ["a"]}]
)
def test_wrong_types(store: kafkalog.Store, given: dict[str, Any]) -> None:
    topic = store.topic("orders")
    misspelt: dict[str, Any] = {"nmae": "gaps"}
    for thing in (store, topic, topic.partition(0)):
        with pytest.raises(IllegalArgumentException, match=next(iter(given))):
            thing.plot(**given)
        with pytest.raises(TypeError, match=r"plot\(\) got an unexpected keyword argument 'nmae'; did you mean 'name'"):
            thing.plot(**misspelt)


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_without_a_package(store: kafkalog.Store, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for thing in (store, store.topic("orders"), store.topic("orders").partition(0)):
        with pytest.raises(MissingPackageException, match=rf"the package {package}.*pip install 'kafkalog\[report\]'"):
            thing.plot()


def test_a_plain_import_loads_no_report() -> None:
    code = (
        "import sys, kafkalog; kafkalog.Store.plot; print([m for m in sys.modules if 'altair' in m or 'report' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what cannot be plotted ------------------------------------------------------------------------------


def test_of_what_is_closed_deleted_and_forked(store: kafkalog.Store) -> None:
    topic = store.create_topic("gone")
    partition = topic.partition(0)
    store.delete_topic("gone")
    for each in (topic, partition):
        with pytest.raises(UnknownTopicOrPartitionException):
            each.plot()
    topic = store.topic("orders")
    calls: list[Callable[[], Any]] = [store.plot, topic.plot, topic.partition(0).plot]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in calls:
                with pytest.raises(IllegalStateException, match="was opened by process"):
                    call()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    store.close()
    for call in calls:
        with pytest.raises(IllegalStateException, match="closed"):
            call()


def test_of_a_log_that_was_opened_alone(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"one", b"two"])
        assert sum(each["size"] for each in rows_of(log.plot("segments"), "segments")) == log.describe().local_bytes
        with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
            drawn(view.plot())
        with pytest.raises(IllegalStateException):
            view.plot()
    with pytest.raises(IllegalStateException):
        log.plot()


@pytest.mark.parametrize("harm", ["torn", "flipped", "empty", "no index"])
def test_of_a_damaged_partition(tmp_path: Path, harm: str) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            for _ in range(3):
                topic.partition(number).append_many([b"value" * 10] * 10)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = path.read_bytes()
    if harm == "torn":
        path.write_bytes(data[:-3])
    elif harm == "flipped":
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        path.with_suffix(".index").write_bytes(b"\xff" * 7)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with kafkalog.open(tmp_path, read_only=True) as look:
        drawn(look.plot())
        drawn(look.topic("t").partition(0).plot())
        for each in (look.topic("t"), look.topic("t").partition(1)):
            each.plot().to_dict(validate=False)
        look.plot(deep=True)
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before  # it only reads
