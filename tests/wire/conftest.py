"""One pair of servers for all tests of the wire."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import need_broker
from tests.wire.servers import Pair, both
from tests.wire.stories_data import ready_coordinator
from tests.wire.stories_groups import ready_groups
from tests.wire.talk import Talk


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    need_broker()
    place = tmp_path_factory.mktemp("wire")
    with both(place) as pair:
        for bootstrap in pair:
            with Talk(bootstrap) as talk:  # coordinators are ready, and the producer id 0 is used up
                own = {"transactionalId": None, "transactionTimeoutMs": 60000}
                talk.wait("InitProducerId", own, lambda found: found["errorCode"] == 0)
                ready_groups(talk)
                ready_coordinator(talk)
        yield pair
    shutil.rmtree(place, ignore_errors=True)
