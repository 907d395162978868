"""`kafkalog reindex`: check indexes against their logs, rebuild those that are wrong."""

from __future__ import annotations

import os

import click

from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.console import emit, emit_json, note, select_partitions
from kafkalog.files import OS_FILES
from kafkalog.format import names
from kafkalog.toolbox.reindex import INDEX_INTERVAL_BYTES, check_indexes, rewrite


@click.command("reindex", short_help="Rebuild indexes that are missing or wrong.")
@click.argument("log_dir", type=click.Path())
@click.argument("partitions", nargs=-1)
@click.option("--yes", is_flag=True, help="Write; without it the command only says what it would do.")
@click.option("--all", "everything", is_flag=True, help="Rebuild also the indexes that are right.")
@click.option("--index-interval-bytes", type=click.IntRange(min=0), default=INDEX_INTERVAL_BYTES, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a segment that is, or would be, rebuilt.")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    yes: bool,
    everything: bool,
    index_interval_bytes: int,
    as_json: bool,
) -> int:
    """Check the offset and time indexes of PARTITIONS (default: all) of LOG_DIR and rebuild the wrong ones.

    Takes the directory's lock when it writes.  Exit 0 when all were right or are now, 1 when some are wrong (or could
    not be rebuilt because their log is damaged).
    """
    chosen = select_partitions(log_dir, partitions)
    lock = OS_FILES.lock(os.path.join(log_dir, names.LOCK_FILE)) if yes else None
    wrong = rebuilt = 0
    try:
        for path in chosen.values():
            for segment in check_indexes(path, index_interval_bytes=index_interval_bytes):
                if not segment.findings and not everything:
                    continue
                for finding in segment.findings:
                    note(finding)
                if segment.offset_entries is None:
                    wrong += 1
                    note(f"{names.log_file(path, segment.base_offset)}: damaged, its indexes are left alone")
                    continue
                if yes:
                    rewrite(segment)
                    rebuilt += 1
                else:
                    wrong += bool(segment.findings)
                log_path = names.log_file(path, segment.base_offset)
                if as_json:
                    emit_json({"path": log_path, "findings": segment.findings, "rebuilt": yes})
                else:
                    emit(f"{log_path}: indexes {'rebuilt' if yes else 'would be rebuilt (--yes does it)'}")
    finally:
        if lock is not None:
            lock.release()
    if not as_json:
        emit(f"{rebuilt} segments rebuilt, {wrong} {'left wrong' if yes else 'wrong'}")
    return FINDINGS if wrong else CLEAN
