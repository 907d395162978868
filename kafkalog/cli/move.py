"""`kafkalog move`: moves a partition to another log directory, offline."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, LocalPath
from kafkalog.cli.console import Progress, emit, emit_json, note
from kafkalog.cli.places import log_dirs_at, partition_at
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.move import Move, Step, carry_out, plan_move

TELL = {
    Step.COPY: "would copy {size} to {target} and then remove the source",
    Step.COMPARE: "both directories have it: would compare {size}, and remove the source if all bytes are equal",
    Step.CLEAN_UP: "already in {target}: would remove the rest of the source",
    Step.DONE: "nothing to do: already in {target}",
}


@click.command("move", short_help="Move a partition to another log directory, offline.")
@click.argument("partition", type=LocalPath())
@click.argument("to_dir", type=LocalPath())
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(partition: str, to_dir: str, dry_run: bool, yes: bool, as_json: bool, progress: bool) -> int:
    """Move PARTITION (a directory: DIR/orders-0) to the log directory TO_DIR of the same broker, which must be stopped.

    Without --yes the command only reports what it would do. With --yes it locks both directories (exit 3 if a broker
    has one).

    The files are copied to a -future directory, synced and compared byte by byte. Then the copy gets the partition's
    name, and the source is renamed to a -delete directory and removed. The partition's lines in the checkpoints move
    too. So do the topic's settings, if the target has none.

    A crash loses nothing: run the same command again, and it continues.
    """
    act = yes and not dry_run
    (target_dir,) = log_dirs_at([to_dir], is_target=True)
    source_dir, wanted = _source(partition)
    move = plan_move(source_dir, wanted, target_dir)
    if act:
        with Progress(move.size, "moved", force=progress) as bar:
            carry_out(move, progress=bar.advance)
    _tell(move, act, as_json)
    theirs, ours = (os.path.join(at, names.META_PROPERTIES_FILE) for at in (target_dir, source_dir))
    if OS_FILES.exists(ours) and not OS_FILES.exists(theirs):
        missing = names.META_PROPERTIES_FILE
        note(f"note: {target_dir} has no {missing}: format it before the broker starts (kafka-storage.sh)")
    return CLEAN


def _source(path: str) -> tuple[str, TopicPartition]:
    """Returns the same as `partition_at`, also if an interrupted move has already renamed the directory."""
    if not OS_FILES.exists(path):
        folder, name = os.path.split(os.path.normpath(path))
        try:
            partition = names.parse_topic_partition_name(name)
        except KafkalogError:
            return partition_at(path)  # raises an error that says what it found
        if str(partition) == name and OS_FILES.is_dir(folder or os.curdir):
            return folder or os.curdir, partition
    return partition_at(path)


def _tell(move: Move, act: bool, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "kind": "move",
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "from": move.source_dir,
                "to": move.target_dir,
                "step": move.step.value,
                "bytes": move.size,
                "copied": move.copied,
                "needed": move.needed,
                "targetFree": move.free,
                "sourceSettings": move.source_settings,
                "targetSettings": move.target_settings,
                "settings": move.settings,
                "done": act,
            }
        )
        return
    size = _shown.size(move.needed if move.step is Step.COPY else move.size)
    what = TELL[move.step].format(size=size, target=move.target_dir)
    if act and move.step is not Step.DONE:
        emit(f"{move.partition}: moved to {move.target_dir}, {size}")
    else:
        emit(f"{move.partition}: {what}{'' if move.step is Step.DONE else ' (--yes does it)'}")
    if move.step is not Step.DONE and (move.source_settings or {}) != (move.target_settings or {}):
        topic, ours, applied = move.partition.topic, _words(move.source_settings), _words(move.settings)
        emit(
            f"  settings of {topic}: {applied}, as in {move.source_dir}"
            if move.target_settings is None
            else f"  settings of {topic}: {applied}, as {move.target_dir} has them; not {ours}, as in {move.source_dir}"
        )


def _words(settings: Mapping[str, str] | None) -> str:
    return " ".join(f"{key}={value}" for key, value in (settings or {}).items()) or "the defaults"
