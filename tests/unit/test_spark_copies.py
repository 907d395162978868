"""The planner on the disks of several brokers: generated directories, read as tasks read them, without a JVM."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkalog._face import replicas
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException, IllegalStateException, KafkalogError
from kafkalog.spark import copies, planning
from kafkalog.spark.followed import FollowedPartitions
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.tasks import read_range
from tests.unit import cluster_kit
from tests.unit.replica_kit import NOW_MS, Batch, broker, change, copy, metadata, partition

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
P = TopicPartition("orders", 0)
PLAIN = [Batch(0), Batch(0), Batch(0), Batch(0)]  # ten records each


def options(*paths: Path, streaming: bool = False, **more: str) -> Any:
    given = {"path": ",".join(map(str, paths)), "subscribe": "orders", **more}
    return parse_options(given, streaming=streaming)


def rows(*paths: Path, columns: Sequence[str] = ("offset",), **more: str) -> list[Any]:
    """Spark's rows: for one column its values, otherwise tuples."""
    given = options(*paths, **more)
    found: list[Any] = []
    for work in plan(given):
        for batch in read_range(work, given, columns):
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return [row[0] for row in found] if len(columns) == 1 else found


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """The disks of three brokers."""
    return [broker(tmp_path, node) for node in (1, 2, 3)]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kafkalog.spark")
    return caplog


# --- which copy ------------------------------------------------------------------------------------------------


def test_the_leaders_copy_is_read(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    copy(disks[0], PLAIN[:3], 20)
    copy(disks[1], [*PLAIN, Batch(0, word="lost")], 20)
    metadata(disks[2], partition(isr=(1, 3)))
    assert rows(*disks) == list(range(20))
    assert f"orders-0 is read from {disks[0]} (broker 1): it leads, in epoch 0; up to offset 20 of 30" in told.text
    assert f"the high watermark in {disks[0] / 'replication-offset-checkpoint'}" in told.text


def test_without_metadata_the_highest_epoch_and_end_count(disks: list[Path]) -> None:
    copy(disks[0], [*PLAIN, Batch(0, word="lost")], 40)
    copy(disks[1], [*PLAIN, Batch(1, 3, word="new")], 43)
    copy(disks[2], PLAIN, 40)
    assert rows(*disks, columns=("value",))[-3:] == [b"new40", b"new41", b"new42"]


def test_of_a_broker_alone_the_copies_end_at_its_watermark(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 20)
    metadata(disks[0], partition())
    assert rows(disks[0]) == list(range(20))
    assert rows(disks[0], endingOffsets="logEnd") == list(range(40))


def test_one_replica_is_read_to_its_end(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 20)
    metadata(disks[0], partition(replicas=(1,), isr=(1,)))
    assert rows(disks[0]) == list(range(40))


def test_nothing_says_how_many_replicas(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 20)
    assert rows(disks[0]) == list(range(40)), "as ever"
    assert FollowedPartitions(options(disks[0], streaming=True)).look() == {P: 20}, "a stream takes nothing back"
    (disks[0] / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    assert rows(disks[0]) == list(range(20)), "a clean stop left it below the end: there are replicas"


def test_a_topic_with_copies_beside_one_without(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 40)
    copy(disks[1], PLAIN, 40)
    copy(disks[2], [Batch(0, 5)], 5, name="orders-1")
    assert rows(*disks) == [*range(40), *range(5)]


def test_the_longest_copy(disks: list[Path]) -> None:
    copy(disks[0], PLAIN[:3], 20)
    copy(disks[1], [*PLAIN[:2], Batch(0, 30, word="tail")], 20)
    metadata(disks[0], partition(isr=(1, 3), replicas=(1, 2, 3)))
    assert rows(*disks, replicas="longest") == list(range(20))
    found = rows(*disks, columns=("value",), replicas="longest", endingOffsets="logEnd")
    assert len(found) == 50
    assert found[-1] == b"tail49"


def test_all_copies_with_their_brokers(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 30)
    copy(disks[1], PLAIN[:3], 20)
    found = rows(*disks, columns=("replica", "offset"), replicas="all")
    assert found == [*((1, offset) for offset in range(30)), *((2, offset) for offset in range(30))]
    assert rows(*disks, columns=("replica",), replicas="all") == [1] * 30 + [2] * 30
    whole = rows(*disks, columns=("offset", "replica"), replicas="all", endingOffsets="logEnd")
    assert len(whole) == 40 + 30


def test_a_stale_folder_of_a_deleted_topic_is_passed_over(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    copy(disks[0], [*PLAIN, *PLAIN], 80, topic_id="B" * 21 + "A")
    copy(disks[1], PLAIN, 40)
    with pytest.raises(IllegalStateException, match="found copies of 2 topics with this name, expected one"):
        rows(*disks)
    metadata(disks[1], partition(replicas=(1, 2), isr=(2,), leader=2))
    assert rows(*disks) == list(range(40))
    assert f"skipped {disks[0]}" in told.text


# --- the high watermark ----------------------------------------------------------------------------------------


def test_the_watermark_is_that_of_any_copy(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 10)
    copy(disks[1], PLAIN, 30)
    assert rows(*disks) == list(range(30))


def test_below_it_segments_and_batches_are_cut(disks: list[Path]) -> None:
    copy(disks[0], PLAIN * 3, 60, batches_of_segment=5)
    copy(disks[1], PLAIN * 3, 50, batches_of_segment=5)
    for mark in (0, 10, 50, 60, 100, 120):
        text = f"0\n1\norders 0 {mark}\n"
        (disks[0] / "replication-offset-checkpoint").write_text(text)
        (disks[1] / "replication-offset-checkpoint").write_text(text)
        assert rows(*disks) == list(range(mark)), mark


def test_what_all_have_that_may_lead_is_read(disks: list[Path]) -> None:
    """After a crash of all brokers: the checkpoints are old, the logs say more."""
    copy(disks[0], PLAIN, 10)
    copy(disks[1], PLAIN[:3], 10)
    copy(disks[2], PLAIN[:1], 10)
    metadata(disks[0], partition(), change(isr=[1, 2]))
    assert rows(*disks) == list(range(30))
    assert rows(disks[0]) == list(range(10)), "the other one may have less"
    metadata(disks[0], partition(), change(isr=[1]))
    assert rows(*disks) == list(range(10)), "nothing says that one in sync is enough"
    setting = {"resourceType": 2, "resourceName": "orders", "name": "min.insync.replicas", "value": "1"}
    metadata(disks[0], ("CONFIG_RECORD", setting, 0), partition(), change(isr=[1]))
    assert rows(*disks) == list(range(40))
    metadata(disks[0], ("CONFIG_RECORD", setting, 0), partition(), change(isr=[1], eligibleLeaderReplicas=[2]))
    assert rows(*disks) == list(range(30)), "one that may be elected has less"


def test_times_and_offsets_beyond_it(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 20)
    copy(disks[1], PLAIN, 20)
    assert rows(*disks, startingTimestamp=str(NOW_MS + 15)) == list(range(15, 20))
    with pytest.raises(IllegalArgumentException, match="No offset matched"):
        rows(*disks, startingTimestamp=str(NOW_MS + 25))
    given = '{"orders":{"0":%d}}'
    assert rows(*disks, startingOffsets=given % 5, endingOffsets=given % 15) == list(range(5, 15))
    assert rows(*disks, startingOffsets=given % 5, endingOffsets=given % -1) == list(range(5, 20))
    with pytest.raises(
        IllegalStateException, match=r"ending offset 30 is after .* 20, which is the high watermark: .*40"
    ):
        rows(*disks, endingOffsets=given % 30)
    with pytest.raises(IllegalStateException, match=r"starting offset 30 does not exist.* the high watermark"):
        rows(*disks, startingOffsets=given % 30)
    assert rows(*disks, endingOffsets=given % 30, failOnDataLoss="false") == list(range(20))


def test_a_transaction_that_ends_behind_it_is_open(disks: list[Path]) -> None:
    """The cluster may take back the marker, and then abort what it had committed."""
    batches = [Batch(0), Batch(0, producer_id=7), Batch(0), Batch(0, producer_id=7, ends=True), Batch(0)]
    copy(disks[0], batches, 30)
    copy(disks[1], batches, 30)
    assert rows(*disks, isolation="read_committed") == list(range(10))
    assert rows(*disks) == list(range(30))
    for disk in disks[:2]:
        (disk / "replication-offset-checkpoint").write_text("0\n1\norders 0 31\n")
    assert rows(*disks, isolation="read_committed") == list(range(30))
    assert len(rows(*disks, isolation="read_committed", endingOffsets="logEnd")) == 40


def test_no_watermark_is_known(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    copy(disks[0], PLAIN, None)
    metadata(disks[0], partition())
    with pytest.raises(IllegalStateException, match="found no line in replication-offset-checkpoint"):
        rows(disks[0])
    assert rows(disks[0], endingOffsets="logEnd") == list(range(40))
    assert rows(disks[0], failOnDataLoss="false") == []
    assert "found no line in replication-offset-checkpoint" in told.text
    (disks[0] / "replication-offset-checkpoint").write_text("0\n1\norders zero 31\n")
    with pytest.raises(KafkalogError, match="expected high watermarks"):
        rows(disks[0])


# --- what is wrong ---------------------------------------------------------------------------------------------


def test_histories_that_contradict(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    copy(disks[0], [*PLAIN, Batch(0)], 50)
    copy(disks[1], [*PLAIN[:3], Batch(1)], 40)
    with pytest.raises(IllegalStateException, match=r"different leader epochs from offset 30 on, below .* 50"):
        rows(*disks)
    assert rows(*disks, failOnDataLoss="false") == list(range(40))
    assert "different leader epochs from offset 30 on" in told.text
    assert len(rows(*disks, replicas="longest", failOnDataLoss="false")) == 50


@pytest.mark.parametrize("has_epochs", [True, False])
def test_records_that_contradict(disks: list[Path], has_epochs: bool) -> None:
    copy(disks[0], PLAIN, 40, has_epochs=has_epochs)
    copy(disks[1], [*PLAIN[:2], Batch(0, word="x"), Batch(0)], 40, has_epochs=has_epochs)
    with pytest.raises(IllegalStateException, match=r"have different records from offset 20 on, below .* watermark 40"):
        rows(*disks)


def test_a_follower_that_is_yet_to_be_cut_is_fine(disks: list[Path]) -> None:
    copy(disks[0], [*PLAIN, Batch(0, word="lost")], 40)
    copy(disks[1], [*PLAIN, Batch(1, word="new")], 50)
    assert rows(*disks, columns=("value",))[-1] == b"new49"


def test_a_compacted_copy_is_fine(disks: list[Path]) -> None:
    """Each broker's cleaner has its own time."""
    copy(disks[0], PLAIN, 40)
    folder = copy(disks[1], PLAIN, 40)
    whole = b"".join(
        [Batch(0).encode(0), Batch(0, 4).encode(20), Batch(0).encode(30)]  # 10 to 19 and 24 to 29 are missing
    )
    (folder / f"{0:020d}.log").write_bytes(whole)
    assert rows(*disks) == list(range(40))


def test_no_copy_is_in_sync(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    copy(disks[2], PLAIN, 40)
    metadata(disks[2], partition(), change(isr=[1, 2]))
    with pytest.raises(IllegalStateException, match=r"no copy here is in sync \(the brokers in sync are 1, 2\)"):
        rows(disks[2])
    assert rows(disks[2], failOnDataLoss="false") == list(range(40))
    assert "records from there on may be missing" in told.text


def test_the_only_replica_is_another_brokers(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    """The partition was moved while broker 1 was down, and its new broker's disk is not among the paths."""
    copy(disks[0], PLAIN, 40)
    metadata(disks[2], partition(replicas=(2,), isr=(2,), leader=2, epoch=1))
    with pytest.raises(IllegalStateException, match="no copy here is in sync"):
        rows(disks[0], disks[2])
    with pytest.raises(IllegalStateException, match="no copy here is in sync"):
        FollowedPartitions(options(disks[0], disks[2], streaming=True)).look()
    assert rows(disks[0], disks[2], failOnDataLoss="false") == list(range(40))
    assert "no copy here is in sync" in told.text


def test_partitions_of_brokers_that_are_away(disks: list[Path], told: pytest.LogCaptureFixture) -> None:
    one = {"replicas": (1,), "isr": (1,)}
    three = {"replicas": (3,), "isr": (3,), "leader": 3}
    copy(disks[0], PLAIN, 40)
    (disks[1] / "replication-offset-checkpoint").write_text("0\n0\n")  # a broker without partitions has one
    metadata(disks[1], partition(0, **one), partition(1, **three), partition(2, **three))  # type: ignore[arg-type]
    with pytest.raises(
        IllegalStateException, match="topic orders has 3 partitions, found no directory of orders-1, orders-2"
    ):
        rows(*disks[:2])
    assert rows(*disks[:2], failOnDataLoss="false") == list(range(40))
    assert "found no directory of orders-1, orders-2" in told.text


def test_a_disk_that_is_not_mounted(disks: list[Path], tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    copy(disks[0], PLAIN, 40)
    copy(disks[1], PLAIN, 40)
    metadata(disks[0], partition(replicas=(1, 2), isr=(1, 2)))
    empty, gone = tmp_path / "empty", tmp_path / "gone"
    empty.mkdir()
    with pytest.raises(
        IllegalStateException, match=f"found nothing in {empty}, expected the log directory of a broker"
    ):
        rows(*disks[:2], empty)
    with pytest.raises(KafkalogError, match="no such log directory"):
        rows(*disks[:2], gone)
    assert rows(disks[0], empty, disks[1], gone, failOnDataLoss="false") == list(range(40))
    assert f"found nothing in {empty}" in told.text
    assert f"found no {gone}" in told.text


def test_a_controllers_directory_beside_a_brokers(disks: list[Path]) -> None:
    """Its metadata says what the broker holds; other brokers' partitions are not missed."""
    copy(disks[0], PLAIN, 20)
    metadata(disks[2], partition(0, replicas=(1,), isr=(1,)), partition(1, replicas=(2,), isr=(2,), leader=2))
    assert rows(disks[0], disks[2]) == list(range(40)), "one replica, and all of its partitions are here"
    metadata(disks[2], partition(0, replicas=(1, 2), isr=(1, 2)), partition(1, replicas=(1,), isr=(1,)))
    with pytest.raises(IllegalStateException, match="found no directory of orders-1"):
        rows(disks[0], disks[2])
    assert rows(disks[0], disks[2], failOnDataLoss="false") == list(range(20))


@pytest.mark.parametrize("nodes", [(1, 1), (None, 2), (None, None)])
def test_a_partition_twice_on_one_broker_is_refused(tmp_path: Path, nodes: tuple[int | None, int | None]) -> None:
    paths = []
    for number, node in enumerate(nodes):
        place = tmp_path / f"disk-{number}"
        place.mkdir()
        made = broker(place, node) if node is not None else place
        copy(made, PLAIN, 40)
        paths.append(made)
    with pytest.raises(IllegalArgumentException, match=r"orders-0 is in .* and in .*"):
        rows(*paths)


def test_a_partition_that_moves_to_another_disk_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves between the listings of the two disks."""
    paths = [cluster_kit.formatted(tmp_path / name, node_id=1) for name in ("here", "there")]
    copy(paths[0], PLAIN, 40)
    real = planning.list_partitions

    def listed(log_dir: str, **given: Any) -> Any:
        found = real(log_dir, **given)
        if log_dir == str(paths[0]) and (paths[0] / "orders-0").exists():
            (paths[0] / "orders-0").rename(paths[1] / "orders-0")
        return found

    monkeypatch.setattr(planning, "list_partitions", listed)
    assert rows(*paths) == list(range(40))


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    paths = [broker(tmp_path, 1), broker(tmp_path, 2, cluster_id="another-cluster-000000")]
    copy(paths[0], PLAIN, 40)
    with pytest.raises(IllegalArgumentException, match=r"is of the cluster .* and .* of the cluster another"):
        rows(*paths)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"replicas": "most"}, "option replicas is 'most'"),
        ({"replica": "all"}, "did you mean replicas"),
        ({"replicas": "all", "minPartitions": "3"}, "replicas=all and minPartitions"),
        ({"startingOffsets": "logEnd"}, "option startingOffsets"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, given: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        options(tmp_path, **given)


def test_streams_read_one_copy(tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentException, match="replicas=all is not valid in streaming queries"):
        options(tmp_path, streaming=True, replicas="all")
    with pytest.raises(IllegalArgumentException, match="ending offset not valid"):
        options(tmp_path, streaming=True, endingOffsets="logEnd")


# --- streams ---------------------------------------------------------------------------------------------------


def test_a_stream_follows_the_watermark(disks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    copy(disks[0], PLAIN, 20)
    copy(disks[1], PLAIN, 10)
    metadata(disks[0], partition(), change(isr=[1, 2, 3]))
    followed = FollowedPartitions(options(*disks[:2], streaming=True))
    assert followed.look() == {P: 20}
    assert followed.look() == {P: 20}
    (disks[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    assert followed.look() == {P: 40}
    with (disks[0] / "orders-0" / f"{0:020d}.log").open("ab") as out:
        out.write(Batch(0).encode(40))
    assert followed.look() == {P: 40}
    (disks[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    assert followed.look({P: 40}) == {P: 50}


def test_a_stream_goes_on_over_a_change_of_leaders(disks: list[Path]) -> None:
    """The old leader's disk is away, and the new leader's checkpoint is older than what was handed out."""
    copy(disks[0], [*PLAIN, Batch(0, word="lost")], 40)
    copy(disks[1], PLAIN, 20)
    metadata(disks[1], partition())
    given = options(*disks[:2], streaming=True)
    followed = FollowedPartitions(given)
    assert followed.look() == {P: 40}
    assert followed.views[P].log_dir == str(disks[0])
    shutil.rmtree(disks[0] / "orders-0")
    metadata(disks[1], partition(), change(leader=2, isr=[2, 3]))
    assert followed.look({P: 40}) == {P: 40}
    assert followed.views[P].log_dir == str(disks[1])
    again = FollowedPartitions(given)
    assert again.look({P: 40}) == {P: 40}, "and so after a restart"
    with (disks[1] / "orders-0" / f"{0:020d}.log").open("ab") as out:
        out.write(Batch(1, word="new").encode(40))
    (disks[1] / "replication-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    assert followed.look({P: 40}) == {P: 50}


def test_a_stream_begins_anew_with_a_topic_that_was_made_again(disks: list[Path]) -> None:
    """Offsets returned for the old topic say nothing about the new one's high watermark."""
    for disk in disks[:2]:
        copy(disk, PLAIN, 30, rests=False)
    followed = FollowedPartitions(options(*disks[:2], streaming=True, failOnDataLoss="false"))
    assert followed.look() == {P: 30}
    for disk in disks[:2]:
        shutil.rmtree(disk / "orders-0")
        copy(disk, PLAIN, 5, topic_id="B" * 22, rests=False)
    followed.look({P: 30})
    assert followed.take_remade() == {P}
    assert followed.look({}) == followed.look({P: 5}) == {P: 5}
    assert followed.views[P].log_end_offset == 5


def test_copies_of_a_topic_that_was_made_again_are_compared(disks: list[Path]) -> None:
    for disk in disks[:2]:
        copy(disk, PLAIN, 30)
    followed = FollowedPartitions(options(*disks[:2], streaming=True))
    assert followed.look() == {P: 30}
    for disk, word in zip(disks, ("new", "other"), strict=False):
        shutil.rmtree(disk / "orders-0")
        copy(disk, [Batch(0, word=word)] * 4, 30, topic_id="B" * 22)
    with pytest.raises(IllegalStateException, match="have different records from offset"):
        followed.look({P: 30})


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_topic_that_is_made_again_with_more_replicas(disks: list[Path], is_planned: bool) -> None:
    """Offsets read from the old topic, whose only replica needed no high watermark, say nothing about the new one."""
    copy(disks[0], PLAIN, 40)
    metadata(disks[0], partition(replicas=(1,), isr=(1,)))
    followed = FollowedPartitions(options(disks[0], streaming=True, failOnDataLoss="false"))
    assert followed.look({P: 30}) == {P: 40}
    shutil.rmtree(disks[0] / "orders-0")
    copy(disks[0], PLAIN, 5, topic_id="B" * 22)
    if is_planned:  # a batch's plan is the first to see the new one
        followed.refresh(P)
        assert followed.is_remade(P)
    cluster_kit.metadata_log(disks[0], cluster_kit.topic("orders", nodes=(1, 2, 3), topic_id="B" * 22))
    followed.look({P: 40})
    assert followed.take_remade() == {P}
    assert followed.views[P].log_end_offset == 5
    assert followed.look({}) == {P: 5}


def test_a_stream_goes_on_when_the_number_of_replicas_changes(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 10)
    log = disks[0] / "orders-0" / f"{0:020d}.log"
    metadata(disks[0], partition(replicas=(1,), isr=(1,)))
    followed = FollowedPartitions(options(disks[0], streaming=True))
    assert followed.look() == {P: 40}

    def change_replicas(nodes: list[int], end_offset: int) -> None:
        with (disks[0] / "__cluster_metadata-0" / f"{0:020d}.log").open("ab") as out:
            out.write(cluster_kit.batch([change(replicas=nodes, isr=nodes)], end_offset))

    for turn in range(2):
        end = 40 + 10 * turn
        change_replicas([1, 2, 3], 2 + 2 * turn)
        with log.open("ab") as out:
            out.write(Batch(0).encode(end))
        assert followed.look({P: end}) == {P: end}, "the high watermark is not known to be further"
        change_replicas([1], 3 + 2 * turn)
        assert followed.look({P: end}) == {P: end + 10}


def test_a_stream_waits_for_a_checkpoint_that_went_away(disks: list[Path]) -> None:
    copy(disks[0], PLAIN, 20)
    followed = FollowedPartitions(options(disks[0], streaming=True))
    assert followed.look() == {P: 20}
    (disks[0] / "replication-offset-checkpoint").unlink()
    assert followed.look({P: 20}) == {P: 20}
    (disks[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 30\n")
    assert followed.look({P: 20}) == {P: 30}


def test_few_places_are_compared_of_many_copies(disks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = replicas.unequal_places

    def counting(*given: Any) -> Any:
        asked.append(given[-1])
        return real(*given)

    monkeypatch.setattr(copies, "unequal_places", counting)
    for number in range(6):
        copy(disks[0], PLAIN, 40, name=f"orders-{number}")
        copy(disks[1], PLAIN, 40, name=f"orders-{number}")
    monkeypatch.setattr(copies, "SAMPLES_ALL", 12)
    followed = FollowedPartitions(options(*disks[:2], streaming=True))
    followed.look()
    assert asked == [2] * 6
    followed.look()
    assert len(asked) == 6, "once for each choice"
