"""`kafkalog spark doctor`: checks that every executor can read log directories, and write to them."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.console import counted, emit_json, fields
from kafkalog.cli.spark import JSON, cluster, session
from kafkalog.cli.tables import Cell, print_table


@click.command("doctor")
@click.argument("paths", nargs=-1, metavar="[LOG_DIR|ADDRESS]...")
@click.option("--staging", metavar="DIR", help="The staging directory of writes.  [default: the first directory]")
@click.option("--writes", is_flag=True, help="Create an empty file there from each executor, and remove it.")
@JSON
@cluster
def command(
    paths: tuple[str, ...], staging: str | None, writes: bool, as_json: bool, master: str | None, conf: tuple[str, ...]
) -> int:
    """Check that a Spark cluster can read log directories.

    The checks cover Python and versions, the same files at the same paths on every executor, permissions, clocks, and
    free space for staged writes. Nothing is changed, except by --writes. Each failed check says what to do. Exit 1 if a
    check failed.
    """
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.doctor import examined

        found = examined(spark, list(paths), staging=staging, writes=writes)
    failed = [each for each in found if not each.ok]
    if as_json:
        for each in found:
            emit_json({"kind": "check", **fields(each)})
        emit_json({"kind": "summary", "checks": len(found), "failed": len(failed)})
    else:
        rows = [
            (each.place, each.check, Cell("ok", "green") if each.ok else Cell("FAILED", "red"), each.found)
            for each in found
        ]
        below = [[f"  -> {each.advice}"] if each.advice else [] for each in found]
        print_table(["WHERE", "CHECK", "RESULT", "FOUND"], rows, left=4, below=below)
        print(f"{counted(len(found), 'check')}, {len(failed)} failed")
    return FINDINGS if failed else CLEAN
