"""Quotas of clients: how much a user or a client id may send, fetch, change and keep the server busy.

    broker.quotas.produce(request, size)     # -> throttleTimeMs of the answer; 0 almost always
    broker.quotas.fetch(request, size)

A client over its quota gets its answer, with the time that it must wait, and its connection is not read for that
time.  The connection learns of it by `connection.state["throttle_ms"]`, which the server takes after each answer.
Without quotas a call is one comparison.

The most specific quota applies: user and client id, user, then client id, each before its default.  Clients that the
same quota names share it.  Thread-safe.
Source: ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager, ConnectionQuotas (4.4.0).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafkalog.engine.files import Clock
from kafkalog.errors import ThrottlingQuotaExceededException
from kafkalog.server.request import ConnectionInfo, Request
from kafkalog.server.security.principal import host_address
from kafkalog.server.security.rates import TokenBucket, WindowedRate

DEFAULT: Final = ""  # the name of the entity that stands for everybody without a quota; no real name is empty
UNBOUNDED = 9.223372036854776e18  # a rate of Long.MAX_VALUE
THROTTLE = "throttle_ms"  # in ConnectionInfo.state
NANOS_TO_PERCENT = 100 / 1e9
IDLE_MS = 3_600_000
SWEEP_AT = 10_000  # sensors

_USER_AND_CLIENT, _USER, _CLIENT = 4, 2, 1


class QuotaSettings(NamedTuple):
    """`quota.window.*` and `controller.quota.window.*` of a broker."""

    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1


class QuotaEntity(NamedTuple):
    """Whom a quota is for: names, `DEFAULT` for the default, None for a part that the quota does not name."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


@dataclass(slots=True)
class _Sensor:
    rate: WindowedRate
    bound: float
    bucket: TokenBucket | None = None
    last_ms: int = field(default=0)


class ClientQuotaManager:
    """One kind of quota, such as `producer_byte_rate`, for all users and client ids.

    Args:
        windows: How many windows a rate looks back.
        window_ms: The length of a window.
        throttle_max_ms: The longest time that a client must wait, or None.
        has_bucket: Whether the quota counts tokens instead of a rate.
    """

    def __init__(
        self, windows: int, window_ms: int, *, throttle_max_ms: int | None = None, has_bucket: bool = False
    ) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._throttle_max_ms = throttle_max_ms
        self._has_bucket = has_bucket
        self._lock = threading.Lock()
        self._limits: dict[tuple[str | None, str | None], float] = {}  # guarded by _lock
        self._sensors: dict[tuple[str, str], _Sensor] = {}  # guarded by _lock
        self._sweep_at = SWEEP_AT
        self._kinds = 0  # the kinds of quotas that are there: read without the lock

    @property
    def is_on(self) -> bool:
        """Whether there is any quota."""
        return self._kinds != 0

    def replace(self, limits: Mapping[tuple[str | None, str | None], float]) -> None:
        """Sets the quotas by user and client id, as `QuotaEntity` has them.  Measurements go on."""
        with self._lock:
            self._limits = dict(limits)
            kinds = 0
            for user, client_id in limits:
                kinds |= (_USER_AND_CLIENT if client_id is not None else _USER) if user is not None else _CLIENT
            self._kinds = kinds
            for (user, client_id), sensor in self._sensors.items():
                sensor.bound = self._limit(user, client_id)

    def record_and_get_throttle_time_ms(self, user: str, client_id: str | None, value: float, now_ms: int) -> int:
        """Counts a value and returns how long its client must wait."""
        with self._lock:
            sensor = self._sensor(user, client_id or "", now_ms)
            sensor.rate.record(value, now_ms)
            throttle_ms = sensor.rate.throttle_time_ms(sensor.bound, now_ms)
        return throttle_ms if self._throttle_max_ms is None else min(throttle_ms, self._throttle_max_ms)

    def take_tokens(self, user: str, client_id: str | None, value: float, now_ms: int, *, strict: bool) -> int | None:
        """Takes tokens; if it is strict, not from an empty bucket.

        Returns:
            How long the client must wait, which may round to 0; None if no token is missing.
        """
        with self._lock:
            sensor = self._sensor(user, client_id or "", now_ms)
            bucket, bound = sensor.bucket, sensor.bound
            assert bucket is not None
            if not strict:
                bucket.record(value, bound, now_ms)
            if bucket.measure(bound, now_ms) < 0:
                return bucket.throttle_time_ms(bound, now_ms)
            if strict:
                bucket.record(value, bound, now_ms)
            return None

    def record_no_throttle(self, user: str, client_id: str | None, value: float, now_ms: int) -> None:
        """Counts a value; a negative one takes an earlier one back."""
        with self._lock:
            self._sensor(user, client_id or "", now_ms).rate.record(value, now_ms)

    def max_value_in_quota_window(self, user: str, client_id: str | None) -> float:
        """Returns how much a client may get over all windows but one."""
        if not self._kinds:
            return UNBOUNDED
        with self._lock:
            limit = self._limit(*self._tags(user, client_id or ""))
        return limit if limit == UNBOUNDED else limit * (self._windows - 1) * (self._window_ms // 1000)

    def _sensor(self, user: str, client_id: str, now_ms: int) -> _Sensor:
        tags = self._tags(user, client_id)
        sensor = self._sensors.get(tags)
        if sensor is None or now_ms - sensor.last_ms > IDLE_MS:
            if len(self._sensors) >= self._sweep_at:
                self._sensors = {key: one for key, one in self._sensors.items() if now_ms - one.last_ms <= IDLE_MS}
                self._sweep_at = max(SWEEP_AT, 2 * len(self._sensors))  # so that a sweep is seldom
            bucket = TokenBucket(self._window_ms, self._windows) if self._has_bucket else None
            rate = WindowedRate(self._window_ms, self._windows)
            sensor = self._sensors[tags] = _Sensor(rate, self._limit(*tags), bucket)
        sensor.last_ms = now_ms
        return sensor

    def _tags(self, user: str, client_id: str) -> tuple[str, str]:
        """Returns who shares a measurement with this client: "" for a part that does not matter."""
        if self._kinds <= _CLIENT:
            return "", client_id
        if self._kinds == _USER:
            return user, ""
        if self._kinds == _USER_AND_CLIENT:
            return user, client_id
        limits = self._limits
        for limit, tags in (
            ((user, client_id), (user, client_id)),
            ((user, DEFAULT), (user, client_id)),
            ((user, None), (user, "")),
            ((DEFAULT, client_id), (user, client_id)),
            ((DEFAULT, DEFAULT), (user, client_id)),
            ((DEFAULT, None), (user, "")),
        ):
            if limit in limits:
                return tags
        return "", client_id

    def _limit(self, user: str, client_id: str) -> float:
        """Returns the bound of the measurement with these tags."""
        found: Iterable[tuple[str | None, str | None]] = ()
        if user and client_id:
            found = (user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)
        elif user:
            found = (user, None), (DEFAULT, None)
        elif client_id:
            found = (None, client_id), (None, DEFAULT)
        return next((self._limits[key] for key in found if key in self._limits), UNBOUNDED)


class ControllerMutationQuota:
    """The tokens that one request may take for topics and partitions that it creates or deletes."""

    def __init__(self, manager: ClientQuotaManager, request: Request, clock: Clock, *, strict: bool) -> None:
        self._manager = manager
        self._who = request.connection.principal.name, request.client_id
        self._clock = clock
        self._strict = strict
        self._throttle_ms = 0
        self._recorded_ms = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether a strict quota has refused a change of this request."""
        return self._strict and self._throttle_ms > 0

    def record(self, permits: float) -> None:
        """Takes tokens.  Raises ThrottlingQuotaExceededException if the quota is strict and the bucket is empty."""
        if not self._manager.is_on:
            return
        now_ms = self._clock.milliseconds()
        throttle_ms = self._manager.take_tokens(*self._who, permits, now_ms, strict=self._strict)
        if throttle_ms is not None:
            self._throttle_ms, self._recorded_ms = throttle_ms, now_ms
            if self._strict:
                raise ThrottlingQuotaExceededException("The throttling quota has been exceeded.")

    def throttle_time_ms(self) -> int:
        """Returns how long the client must wait from now on."""
        if not self._throttle_ms:
            return 0
        return max(self._throttle_ms - (self._clock.milliseconds() - self._recorded_ms), 0)


class Quotas:
    """All quotas of a server.

    Args:
        settings: The windows.
        clock: The time.
    """

    def __init__(self, settings: QuotaSettings, clock: Clock) -> None:
        self._clock = clock
        window_ms = settings.quota_window_size_seconds * 1000
        windows = settings.quota_window_num
        self._window_ms, self._windows = window_ms, windows
        self._produce = ClientQuotaManager(windows, window_ms)
        self._fetch = ClientQuotaManager(windows, window_ms)
        self._request = ClientQuotaManager(windows, window_ms, throttle_max_ms=window_ms)
        self._mutation = ClientQuotaManager(
            settings.controller_quota_window_num,
            settings.controller_quota_window_size_seconds * 1000,
            has_bucket=True,
        )
        self._ip_lock = threading.Lock()
        self._ip_limits: dict[str, float] = {}
        self._ip_rates: dict[str, WindowedRate] = {}  # guarded by _ip_lock

    def replace(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Sets all quotas.  The keys of the inner mapping are Kafka's: `producer_byte_rate` and others."""
        for key, manager in (
            ("producer_byte_rate", self._produce),
            ("consumer_byte_rate", self._fetch),
            ("request_percentage", self._request),
            ("controller_mutation_rate", self._mutation),
        ):
            manager.replace(
                {
                    (entity.user, entity.client_id): values[key]
                    for entity, values in quotas.items()
                    if key in values and entity.ip is None
                }
            )
        self._ip_limits = {
            entity.ip and _address(entity.ip): values["connection_creation_rate"]
            for entity, values in quotas.items()
            if entity.ip is not None and "connection_creation_rate" in values
        }

    @property
    def measures_time(self) -> bool:
        """Whether the server must measure how long requests take."""
        return self._request.is_on

    def produce(self, request: Request, size: int) -> int:
        """Counts a produce request of `size` bytes.  Returns throttleTimeMs."""
        return self._count(self._produce, request, size) if self._produce.is_on else 0

    def fetch(self, request: Request, size: int) -> int:
        """Counts a fetch answer of `size` bytes.  Returns throttleTimeMs; if it is not 0, the answer must be empty, and
        `unrecord_fetch` takes the bytes back."""
        return self._count(self._fetch, request, size) if self._fetch.is_on else 0

    def unrecord_fetch(self, request: Request, size: int) -> None:
        """Takes back what `fetch` counted, for an answer that is sent empty."""
        if self._fetch.is_on:
            who = request.connection.principal.name, request.client_id
            self._fetch.record_no_throttle(*who, -size, self._clock.milliseconds())

    def fetch_bytes_max(self, request: Request) -> int:
        """Returns the most bytes that an answer may have, so that one fetch cannot use up several windows."""
        limit = self._fetch.max_value_in_quota_window(request.connection.principal.name, request.client_id)
        return int(min(limit, (1 << 31) - 1))

    def request_time(self, request: Request, ns: int) -> int:
        """Counts the time that a request took.  Returns throttleTimeMs."""
        return self._count(self._request, request, ns * NANOS_TO_PERCENT) if self._request.is_on else 0

    def mutation(self, request: Request, *, strict: bool) -> ControllerMutationQuota:
        """Returns the quota for the topics and partitions that a request creates or deletes.

        Args:
            request: The request.
            strict: Whether the client understands THROTTLING_QUOTA_EXCEEDED, by its request's version.
        """
        return ControllerMutationQuota(self._mutation, request, self._clock, strict=strict)

    def accept(self, host: str) -> int:
        """Counts a new connection.  Returns for how many ms it must wait before it is closed; 0 to accept it."""
        limits = self._ip_limits
        if not limits:
            return 0
        host = host_address(host)
        bound = limits.get(host, limits.get(DEFAULT))
        if bound is None:
            return 0
        now_ms = self._clock.milliseconds()
        with self._ip_lock:
            if len(self._ip_rates) >= SWEEP_AT:
                self._ip_rates.clear()
            rate = self._ip_rates.setdefault(host, WindowedRate(self._window_ms, self._windows))
            rate.record(1, now_ms)
            throttle_ms = min(rate.throttle_time_ms(bound, now_ms), self._window_ms)
            if throttle_ms:
                rate.record(-1, now_ms)
        return throttle_ms

    def _count(self, manager: ClientQuotaManager, request: Request, value: float) -> int:
        connection: ConnectionInfo = request.connection
        now_ms = self._clock.milliseconds()
        throttle_ms = manager.record_and_get_throttle_time_ms(
            connection.principal.name, request.client_id, value, now_ms
        )
        if throttle_ms > connection.state.get(THROTTLE, 0):
            connection.state[THROTTLE] = throttle_ms
        return throttle_ms


def _address(name: str) -> str:
    """Returns the address of a host that a quota names."""
    try:
        return host_address(str(socket.getaddrinfo(name, None)[0][4][0]))
    except OSError:
        return name


def no_quotas(clock: Clock) -> Quotas:
    """Returns the quotas of a server that has none."""
    return Quotas(QuotaSettings(), clock)
