"""`kafkalog recover`: what an unclean open does, told first and done on request."""

from __future__ import annotations

import os
from typing import Any

import click

from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.console import emit, emit_json, select_partitions
from kafkalog.errors import KafkalogError
from kafkalog.files import OS_FILES
from kafkalog.format import names
from kafkalog.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.format.names import TopicPartition
from kafkalog.segment.file_records import LogScan
from kafkalog.topics.log import open_log
from kafkalog.topics.view import VERDICT_TEXT


@click.command("recover", short_help="Do, or tell, what an unclean open does.")
@click.argument("log_dir", type=click.Path())
@click.argument("partitions", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only tell what would be cut; the default.")
@click.option("--yes", is_flag=True, help="Do it: cut what is torn, rebuild indexes, epochs and producer state.")
@click.option("--from-start", is_flag=True, help="Distrust everything, not only what lies behind the recovery point.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a partition.")
def command(
    log_dir: str, partitions: tuple[str, ...], dry_run: bool, yes: bool, from_start: bool, as_json: bool
) -> int:
    """Recover PARTITIONS (default: all) of LOG_DIR as after a crash, from their recovery points on.

    At the first damage the log is cut and everything behind it dropped, as Kafka does: `kafkalog salvage` keeps more.
    Exit 1 when something was, or would be, cut.
    """
    chosen = select_partitions(log_dir, partitions)
    act = yes and not dry_run
    points: dict[TopicPartition, int] = {}
    path = os.path.join(log_dir, names.RECOVERY_POINT_CHECKPOINT_FILE)
    if not from_start and OS_FILES.exists(path):
        try:
            points = OffsetCheckpointFile(path, OS_FILES, create=False).read()
        except KafkalogError:
            points = {}  # what an open does with a checkpoint that does not parse
    if act:
        with OS_FILES.lock(os.path.join(log_dir, names.LOCK_FILE)):
            CleanShutdownFile(log_dir, OS_FILES).delete()
            if from_start and OS_FILES.exists(path):
                kept = {} if not partitions else {tp: at for tp, at in _all_points(path).items() if tp not in chosen}
                OffsetCheckpointFile(path, OS_FILES).write(kept)
    cut_any = False
    for partition, folder in chosen.items():
        told = _tell(folder, points.get(partition, 0))
        cut_any = cut_any or told["cutBytes"] > 0
        if act:
            with open_log(log_dir, partition, create=False) as log:
                told["endOffset"] = log.end_offset
        if as_json:
            emit_json({"partition": str(partition), "done": act, **told})
            continue
        done = "recovered" if act else "would be recovered (--yes does it)"
        text = f"{partition}: {done} from offset {points.get(partition, 0)} on"
        if told["cutBytes"]:
            text += (
                f", {'cut' if act else 'cutting'} {told['cutBytes']} bytes from byte {told['cutAt']} of "
                f"{told['cutFile']} on: {told['why']}"
            )
        emit(text)
    return FINDINGS if cut_any else CLEAN


def _all_points(path: str) -> dict[TopicPartition, int]:
    try:
        return OffsetCheckpointFile(path, OS_FILES, create=False).read()
    except KafkalogError:
        return {}


def _tell(folder: str, recovery_point: int) -> dict[str, Any]:
    """Where an unclean open would cut: the first damage at or behind the recovery point's segment."""
    bases = sorted(
        int(name[: -len(names.LOG_FILE_SUFFIX)])
        for name in OS_FILES.list_dir(folder)
        if name.endswith(names.LOG_FILE_SUFFIX) and name[: -len(names.LOG_FILE_SUFFIX)].isdigit()
    )
    first = max((base for base in bases if base <= recovery_point), default=-1)
    told: dict[str, Any] = {"cutBytes": 0, "cutFile": None, "cutAt": None, "why": None}
    for base in bases:
        path = names.log_file(folder, base)
        with OS_FILES.open(path, writable=False) as file:
            size = file.size()
            if told["cutFile"] is not None:
                told["cutBytes"] += size
                continue
            if base < first:
                continue
            scan = LogScan(file, 0, size)
            for _ in scan:
                pass
            if scan.position < size:
                why = VERDICT_TEXT.get(scan.stopped, "a tail too short for a batch")
                told |= {"cutBytes": size - scan.position, "cutFile": path, "cutAt": scan.position, "why": why}
    return told
