"""Spark reads remote tiers: a bucket alone, or with the directory that continues in it, in each layout and scheme.

The rows must be those of the local directory from which the tier was copied, and no message may contain a secret.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

import kafkalog
from kafkalog.engine.files import mounts
from kafkalog.engine.remote import object_segments
from kafkalog.engine.remote.directory_segments import known_segments
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
)
from kafkalog.remote import RemoteStorage
from kafkalog.spark import places
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.source import KafkalogDataSource, register
from kafkalog.spark.tasks import read_range
from tests.sampling import LONG, sampled
from tests.spark.tier_kit import KEY, SECRET, Server, Shop, make_full, s3_server, tiered
from tests.unit.tier_kit import two_leaders

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType")
SMALL = {"maxBytesPerPartition": "45000"}  # several segments a task, several tasks
LAYOUTS = {
    "local-tiered": {},
    "aiven-plain": {"layout": "aiven", "prefix": "a/", "chunk_bytes": 3000},
    "aiven-zstd": {"layout": "aiven", "prefix": "z/", "chunk_bytes": 3000, "compression": True},
    "aiven-encrypted": {"layout": "aiven", "prefix": "e/", "chunk_bytes": 3000, "compression": True},
}


def some(count: int, *names: Sequence[str]) -> list[tuple[str, ...]]:
    """So many of the combinations, others each day; all with KAFKALOG_LONG=1."""
    made = list(product(*names))
    return [made[number] for number in sampled(made, None if LONG else count)]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
def nothing_mounted() -> Iterator[None]:
    yield
    forget_mounts()


def forget_mounts() -> None:
    """Forgets mounts as in a new process, once this one has finished its read-ahead."""
    for _, files in mounts._mounts:
        files.close()  # type: ignore[attr-defined]
    places._mounted.clear()
    mounts._mounts = []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as made:
        yield made


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_full(tmp_path_factory.mktemp("shop") / "full")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a pair of RSA keys."""
    rsa = pytest.importorskip("Crypto.PublicKey.RSA")
    folder = tmp_path_factory.mktemp("keys")
    private = rsa.generate(2048)
    (folder / "private.pem").write_bytes(private.export_key("PEM", pkcs=8))
    (folder / "public.pem").write_bytes(private.public_key().export_key("PEM"))
    return str(folder / "public.pem"), str(folder / "private.pem")


class Shops:
    """By scheme and layout; each is created at its first use."""

    def __init__(self, full: Path, keys: tuple[str, str], server: Server, folder: Path) -> None:
        self._full = full
        self._keys = keys
        self._server = server
        self._folder = folder
        self._made: dict[tuple[str, str], Shop] = {}

    def __getitem__(self, which: tuple[str, str]) -> Shop:
        if which not in self._made:
            scheme, layout = which
            more: dict[str, Any] = dict(LAYOUTS[layout])
            if layout == "aiven-encrypted":
                more["encryption"] = {"k1": self._keys}
            url = "s3://bucket" if scheme == "s3" else f"file://{self._folder}/tier"
            options = self._server.options if scheme == "s3" else None
            storage = RemoteStorage(f"{url}/{layout}", options=options, **more)
            self._made[which] = tiered(self._full, self._folder / f"{scheme}-{layout}", storage)
            forget_mounts()
        return self._made[which]


@pytest.fixture(scope="module")
def shops(full: Path, keys: tuple[str, str], server: Server, tmp_path_factory: pytest.TempPathFactory) -> Shops:
    return Shops(full, keys, server, tmp_path_factory.mktemp("shops"))


@pytest.fixture(scope="module")
def session(spark: Any, server: Server) -> Any:
    """The session, whose source is registered with the settings of Hadoop's S3 client."""
    conf = spark.sparkContext._conf
    wanted = {"access.key": KEY, "secret.key": SECRET, "endpoint": server.endpoint}
    for name, value in wanted.items():
        conf.set(f"spark.hadoop.fs.s3a.{name}", value)
    register(spark)
    yield spark
    for name in wanted:
        conf._jconf.remove(f"spark.hadoop.fs.s3a.{name}") if conf._jconf is not None else conf._conf.pop(
            f"spark.hadoop.fs.s3a.{name}"
        )
    spark.dataSource.register(KafkalogDataSource)


@pytest.fixture(scope="module")
def local_rows(session: Any, full: Path) -> list[tuple[Any, ...]]:
    """Spark's rows of the local directory."""
    return rows(frame(session, path=str(full)))


def in_bucket(found: list[tuple[Any, ...]], shop: Shop) -> list[tuple[Any, ...]]:
    """The rows whose segments are in the tier."""
    end = bucket_end(shop)
    return [row for row in found if row[2] == 0 and row[3] < end]


def options_of(shop: Shop, way: str) -> dict[str, str]:
    """A read of a bucket alone, or of both tiers."""
    storage = shop.storage
    given = {"path": str(shop.part), "remote": shop.url} if way == "both" else {"remote": shop.url}
    if way == "bucket" and shop.url.startswith("s3:"):
        given = {"path": shop.url}
    if storage.layout is not None:
        given |= {"remote.layout": storage.layout, "remote.prefix": storage._prefix}
    for name, (public, private) in storage._encryption.items():
        given["remote.keyPairs"] = f"{name}:{public}:{private}"
    return given


def secrets_of(server: Server) -> dict[str, str]:
    return {f"remote.option.{name}": value for name, value in server.options.items()}


def frame(spark: Any, **options: str) -> Any:
    return spark.read.format("kafkalog").options(**{"subscribe": "orders"} | SMALL | options).load()


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, found.select(*COLUMNS).collect()), key=lambda row: (row[2], row[3]))


def bucket_end(shop: Shop) -> int:
    """The first offset that is on the disk."""
    return min(int(path.stem) for path in (shop.part / "orders-0").glob("*.log"))


# --- the same rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "layout"), some(3, ["s3", "file"], list(LAYOUTS)))
def test_reads_what_the_local_directory_has(
    session: Any, shops: Shops, local_rows: list[tuple[Any, ...]], scheme: str, layout: str
) -> None:
    shop = shops[scheme, layout]
    both = frame(session, **options_of(shop, "both"))
    bucket = frame(session, **options_of(shop, "bucket"))
    expected = in_bucket(local_rows, shop)
    assert rows(both) == local_rows
    assert rows(bucket) == expected
    assert (both.count(), bucket.count()) == (len(local_rows), len(expected))


@pytest.mark.parametrize(("layout", "way"), some(2, ["local-tiered", "aiven-encrypted"], ["bucket", "both"]))
def test_reads_ranges_and_committed_records(session: Any, shops: Shops, layout: str, way: str) -> None:
    shop = shops["s3", layout]
    given, end = options_of(shop, way), bucket_end(shop)
    bounds = {
        "assign": '{"orders":[0]}',
        "startingOffsets": '{"orders":{"0":333}}',
        "endingOffsets": f'{{"orders":{{"0":{end - 7}}}}}',
    }

    def read(**options: str) -> list[tuple[Any, ...]]:
        return rows(session.read.format("kafkalog").options(**SMALL | bounds | options).load())

    assert read(**given) == read(path=str(shop.full)) != []
    committed = {"kafka.isolation.level": "read_committed"}
    found = read(**given, **committed)
    assert found == read(path=str(shop.full), **committed)
    assert len(found) == len(read(**given)) - 20  # the transaction that was aborted
    timed = {"startingTimestamp": "1700000000100", "endingTimestamp": "1700000000500"}
    ours = session.read.format("kafkalog").options(assign='{"orders":[0]}', **timed, **given).load()
    kept = session.read.format("kafkalog").options(assign='{"orders":[0]}', **timed, path=str(shop.full)).load()
    assert rows(ours) == rows(kept) != []


@pytest.mark.parametrize("way", [way for (way,) in some(1, ["bucket", "both"])])
def test_streams_end_and_go_on(
    session: Any, shops: Shops, local_rows: list[tuple[Any, ...]], tmp_path: Path, way: str
) -> None:
    shop = shops["s3", "local-tiered"]
    given = options_of(shop, way) | {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "500",
    }

    def run() -> tuple[int, str]:
        query = (
            session.readStream.format("kafkalog")
            .options(**given)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len(query.recentProgress), json.dumps([str(each) for each in query.recentProgress])

    batches, told = run()
    assert batches > 2
    expected = in_bucket(local_rows, shop) if way == "bucket" else local_rows
    assert rows(session.read.parquet(str(tmp_path / "out"))) == expected
    _, again = run()
    assert rows(session.read.parquet(str(tmp_path / "out"))) == expected
    kept = "".join(path.read_text("latin-1") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert_no_secret(told + again + kept)


# --- what it costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["bucket", "both"])
@pytest.mark.parametrize("layout", ["local-tiered", "aiven-zstd"])
def test_tasks_list_nothing_and_ask_for_their_own_objects(server: Server, shops: Shops, layout: str, way: str) -> None:
    shop = shops["s3", layout]
    parsed = parse_options({"subscribe": "orders"} | SMALL | options_of(shop, way) | secrets_of(server))
    ranges = [work for work in plan(parsed) if any(piece.remote for piece in work.pieces)]
    assert len(ranges) > 2
    sent = [pickle.dumps((parsed, work)) for work in ranges]
    forget_mounts()
    server.settle()
    for one in sent:
        forget_mounts()
        server.requests.clear()
        options, work = pickle.loads(one)
        assert sum(batch.num_rows for batch in read_range(work, options, ("offset",)))
        assert server.lists == 0
        assert not any(line.startswith("HEAD") and ".log" in line for line in server.requests)
        wanted = {piece.remote.remote_log_segment_id.id for piece in work.pieces if piece.remote}
        asked = {re.search(r"-([a-zA-Z0-9_-]{22})\.[a-z_-]+$", key.partition("?")[0])[1] for key in server.gets}  # type: ignore[index]
        assert asked == wanted


@pytest.mark.parametrize("layout", ["local-tiered", "aiven-zstd"])
def test_a_plan_of_both_tiers_lists_nothing(server: Server, shops: Shops, layout: str) -> None:
    """The directory's metadata say which segments there are, and by one of them the layout is found."""
    shop = shops["s3", layout]
    given = {"subscribe": "orders"} | SMALL | options_of(shop, "both") | secrets_of(server)
    given.pop("remote.layout", None)
    server.requests.clear()
    planned = plan(parse_options(given))
    assert server.lists == 0
    pieces = [piece for work in planned for piece in work.pieces if piece.remote]
    known = known_segments([str(shop.part)])
    assert known is not None
    assert {piece.remote for piece in pieces} <= {*known.copied()}
    assert len({piece.path for piece in pieces}) > 2


def test_a_directory_is_read_through_the_tier_of_its_own_query(session: Any, shops: Shops) -> None:
    """In the same processes, one after the other."""
    shop = shops["file", "local-tiered"]
    both, alone = options_of(shop, "both"), {"path": str(shop.part)}
    counts = [frame(session, **each).count() for each in (alone, both, alone, both, alone)]
    assert counts[0] < counts[1]
    assert counts == [counts[0], counts[1]] * 2 + [counts[0]]
    forget_mounts()
    given = {"subscribe": "orders"} | SMALL
    offsets = [len(read_offsets(parse_options(given | each))) for each in (alone, both, alone, both)]
    assert offsets == counts[:4]
    parsed = [parse_options(given | each) for each in (alone, both, alone)]
    works = [plan(each) for each in parsed]
    for each, work, count in zip(parsed, works, counts, strict=False):
        assert sum(batch.num_rows for one in work for batch in read_range(one, each, ("offset",))) == count
    with pytest.raises((IllegalArgumentException, RemoteResourceNotFoundException)):
        parse_options(given | alone | {"remote": f"{shop.url}/nothing"})
    assert len(read_offsets(parse_options(given | alone))) == counts[0]


def test_offsets_that_nobody_has_are_not_planned_over(
    shops: Shops, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shops["file", "local-tiered"]
    part = Path(shutil.copytree(shop.part, tmp_path / "part"))
    with kafkalog.open(part, remote=shop.storage, maintenance=False) as store:
        for _ in range(500):
            store.topic("orders").append(b"x" * 100, partition=0)
    given = {"assign": '{"orders":[0]}'} | SMALL | options_of(shop, "both") | {"path": str(part)}
    every = read_offsets(parse_options(given))
    forget_mounts()
    lost, begins = sorted(int(path.name[:20]) for path in (part / "orders-0").glob("*.log"))[:2]
    for path in (part / "orders-0").glob(f"{lost:020}.*"):
        path.unlink()
    with pytest.raises(RemoteResourceNotFoundException, match=f"offsets {lost} to {begins - 1} are missing"):
        plan(parse_options(given))
    for start, end in ((0, begins + 50), (lost, begins + 50), (0, begins - 1), (lost + 1, begins)):
        bounds = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
        for more in ({}, {"maxRecordsPerPartition": "40"}, {"maxBytesPerPartition": "3000"}):
            parsed = parse_options(given | bounds | {"failOnDataLoss": "false"} | more)
            left = [each for each in every if start <= each < end and not lost <= each < begins]
            caplog.clear()
            assert read_offsets(parsed) == left
            assert f"no tier has the offsets {max(lost, start)} to {min(begins, end) - 1}" in caplog.text
            assert caplog.text.count("no tier has") == 1


def read_offsets(parsed: SourceOptions) -> list[int]:
    batches = [batch for work in plan(parsed) for batch in read_range(work, parsed, ("offset",))]
    return sorted(offset for batch in batches for offset in batch.column("offset").to_pylist())


def test_an_object_of_another_length_than_was_copied_is_named(shops: Shops, tmp_path: Path) -> None:
    """Also where a task reads it as a file of this machine."""
    shop = shops["file", "local-tiered"]
    url = Path(shutil.copytree(shop.url.removeprefix("file://"), tmp_path / "tier"))
    parsed = parse_options({"subscribe": "orders"} | SMALL | {"path": str(url)})
    work = next(work for work in plan(parsed) if work.pieces[0].remote and not work.pieces[0].start)
    piece = work.pieces[0].remote
    (log,) = url.rglob(f"*-{piece.remote_log_segment_id.id}.log")
    with log.open("ab") as file:
        file.write(b"more")
    with pytest.raises(RemoteStorageException, match=f"expected the {piece.segment_size_in_bytes} that were copied"):
        list(read_range(work, parsed, ("offset",)))


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
@pytest.mark.parametrize("new_epoch", [None, 30])
def test_overlaps_that_names_do_not_tell_are_an_error(
    layout: str, new_epoch: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first leader's last segments lie within one of the second leader's; after an unclean change they are of a
    history that was given up.  With more segments than this the plan knows only the names."""
    monkeypatch.setattr(object_segments, "ASKED_MOST", 5)
    storage = RemoteStorage(tmp_path / "tier", layout=layout)
    two_leaders(tmp_path, storage, 30 if new_epoch is None else 60, new_epoch)
    given = {"path": storage.url, "subscribe": "orders"}

    def offsets(**more: str) -> list[int]:
        return read_offsets(parse_options(given | more))

    problem = "offsets 28 to 39" if new_epoch is None else "has other leader epochs than the last one"
    for more in ({}, {"maxBytesPerPartition": "700"}, {"maxRecordsPerPartition": "50"}):
        with pytest.raises(IllegalStateException, match=f"{problem}.*remote.manifests=true"):
            offsets(**more)
    within = {"startingOffsets": '{"orders":{"0":30}}', "endingOffsets": '{"orders":{"0":39}}'}
    with pytest.raises(IllegalStateException, match=problem.replace("28 to 39", "30 to 38")):
        offsets(**within)
    if new_epoch is None:
        assert offsets(failOnDataLoss="false") == [*range(28), *range(40, 80)]
    assert offsets(**{"remote.manifests": "true"}) == [*range(80)]
    assert offsets(**within, **{"remote.manifests": "true"}) == [*range(30, 39)]
    monkeypatch.setattr(object_segments, "ASKED_MOST", 1000)
    forget_mounts()
    assert offsets() == [*range(80)]
    assert offsets(**within) == [*range(30, 39)]
    assert offsets(path=str(tmp_path / "b"), remote=storage.url) == [*range(100)]


def test_a_job_lists_as_often_whatever_its_tasks(session: Any, server: Server, shops: Shops) -> None:
    given = options_of(shops["s3", "local-tiered"], "bucket")
    counts = []
    for size in ("1000000", "20000"):
        read = frame(session, **given, maxBytesPerPartition=size)
        server.requests.clear()
        read.count()
        counts.append((read.rdd.getNumPartitions(), server.lists))
    assert counts[0][0] < counts[1][0]
    assert counts[1][1] <= 4 < counts[1][0]  # the planner's, if it has not looked a moment ago


def test_tasks_fetch_no_byte_twice(shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.engine.remote.objects import Objects

    shop = shops["s3", "local-tiered"]
    given = {"assign": '{"orders":[0]}', "maxBytesPerPartition": "7000"}
    parsed = parse_options(
        given | options_of(shop, "bucket") | {f"remote.option.{k}": v for k, v in shop.storage._options.items()}
    )
    asked: list[tuple[str, int, int]] = []
    get = Objects.get

    def counting(self: Objects, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key.endswith(".log"):
            assert end is not None
            asked.append((key, start, end))
        return get(self, key, start, end)

    ranges = plan(parsed)
    monkeypatch.setattr(Objects, "get", counting)
    for work in ranges:
        assert list(read_range(work, parsed, ("offset",)))
    assert sum(end - start for _, start, end in asked) == sum(work.size for work in ranges)
    asked.sort()
    for (key, _, end), (following, start, _) in pairwise(asked):
        assert start == end if key == following else start == 0


# --- credentials, and nobody tells them -------------------------------------------------------------------


def assert_no_secret(text: str) -> None:
    assert SECRET not in text
    assert KEY not in text


def test_credentials_come_from_options_or_the_session(spark: Any, session: Any, server: Server, shops: Shops) -> None:
    given = options_of(shops["s3", "local-tiered"], "bucket")
    hadoop = {
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.endpoint": server.endpoint.removeprefix("http://"),
        "fs.s3a.connection.ssl.enabled": "false",
    }
    expected = frame(session, **given).count()
    spark.dataSource.register(KafkalogDataSource)  # this source knows nothing of the session
    try:
        assert frame(spark, **given, **secrets_of(server)).count() == expected
        assert frame(spark, **given | {"path": given["path"].replace("s3:", "s3a:")}, **hadoop).count() == expected
        assert places.hadoop_options(spark)["fs.s3a.secret.key"] == SECRET
        assert frame(spark, **given, **places.hadoop_options(spark)).count() == expected
    finally:
        register(spark)


def test_secrets_are_in_no_plan_and_no_repr(
    session: Any,
    server: Server,
    shops: Shops,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "kafkalog")
    shop = shops["s3", "local-tiered"]
    read = frame(session, **options_of(shop, "bucket"), **secrets_of(server))
    read.explain(True)
    read.explain("formatted")
    parsed = parse_options({"subscribe": "orders"} | options_of(shop, "bucket") | secrets_of(server))
    work = plan(parsed)[0]
    assert list(read_range(work, parsed, ("offset",)))
    texts = [repr(parsed), str(parsed), repr(parsed.remote), repr(shop.storage), repr(work), caplog.text]
    out, err = capfd.readouterr()
    assert "kafkalog" in out
    assert_no_secret("".join(texts) + out + err + read._jdf.queryExecution().toString())


def test_an_address_with_credentials_is_refused_without_telling_them() -> None:
    with pytest.raises(IllegalArgumentException, match="found credentials in the address") as caught:
        parse_options({"subscribe": "orders", "path": f"s3://{KEY}:hunter2@bucket/x"})
    assert "hunter2" not in str(caught.value)
    assert KEY not in str(caught.value)


LOGGED = """
import sys
from pyspark.sql import SparkSession
from kafkalog.spark.source import register
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=" + sys.argv[1])
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", sys.argv[2])
    .config("spark.hadoop.fs.s3a.access.key", sys.argv[3]).config("spark.hadoop.fs.s3a.secret.key", sys.argv[4])
    .config("spark.hadoop.fs.s3a.endpoint", sys.argv[5]).getOrCreate())
register(spark)
options = {"remote.option.key": sys.argv[3], "remote.option.secret": sys.argv[4]}
good, empty, absent = sys.argv[6:]
for path, more in ((good, {}), (good, options), (empty, options), (absent, {})):
    try:
        read = spark.read.format("kafkalog").option("subscribe", "orders").options(**more).load(path)
        print("COUNT", read.count())
    except Exception as error:
        print("FAILED", error)
spark.stop()
"""


LOG4J = """
rootLogger.level = debug
rootLogger.appenderRef.all.ref = all
appender.all.type = File
appender.all.name = all
appender.all.fileName = {file}
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %p %c: %m%n%ex
"""


def test_secrets_are_in_no_log(server: Server, shops: Shops, tmp_path: Path) -> None:
    shop = shops["s3", "local-tiered"]
    (tmp_path / "events").mkdir()
    log_file = tmp_path / "spark.log"
    settings = tmp_path / "log4j2.properties"
    settings.write_text(LOG4J.format(file=log_file))
    paths = [shop.url, "s3://bucket/nothing", "s3://no-such-bucket/x"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, str(settings), f"file://{tmp_path}/events", KEY, SECRET, server.endpoint,
         *paths],
        capture_output=True, text=True, timeout=300, check=True,
        env=environment | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert told.count("COUNT") == 2, told[-3000:]
    assert told.count("FAILED") == 2, told[-3000:]
    assert "found no segments of a remote tier" in told, told[-3000:]
    logged = log_file.read_text()
    assert re.search(r"^INFO .*DAGScheduler: Job \d+ finished", logged, re.MULTILINE)
    # Spark itself tells all settings of a session, once, in a line of this class; at no level but DEBUG.
    logged, times = re.subn(r"^DEBUG \S*\.SharedState: .*fs\.s3a\..*$", "", logged, flags=re.MULTILINE)
    assert times, "what Spark is known to tell is not found: is this its log?"
    events = "".join(path.read_text("latin-1") for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "SparkListenerApplicationEnd" in events
    for text in (told, logged, events):
        assert_no_secret(text)


# --- what goes wrong --------------------------------------------------------------------------------------


def failure(spark: Any, **options: str) -> str:
    with pytest.raises(Exception) as caught:  # Spark's, around ours
        frame(spark, **options).count()
    text = str(caught.value)
    assert_no_secret(text)
    return text


def test_a_bucket_with_nothing_is_one_clear_error(spark: Any, session: Any, server: Server) -> None:
    text = failure(session, path="s3://bucket/nothing")
    assert "s3://bucket/nothing: found no segments of a remote tier" in text
    text = failure(session, path="s3://there-is-no-such-bucket/x")
    assert "s3://there-is-no-such-bucket/x" in text


def test_a_topic_that_is_not_there_is_named(session: Any, shops: Shops) -> None:
    text = failure(session, **options_of(shops["s3", "local-tiered"], "bucket"), subscribe="sales")
    assert "no topic sales in s3://bucket/local-tiered" in text
    assert "it has orders" in text


def test_wrong_credentials_are_one_clear_error(session: Any, shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    async def refused(*args: Any, **how: Any) -> Any:
        raise PermissionError("The AWS Access Key Id you provided does not exist in our records.")

    monkeypatch.setattr(s3fs.S3FileSystem, "_lsdir", refused)
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refused)
    shop = shops["s3", "local-tiered"]
    given = {"subscribe": "orders"} | options_of(shop, "bucket")
    secret = {"remote.option.key": KEY, "remote.option.secret": SECRET, "remote.option.endpoint_url": "http://x"}
    with pytest.raises(
        RemoteStorageException, match="cannot list the object: PermissionError: The AWS Access"
    ) as caught:
        parse_options(given | secret)
    assert_no_secret(str(caught.value))


def test_no_credentials_are_one_clear_error(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    given = {"subscribe": "orders", "path": "s3://bucket/x", "remote.option.endpoint_url": server.endpoint}
    with pytest.raises(RemoteStorageException, match="NoCredentialsError") as caught:
        parse_options(given)
    assert "kafkalog.spark.source.register(spark)" in str(caught.value)


@pytest.mark.parametrize(("at", "name"), [(0, "first"), (3, "middle")])
def test_an_object_that_goes_between_plan_and_task_is_named(
    full: Path, server: Server, tmp_path: Path, at: int, name: str
) -> None:
    shop = tiered(full, tmp_path / "part", RemoteStorage(f"s3://bucket/gone-{name}", options=server.options))
    forget_mounts()
    given = {"assign": '{"orders":[0]}'} | options_of(shop, "bucket") | secrets_of(server)
    parsed = parse_options(given)
    (work,) = plan(parsed)
    piece = work.pieces[at]
    client = server.client()
    listed = client.list_objects_v2(Bucket="bucket", Prefix=f"gone-{name}/")["Contents"]
    (key,) = [
        each["Key"] for each in listed if f"{piece.segment_base:020d}-" in each["Key"] and each["Key"].endswith(".log")
    ]
    client.delete_object(Bucket="bucket", Key=key)
    sent = pickle.dumps((parsed, work))
    forget_mounts()
    options, work = pickle.loads(sent)
    with pytest.raises(IllegalStateException, match=re.escape(key)) as caught:
        list(read_range(work, options, ("offset",)))
    assert "Some data may have been lost" in str(caught.value)
    assert_no_secret(str(caught.value))
    told: list[str] = []
    lenient = parse_options(given | {"failOnDataLoss": "false"})
    left = sum(batch.num_rows for batch in read_range(work, lenient, ("offset",), tell=told.append))
    assert 0 < left < 1200
    assert len(told) == 1
    assert key in told[0]


def test_executors_name_the_object_that_is_missing(session: Any, full: Path, server: Server, tmp_path: Path) -> None:
    shop = tiered(full, tmp_path / "part", RemoteStorage("s3://bucket/broken", options=server.options))
    forget_mounts()
    read = frame(session, **options_of(shop, "bucket"))
    assert read._jdf.queryExecution().toRdd().getNumPartitions() > 2  # Spark has its plan, and keeps it with the frame
    client = server.client()
    listed = client.list_objects_v2(Bucket="bucket", Prefix="broken/")["Contents"]
    key = sorted(each["Key"] for each in listed if each["Key"].endswith(".log"))[2]
    client.copy_object(Bucket="bucket", Key=f"{key}.elsewhere", CopySource={"Bucket": "bucket", "Key": key})
    client.delete_object(Bucket="bucket", Key=key)
    server.requests.clear()
    with pytest.raises(Exception) as caught:
        read.collect()
    assert any(key in asked for asked in server.gets)  # a task has, for what was planned
    assert "Some data may have been lost" in str(caught.value)
    assert key in str(caught.value)
    assert_no_secret(str(caught.value))


def test_executors_name_the_object_that_is_damaged(session: Any, full: Path, server: Server, tmp_path: Path) -> None:
    shop = tiered(full, tmp_path / "part", RemoteStorage("s3://bucket/damaged", options=server.options))
    forget_mounts()
    read = frame(session, **options_of(shop, "bucket"))
    client = server.client()
    listed = client.list_objects_v2(Bucket="bucket", Prefix="damaged/")["Contents"]
    key = sorted(each["Key"] for each in listed if each["Key"].endswith(".log"))[2]
    spoiled = client.get_object(Bucket="bucket", Key=key)["Body"].read()
    client.put_object(Bucket="bucket", Key=key, Body=spoiled[:3000] + bytes([spoiled[3000] ^ 1]) + spoiled[3001:])
    with pytest.raises(Exception) as caught:
        read.count()
    assert f"{int(Path(key).name[:20]):020d}.log" in str(caught.value)
    assert_no_secret(str(caught.value))


# --- jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [layout for (layout,) in some(1, ["local-tiered", "aiven-encrypted"])])
def test_verify_and_export_take_a_bucket(session: Any, full: Path, shops: Shops, tmp_path: Path, layout: str) -> None:
    from kafkalog.spark import jobs

    shop = shops["s3", layout]
    found = jobs.verify(session, shop.storage, deep=True).collect()
    assert all(row.ok for row in found), found
    (row,) = [row for row in found if row.topic is not None]
    assert (row.log_dir, row.topic, row.segments) == (shop.url, "orders", len(plan_segments(shop)))
    target = tmp_path / layout
    done = jobs.export(session, shop.storage, target, range_bytes=30_000).collect()
    assert len(done) > 2
    assert all(row.error is None for row in done), done
    exported = session.read.parquet(str(target))
    kept = frame(session, path=str(full)).where(f"partition = 0 and offset < {bucket_end(shop)}")
    assert sorted(map(tuple, exported.select("offset", "value").collect())) == sorted(
        map(tuple, kept.select("offset", "value").collect())
    )
    assert jobs.export(session, shop.storage, target).collect() == []  # it continues where it was


def plan_segments(shop: Shop) -> list[str]:
    files = shop.storage.read_only_files()
    return [name for name in files.list_dir(f"{shop.url}/orders-0") if name.endswith(".log")]


def test_jobs_read_both_tiers_with_the_sessions_credentials(
    session: Any, full: Path, shops: Shops, tmp_path: Path
) -> None:
    from kafkalog.spark import jobs

    shop = shops["s3", "local-tiered"]
    found = jobs.verify(session, shop.part, ["orders"], remote=shop.url).collect()
    assert all(row.ok for row in found), found
    done = jobs.export(session, shop.part, tmp_path / "out", ["orders"], remote=shop.url, range_bytes=30_000).collect()
    assert all(row.error is None for row in done), done
    assert session.read.parquet(str(tmp_path / "out")).count() == frame(session, path=str(full)).count()
    assert mounts._mounts == []  # this process may be one that writes there


def test_verify_finds_what_the_command_finds(session: Any, tmp_path: Path) -> None:
    """Also in what the disk has, too, and in small objects."""
    from kafkalog.spark import jobs
    from tests.unit import tier_kit

    store, tier = tmp_path / "store", tmp_path / "tier"
    tier_kit.tiered(store, tier)
    os.truncate(sorted(tier.rglob("*.log"))[1], 500)
    os.truncate(sorted(tier.rglob("*.snapshot"))[2], 5)
    rows = jobs.verify(session, store, remote=str(tier)).collect()
    found = kafkalog.verify(store, files=RemoteStorage(tier).tiered_files([str(store)])).findings
    assert [tuple(each) for row in rows for each in row.findings] == list(map(tuple, found))
    assert len(found) == 2


def test_jobs_that_write_refuse_a_bucket(session: Any, shops: Shops) -> None:
    from kafkalog.errors import UnsupportedOperationException
    from kafkalog.spark import jobs

    with pytest.raises(UnsupportedOperationException, match="a remote tier can only be read"):
        jobs.compact(session, shops["s3", "local-tiered"].storage)


@pytest.mark.parametrize("words", [words for (words,) in some(1, ["verify", "export", "export both"])])
def test_the_commands_take_a_bucket(server: Server, shops: Shops, tmp_path: Path, words: str) -> None:
    import pyarrow.parquet

    shop, target = shops["s3", "aiven-zstd"], tmp_path / "lake"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "PYTHONPATH": str(ROOT)}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    job, *both = words.split()
    where = ["--remote", shop.url, str(shop.part)] if both else [shop.url]
    where += ["--layout", "aiven", "--prefix", "z/", "--remote-option", f"endpoint_url={server.endpoint}"]
    if job == "export":
        where += ["--to", str(target)]
    spark = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    spark += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]  # a JVM that ends soon
    done = subprocess.run(
        [sys.executable, "-m", "kafkalog", "spark", job, *where, *spark],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert_no_secret(done.stdout + done.stderr)
    if job == "export":
        files = [str(path) for path in target.rglob("*.parquet") if not path.name.startswith((".", "_"))]
        found = [
            (row["partition"], row["offset"])
            for file in files
            for row in pyarrow.parquet.ParquetFile(file).read(["partition", "offset"]).to_pylist()
        ]
        below = None if both else bucket_end(shop)
        assert sorted(found) == offsets_of(shop.full, below)


def offsets_of(root: Path, below: int | None) -> list[tuple[int, int]]:
    """Partitions and offsets of all records, or only of the bucket's, if it is given."""
    parsed = parse_options({"subscribe": "orders", "path": str(root)})
    batches = [each for work in plan(parsed) for each in read_range(work, parsed, ("partition", "offset"))]
    found = [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]
    return sorted(each for each in found if below is None or (each[0] == 0 and each[1] < below))
