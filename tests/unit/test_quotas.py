"""Quotas of clients: what is counted, who shares a quota, and how long a client must wait."""

from __future__ import annotations

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.errors import ThrottlingQuotaExceededException
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, Request
from kafkalog.server.security.quotas import (
    IDLE_MS,
    SWEEP_AT,
    THROTTLE,
    UNBOUNDED,
    ClientQuotaManager,
    QuotaEntity,
    Quotas,
    QuotaSettings,
    no_quotas,
)
from kafkalog.server.security.rates import java_round

NOW = 1_800_000_000_000


def request(user: str = "alice", client_id: str | None = "app") -> Request:
    return Request(0, 9, client_id=client_id, connection=ConnectionInfo(principal=KafkaPrincipal("User", user)))


def quotas(clock: ManualClock, **values: float) -> Quotas:
    found = Quotas(QuotaSettings(), clock)
    found.replace({QuotaEntity(user="alice"): values})
    return found


def test_without_quotas_nothing_is_counted() -> None:
    found = no_quotas(ManualClock(NOW))
    each = request()
    assert found.produce(each, 1 << 40) == found.fetch(each, 1 << 40) == found.request_time(each, 1 << 60) == 0
    assert found.fetch_bytes_max(each) == (1 << 31) - 1
    assert found.accept("127.0.0.1") == 0
    assert not found.measures_time
    mutation = found.mutation(each, strict=True)
    mutation.record(1e9)
    assert mutation.throttle_time_ms() == 0
    assert not each.connection.state


def test_bytes_of_a_producer() -> None:
    clock = ManualClock(NOW)
    found = quotas(clock, producer_byte_rate=100.0)
    each = request()
    # The ten windows before the first count as empty: a burst of ten seconds is free.
    assert found.produce(each, 1000) == 0
    assert found.produce(each, 500) == 5000
    assert each.connection.state[THROTTLE] == 5000
    assert found.produce(request("bob"), 1 << 30) == 0
    assert found.fetch(each, 1 << 30) == 0
    clock.advance(60_000)
    assert found.produce(each, 100) == 0
    assert each.connection.state[THROTTLE] == 5000  # the server takes it


def test_bytes_of_a_consumer() -> None:
    found = quotas(ManualClock(NOW), consumer_byte_rate=100.0)
    each = request()
    assert found.fetch_bytes_max(each) == 1000
    assert found.fetch(each, 1001) > 0
    found.unrecord_fetch(each, 1001)
    assert found.fetch(each, 1000) == 0


def test_time_of_requests() -> None:
    found = quotas(ManualClock(NOW), request_percentage=10.0)
    assert found.measures_time
    each = request()
    assert found.request_time(each, 1_000_000_000) == 0  # 100 % of a second over ten seconds
    assert found.request_time(each, 5_000_000_000) == 1000  # never longer than a window


def test_changes_of_topics() -> None:
    clock = ManualClock(NOW)
    found = quotas(clock, controller_mutation_rate=2.0)
    strict = found.mutation(request(), strict=True)
    strict.record(22)  # the bucket is full: 11 windows
    strict.record(10)  # and may be overdrawn once
    with pytest.raises(ThrottlingQuotaExceededException):
        strict.record(1)
    assert strict.is_exceeded
    assert strict.throttle_time_ms() == 5000
    clock.advance(2000)
    assert strict.throttle_time_ms() == 3000
    permissive = found.mutation(request(), strict=False)
    permissive.record(4)
    assert not permissive.is_exceeded
    assert permissive.throttle_time_ms() == 5000
    found.mutation(request("bob"), strict=True).record(1e9)


def test_connections_of_an_address() -> None:
    clock = ManualClock(NOW)
    found = Quotas(QuotaSettings(), clock)
    found.replace(
        {
            QuotaEntity(ip=""): {"connection_creation_rate": 1.0},
            QuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 2.0},
            QuotaEntity(ip="::1"): {"connection_creation_rate": 3.0},
        }
    )
    for host, allowed in (("127.0.0.1", 20), ("10.0.0.1", 10), ("::1", 30), ("::ffff:127.0.0.1", 0)):
        accepted = 0
        while found.accept(host) == 0:
            accepted += 1
        assert accepted == allowed, host
        assert 0 < found.accept(host) <= 1000
    clock.advance(3_600_000)
    assert found.accept("127.0.0.1") == 0


def test_who_shares_a_quota() -> None:
    manager = ClientQuotaManager(11, 1000)
    manager.replace({("", None): 100.0})  # the default of users: each user has it alone
    assert manager.record_and_get_throttle_time_ms("alice", "one", 900, NOW) == 0
    assert manager.record_and_get_throttle_time_ms("alice", "two", 900, NOW) > 0
    assert manager.record_and_get_throttle_time_ms("bob", "one", 900, NOW) == 0
    manager = ClientQuotaManager(11, 1000)
    manager.replace({(None, "one"): 100.0})
    assert manager.record_and_get_throttle_time_ms("alice", "one", 900, NOW) == 0
    assert manager.record_and_get_throttle_time_ms("bob", "one", 900, NOW) > 0
    assert manager.record_and_get_throttle_time_ms("bob", None, 1 << 40, NOW) == 0
    assert manager.max_value_in_quota_window("bob", None) == UNBOUNDED


def test_a_changed_quota_counts_at_once() -> None:
    manager = ClientQuotaManager(11, 1000)
    manager.replace({("alice", None): 100.0})
    assert manager.record_and_get_throttle_time_ms("alice", "x", 2000, NOW) > 0
    manager.replace({("alice", None): 1000.0})
    assert manager.record_and_get_throttle_time_ms("alice", "x", 1, NOW) == 0
    manager.replace({})
    assert not manager.is_on


def test_idle_clients_are_forgotten() -> None:
    manager = ClientQuotaManager(11, 1000)
    manager.replace({("", None): 100.0})
    for number in range(SWEEP_AT):
        manager.record_no_throttle(str(number), "x", 1, NOW)
    manager.record_no_throttle("one more", "x", 1, NOW + IDLE_MS + 1)
    assert len(manager._sensors) == 1


def test_many_clients_that_are_not_idle_are_looked_through_seldom() -> None:
    manager = ClientQuotaManager(11, 1000)
    manager.replace({("", None): 100.0})
    tables = set()
    for number in range(3 * SWEEP_AT):
        manager.record_no_throttle(str(number), "x", 1, NOW)
        tables.add(id(manager._sensors))
    assert len(manager._sensors) == 3 * SWEEP_AT
    assert len(tables) <= 3  # the first, and one for each time that their number has doubled


@pytest.mark.parametrize(("value", "rounded"), [(0.5, 1), (1.5, 2), (2.5, 3), (-0.5, 0), (-1.5, -1), (2.4, 2)])
def test_halves_are_rounded_as_in_java(value: float, rounded: int) -> None:
    assert java_round(value) == rounded
