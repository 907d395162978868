"""`TrialServer`: a server for tests, with a store of its own, fresh topics and faults to order.

    with TrialServer(folder) as kafka:
        topic = kafka.create_topic()
        kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)

The pytest plugin's `kafka_server` is one of these; it works without pytest too.  The disk is never waited for
(`trial_files`), and groups do not wait three seconds for further members.  Every fault ends with its count, or with
`clear_faults`.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kafkalog._limits import INT_MAX
from kafkalog._native.state.blocks import Closing
from kafkalog.engine.format import values
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import apis
from kafkalog.errors import ConfigException, IllegalArgumentException
from kafkalog.server.broker import Fault
from kafkalog.server.hosted import hosted_by
from kafkalog.server.server import Server, named_settings, serve
from kafkalog.server.settings import ServerSettings, kafkas_name, manager_settings
from kafkalog.server.trial_files import Disk, TrialFiles
from kafkalog.store import open_store

if TYPE_CHECKING:
    from kafkalog.server.request import Request
    from kafkalog.store import Store

__all__ = ["TrialServer"]

SETTINGS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0}
OWN = ("listeners", "log.dir", "log.dirs")  # a trial server chooses its address and its directory
CREATORS = ("CreateTopics", "Metadata")  # requests that may name a topic that does not exist yet
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")


class _Ordered:
    """A fault that is waiting for its requests."""

    def __init__(self, keys: frozenset[int], fault: Fault, times: int | None, topic: str | None) -> None:
        self.keys = keys
        self.fault = fault
        self.left = times
        self.topic = topic


class TrialServer(Closing):
    """A store and its server in one directory.

    Args:
        folder: The directory, which is created if it is missing.
        settings: Kafka's broker settings, by their names; not the address and the directories.

    Raises:
        ConfigException: A setting is unknown or out of range, or is `listeners`, `log.dir` or `log.dirs`.

    Example:
        >>> from kafkalog.server.trial import TrialServer
        >>> with TrialServer("trial") as kafka:
        ...     topic = kafka.create_topic("orders", partitions=2)
        ...     print(topic, kafka.store.topic(topic).partitions)
        orders 2
    """

    def __init__(self, folder: str, settings: Mapping[str, object] | None = None) -> None:
        check_settings(settings or {})
        self._folder = folder
        self._settings: dict[str, Any] = {**SETTINGS, **(settings or {})}
        self._files = TrialFiles()
        self._count = itertools.count(1)
        self._faults: list[_Ordered] = []  # guarded by _lock
        self._lock = threading.Lock()
        self._port = 0
        self.store: Store
        self.server: Server
        self._start()

    def _start(self) -> None:
        self.store = open_store(self._folder, files=self._files, settings=manager_settings(self._settings))
        try:
            self.server = serve(self.store._own(), f"127.0.0.1:{self._port}", self._settings)  # type: ignore[arg-type]
        except BaseException:
            self.store.close()
            raise
        self._port = self.server.port
        if self._faults:
            self.server.broker.fault_for = self._fault_for

    def __enter__(self) -> TrialServer:
        return self

    # --- addresses -------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; a restart keeps it."""
        return self.server.bootstrap_servers

    @property
    def port(self) -> int:
        """The port; a restart keeps it."""
        return self._port

    def __repr__(self) -> str:
        return f"<trial server at {self.bootstrap_servers}>"

    # --- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self, name: str | None = None, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Creates a topic.

        Args:
            name: The name; None makes a new one.
            partitions: The number of partitions.
            config: Settings of the topic.

        Returns:
            The name.

        Raises:
            TopicExistsException: There is a topic of that name.
        """
        found = f"topic-{next(self._count)}" if name is None else name
        self.store.create_topic(found, partitions, config=dict(config or {}))
        return found

    def fresh_topic(self, of: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Creates a topic whose name says what it is for.

        Args:
            of: Its purpose, such as the name of a test.
            partitions: The number of partitions.
            config: Settings of the topic.

        Returns:
            The name, which no other topic has.
        """
        words = _NOT_IN_NAMES.sub("-", of).strip("-.")[:200]
        return self.create_topic(f"{words or 'topic'}-{next(self._count)}", partitions, config)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, if it is still there.

        Args:
            name: The name.
        """
        if name in self.store:
            self.store.delete_topic(name)

    # --- faults ----------------------------------------------------------------------------------------

    def fail(self, request: str, error: str | int, *, times: int | None = 1, topic: str | None = None) -> None:
        """Answers the next requests of a kind with an error, without handling them.

        Args:
            request: Kafka's name of the request, such as "Produce"; "*" for all but ApiVersions.
            error: Kafka's name of the error, such as "NOT_LEADER_OR_FOLLOWER", or its number.
            times: How many requests, at least 1; None until `clear_faults`.
            topic: Only requests that name this topic.

        Raises:
            IllegalArgumentException: There is no such request or error, or a number is wrong.
            UnknownTopicOrPartitionException: There is no such topic, and the request is none that creates it
                (CreateTopics, Metadata).
        """
        self._order(request, Fault(error=_error(error)), times, topic)

    def delay(self, request: str, delay_ms: int, *, times: int | None = 1, topic: str | None = None) -> None:
        """Handles the next requests of a kind later.

        Args:
            request: As in `fail`.
            delay_ms: How much later, in milliseconds.
            times: As in `fail`.
            topic: As in `fail`.

        Raises:
            IllegalArgumentException: As in `fail`.
            UnknownTopicOrPartitionException: As in `fail`.
        """
        later = values.count(delay_ms, "delay_ms", high=INT_MAX, expected="milliseconds")
        self._order(request, Fault(delay_ms=later), times, topic)

    def disconnect(self, request: str, *, times: int | None = 1, topic: str | None = None) -> None:
        """Closes the connection of the next requests of a kind without an answer.

        Args:
            request: As in `fail`.
            times: As in `fail`.
            topic: As in `fail`.

        Raises:
            IllegalArgumentException: As in `fail`.
            UnknownTopicOrPartitionException: As in `fail`.
        """
        self._order(request, Fault(closes=True), times, topic)

    def _order(self, request: str, fault: Fault, times: int | None, topic: str | None) -> None:
        keys = _keys(request)
        if times is not None:
            times = values.count(times, "times", low=1, expected="how many requests, or None for all")
        if topic is not None and request not in CREATORS:
            self.store.topic(topic)
        with self._lock:
            self._faults.append(_Ordered(keys, fault, times, topic))
            self.server.broker.fault_for = self._fault_for

    def _fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            for each in self._faults:
                if request.api_key in each.keys and (each.topic is None or each.topic in _topics_of(self, request)):
                    if each.left is not None:
                        each.left -= 1
                        if each.left <= 0:
                            self._faults.remove(each)
                    return each.fault
        return None

    def clear_faults(self) -> None:
        """Ends all faults, a full disk too."""
        Disk.is_full = False
        with self._lock:
            self._faults.clear()
            self.server.broker.fault_for = None

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Makes the disk full within a `with`: no file can grow.

        Yields:
            None.
        """
        Disk.is_full = True
        try:
            yield
        finally:
            Disk.is_full = False

    def restart(self, *, kill: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Stops the server and starts it again at the same address.

        The store and its topics are other objects afterwards: those from before are closed.

        Args:
            kill: Stop as a crash does: nothing is closed, and the start recovers.
            meanwhile: Called while no server listens.  An error of it is raised after the start.
        """
        if kill:
            self.server.kill()
            self.store._home.abandon()  # type: ignore[attr-defined]
        else:
            self.store.close()
        try:
            meanwhile()
        finally:  # other tests go on with this server
            self._start()

    def close(self) -> None:
        """Closes the server and its store.

        A second call does nothing.
        """
        self.clear_faults()
        self.store.close()


def check_settings(settings: Mapping[str, object]) -> None:
    """Raises ConfigException for a setting that is wrong, or that a trial server chooses itself."""
    for name in map(kafkas_name, settings):
        if name in OWN:
            what = "address" if name == "listeners" else "directory"
            raise ConfigException(f"{name}: the server of a test chooses its {what} itself", hint="omit the setting")
    ServerSettings.from_props(named_settings(settings))


def _keys(request: str) -> frozenset[int]:
    values.text(request, "request")
    known = {each.name: each.key for each in apis().values()}
    if request == "*":
        return frozenset(known.values()) - {known["ApiVersions"]}
    if request not in known:
        from difflib import get_close_matches

        near = get_close_matches(request, known)
        raise IllegalArgumentException(
            f"request: found {request!r}, expected Kafka's name of a request, such as 'Produce' or 'Fetch'",
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    return frozenset({known[request]})


def _error(error: str | int) -> str:
    found = None
    with suppress(KeyError, ValueError):
        found = Errors[error] if isinstance(error, str) else Errors(error)
    if not found or isinstance(error, bool):  # NONE is the number 0
        raise IllegalArgumentException(
            f"error: found {error!r}, expected Kafka's name of an error, such as 'NOT_LEADER_OR_FOLLOWER'"
        )
    return found.name


def _topics_of(server: TrialServer, request: Request) -> set[str]:
    """Returns the topics that a request names, by name or by id."""
    found: set[str] = set()
    _collect(request.body, found)
    hosted = hosted_by(server.server.broker)
    for each in list(found):
        topic = hosted.with_id(each)
        if topic is not None:
            found.add(topic.name)
    return found


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, dict):
        for name in ("name", "topic", "topicName", "topicId"):
            if isinstance(value.get(name), str):
                found.add(value[name])
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, str):
                found.add(each)
            else:
                _collect(each, found)
