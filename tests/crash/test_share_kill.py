"""kill -9 of a process whose share groups take records: what was acknowledged to a caller is there afterwards.

A child prints each acknowledgement after it has returned. Its parent kills it at any time, opens the store, and finds
every acknowledgement that it read, at most one more, and the group with its member.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import kafkalog
from kafkalog.engine.coordinator.request_context import RequestContext
from tests.sampling import LONG
from tests.unit.test_store_shares import Shares

KILLS = 30 if LONG else 5
LINES_MAX = 400
CHILD = """
import sys
import kafkalog
from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.coordinator.request_context import RequestContext
from tests.unit.test_store_shares import Shares

with kafkalog.open(sys.argv[1]) as store:
    shares = Shares(store)
    shares.coordinators.use_share_settings(ShareSettings(snapshot_update_records_per_snapshot=7))
    request = {"groupId": "mail", "memberId": "m", "memberEpoch": 0, "rackId": None, "subscribedTopicNames": ["outbox"]}
    shares.coordinators.groups.share_group_heartbeat(RequestContext(), request)
    at = max((each.last_offset for each in shares.state.state_batches), default=-1) + 1
    print("begins", at, flush=True)
    while True:
        shares.ack(at)
        print(at, flush=True)
        if at % 50 == 0:
            shares.coordinator.prune()
        at += 1
"""


def test_acknowledgements_survive_kills(tmp_path: Path) -> None:
    place = str(tmp_path / "shop")
    with kafkalog.open(place) as store:
        store.create_topic("outbox")
    rng = random.Random(1)
    known = -1
    for _ in range(KILLS):
        lines = rng.randrange(1, LINES_MAX)
        with subprocess.Popen([sys.executable, "-c", CHILD, place], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            begins = int(child.stdout.readline().split()[1])
            assert begins in (known + 1, known + 2)  # the record on its way when the child died may be there
            known = begins - 1
            for _ in range(lines):
                known = int(child.stdout.readline())
            child.kill()
            more = child.stdout.read().split()
            known = int(more[-1]) if more else known
        with kafkalog.open(place) as store:
            shares = Shares(store)
            assert shares.state is not None
            (batch,) = shares.state.state_batches
            assert batch[0] == 0
            assert batch.last_offset in (known, known + 1)
            (group,) = shares.coordinators.groups.share_group_describe(RequestContext(), ["mail"])
            assert [each["memberId"] for each in group["members"]] == ["m"]
