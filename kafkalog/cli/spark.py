"""`kafkalog spark`: the checks, repairs and exports of many partitions, over a Spark cluster.

The commands print what their namesakes do, and have the same exit codes.  Which cluster it is, is said as Spark is
told: `--master` and `--conf`, or the environment of spark-submit.  pyspark is imported when one of them runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kafkalog.cli.app import Usage

# Name -> what `kafkalog spark --help` says.
COMMANDS = {
    "compact": "Compact partitions as a broker's cleaner does, one task a partition.",
    "export": "Write records to Parquet files by topic and hour; again, it goes on.",
    "import": "Make partitions of what export wrote, offsets kept.",
    "recover": "Tell or do what an open after a crash does, one task a partition.",
    "verify": "Check every batch and index entry of directories, one task a partition.",
}


class SparkGroup(click.Group):
    """Commands by name, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        commands: dict[str, click.Command] = importlib.import_module("kafkalog.cli.spark_jobs").BY_NAME
        return commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


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
    if master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise Usage(f"Spark does not start: {error}") from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
