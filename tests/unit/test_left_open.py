"""Objects that are open when their process ends: a producer's records are sent, and a warning reports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException, LogDirLockedException

pytestmark = pytest.mark.slow  # a process each

OPEN = """
import kafkalog, os, sys, time
store = kafkalog.open(sys.argv[1])
topic = store.create_topic("t", exist_ok=True)
producer = store.producer(linger_ms=60_000)
for number in range(100):
    producer.send("t", b"%d" % number)
"""
ENDS = {"end of the script": "", "sys.exit": "sys.exit(0)", "an error": "1 / 0", "a closed one": "store.close()"}


def python(code: str, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always", *options, "-c", code, str(root)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def count(root: Path) -> int:
    with kafkalog.open(root, read_only=True) as store:
        return len(list(store.topic("t").records()))


@pytest.mark.parametrize("end", ENDS)
def test_what_producers_hold_is_sent(tmp_path: Path, end: str) -> None:
    done = python(OPEN + ENDS[end], tmp_path)
    assert (count(tmp_path), done.returncode) == (100, int(end == "an error"))
    told = f"ResourceWarning: the store of {tmp_path}, opened at <string>:3, was never closed; use it as `with "
    assert done.stderr.count(told) == int(end != "a closed one"), done.stderr
    assert done.stderr.count("ResourceWarning") == int(end != "a closed one")
    assert "is lost" not in done.stderr


def test_an_error_of_warnings_does_not_keep_what_is_held(tmp_path: Path) -> None:
    code = OPEN + f"log = kafkalog.open_log({str(tmp_path / 'other')!r}, 'a-0')"
    done = python(code, tmp_path / "data", "-W", "error::ResourceWarning")
    assert "ResourceWarning" in done.stderr
    assert count(tmp_path / "data") == 100


def test_what_cannot_be_sent_in_time_is_told(tmp_path: Path) -> None:
    code = OPEN + "producer.send('t', b'x').add_done_callback(lambda future: time.sleep(30))"
    code += "\nimport kafkalog.engine.files.left_open as left\nleft.SEND_S = 0.2"
    done = python(code, tmp_path)
    assert "The records that 1 of its producers held were not sent in time" in done.stderr


def test_a_partition_that_was_opened_alone(tmp_path: Path) -> None:
    code = "import kafkalog, sys\nlog = kafkalog.open_log(sys.argv[1], 't-0')\nlog.append(b'x')\n"
    done = python(code, tmp_path)
    told = f"ResourceWarning: the partition t-0 of '{tmp_path}', opened at <string>:2, was never closed; use it as"
    assert done.stderr.count(told) == done.stderr.count("ResourceWarning") == 1, done.stderr
    assert python(code + "log.close()", tmp_path).stderr == ""
    assert count(tmp_path) == 2


@pytest.mark.parametrize(
    "code",
    [
        "store = kafkalog.open(sys.argv[1], read_only=True)",
        "log = kafkalog.open_log(sys.argv[1], 't-0', read_only=True)",
        "def use():\n    store = kafkalog.open(sys.argv[1])\n    store.close()\nuse()",
    ],
)
def test_who_only_reads_or_was_closed_says_nothing(tmp_path: Path, code: str) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
    assert python(f"import kafkalog, sys\n{code}", tmp_path).stderr == ""


def test_a_forked_child_says_nothing(tmp_path: Path) -> None:
    code = OPEN + "pid = os.fork()\nif not pid:\n    sys.exit(3)\nassert os.waitpid(pid, 0)[1] == 3 << 8"
    done = python(code, tmp_path, "-W", "ignore::DeprecationWarning")
    assert (done.returncode, count(tmp_path)) == (0, 100), done.stderr
    assert done.stderr.count("ResourceWarning") == 1


def test_a_second_open_says_where_the_first_is(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0"):
        with pytest.raises(
            IllegalArgumentException, match=r"open already in this process \(opened at .*_open\.py:\d+\)"
        ):
            kafkalog.open_log(tmp_path, "t-0")
        with pytest.raises(LogDirLockedException, match=r"holds it already \(opened at .*test_left_open\.py:\d+\)"):
            kafkalog.open(tmp_path)
    with (
        kafkalog.open(tmp_path),
        pytest.raises(LogDirLockedException, match=r"holds it already \(opened at .*test_left_open\.py:\d+\)"),
    ):
        kafkalog.open_log(tmp_path, "t-0")
