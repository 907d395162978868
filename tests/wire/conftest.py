"""One pair of servers for all tests of the wire."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.broker.servers import Servers, both
from tests.conftest import need_broker
from tests.wire.stories_data import ready_coordinator
from tests.wire.stories_groups import ready_groups
from tests.wire.talk import Talk

SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.segment.bytes": "5000000",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.compression.codec": "4",
    "transaction.state.log.segment.bytes": "3000000",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.segment.bytes": "2000000",
    "offsets.topic.compression.codec": "1",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    need_broker()
    place = tmp_path_factory.mktemp("wire")
    with both(place, SETTINGS) as pair:
        for bootstrap in pair:
            with Talk(bootstrap) as talk:  # coordinators are ready, and the producer id 0 is used up
                own = {"transactionalId": None, "transactionTimeoutMs": 60000}
                talk.wait("InitProducerId", own, lambda found: found["errorCode"] == 0)
                ready_groups(talk)
                ready_coordinator(talk)
        yield pair
    shutil.rmtree(place, ignore_errors=True)
