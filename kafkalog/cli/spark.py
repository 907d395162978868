"""`kafkalog spark`: checks, repairs and exports many partitions on a Spark cluster.

The commands print the same as the local commands with their names, and have the same exit codes. `--master` and
`--conf`, or the environment of spark-submit, select the cluster. pyspark is imported when a command runs.
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

# Name -> its line in `kafkalog spark --help`.
COMMANDS = {
    "compact": "Compact partitions as a broker's log cleaner does, one task per partition.",
    "doctor": "Check that every executor can read the directories, and write to them.",
    "export": "Write records to Parquet files by topic and hour; a repeated run writes only new ones.",
    "import": "Create partitions from what export wrote, with the same offsets.",
    "recover": "Recover partitions after a crash, one task per partition.",
    "verify": "Check every batch and index entry for damage, one task per partition.",
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
    """A group whose commands are imported when they are used."""

    table = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kafkalog.cli.spark_{cmd_name}").command
        command.epilog = f"\b\nFor example:\n  kafkalog spark {EXAMPLES[cmd_name]}"
        return command


@click.group("spark", cls=SparkGroup, short_help="Run checks, repairs and exports on a Spark cluster.")
def command() -> None:
    """Run a command on a Spark cluster, with a task for each partition.

    The driver and all executors must find the directories at the same paths. The executors' Python needs kafkalog;
    PYSPARK_PYTHON selects this Python. Commands that change files only report the change, until --yes is given.
    """


MASTER = click.option("--master", metavar="URL", help="The cluster.  [default: that of spark-submit, or local[*]]")
CONF = click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting.  Repeatable.")


def cluster(work: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options that select the cluster."""
    return MASTER(CONF(work))


@contextmanager
def session(master: str | None, conf: tuple[str, ...]) -> Iterator[Any]:
    """Starts Spark for as long as the command runs. Raises Usage if that fails."""
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
        if key.strip() == "spark.pyspark.python":  # only spark-submit would pass it on
            os.environ["PYSPARK_PYTHON"] = value.strip()
    if master is not None:
        builder = builder.master(master)
    try:
        # In a separate thread: started by the main thread, pyspark would install its own SIGINT handler.
        with ThreadPoolExecutor(1) as starter:
            spark = starter.submit(builder.getOrCreate).result()
    except (PySparkException, RuntimeError) as error:
        raise Usage(f"Spark does not start: {error}") from error
    if spark.conf.get("spark.log.level", None) is None:  # the command reports the errors
        spark.sparkContext.setLogLevel("OFF")
    try:
        with _interrupts(spark.sparkContext):
            yield spark
    finally:
        spark.stop()


@contextmanager
def _interrupts(context: Any) -> Iterator[None]:
    """SIGINT cancels Spark's jobs, and then ends the block with KeyboardInterrupt. A call to the JVM is not
    interrupted: py4j would lose the connection and print a traceback."""
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
    "--only",
    "only",
    multiple=True,
    metavar="TOPIC|PARTITION",
    help="A topic, partition or glob, as in PARTITIONS.  Repeatable.",
)
YES = click.option("--yes", is_flag=True, help="Make the change.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON lines and a summary.")
PROGRESS = click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")


def code_of_row(error: KafkalogError) -> int:
    """Returns the exit code for one partition that failed: an I/O error, or a finding."""
    return IO if exit_code_of(error) == IO else FINDINGS


def roots_and_names(words: Sequence[str], only: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Returns the directories, and the names of PARTITIONS and --only."""
    places, asked = places_and_names(words)
    return log_dirs_at(places), (*asked, *only)


def total_of(log_dirs: list[str], only: tuple[str, ...], *, internal: bool = True) -> tuple[int, list[str] | None]:
    """Returns the bytes of the chosen partitions, and their names."""
    from kafkalog.spark.jobs.run import choose

    named = list(only) or None
    return sum(each.bytes for each in choose(log_dirs, named, internal=internal)), named
