"""The arguments that RemoteStorage and RemoteLogManagerConfig accept, and those that they refuse before they open
anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from tests.unit.tier_kit import tiered

GOLDEN = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
NAN, INF = float("nan"), float("inf")
WRONG: list[tuple[str, Any]] = [
    *(("url", value) for value in (None, 5, "", b"tier", "s3:", "s3://", "s3:///key", "s3:bucket/key", "a\0b")),
    *(("options", value) for value in ("key=hush", [("key", "hush")], {1: "hush"})),
    *(("layout", value) for value in ("Aiven", "", 5)),
    *(("prefix", value) for value in (None, 5, "../x", "a/../b", "a/.", "..")),
    *(("chunk_bytes", value) for value in (None, True, "4", 1.5, 0, -1, (1 << 30) + 1)),
    *(("compression", value) for value in (None, 1, "zstd", "yes", [])),
    *(("encryption", value) for value in (True, "ab", ("a", "b"), {1: ("a", "b")}, {"k": "ab"}, {"k": ("a",)})),
    *(("encryption", {"k": value}) for value in (("a", 5), ("a", "b", "c"), {"a", "b"}, b"ab", None)),
    ("encryption", {"k": ("public.pem", "-----BEGIN RSA PRIVATE KEY-----\nhush\n")}),
    *(("encryption_key", value) for value in ("k", 5)),
    *(("custom_metadata", value) for value in (None, 5, "REMOTE_SIZE", ["SIZE"], [5])),
    *(
        (name, value)
        for name in ("upload_bytes_per_s", "download_bytes_per_s", "timeout_s")
        for value in ("1", True, 0, -1, NAN, INF, 10**400)
    ),
    ("timeout_s", None),
    *(("attempts", value) for value in (None, True, "6", 1.5, 0, -1)),
    *(("cache_bytes", value) for value in (None, True, "64M", 1.5, -1, 1 << 63)),
    *(("topic_ids", value) for value in ("x", ["orders"], {"orders": "short"}, {"orders": 5}, {5: "A" * 22})),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_setting_that_is_none_is_named(name: str, value: Any) -> None:
    settings = {"url": "tier", name: value}
    with pytest.raises(IllegalArgumentException, match=rf"^{name}\b.*(found|fit).*expected") as told:
        kafkalog.RemoteStorage(**settings)
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("below", ["", "/", "/bucket/prefix"])
def test_a_servers_address_is_no_buckets(tmp_path: Path, below: str) -> None:
    for server in ("http://host:9000", "HTTPS://host"):
        with pytest.raises(IllegalArgumentException, match="address of a server, expected that of a bucket") as told:
            kafkalog.open(tmp_path / "store", remote=server + below)
        assert "s3://bucket/prefix, with the server as an option" in told.value.hint
        assert f'options={{"endpoint_url": "{server}"}}' in told.value.hint


def test_the_key_that_encrypts_is_one_of_those_given() -> None:
    pairs = {"a": ("public", "private"), "b": ("public", "private")}
    for key in (None, "c"):
        with pytest.raises(IllegalArgumentException, match=r"encryption_key: found .*\(a, b\)"):
            kafkalog.RemoteStorage("tier", encryption=pairs, encryption_key=key)
    kafkalog.RemoteStorage("tier", encryption=pairs, encryption_key="b")


def test_settings_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {kafkalog.RemoteStorage(url).url for url in ("tier", Path("tier"), f"file://{tmp_path}/tier")}
    assert paths == {str(tmp_path / "tier")}
    for url in ("s3://bucket", "gs://bucket/a/b", "memory://x"):
        assert kafkalog.RemoteStorage(url).url == url
    kafkalog.RemoteStorage(
        "tier", layout="aiven", prefix="a/b-", chunk_bytes=1 << 30, compression="heuristic", topic_ids={"t": "A" * 22},
        custom_metadata=["REMOTE_SIZE"], upload_bytes_per_s=1, timeout_s=0.5, attempts=1, cache_bytes=0,
    )  # fmt: skip


@pytest.mark.parametrize("settings", [{"prefix": "a/"}, {"compression": True}])
def test_settings_of_the_other_layout(tmp_path: Path, settings: dict[str, Any]) -> None:
    """They are refused for a tier in Kafka's own layout, existing or named."""
    kafkalog.RemoteStorage(tmp_path / "no tier", layout="local-tiered").manager()
    tiered(tmp_path / "store", tmp_path / "tier")
    for place in ({"url": tmp_path / "tier"}, {"url": tmp_path / "new", "layout": "local-tiered"}):
        with pytest.raises(IllegalArgumentException, match=f"{next(iter(settings))}.*'local-tiered'"):
            kafkalog.RemoteStorage(**place, **settings).manager()


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix": "a/"},
        {"compression": True},
        {"encryption": {"k": (GOLDEN / "public.pem", GOLDEN / "private.pem")}},
    ],
    ids=["prefix", "compression", "encryption"],
)
def test_a_new_tier_has_the_layout_that_knows_its_settings(tmp_path: Path, settings: dict[str, Any]) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", **settings)
    assert tiered(tmp_path / "store", tier) > 0
    assert list((tmp_path / "tier").rglob("*.rsm-manifest"))
    assert (tmp_path / "tier" / "a").exists() == ("prefix" in settings)
    with kafkalog.open(tier, read_only=True) as bucket:
        assert bucket.topics() == ["orders"]


# Kafka's ConfigDef: INT or LONG, and the least that it takes.
BOUNDS = {
    "task_interval_ms": (1, 2**63 - 1),
    "copier_threads": (1, 2**31 - 1),
    "custom_metadata_max_bytes": (0, 2**31 - 1),
    "copy_max_bytes_per_second": (1, 2**63 - 1),
    "copy_quota_samples": (1, 2**31 - 1),
    "copy_quota_window_s": (1, 2**31 - 1),
    "index_cache_bytes": (1, 2**63 - 1),
}


@pytest.mark.parametrize("name", kafkalog.RemoteLogManagerConfig._fields)
def test_a_setting_of_the_manager_is_in_kafkas_range(name: str, tmp_path: Path) -> None:
    low, high = BOUNDS[name]
    for value in (low, high):
        kafkalog.RemoteLogManagerConfig(**{name: value}).checked()
    for wrong in (low - 1, high + 1, None, "5", 1.5, True, NAN):
        tiering = kafkalog.RemoteLogManagerConfig(**{name: wrong})
        with pytest.raises(IllegalArgumentException, match=re.escape(f"RemoteLogManagerConfig.{name}")):
            kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", tiering=tiering)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_the_manager_has_not_got() -> None:
    with pytest.raises(TypeError, match="copier_thread_pool"):
        kafkalog.RemoteLogManagerConfig(copier_thread_pool=5)  # type: ignore[call-arg]


def test_a_manager_may_sleep_for_ever(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiering = kafkalog.RemoteLogManagerConfig(task_interval_ms=2**63 - 1, copier_threads=1)
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", tiering=tiering) as store:
        (thread,) = store.remote_log_manager._threads
        thread.join(0.1)
        assert thread.is_alive()
