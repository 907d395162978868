"""One path, several, a JSON array, and names with commas: for the source and the sink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.options import parse_options
from kafkalog.spark.path_lists import listed_paths
from kafkalog.spark.plainly import plainly
from kafkalog.spark.triggers import parse_triggers
from kafkalog.spark.write_options import parse_sink_options

pytest.importorskip("pyarrow")


def test_lists() -> None:
    assert listed_paths(" ") == []
    assert listed_paths("/a") == ["/a"]
    assert listed_paths(" /a , /b ,") == ["/a", "/b"]
    assert listed_paths('["/a,b", " /c "]') == ["/a,b", "/c"]
    for wrong in ("[", "[1]", '[""]', '["/a"', "[a]"):
        with pytest.raises(IllegalArgumentException, match="Expected e"):
            listed_paths(wrong)


def test_a_directory_with_a_comma(tmp_path: Path) -> None:
    both = f"{tmp_path}/a,{tmp_path}/b"
    (tmp_path / "x,y").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert listed_paths(f"{tmp_path}/x,y") == [f"{tmp_path}/x,y"]
    assert listed_paths(both) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    Path(both).mkdir(parents=True)
    with pytest.raises(IllegalArgumentException, match="write a JSON array") as caught:
        listed_paths(both)
    assert json.dumps([both]) in str(caught.value)
    assert listed_paths(json.dumps([both])) == [both]


def test_source_and_sink(tmp_path: Path) -> None:
    (tmp_path / "x,y").mkdir()
    for given in (f"{tmp_path}/x,y", json.dumps([f"{tmp_path}/x,y"])):
        assert parse_options({"path": given, "subscribe": "t"}).paths == (f"{tmp_path}/x,y",)
        assert parse_sink_options({"path": given, "topic": "t"}).paths == (f"{tmp_path}/x,y",)
    assert parse_options({"paths": '["/a,b"]', "subscribe": "t"}).paths == ("/a,b",)


@pytest.mark.parametrize("name", ["kafka.auto.offset.reset", "kafka.Enable.auto.commit", "kafka.key.deserializer"])
def test_what_the_connector_refuses(name: str) -> None:
    with pytest.raises(IllegalArgumentException, match="is not supported"):
        parse_options({"path": "/a", "subscribe": "t", name: "earliest"})
    parse_sink_options({"path": "/a", "topic": "t", name: "earliest"})
    with pytest.raises(IllegalArgumentException, match=r"Kafka option 'key.serializer' is not supported"):
        parse_sink_options({"path": "/a", "topic": "t", "kafka.key.serializer": "x"})


def test_looks() -> None:
    assert [parse_triggers({"fetchOffset.numRetries": each}).looks for each in ("0", "1", "5")] == [1, 1, 5]


def test_errors_begin_where_spark_calls() -> None:
    class Source:
        @plainly
        def schema(self) -> list[str]:
            return listed_paths("[")

        @plainly
        def read(self) -> object:
            return (listed_paths(each) for each in ("/a", "["))

        @plainly
        def bug(self) -> None:
            listed_paths(None)  # type: ignore[arg-type]

    def frames(error: BaseException) -> list[str]:
        found, here = [], error.__traceback__
        while here is not None:
            found.append(here.tb_frame.f_code.co_name)
            here = here.tb_next
        return found[1:]

    with pytest.raises(IllegalArgumentException) as caught:
        Source().schema()
    assert frames(caught.value) == ["plain"]
    with pytest.raises(IllegalArgumentException) as caught:
        list(Source().read())  # type: ignore[call-overload]
    assert frames(caught.value) == ["_each"]
    with pytest.raises(AttributeError) as bug:
        Source().bug()
    assert frames(bug.value)[-1] == "listed_paths"
