"""`kafkalog reindex`: checks indexes against their logs, and rebuilds those that are wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack

import click

from kafkalog._face.topic_settings import TopicSettings
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Number, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    locate,
    log_bytes,
    tell_findings,
    tell_unsettled,
)
from kafkalog.cli.places import without_metadata
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.host.log_dirs import refuse_foreign
from kafkalog.errors import BeingWrittenException, UnknownTopicOrPartitionException
from kafkalog.toolbox.reindex import SegmentIndexes, check_indexes, find_wrong_indexes, rewrite
from kafkalog.toolbox.unread import CANNOT_BE_READ, unread_file, unread_settings


@click.command("reindex", short_help="Check indexes, and rebuild those that are missing or wrong.")
@click.argument("log_dir", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--all", "everything", is_flag=True, help="Rebuild correct indexes too.")
@click.option(
    "--forget-lost",
    is_flag=True,
    help="Also rebuild indexes that point past the end of their log: the only trace of that loss.",
)
@click.option(
    "--index-interval-bytes",
    type=Number(min=0),
    metavar="BYTES",
    help="Write an entry per BYTES of log.  [default: the topic's, or 4096]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: segments that are, or would be, rebuilt.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    yes: bool,
    everything: bool,
    forget_lost: bool,
    index_interval_bytes: int | None,
    as_json: bool,
    progress: bool,
) -> int:
    """Check the offset, time and aborted-transaction indexes of PARTITIONS (default: all) of LOG_DIR against their
    logs.

    Without --yes the command only reports wrong indexes. With --yes it rebuilds them, and the directory must not be in
    use (exit 3).

    Exit 0 if all indexes were correct or are now. Exit 1 if some are wrong, or could not be rebuilt because their log
    is damaged or cannot be read. Topic settings that cannot be read are reported (exit 1), and Kafka's defaults are
    used.

    Some indexes have entries after the end of their log, although another segment follows. They are kept, because they
    are the trace of lost records that `kafkalog verify` and `salvage` count. --forget-lost rebuilds them too.

    Without --yes, if another program is writing, the command checks again what seems wrong. If each check finds
    something else, it reports that the partition is being written (exit 4).
    """
    log_dir, found_there = locate(log_dir, partitions)
    chosen = without_metadata(found_there)
    code, wrong, rebuilt = CLEAN, 0, 0
    with ExitStack() as stack:
        if yes:
            refuse_foreign(log_dir, OS_FILES)
            stack.enter_context(OS_FILES.lock(os.path.join(log_dir, names.LOCK_FILE)))
        bar = stack.enter_context(Progress(log_bytes(chosen.values()), "checked", force=progress))
        settings = TopicSettings(log_dir, files=OS_FILES)
        odd = unread_settings(settings) if index_interval_bytes is None else None
        if odd is not None:  # the interval only affects the speed of reads
            tell_findings([odd], as_json=as_json)
        for partition, path in chosen.items():
            interval = index_interval_bytes
            if interval is None:
                interval = settings.of(partition.topic).index_interval_bytes
            try:
                if yes:
                    found: Iterable[SegmentIndexes] = check_indexes(
                        path,
                        index_interval_bytes=interval,
                        progress=bar.advance,
                        tells_unread=True,
                        forget_lost=forget_lost,
                    )
                else:
                    try:
                        found = find_wrong_indexes(
                            log_dir, partition, index_interval_bytes=interval, progress=bar.advance
                        )
                    except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
                        code = worse(code, tell_unsettled(error))
                        continue
                for segment in found:
                    damaged = segment.right is None
                    if not segment.findings and not damaged and not everything:
                        continue
                    if yes and not damaged:
                        rewrite(segment)
                        rebuilt += 1
                    else:
                        wrong += bool(segment.findings) or damaged
                    _tell(segment, yes, as_json)
            except OSError as error:
                unread = unread_file(error, path, OS_FILES)
                if unread is None:
                    raise
                wrong += 1
                tell_findings([unread], as_json=as_json)
    if as_json:
        emit_json({"kind": "summary", "rebuilt": rebuilt, "wrong": wrong})
    else:
        emit(f"{counted(rebuilt, 'segment')} rebuilt, {wrong} {'still wrong' if yes else 'wrong'}")
    return worse(code, FINDINGS if wrong or odd is not None else CLEAN)


def _tell(segment: SegmentIndexes, yes: bool, as_json: bool) -> None:
    damaged = segment.right is None
    if as_json:
        findings = [fields(finding) for finding in segment.findings]
        emit_json(
            {
                "kind": "segment",
                "path": segment.log_path,
                "findings": findings,
                "damaged": damaged,
                "cutShort": segment.is_cut_short,
                "rebuilt": yes and not damaged,
            }
        )
        return
    for finding in segment.findings:
        emit(str(finding))
    if any(
        finding.path == segment.log_path and finding.what.startswith(CANNOT_BE_READ) for finding in segment.findings
    ):
        return
    if damaged and segment.is_cut_short:
        emit(
            f"{segment.log_path}: ends before batches that its index names, so records are lost: its indexes are kept "
            "as the trace of the loss (`kafkalog salvage` counts it; --forget-lost rebuilds them)"
        )
    elif damaged:
        emit(
            f"{segment.log_path}: damaged, its indexes are not changed (`kafkalog recover` truncates the log and "
            "rebuilds them)"
        )
    else:
        emit(f"{segment.log_path}: indexes {'rebuilt' if yes else 'would be rebuilt (--yes does it)'}")
