"""`kafkalog spark compact`: does on executors what a broker's log cleaner would do."""

from __future__ import annotations

import click

from kafkalog._face.named import say_which
from kafkalog.cli import compact as compaction
from kafkalog.cli.app import Usage
from kafkalog.cli.console import Progress, note, parse_settings
from kafkalog.cli.places import SETTINGS, parse_bytes
from kafkalog.cli.spark import DIRS, JSON, ONLY, PROGRESS, YES, cluster, roots_and_names, session, total_of


@click.command("compact")
@DIRS
@ONLY
@YES
@click.option(
    "--by-shuffle",
    is_flag=True,
    help="Compact one partition, and find the last offsets of its keys by a shuffle: for many millions of keys.",
)
@SETTINGS
@click.option(
    "--dedupe-buffer-size", metavar="BYTES", help="Memory for the map of keys, 24 bytes each.  [default: 96MiB]"
)
@click.option("--roll", is_flag=True, help="Close active segments first, so that their records are compacted too.")
@JSON
@PROGRESS
@cluster
def command(
    log_dirs: tuple[str, ...],
    only: tuple[str, ...],
    yes: bool,
    by_shuffle: bool,
    settings: tuple[str, ...],
    dedupe_buffer_size: str | None,
    roll: bool,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Compact partitions of log directories as a broker's log cleaner does, with the same rules as `kafkalog compact`.

    Without --yes the command only reports the result. Exit 1 if damage prevents the compaction of a partition, 3 if
    another process uses a directory.
    """
    roots, only = roots_and_names(log_dirs, only)
    given = parse_settings(settings)
    if "cleanup.policy" in given and not say_which(only):
        raise Usage("found -X cleanup.policy for whole directories, expected the names of topics or partitions")
    if by_shuffle and not len(only) == len(roots) == 1:
        raise Usage("--by-shuffle compacts one partition: expected one directory and one name, such as orders-0")
    with session(master, conf) as spark:
        from kafkalog.spark.jobs import compacting as jobs
        from kafkalog.spark.jobs.shuffle import compacted_by_shuffle

        buffer = jobs.MAP_BYTES
        if dedupe_buffer_size is not None:
            buffer = parse_bytes(dedupe_buffer_size, "--dedupe-buffer-size")
        size, named = total_of(roots, only)
        with Progress(size, "compacted" if yes else "read", force=progress) as bar:
            if by_shuffle:
                _, result = compacted_by_shuffle(
                    spark, roots[0], only[0], act=yes, config=given, rolls=roll, progress=bar.advance
                )
                results, alone = [result], {}
            else:
                found = jobs.compacted(
                    spark, roots, named, act=yes, config=given, map_bytes=buffer, rolls=roll, progress=bar.advance
                )
                left = [each.result for each in found if each.is_left_alone]
                alone = {each.partition: each.held for each in left if each.held is not None}
                results = [each.result for each in found if not each.is_left_alone]
    for partition, why in alone.items():
        note(f"note: {partition} is skipped: {why.text}")
    return compaction.print_all(results, yes, as_json, alone)
