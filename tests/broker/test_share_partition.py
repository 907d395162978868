"""Runs the same scripts on kafkalog's SharePartition and on Kafka's class: results, states and what is written.

Hypothesis writes the scripts (`tests.share_scripts`). After each step everything that can be seen must be equal, except
what Kafka cuts into several writes (`in_small_writes`), and where Kafka's class fails with an exception of Java's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.broker import share
from tests.conftest import need_broker
from tests.share_scripts import Step, in_small_writes, play, scripts

pytestmark = pytest.mark.broker

Kafka = Callable[[list[Step]], list[Step]]
EXAMPLES = 150
# Kafka's class has no answer to these scripts: acknowledgements below everything in flight, and a start that lies
# inside an aborted batch.
OF_JAVA = ("NullPointerException", "IllegalStateException")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    need_broker()
    place: Path = tmp_path_factory.mktemp("share")
    command = share.built(place).command(main="kafka.server.share.ShareDriver")
    command.insert(1, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
    with (
        (place / "errors").open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def run(script: list[Step]) -> list[Step]:
            stdin.write(json.dumps(script) + "\n")
            stdin.flush()
            found: list[Step] = json.loads(stdout.readline())
            return found

        yield run
        stdin.close()


def test_like_kafka(kafka: Kafka) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scripts())
    def check(script: list[Step]) -> None:
        for number, (ours, theirs) in enumerate(zip(play(script), kafka(script), strict=True)):
            if theirs.get("error") in OF_JAVA or any(last < first for first, last, _ in theirs.get("result") or ()):
                return
            assert in_small_writes(ours) == in_small_writes(theirs), (number, script[: number + 1])

    check()


def test_kafka_is_kafka(kafka: Kafka) -> None:
    found = kafka([{"op": "start"}, {"op": "append", "count": 3}, {"op": "take", "member": "m1"}])
    assert found[-1]["result"] == [[0, 2, 1]]
