"""An unknown keyword is reported under the name that users call, with the nearest existing one.

An old keyword is refused together with the new one.
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.keywords import unexpected


@pytest.mark.parametrize(
    ("call", "given", "told"),
    [
        ("open", {"readonly": True}, r"^kafkalog.open\(\) got an .* 'readonly'; did you mean 'read_only'\?$"),
        ("open", {"durabilty": "fsync"}, r"^kafkalog.open\(\) .*; did you mean 'durability'\?$"),
        ("open", {"zzz": 1}, r"^kafkalog.open\(\) got an unexpected keyword argument 'zzz'$"),
        ("open", {"readonly": True, "log_dir": "x"}, "'readonly'"),
        ("open", {"mode": "r"}, r"'mode'; did you mean 'read_only'\?$"),
        ("open_log", {"mode": "r"}, r"'mode'; did you mean 'read_only'\?$"),
        ("open", {"fsync": True}, r"'fsync'; did you mean 'durability'\?$"),
        ("open_log", {"flush": True}, r"'flush'; did you mean 'durability'\?$"),
        ("open_log", {"readonly": True}, r"^kafkalog.open_log\(\) got an .*; did you mean 'read_only'\?$"),
    ],
)
def test_an_open_tells_the_nearest(tmp_path: Path, call: str, given: dict[str, Any], told: str) -> None:
    arguments = (tmp_path / "x",) if call == "open" else (tmp_path / "x", "orders-0")
    with pytest.raises(TypeError, match=told):
        getattr(kafkalog, call)(*arguments, **given)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("call", "given", "told"),
    [
        ("Store.reader", {"topic": "events"}, "'topic'; did you mean 'topics'"),
        ("Store.reader", {"strat": 1}, "'strat'; did you mean 'start'"),
        ("Store.create_topic", {"name": "x", "partition": 2}, "'partition'; did you mean 'partitions'"),
        ("Store.producer", {"linger": 2}, "'linger'; did you mean 'linger_ms'"),
        ("Store.records", {"topic": "t"}, "'topic'; did you mean 'partitions'"),
        ("Topic.records", {"after": 3}, "'after'; did you mean 'start'"),
        ("Partition.records", {"zzz": 3}, "'zzz'"),
        ("Topic.append_many", {"records": [], "partitoin": 0}, "'partitoin'; did you mean 'partition'"),
        ("Topic.append_columns", {"values": [], "headerz": 0}, "'headerz'; did you mean 'headers'"),
        ("Partition.append_columns", {"values": [], "ky": 0}, "'ky'; did you mean 'keys'"),
        ("Partition.append_many", {"records": [], "partition": 0}, "'partition'"),
        ("Topic.latest", {"as_of": "2026-03-01"}, "'as_of'; did you mean 'end'"),
        ("Topic.read_arrow", {"colums": []}, "'colums'; did you mean 'columns'"),
        ("Topic.read_arrow", {"limit": 5}, "'limit'; did you mean 'last'"),
        ("Partition.records", {"limit": 5}, "'limit'; did you mean 'last'"),
        ("Topic.to_polars", {"colums": []}, "'colums'; did you mean 'columns'"),
    ],
)
def test_methods_tell_the_nearest(tmp_path: Path, call: str, given: dict[str, Any], told: str) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t")
        whose = {"Store": store, "Topic": topic, "Partition": topic.partition(0)}
        of, _, name = call.partition(".")
        with pytest.raises(TypeError) as caught:
            getattr(whose[of], name)(**given)
        assert str(caught.value) == f"{call}() got an unexpected keyword argument {told}" + "?" * told.count(";")
        assert store.topics() == ["t"]


@pytest.mark.parametrize("arguments", [(), ("x", True)])
def test_errors_of_arguments_name_what_was_called(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"^kafkalog\.open\(\) (missing|takes) 1 "):
        kafkalog.open(*arguments)


def test_what_was_called_is_what_python_shows() -> None:
    for name in ("open", "open_log"):
        door = getattr(kafkalog, name)
        assert repr(door).startswith(f"<function {name} at")
        assert pickle.loads(pickle.dumps(door)) is door
        assert "read_only" in inspect.signature(door).parameters
        assert door.__doc__ is not None


def test_none_is_near() -> None:
    assert str(unexpected("x", [])) == "unexpected keyword argument 'x'"
    assert str(unexpected("from", ["start"], {"from": "start"})).endswith("did you mean 'start'?")


def test_old_and_new_are_not_taken_together() -> None:
    pytest.importorskip("pyarrow")
    from kafkalog.toolbox.export import ExportOptions, Selection
    from kafkalog.toolbox.latest import LatestOptions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for make, old in (
            (ExportOptions, {"window": None}),
            (ExportOptions, {"skip_damage": True}),
            (LatestOptions, {"end": 3}),
        ):
            with pytest.raises(TypeError, match=r"Options\(\) got both \w+= and selection=, expected selection= alone"):
                make(selection=Selection(), **old)
        assert ExportOptions(skip_damage=True, isolation="read_committed").selection.isolation == "read_committed"
