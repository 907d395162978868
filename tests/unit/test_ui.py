"""The live page's server: who may ask, and what the answers are.  The pages themselves are in tests/report."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format import legacy
from kafkalog.engine.format.batch import HEADER, HEADER_FIELDS, LOG_OVERHEAD
from kafkalog.engine.log.view import PartitionView
from tests.reference.legacy import build_batch

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pyarrow = pytest.importorskip("pyarrow")
import httpx  # noqa: E402

from kafkalog.ui import anatomy, api, downloads, pages, schemas, server, watch  # noqa: E402

TOKEN, PORT = "the-token", 8000
SCRIPT = b"<script>alert(1)</script>"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("logs") / "shop")
    with kafkalog.open(place) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(120):
            value = json.dumps({"id": number, "large": 12345678901234567890123}).encode()
            orders.append(
                value, key=b"customer-%d" % (number % 7), partition=number % 2, headers=[("trace", b"%d" % number)]
            )
        orders.append(None, key=b"customer-1", partition=0)
        orders.append(
            SCRIPT, key=b"\xff\x00", partition=0, headers=[("<img src=x onerror=alert(1)>", b"javascript:alert(1)")]
        )
        with store.transaction("payments") as done:
            done.append("orders", b"committed", partition=0)
        with suppress(LookupError), store.transaction("payments") as undone:
            undone.append("orders", b"aborted", partition=0)
            raise LookupError
        for codec in CODECS:
            config = {"compression.type": "uncompressed" if codec == "none" else codec}
            topic = store.create_topic(f"packed-{codec}", partitions=1, config=config)
            topic.append_many([b"value %d " % number * 20 for number in range(200)])
    return place


class Client:
    """Asks the application, without a server.  `cookies` are kept as a browser keeps them."""

    def __init__(self, app: Any, live: server.Live, base_url: str) -> None:
        self._app, self.live, self._base_url = app, live, base_url
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **asked: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._base_url, cookies=self.cookies) as client:
                answer = await client.request(method, path, **asked)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())

    def get(self, path: str, **asked: Any) -> httpx.Response:
        return self.request("GET", path, **asked)


def client_of(*log_dirs: str, make: Any = None, page: Any = None, **more: Any) -> Client:
    live = server.Live(log_dirs, make or (lambda: b"{}"), page or {"page.html": ("text/html", b"<p>")}, **more)
    app: Any = server.guarded(live, TOKEN, PORT)
    return Client(app, live, f"http://127.0.0.1:{PORT}")


def known(*log_dirs: str, **more: Any) -> Client:
    """Returns a client that has the cookie."""
    made = client_of(*log_dirs, **more)
    made.cookies.set(f"kafkalog-{PORT}", TOKEN)
    return made


@pytest.fixture
def bare(shop: str) -> Client:
    """A client without the cookie."""
    return client_of(shop)


@pytest.fixture
def client(shop: str) -> Client:
    return known(shop)


def page(client: Client, **asked: Any) -> dict[str, Any]:
    answer = client.get("/api/records", params={name.replace("_", "-"): value for name, value in asked.items()})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def octets(row: Any) -> bytes | None:
    return None if row is None else base64.b64decode(row["base64"])


def offsets(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found["rows"] if row["kind"] == "record"]


def cursor(found: dict[str, int]) -> str:
    return ",".join(f"{number}:{offset}" for number, offset in found.items())


# --- who may ask -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/api/records?topic=orders", "/api/survey", "/nothing"])
def test_nothing_without_the_token(bare: Client, path: str) -> None:
    answer = bare.get(path)
    assert answer.status_code == 401
    assert "needs its token" in answer.text
    bare.cookies.set(f"kafkalog-{PORT}", "guess")
    assert bare.get(path).status_code == 401
    assert bare.get(path, params={"token": "guess"}).status_code == 401


def test_the_token_becomes_a_cookie(bare: Client) -> None:
    answer = bare.get("/", params={"token": TOKEN, "a": "b c"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?a=b+c")
    cookie = answer.headers["set-cookie"]
    assert cookie == f"kafkalog-{PORT}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert bare.get("/").status_code == 200  # the client kept it
    elsewhere = bare.get(f"http://127.0.0.1:{PORT}//evil.example/", params={"token": TOKEN})
    assert elsewhere.headers["location"].startswith("/evil.example")


@pytest.mark.parametrize("other", ['a={"x": 1}', "a[b]=1", "path=/x", "word", "kafkalog-8001=x"])
def test_cookies_of_other_servers_of_this_host_do_no_harm(bare: Client, other: str) -> None:
    for cookies in (f"{other}; kafkalog-{PORT}={TOKEN}", f"kafkalog-{PORT}={TOKEN}; {other}"):
        assert bare.get("/", headers={"Cookie": cookies}).status_code == 200
    assert bare.get("/", headers={"Cookie": other}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "192.168.1.5"])
def test_other_names_of_the_host_are_refused(client: Client, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_loopback_has_several_names(client: Client, host: str) -> None:
    assert client.get("/", headers={"Host": host, "Cookie": f"kafkalog-{PORT}={TOKEN}"}).status_code == 200


def test_only_reading_methods(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, "/api/topics")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert client.request("HEAD", "/").status_code == 200


def test_other_sites_get_nothing(client: Client) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert client.get("/api/topics", headers=headers).status_code == status, site
    assert not any(name.startswith("access-control") for name in client.get("/api/topics").headers)


@pytest.mark.parametrize("path", ["/", "/api/topics", "/api/records?topic=none", "/nothing", "/download/bytes"])
def test_every_answer_has_the_policy(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert headers["cache-control"] == "no-store" or path == "/"


def test_a_listener_for_others_takes_addresses_only(bare: Client) -> None:
    app: Any = server.guarded(bare.live, TOKEN, PORT, "0.0.0.0")
    client = Client(app, bare.live, "http://192.168.1.5")
    client.cookies.set(f"kafkalog-{PORT}", TOKEN)
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421


# --- records ---------------------------------------------------------------------------------------------------


def stored(shop: str, **filters: Any) -> list[tuple[int, int]]:
    with kafkalog.open(shop, read_only=True) as store:
        return [(record.partition, record.offset) for record in store.topic("orders").records(**filters)]


@pytest.mark.parametrize("count", [1, 7, 50, 500])
def test_pages_forwards_have_every_record_once(client: Client, shop: str, count: int) -> None:
    found: list[tuple[int, int]] = []
    answer = page(client, topic="orders", count=count, start=1)
    for _ in range(300):
        found += offsets(answer)
        if answer["ended"] == "end":
            break
        assert answer["ended"] == "full"
        answer = page(client, topic="orders", count=count, at=cursor(answer["next"]))
    assert found == sorted(stored(shop))


@pytest.mark.parametrize("count", [3, 20])
def test_pages_backwards_have_every_record_once(client: Client, shop: str, count: int) -> None:
    found: list[tuple[int, int]] = []
    answer = page(client, topic="orders", count=count, last=1)
    for _ in range(300):
        found += offsets(answer)
        if answer["ended"] == "end":
            break
        answer = page(client, topic="orders", count=count, before=cursor(answer["before"]))
    assert sorted(found) == sorted(stored(shop))


@pytest.mark.parametrize(
    "asked",
    [
        {"key": "customer-3"},
        {"key": "hex:ff00"},
        {"key-prefix": "customer-"},
        {"header": "trace=7"},
        {"header": "trace"},
        {"grep": "committed|aborted"},
        {"grep": "aborted", "committed": "1"},
        {"where": "offset >= 20 and value is not null"},
        {"partition": "1", "from": "30", "until": "40"},
        {"from": "2000-01-01", "key": "customer-1"},
        {"until": "@1000"},
    ],
    ids=str,
)
def test_the_filters_are_those_of_the_library(client: Client, shop: str, asked: dict[str, str]) -> None:
    filters: dict[str, Any] = {"isolation": "read_committed" if "committed" in asked else "read_uncommitted"}
    if "key" in asked:
        filters["key"] = b"\xff\x00" if asked["key"].startswith("hex:") else asked["key"]
    filters |= {name.replace("-", "_"): asked[name] for name in ("key-prefix", "grep", "where") if name in asked}
    if "header" in asked:
        filters["headers"] = [asked["header"]]
    expected = sorted(stored(shop, **filters))
    if "partition" in asked:
        expected = [each for each in expected if each[0] == 1 and 30 <= each[1] < 40]
    if "until" in asked and "partition" not in asked:
        expected = []
    assert sorted(offsets(page(client, topic="orders", count=500, **asked))) == expected
    assert sorted(offsets(page(client, topic="orders", count=500, last=1, **asked))) == expected


def test_marks(client: Client) -> None:
    rows = page(client, topic="orders", partition=0, count=500, start=1)["rows"]
    of_value = {octets(row.get("value")): row for row in rows if row["kind"] == "record"}
    assert of_value[b"aborted"]["aborted"] is True
    assert (of_value[b"committed"]["aborted"], of_value[b"committed"]["transactional"]) == (False, True)
    assert of_value[None]["value"] is None  # a tombstone
    assert [row["control"] for row in rows if row["kind"] == "control"] == ["COMMIT", "ABORT"]
    assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
    committed = page(client, topic="orders", partition=0, count=500, start=1, committed=1)["rows"]
    assert b"aborted" not in {octets(row["value"]) for row in committed}
    large = next(row for row in rows if row["kind"] == "control")["producerId"]
    assert isinstance(large, str) == (int(large) > 2**53)


def test_new_records_as_they_are_appended(tmp_path: Path) -> None:
    place = str(tmp_path / "logs")
    with kafkalog.open(place) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append(b"one", partition=0)
        client = known(place)
        found = page(client, topic="orders", last=1)
        assert [octets(row["value"]) for row in found["rows"]] == [b"one"]
        assert page(client, topic="orders", new=cursor(found["next"]))["rows"] == []
        topic.append(b"two", partition=1, timestamp=2)
        topic.append(b"three", partition=0, timestamp=3)
        found = page(client, topic="orders", new=cursor(found["next"]))
        assert [octets(row["value"]) for row in found["rows"]] == [b"two", b"three"]
        assert page(client, topic="orders", new=cursor(found["next"]))["rows"] == []


def test_a_search_ends_and_continues(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(
        pages.Budget, "__init__", lambda self: self.__dict__.update(bytes=1, until=time.monotonic() + 60)
    )
    forwards, ended = [], []
    answer = page(client, topic="orders", partition=0, key="customer-6", start=1)
    for _ in range(100):
        forwards += offsets(answer)
        ended.append(answer["ended"])
        if answer["ended"] == "end":
            break
        answer = page(client, topic="orders", partition=0, key="customer-6", at=cursor(answer["next"]))
    assert "searched" in ended
    backwards = []
    answer = page(client, topic="orders", partition=0, key="customer-6", last=1)
    for _ in range(200):
        backwards += offsets(answer)
        if answer["ended"] == "end":
            break
        answer = page(client, topic="orders", partition=0, key="customer-6", before=cursor(answer["before"]))
    assert sorted(backwards) == forwards
    assert len(forwards) >= 8


@pytest.mark.parametrize(
    "asked",
    ["topic=", "topic=none", "partition=9", "partition=x", "key=hex:0", "at=5", "grep=(", "where=nonsense+%3D+1",
     "header=%3D1", "from=yesterday", "count=501", "from=9&until=3"],
)  # fmt: skip
def test_a_wrong_question_gets_words(client: Client, asked: str) -> None:
    answer = client.get(f"/api/records?{'' if 'topic' in asked else 'topic=orders&'}{asked}")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]


def test_a_wrong_time_is_told_in_the_words_of_the_page(client: Client) -> None:
    answer = client.get("/api/records?topic=orders&from=yesterday").json()
    assert answer["error"].startswith("from: 'yesterday' is not a time; expected such as 2026-11-21")
    assert answer["hint"] is None


# --- large values ----------------------------------------------------------------------------------------------


def test_large_values_are_cut_and_downloaded_whole(tmp_path: Path) -> None:
    place, large = str(tmp_path / "logs"), os.urandom(1 << 20) * 3
    with kafkalog.open(place) as store:
        store.create_topic("large", partitions=1, config={"max.message.bytes": str(64 << 20)}).append(
            large, key=large[:5000]
        )
    client = known(place)
    row = page(client, topic="large", last=1)["rows"][0]
    assert row["value"]["size"] == len(large)
    assert octets(row["value"]) == large[: pages.LISTED.value_bytes]
    assert octets(row["key"]) == large[: pages.LISTED.key_bytes]
    alone = client.get("/api/record", params={"topic": "large", "partition": 0, "offset": 0}).json()
    assert octets(alone["value"]) == large
    whole = client.get("/download/bytes", params={"topic": "large", "partition": 0, "offset": 0, "of": "value"})
    assert whole.content == large
    assert whole.headers["content-disposition"] == 'attachment; filename="large-0-0-value.bin"'
    fields = client.get("/api/place", params={"topic": "large", "partition": 0, "offset": 0}).json()["fields"]
    assert max(len(field["shown"]) for field in fields) < 400


# --- the place in the file -------------------------------------------------------------------------------------


def place_of(client: Client, topic: str, **asked: Any) -> dict[str, Any]:
    answer = client.get("/api/place", params={"topic": topic, "partition": 0, **asked})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def spaces(found: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    made: dict[str, list[tuple[int, int]]] = {}
    for field in found["fields"]:
        made.setdefault(field["space"], []).append((field["from"], field["to"]))
    return {space: sorted(ranges) for space, ranges in made.items()}


def check_cover(found: dict[str, Any]) -> None:
    """Every byte belongs to exactly one field."""
    for space, ranges in spaces(found).items():
        start, end = (
            (found["position"], found["position"] + found["size"]) if space == "file" else (0, found["decompressed"])
        )
        assert [each[0] for each in ranges] == [start, *(each[1] for each in ranges[:-1])]
        assert ranges[-1][1] == end


def check_bytes(found: dict[str, Any]) -> None:
    data = Path(found["path"]).read_bytes()
    for field in found["fields"]:
        if field["space"] == "file":
            assert octets({"base64": field["shown"]}) == data[field["from"] : field["to"]][:256]


def value_of(found: dict[str, Any], name: str) -> Any:
    return next((field for field in found["fields"] if field["name"] == name and field["group"] != "records"), None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("offset", [0, 1, 150, 199])
def test_each_byte_of_a_batch_has_one_field(client: Client, codec: str, offset: int) -> None:
    found = place_of(client, f"packed-{codec}", offset=offset)
    check_cover(found)
    check_bytes(found)
    assert (found["codec"], found["magic"], found["problems"]) == (codec, 2, [])
    assert found["crc"]["matches"]
    assert found["record"]["offset"] == offset
    expected = b"value %d " % offset * 20
    assert octets({"base64": value_of(found, "value")["shown"]}) == expected[:256]
    assert value_of(found, "valueLength")["text"] == str(len(expected))
    again = place_of(
        client, f"packed-{codec}", segment=found["segment"], position=found["position"], index=found["record"]["index"]
    )
    assert again["record"] == found["record"]


def test_the_header_is_the_formats_table(client: Client) -> None:
    found = place_of(client, "orders", offset=3)
    data = Path(found["path"]).read_bytes()
    values = HEADER.unpack_from(data, found["position"])
    header = [field for field in found["fields"] if field["group"] == "batch"]
    assert [(field["name"], field["text"]) for field in header] == [
        (name, str(value)) for name, value in zip(HEADER_FIELDS, values, strict=True)
    ]
    assert all(field["meaning"] for field in found["fields"])


def test_the_older_entries_have_the_formats_sizes() -> None:
    for magic, form in enumerate(legacy.ENTRY_HEADERS):
        assert form.size + 2 * struct.calcsize(">i") == LOG_OVERHEAD + legacy.record_overhead(magic)


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats(tmp_path: Path, magic: int, codec: int) -> None:
    rows = [(1000 + number, b"key", b"value %d" % number, ()) for number in range(5)]
    more = {"codec": codec} if codec else {}
    if codec == 0:
        rows = rows[:1]
    (tmp_path / "old-0").mkdir()
    (tmp_path / "old-0" / "00000000000000000000.log").write_bytes(build_batch(rows, magic=magic, **more))
    client = known(str(tmp_path))
    for offset in range(len(rows)):
        found = place_of(client, "old", offset=offset)
        assert (found["magic"], found["problems"], found["count"]) == (magic, [], len(rows))
        assert found["crc"]["matches"]
        assert found["record"]["offset"] == offset
        check_cover(found)
        check_bytes(found)
        assert octets({"base64": value_of(found, "value")["shown"]}) == b"value %d" % offset


def test_a_place_that_no_segment_has(client: Client) -> None:
    for asked in (
        {},
        {"offset": 10**6},
        {"segment": "../secret", "position": 0},
        {"segment": "00000000000000000000.log", "position": 10**9},
    ):
        answer = client.get("/api/place", params={"topic": "orders", "partition": 0, **asked})
        assert answer.status_code == 400
        assert answer.json()["error"]


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Client:
    place = tmp_path / "logs"
    with kafkalog.open(str(place)) as store:
        topic = store.create_topic("orders", partitions=1)
        for number in range(30):
            topic.append(b"value %d" % number)
    path = place / "orders-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    at = data.index(b"value 10")
    data[at] ^= 0xFF
    path.write_bytes(data)
    return known(str(place))


def test_damage_is_told_and_passed_on_request(damaged: Client) -> None:
    found = page(damaged, topic="orders", start=1)
    assert found["ended"] == "damage"
    assert offsets(found) == [(0, offset) for offset in range(10)]
    damage = found["damage"]
    assert "CRC" in damage["what"]
    assert damage["path"].endswith(".log")
    past = page(damaged, topic="orders", at=cursor(found["next"]), skip_damage=1)
    lost = [row for row in past["rows"] if row["kind"] == "lost"]
    assert [(row["position"], row["firstOffset"], row["lastOffset"]) for row in lost] == [(damage["position"], 10, 10)]
    assert offsets(past) == [(0, offset) for offset in range(11, 30)]
    assert past["rows"][0]["kind"] == "lost"
    newest = page(damaged, topic="orders", last=1, count=25, skip_damage=1)
    assert offsets(newest) == [(0, offset) for offset in range(11, 30)] or offsets(newest)[-19:] == [
        (0, offset) for offset in range(11, 30)
    ]
    shown = place_of(damaged, "orders", segment=os.path.basename(damage["path"]), position=damage["position"])
    assert not shown["crc"]["matches"]
    assert shown["crc"]["stored"] != shown["crc"]["computed"]
    check_cover(shown)
    assert "CRC" in shown["problems"][0]


def test_wrong_bytes_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "odd-0").mkdir()
    path = tmp_path / "odd-0" / "00000000000000000000.log"
    whole = build_batch([(1, b"key", b"value", [("name", b"value")])] * 3)
    path.write_bytes(whole * 2)
    with PartitionView(str(tmp_path), "odd-0") as view:
        for position in range(8, 80):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                data = bytearray(whole)
                data[position] = value
                path.write_bytes(bytes(data) + whole)
                found = anatomy.place(view, offset=None, segment=path.name, position=0)
                assert found["fields"][0]["name"] in ("baseOffset", "offset")
                assert bool(found["problems"]) == (bytes(data) != whole and not 12 <= position < 16)
                api.as_json(found)


# --- downloads -------------------------------------------------------------------------------------------------


def test_downloads_are_what_export_writes(client: Client, shop: str, tmp_path: Path) -> None:
    from kafkalog.toolbox.export import ExportOptions, Selection, export

    selection = Selection(key=[b"customer-3"])
    options = ExportOptions("jsonl", selection=selection, headers=True)
    parts = [kafkalog.TopicPartition("orders", number) for number in range(2)]
    export(shop, parts, tmp_path / "orders.jsonl", options)
    asked = {"topic": "orders", "key": "customer-3", "name": "mine"}
    answer = client.get("/download/records", params={**asked, "format": "jsonl"})
    assert answer.content == (tmp_path / "orders.jsonl").read_bytes()
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.jsonl"'
    state = client.get("/api/download", params={"name": "mine"}).json()
    assert (state["state"], state["records"], state["bytes"]) == (
        "done",
        answer.content.count(b"\n"),
        len(answer.content),
    )
    import pyarrow.parquet as parquet

    table = parquet.read_table(
        io.BytesIO(client.get("/download/records", params={**asked, "format": "parquet"}).content)
    )
    assert table.num_rows == state["records"]
    assert set(table.column("key").to_pylist()) == {b"customer-3"}


def test_a_download_ends_at_its_limit_and_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "RECORDS_MAX", 70)
    answer = client.get("/download/records", params={"topic": "orders", "format": "jsonl", "name": "cut"})
    assert answer.content.count(b"\n") == 70
    state = client.get("/api/download", params={"name": "cut"}).json()
    assert (state["state"], state["records"]) == ("cut", 70)
    assert "limit" in state["said"]


def test_a_download_of_damage_fails_with_words(damaged: Client) -> None:
    answer = damaged.get("/download/records", params={"topic": "orders", "format": "jsonl", "name": "bad"})
    assert answer.status_code == 500
    assert "CRC" in answer.json()["error"]
    assert damaged.get("/api/download", params={"name": "bad"}).json()["state"] == "failed"


def test_file_names_are_harmless() -> None:
    name = downloads.file_name('../../etc/"x"\r\nSet-Cookie: a', "<b>", ending="bin")
    assert name == "etc_x_Set-Cookie_a-_b.bin"
    assert downloads.file_name("..", ending="jsonl") == "records.jsonl"


def test_only_so_many_downloads_at_once(client: Client) -> None:
    client.live.downloading = asyncio.Semaphore(0)
    answer = client.get("/download/records", params={"topic": "orders", "format": "jsonl"})
    assert answer.status_code == 503
    assert "downloads are running" in answer.json()["error"]


def test_a_refused_download_is_said_to_have_failed(client: Client) -> None:
    client.live.downloading = asyncio.Semaphore(0)
    client.get("/download/records", params={"topic": "orders", "format": "jsonl", "name": "third"})
    assert client.get("/api/download", params={"name": "third"}).json()["state"] == "failed"


def test_the_head_of_a_download_reads_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "write_records", None)  # a call would fail
    answer = client.request("HEAD", "/download/records", params={"topic": "orders", "format": "jsonl"})
    assert (answer.status_code, "attachment" in answer.headers["content-disposition"]) == (200, True)


@pytest.mark.parametrize("finds", [False, True], ids=["before-the-first-piece", "while-it-is-sent"])
def test_a_download_ends_with_its_client(shop: str, monkeypatch: pytest.MonkeyPatch, finds: bool) -> None:
    monkeypatch.setattr(server, "GONE_S", 0.01)
    ended = threading.Event()

    def endless(*asked: Any, **more: Any) -> None:
        pipe = asked[4]
        try:
            while True:
                pipe.check()
                if finds:
                    pipe.write(bytes(downloads.PIECE_BYTES))
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(server, "write_records", endless)
    live = server.Live([shop], lambda: b"{}", {})
    has_asked = False

    async def receive() -> Any:
        nonlocal has_asked
        if has_asked:
            return {"type": "http.disconnect"}
        has_asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        return

    async def ask() -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/download/records", "headers": [], "root_path": "",
            "query_string": b"topic=orders&format=jsonl", "asgi": {"spec_version": "2.3"},
        }  # fmt: skip
        await asyncio.wait_for(server.application(live)(scope, receive, send), 10)

    for _ in range(server.DOWNLOADS + 1):
        has_asked = False
        ended.clear()
        asyncio.run(ask())
        assert ended.wait(10)
        assert not live.downloading.locked()


def test_a_connection_without_a_request_ends(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.05)
    live = server.Live([shop], lambda: b"{}", {})
    at = server.listening("127.0.0.1", 0)
    port = at.getsockname()[1]
    config = server.uvicorn.Config(server.guarded(live, TOKEN, port), http=server._Protocol, lifespan="off")
    running = server.uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [at]}, daemon=True)
    thread.start()
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(sent)
            answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 401") == (sent.count(b"GET") == 2)
    running.should_exit = True
    thread.join(10)


# --- schemas ---------------------------------------------------------------------------------------------------


@pytest.fixture
def given(tmp_path: Path) -> Path:
    avro = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "raw", "type": "bytes"}],
    }
    (tmp_path / "7.avsc").write_text(json.dumps(avro))
    document = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    (tmp_path / "9.json").write_text(json.dumps(document))
    return tmp_path


def test_avro(given: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    given_ = schemas.Schemas()
    given_.give([f"7={given / '7.avsc'}", f"orders={given / '7.avsc'}"])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.schema.load_schema(given / "7.avsc"), {"id": 2**62, "raw": b"\xff"})
    bare, wired = out.getvalue(), b"\0\0\0\0\x07" + out.getvalue()
    text = f'{{"id":{2**62},"raw":"base64:/w=="}}'
    for topic, data in (("x", wired), ("orders", wired), ("orders", bare), ("orders", b"\0\0\0\0\x63" + bare)):
        found = given_.decoded(topic, data, is_key=False)
        assert found is not None
        assert found["json"] == text
    assert given_.decoded("x", bare, is_key=False) is None
    assert given_.decoded("orders", bare, is_key=True) is None
    assert given_.decoded("orders", None, is_key=False) is None
    for data in (b"\0\0\0\0\x07", wired + b"x", b"\0\0\0\0\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"):
        found = given_.decoded("x", data, is_key=False)
        assert found is not None
        assert "Avro" in found["error"]


def test_json_schema(given: Path) -> None:
    pytest.importorskip("jsonschema")
    given_ = schemas.Schemas()
    given_.give([f"9={given / '9.json'}"])
    text = '{"id": 123456789012345678901234567890, "p": 1.00000000000000000001}'
    found = given_.decoded("x", b"\0\0\0\0\x09" + text.encode(), is_key=True)
    assert found is not None
    assert found["json"] == text
    for wrong in (b"{}", b"\xff", b"[" * 100_000):
        found = given_.decoded("x", b"\0\0\0\0\x09" + wrong, is_key=False)
        assert found is not None
        assert "JSON" in found["error"]


def decoded(folder: Path, ending: str, schema: Any, data: bytes) -> dict[str, Any]:
    path = folder / f"given{ending}"
    path.write_text(json.dumps(schema))
    made = schemas.Schemas()
    made.give([f"topic={path}"])
    found = made.decoded("topic", data, is_key=False)
    assert found is not None
    return found


DEEP = {"type": "record", "name": "Deep", "fields": [{"name": "next", "type": ["null", "Deep"]}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]}


def test_hostile_avro(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    assert decoded(tmp_path, ".avsc", DEEP, b"\2\2\0")["json"] == '{"next":{"next":{"next":null}}}'
    assert "RecursionError" in decoded(tmp_path, ".avsc", DEEP, b"\2" * 500_000)["error"]
    assert decoded(tmp_path, ".avsc", DECIMAL, b"\4\4\1")["json"] == '"10.25"'
    assert "decimal of 8192 bytes" in decoded(tmp_path, ".avsc", DECIMAL, b"\x80\x80\1" + bytes(8192))["error"]
    assert decoded(tmp_path, ".avsc", {"type": "map", "values": "null"}, b"\2\2a\0")["json"] == '{"a":null}'
    for items in ("null", NOTHING):
        with pytest.raises(kafkalog.errors.IllegalArgumentException, match="take no bytes"):
            decoded(tmp_path, ".avsc", {"type": "array", "items": items}, b"\2\0")


def test_hostile_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.ui import json_schemas

    pytest.importorskip("jsonschema")
    long = b'"' + b"a" * 60 + b'!"'
    for schema, good, bad in (
        ({"pattern": "^(a+)+$"}, b'"aa"', long),
        ({"patternProperties": {"^(a+)+$": False}}, b"{%s:1}" % long, b'{"aa":1}'),
        ({"patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, b'{"aa":1}', b"{%s:1}" % long),
        ({"properties": {"a": True}, "additionalProperties": {"type": "string"}}, b'{"a":1,"b":"2"}', b'{"b":1}'),
        ({"uniqueItems": True}, b"[%s]" % b",".join(b'{"a":%d}' % each for each in range(5000)), b"[1,1.0]"),
        ({"const": 1.1}, b"1.1", b"1.2"),
        ({"type": "integer"}, b"1.0", b"1.5"),
        ({"type": "number"}, b"1e400", b"NaN"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$", "items": {"$ref": "#"}},
            b'["aa"]', b"[%s]" % long),
    ):  # fmt: skip
        assert decoded(tmp_path, ".json", schema, good).get("json") == good.decode(), schema
        assert decoded(tmp_path, ".json", schema, bad)["error"], schema
    monkeypatch.setattr(json_schemas, "CHECK_SECONDS", 0.05)
    both = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}] * 2}
    assert "takes longer" in decoded(tmp_path, ".json", both, b'{"a":' * 60 + b"1" + b"}" * 60)["error"]


def test_a_schema_leads_nowhere_else(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.1)
        schema = {"$ref": f"http://127.0.0.1:{other.getsockname()[1]}/schema"}
        assert "Unresolvable" in decoded(tmp_path, ".json", schema, b"1")["error"]
        with pytest.raises(TimeoutError):
            other.accept()


def test_protobuf(tmp_path: Path) -> None:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in ("Order", "Refund"):
        message = file.message_type.add(name=name)
        message.field.add(name="id", number=1, type=3, label=1)
        message.field.add(name=name.lower(), number=2, type=9, label=1)
    (tmp_path / "11.desc").write_bytes(pb2.FileDescriptorSet(file=[file]).SerializeToString())
    given_ = schemas.Schemas()
    given_.give_folder(str(tmp_path))
    given_.give([f"refunds={tmp_path / '11.desc'}#Refund"])
    wire, payload = b"\0\0\0\0\x0b", b"\x08\x05\x12\x01a"
    for topic, data, text in (
        ("x", wire + b"\0" + payload, '{"id":"5","order":"a"}'),
        ("x", wire + b"\x02\x00" + payload, '{"id":"5","order":"a"}'),
        ("x", wire + b"\x02\x02" + payload, '{"id":"5","refund":"a"}'),
        ("refunds", payload, '{"id":"5","refund":"a"}'),
    ):
        found = given_.decoded(topic, data, is_key=False)
        assert found is not None
        assert found["json"] == text
    for data in (wire, wire + b"\x02\x10" + payload, wire + b"\0\xff\xff", wire + b"\xff\xff\xff\xff\xff\xff"):
        found = given_.decoded("x", data, is_key=False)
        assert found is not None
        assert "Protobuf" in found["error"] or "message" in found["error"]


def test_what_is_no_schema(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text("{}")
    (tmp_path / "2.txt").write_text("")
    for text in (
        "orders",
        "=a.avsc",
        "orders=",
        f"orders={tmp_path / 'none.avsc'}",
        f"1={tmp_path / '1.avsc'}",
        f"2={tmp_path / '2.txt'}",
    ):
        with pytest.raises(kafkalog.KafkalogError):
            schemas.Schemas().give([text])


def test_a_value_that_a_schema_does_not_fit_keeps_its_bytes(shop: str, given: Path) -> None:
    given_ = schemas.Schemas()
    given_.give([f"orders={given / '9.json'}"])
    client = known(shop, schemas=given_)
    rows = [row for row in page(client, topic="orders", count=500, start=1)["rows"] if row["kind"] == "record"]
    wrong = next(row for row in rows if octets(row["value"]) == SCRIPT)
    assert "JSON" in wrong["valueDecoded"]["error"]
    assert json.loads(rows[0]["valueDecoded"]["json"])["id"] == 0


# --- the survey ------------------------------------------------------------------------------------------------


def test_the_survey_is_made_again_when_the_directory_has_changed(
    shop: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "REST", 0)
    place, made = tmp_path / "logs", []

    def make() -> bytes:
        made.append(1)
        return b'{"made": %d}' % len(made)

    with kafkalog.open(str(place)) as store:
        topic = store.create_topic("orders", partitions=1)
        topic.append(b"one")
        client = known(str(place), make=make)
        first = until(client, lambda answer: answer.status_code == 200)
        tag = first.headers["etag"]
        for _ in range(5):
            assert client.get("/api/survey", headers={"If-None-Match": tag}).status_code == 304
            time.sleep(0.02)
        assert made == [1]
        topic.append(b"two")
        second = until(client, lambda answer: answer.status_code == 200, {"If-None-Match": tag})
        assert second.json() == {"made": 2}
    gone = tmp_path / "gone"
    place.rename(gone)
    answer = until(client, lambda answer: answer.status_code == 503)
    assert str(place) in answer.json()["error"]
    gone.rename(place)
    assert until(client, lambda answer: answer.status_code == 200).json()["made"] >= 3
    client.live.close()


def test_a_defect_does_not_end_the_updates(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "REST", 0)
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        if len(made) == 1:
            raise ZeroDivisionError("a defect")
        return b"{}"

    client = known(shop, make=make)
    assert client.get("/api/survey").json()["error"] == "ZeroDivisionError: a defect"
    assert until(client, lambda answer: answer.status_code == 200).content == b"{}"
    client.live.close()


def until(client: Client, wanted: Any, headers: Any = None) -> Any:
    for _ in range(500):
        answer = client.get("/api/survey", headers=headers)
        if wanted(answer):
            return answer
        time.sleep(0.02)
    raise AssertionError(answer.text)


# --- what it leaves alone --------------------------------------------------------------------------------------


def tree(place: str) -> dict[str, tuple[int, int, int]]:
    found = {}
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            stat = os.stat(path)
            found[path] = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
    return found


def test_nothing_in_the_directory_changes(shop: str) -> None:
    from kafkalog.ui import page as live_page

    pytest.importorskip("vl_convert")
    before = tree(shop)
    client = known(shop, make=live_page.making([shop]))
    assert json.loads(until(client, lambda answer: answer.status_code == 200).content)["facts"]
    for path in (
        "/api/topics", "/api/records?topic=orders&last=1", "/api/records?topic=orders&grep=x&start=1",
        "/api/place?topic=orders&partition=0&offset=1", "/api/record?topic=orders&partition=0&offset=1",
        "/download/records?topic=orders&format=parquet", "/download/bytes?topic=orders&partition=0&offset=1",
    ):  # fmt: skip
        assert client.get(path).status_code == 200, path
    client.live.close()
    assert tree(shop) == before
    with kafkalog.open(shop) as store:  # no lock is left
        assert store.topic("orders").partitions == 2 or store.topic("orders")


def test_more_partitions_than_views_that_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.ui import views

    monkeypatch.setattr(views, "VIEWS_MAX", 3)
    place = str(tmp_path / "logs")
    with kafkalog.open(place) as store:
        topic = store.create_topic("orders", partitions=8)
        for number in range(8):
            topic.append(b"%d" % number, partition=number)
    client = known(place)
    for _ in range(3):
        assert offsets(page(client, topic="orders", start=1)) == [(number, 0) for number in range(8)]
    assert len(client.live.views._open) <= 3
