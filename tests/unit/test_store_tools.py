"""The command line on a store's directories: it finds nothing wrong, and reports the same as the store."""

from __future__ import annotations

import json
from pathlib import Path

import kafkalog
from kafkalog.cli.app import CLEAN
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, run

__all__ = ["run"]


def test_the_toolbox_on_a_store(tmp_path: Path, run: Run) -> None:
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    with kafkalog.open(dirs, files=UnsyncedFiles()) as store:
        orders = store.create_topic("orders", 4, config={"segment.bytes": "1048576"})
        orders.append_many([(b"%d" % number, b"key %d" % number) for number in range(60)])
        store.create_topic("payments", 2).append(b"x")
        store._home.offsets("billing", create=True)
        store.create_topic("gone", 2).append(b"x")
        store.delete_topic("gone")
        store.add_partitions("payments", 3)
        infos = {name: store.describe_topic(name) for name in store.topics(internal=True)}
        for each in dirs:  # next to the store
            assert run("verify", each, "--deep").code == CLEAN
    for each in dirs:
        for command in (("verify", each), ("verify", each, "--deep"), ("describe", each)):
            result = run(*command)
            assert result.code == CLEAN, result.out + result.err
    result = run("topics", *dirs, "--json")
    assert result.code == CLEAN
    said = {each["topic"]: each for each in map(json.loads, result.lines) if each["kind"] == "topic"}
    assert list(said) == list(infos)
    for name, info in infos.items():
        assert said[name]["topicId"] == info.topic_id
        assert said[name]["internal"] == info.is_internal
        if not info.is_internal:
            assert said[name]["partitions"] == list(range(info.partitions))
    assert said["orders"]["offsets"] == 60
