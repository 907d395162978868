"""The one node of a server, as handlers see it: the store, the coordinators, the settings and the clock.

`Broker` holds no socket.  The server sets what the I/O thread offers (`call_soon`); a test makes a Broker without one,
and then `call_soon` runs the function at once.  Coordinators are made at their first use, so that a server that no
group uses loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog.config import topic_defaults_of_broker
from kafkalog.server.resource_configs import ConfigsByResource, ConfigType, ResourceConfigs, effective
from kafkalog.server.security.authorizer import AllowAll, Authorizer
from kafkalog.server.security.quotas import Quotas, no_quotas
from kafkalog.server.settings import Endpoint, ServerSettings

if TYPE_CHECKING:
    from kafkalog._face.store_home import StoreHome
    from kafkalog.engine.coordinator.topics_view import TopicsView
    from kafkalog.engine.files import Clock
    from kafkalog.metrics.registry import MetricsRegistry
    from kafkalog.server.request import ConnectionInfo, Request, Values


class ApiTable(Protocol):
    """The supported requests: `Apis`."""

    def api_versions(self) -> list[Values]: ...


class Fault(NamedTuple):
    """A fault that happens to a request instead of its handling, or before it.

    `error`: the name of a Kafka error that it is answered with.  `delay_ms`: it is handled this much later.
    `closes`: the connection is closed without an answer.
    """

    error: str | None = None
    delay_ms: int = 0
    closes: bool = False


class Broker:
    """The part of the server that handlers use."""

    def __init__(
        self,
        home: StoreHome,
        settings: ServerSettings | None = None,
        *,
        cluster_id: str = "",
        metrics: MetricsRegistry | None = None,
    ) -> None:
        self.home = home
        self.settings = settings or ServerSettings.from_props()
        self.clock: Clock = home.clock
        self.node_id: int = self.settings["node.id"]
        self.rack: str | None = self.settings["broker.rack"]
        self.cluster_id = cluster_id
        self.listeners: list[Endpoint] = []  # where it listens, with the real ports
        self.advertised: list[Endpoint] = []  # the addresses that clients are told
        self.authorizer: Authorizer = AllowAll()
        self.quotas: Quotas = no_quotas(home.clock)
        # Settings of brokers and groups; the catalog has those of topics.
        self.configs = ResourceConfigs(self.settings, self._save_configs, self._apply_configs)
        self.save_configs: Callable[[ConfigsByResource], object] | None = None  # stores them next to the data
        self.metrics = metrics
        self.apis: ApiTable | None = None  # the supported requests
        self.call_soon: Callable[[Callable[[], object]], object] = lambda run: run()
        # `submit(run)` runs a function in the pool of handlers that may wait for the disk; from any thread.
        self.submit: Callable[[Callable[[], object]], object] = lambda run: run()
        # `later(delay_ms, run)` runs a function on the I/O thread after a delay; from any thread.
        self.later: Callable[[int, Callable[[], object]], object] = lambda delay_ms, run: run()
        # Asked before each request is handled; None costs nothing.
        self.fault_for: Callable[[Request], Fault | None] | None = None
        # `watch(fd, run)` runs a function on the I/O thread whenever a file descriptor can be read; from any thread.
        self.watch: Callable[[int, Callable[[], object]], object] = lambda fd, run: None
        self.at_close: list[Callable[[], object]] = []  # called when the server has closed
        self.state: dict[str, Any] = {}  # each area keeps things of the whole server here, under a key of its own

    def _save_configs(self, configs: ConfigsByResource) -> None:
        (self.save_configs or self.configs.take)(configs)

    def _apply_configs(self) -> None:
        """Uses the settings that clients gave to brokers, over those of the start."""
        kept = {**self.configs.of((ConfigType.BROKER, "")), **self.configs.of((ConfigType.BROKER, str(self.node_id)))}
        given = effective(kept)
        self.settings.override(given)
        self.home.change_defaults(topic_defaults_of_broker(given))

    @property
    def topics(self) -> TopicsView:
        """The topics by name and by id."""
        return self.home.coordinators.topics

    @property
    def groups(self) -> Any:
        """The GroupCoordinator."""
        return self.home.coordinators.groups

    @property
    def transactions(self) -> Any:
        """The TransactionCoordinator of the store."""
        return self.home.coordinators.transactions

    @property
    def shares(self) -> Any:
        """The SharePartitionManager."""
        coordinators: Any = self.home.coordinators
        return coordinators.shares

    @property
    def share_coordinator(self) -> Any:
        """The ShareCoordinator."""
        return self.home.coordinators.share_coordinator

    @property
    def timers(self) -> Any:
        """The store's timers."""
        return self.home.coordinators.timers

    def advertised_to(self, connection: ConnectionInfo) -> Endpoint | None:
        """Returns the address of this node that a client is told: that of the listener it uses; None if it has none.

        A listener on every interface tells each client the address at which it has reached the server."""
        for each in self.advertised:
            if each.listener == connection.listener:
                if each.host in ("", "0.0.0.0", "::") and connection.local_address[0]:
                    return each._replace(host=connection.local_address[0])
                return each
        return None
