"""`kafkalog spark`: the checks, repairs and exports of many partitions, over a Spark cluster.

The commands print what their namesakes do, and have the same exit codes.  Which cluster it is, is said as Spark is
told: `--master` and `--conf`, or the environment of spark-submit.  pyspark is imported when one of them runs.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from kafkalog.cli.app import FINDINGS, IO, Usage, exit_code_of
from kafkalog.cli.groups import TableGroup
from kafkalog.cli.places import LOCAL_PLACES_AND_NAMES, PLACES_AND_NAMES, log_dirs_at, places_and_names
from kafkalog.errors import KafkalogError

CANCEL_S = 0.2

# Name -> what `kafkalog spark --help` says.
COMMANDS = {
    "compact": "Compact partitions as a broker's cleaner does, one task a partition.",
    "doctor": "Check that every executor can read directories, and write to them.",
    "export": "Write records to Parquet files by topic and hour; again, it goes on.",
    "import": "Make partitions of what export wrote, offsets kept.",
    "recover": "Tell or do what an open after a crash does, one task a partition.",
    "verify": "Check every batch and index entry of directories, one task a partition.",
}

EXAMPLES = {
    "compact": "compact /var/kafka-logs prices -X cleanup.policy=compact --yes",
    "doctor": "doctor /disk1/kafka-logs /disk2/kafka-logs --master spark://master:7077",
    "export": "export /var/kafka-logs orders --to /lake/kafka --master spark://master:7077",
    "import": "import /lake/kafka /disk3/kafka-logs orders-0 --yes",
    "recover": "recover /disk1/kafka-logs /disk2/kafka-logs --yes",
    "verify": "verify /disk1/kafka-logs /disk2/kafka-logs --deep --conf spark.executor.memory=1g",
}


class SparkGroup(TableGroup):
    """Commands by name, imported when they are asked for."""

    table = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kafkalog.cli.spark_{cmd_name}").command
        command.epilog = f"\b\nFor example:\n  kafkalog spark {EXAMPLES[cmd_name]}"
        return command


@click.group("spark", cls=SparkGroup, short_help="Run checks, repairs and exports over a Spark cluster.")
def command() -> None:
    """Run a command over a Spark cluster: a task for each partition.  The directories are where the driver and all
    executors find them, and the executors' Python has kafkalog (PYSPARK_PYTHON says which one that is)."""


MASTER = click.option("--master", metavar="URL", help="The cluster; as spark-submit says, else local[*].")
CONF = click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's.")


def cluster(work: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which cluster."""
    return MASTER(CONF(work))


@contextmanager
def session(master: str | None, conf: tuple[str, ...]) -> Iterator[Any]:
    """Spark, for as long as the command runs; Usage where there is none."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise Usage("found no pyspark, expected `pip install kafkalog[spark]`") from None
    builder = SparkSession.builder.appName("kafkalog").config("spark.ui.showConsoleProgress", "false")
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"--conf {text!r} has no '=', expected such as --conf spark.executor.memory=2g")
        builder = builder.config(key.strip(), value.strip())
        if key.strip() == "spark.pyspark.python":  # which spark-submit alone would hand on
            os.environ["PYSPARK_PYTHON"] = value.strip()
    if master is not None:
        builder = builder.master(master)
    try:
        # In a thread of its own: pyspark takes SIGINT over where it is started by the main one.
        with ThreadPoolExecutor(1) as starter:
            spark = starter.submit(builder.getOrCreate).result()
    except (PySparkException, RuntimeError) as error:
        raise Usage(f"Spark does not start: {error}") from error
    if spark.conf.get("spark.log.level", None) is None:  # what goes wrong is told by the command
        spark.sparkContext.setLogLevel("OFF")
    try:
        with _interrupts(spark.sparkContext):
            yield spark
    finally:
        spark.stop()


@contextmanager
def _interrupts(context: Any) -> Iterator[None]:
    """SIGINT ends Spark's jobs, and then the block by KeyboardInterrupt.  An answer of the JVM that is waited for is
    not interrupted: py4j would lose the connection, and print why."""
    ended, threads = threading.Event(), []

    def cancel() -> None:
        while not ended.wait(CANCEL_S):
            context.cancelAllJobs()

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__package__") != "py4j":
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt
        threads.append(threading.Thread(target=cancel, daemon=True))
        threads[-1].start()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if threads:
            raise KeyboardInterrupt from None
        raise
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        signal.signal(signal.SIGINT, before)


# --- what the commands share ----------------------------------------------------------------------

DIRS, READ_DIRS = LOCAL_PLACES_AND_NAMES, PLACES_AND_NAMES
ONLY = click.option(
    "--only", "only", multiple=True, metavar="TOPIC|PARTITION", help="orders, orders-0, or a glob, as PARTITIONS."
)
YES = click.option("--yes", is_flag=True, help="Do it.  Without it, only tell; the default.")
JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines, and a summary.")
PROGRESS = click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")


def code_of_row(error: KafkalogError) -> int:
    """The exit code for one partition that could not be done: the disk's fault, or something that was found."""
    return IO if exit_code_of(error) == IO else FINDINGS


def roots_and_names(words: Sequence[str], only: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The directories that are named, and what in them, before and in --only."""
    places, asked = places_and_names(words)
    return log_dirs_at(places), (*asked, *only)


def total_of(log_dirs: list[str], only: tuple[str, ...], *, internal: bool = True) -> tuple[int, list[str] | None]:
    """Bytes of what is chosen, and its names."""
    from kafkalog.spark.jobs.run import choose

    named = list(only) or None
    return sum(each.bytes for each in choose(log_dirs, named, internal=internal)), named
