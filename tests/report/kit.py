"""Surveys that are filled by hand: an ordinary directory, a hostile one, a huge one."""

from __future__ import annotations

import random

from kafkalog.report.tables import Survey

NOW = 1_764_280_800_000
HOUR, DAY = 3_600_000, 86_400_000

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "\"'><svg onload=alert(4)>",
    "a\nb\u2028c\u2029d\0e",
    "\u202eevil\u202c \u2067rtl\u2069",
    "{{7*7}} ${alert(5)} javascript:alert(6)",
    "long " + "x" * 10_000,
    "__proto__",
    "constructor",
    "a/b?c=d#e%f~g",
    "\ud800 half",
)


def survey(topics: tuple[str, ...] = ("orders", "payments", "customers", "clicks"), partitions: int = 4) -> Survey:
    """A directory in which something of everything is found; the same numbers each time."""
    chance = random.Random(31)
    found = Survey(log_dirs=["/var/kafka-logs", "/disk2/kafka-logs"], now_ms=NOW, deep=True)
    tables = found.tables
    sizes: list[tuple[str, int]] = []
    for place, topic in enumerate(topics):
        _topic(found, chance, topic, place, partitions)
        sizes.append(
            (
                topic,
                sum(
                    size
                    for name, size in zip(
                        tables["partitions"].columns["topic"], tables["partitions"].columns["size"], strict=True
                    )
                    if name == topic
                ),
            )
        )
    total, x = sum(size for _, size in sizes), 0.0
    for place, (topic, size) in enumerate(sizes):
        x2 = x + 2 * size / total
        tables["topics"].add(
            topic=topic,
            partitions=partitions,
            segments=partitions * 8,
            records=partitions * 100_000,
            size=size,
            files=partitions * 30,
            allocated=size + 4096 * partitions * 30,
            firstTime=NOW - (30 - place) * DAY,
            lastTime=NOW - place * HOUR,
            cleanupPolicy="compact" if place % 2 else "delete",
            retentionMs=-1 if place % 2 else 7 * DAY,
            retentionBytes=-1,
            x=x,
            y=0.0,
            x2=x2,
            y2=1.0,
        )
        x = x2
    for log_dir in found.log_dirs:
        tables["disks"].add(
            logDir=log_dir,
            partitions=partitions * 2,
            files=240,
            size=total // 2,
            allocated=total // 2 + 10**6,
            diskBytes=200 << 30,
            freeBytes=60 << 30,
        )
    for kind, files, size in (
        ("log", 128, total),
        ("index", 128, total // 500),
        ("timeindex", 128, total // 800),
        ("snapshot", 20, 9000),
    ):
        tables["kinds"].add(kind=kind, files=files, size=size, allocated=size + 4096 * files)
    first = topics[0]
    for severity, text, command in (
        (
            "error",
            f"{first}-0 is damaged at byte 12,288 of 00000000000000000000.log.",
            "kafkalog verify /var/kafka-logs",
        ),
        (
            "warning",
            f"A transaction of {first}-1 has been open for 3.0 d and holds back 1,200 records.",
            "kafkalog transactions abort /var/kafka-logs/orders-1",
        ),
        ("note", "payments has no compression; lz4 would save about 60 %.", None),
    ):
        tables["odd"].add(severity=severity, topic=first, partition=0, text=text, command=command)
    tables["findings"].add(
        topic=first,
        partition=0,
        path=f"/var/kafka-logs/{first}-0/00000000000000000000.log",
        position=12288,
        length=4096,
        what="CRC of a batch is wrong",
    )
    ways = {
        "now": (("good", 0, 12288), ("damaged", 12288, 16384), ("good", 16384, 1 << 20)),
        "recovery": (("kept", 0, 12288), ("cut", 12288, 1 << 20)),
        "salvage": (("saved", 0, 12288), ("lost", 12288, 16384), ("saved", 16384, 1 << 20)),
    }
    for way, parts in ways.items():
        for state, start, end in parts:
            tables["damage"].add(
                topic=first,
                partition=0,
                path=f"/var/kafka-logs/{first}-0/00000000000000000000.log",
                size=1 << 20,
                way=way,
                state=state,
                fromByte=start,
                toByte=end,
                bytes=end - start,
                records=(end - start) // 100,
            )
    found.facts.update(
        topics=len(topics),
        partitions=len(topics) * partitions,
        segments=len(topics) * partitions * 8,
        records=len(topics) * partitions * 100_000,
        size=total,
        allocated=total + 10**6,
        firstTime=NOW - 30 * DAY,
        lastTime=NOW,
        sampled=False,
        tookMs=1234,
    )
    return found


def _topic(found: Survey, chance: random.Random, topic: str, place: int, partitions: int) -> None:
    tables = found.tables
    codec = ("none", "lz4", "zstd", "snappy")[place % 4]
    for partition in range(partitions):
        of = {"topic": topic, "partition": partition}
        bases = [number * 12_500 for number in range(8)]
        size = 0
        for number, base in enumerate(bases):
            segment = chance.randrange(4 << 20, 16 << 20)
            size += segment
            begin = NOW - (8 - number) * 3 * DAY
            tables["segments"].add(
                **of,
                baseOffset=base,
                endOffset=base + 12_500,
                size=segment,
                indexBytes=segment // 400,
                batches=125,
                records=12_500,
                minTimestamp=begin,
                maxTimestamp=begin + 3 * DAY - HOUR,
                codec=codec if number % 3 else "gzip",
                held="retention.ms" if number < 7 else "it is the active segment",
                goesAtMs=None if place % 2 else begin + 10 * DAY,
                remote=False,
            )
        compacted = place % 2 == 1
        tables["partitions"].add(
            **of,
            logDir=found.log_dirs[partition % 2],
            logStartOffset=0,
            highWatermark=100_000,
            lastStableOffset=99_000,
            logEndOffset=100_000,
            records=100_000,
            segments=8,
            size=size,
            firstTime=NOW - 24 * DAY,
            lastTime=NOW - HOUR,
            openTransactions=int(partition == 1),
            dueBytes=0,
            nextDueMs=NOW + DAY,
            cleanBytes=size // 2 if compacted else None,
            dirtyBytes=size // 2 if compacted else None,
            gainBytes=size // 3 if compacted else None,
            damage="CRC at byte 12288" if place == 0 and partition == 0 else None,
        )
        for number in range(48):
            records = int(chance.gauss(2000, 300) * (1 + 0.6 * (number % 24 > 8)))
            tables["rates"].add(
                **of,
                fromTime=NOW - (48 - number) * HOUR,
                toTime=NOW - (47 - number) * HOUR,
                records=records,
                bytes=records * 400,
                recordsPerHour=float(records),
                bytesPerHour=records * 400,
            )
        tables["codecs"].add(
            **of,
            codec=codec,
            batches=1000,
            records=100_000,
            bytes=size,
            rawBytes=size if codec == "none" else size * 3,
            savedBytes=0 if codec == "none" else size * 2,
            sampled=True,
        )
        for power in range(9, 17):
            batches = chance.randrange(10, 300)
            tables["batches"].add(
                **of,
                codec=codec,
                fromBytes=1 << power,
                toBytes=2 << power,
                batches=batches,
                records=batches * (1 << power) // 90,
                bytes=batches * 3 << power >> 1,
                rawBytes=batches * 6 << power,
                ratio=round(1 + (power - 8) * 0.4, 3),
                recordsPerBatch=(1 << power) / 90,
                sampled=True,
            )
        for number in range(12):
            tables["keys"].add(
                **of,
                key=f"'customer-{number}'",
                records=9000 // (number + 1),
                bytes=900_000 // (number + 1),
                share=0.09 / (number + 1),
            )
        if compacted:
            for number in range(10):
                tables["gaps"].add(
                    **of, firstOffset=number * 5000, lastOffset=number * 5000 + 900, offsets=901, why="compaction"
                )
        for number in range(6):
            state = (
                "hanging"
                if partition == 1 and number == 5
                else "open"
                if partition == 2 and number == 5
                else "aborted"
                if number == 2
                else "committed"
            )
            begin = NOW - (6 - number) * DAY
            tables["transactions"].add(
                **of,
                state=state,
                transactionalId=f"billing-{number}" if number % 2 else None,
                producerId=1000 + number,
                producerEpoch=3,
                firstOffset=number * 9000,
                lastOffset=number * 9000 + 4000,
                startTimestamp=begin,
                lastTimestamp=begin + 5 * HOUR,
                records=4000,
                ageMs=NOW - begin,
                heldRecords=1000 if state in ("hanging", "open") else None,
            )
            tables["producers"].add(
                **of,
                producerId=1000 + number,
                producerEpoch=3,
                transactionalId=None,
                lastSequence=number * 40,
                lastOffset=number * 9000 + 4000,
                lastTimestamp=begin,
                coordinatorEpoch=1,
                currentTxnFirstOffset=None,
            )
        for group in ("billing", "search"):
            tables["groups"].add(
                group=group,
                state="Empty",
                **of,
                offset=100_000 - partition * 777 * (place + 1),
                end=100_000,
                lag=partition * 777 * (place + 1),
                commitTimestamp=NOW - partition * HOUR,
                member=None,
                gone=None,
            )
            for number in range(20):
                tables["lags"].add(
                    group=group,
                    **of,
                    time=NOW - (20 - number) * HOUR,
                    offset=number * 5000,
                    end=number * 5000 + 400,
                    lag=chance.randrange(0, 2000) * (partition + 1),
                )


def hostile() -> Survey:
    """A directory whose every text is hostile, and with times from 1970 to the year 292278994."""
    found = survey(HOSTILE, 1)
    chance = random.Random(7)
    for table in found.tables.values():
        for column in table.kind.columns:
            if column.kind in ("text", "command") and column.name not in (
                "topic",
                "severity",
                "state",
                "way",
                "codec",
                "cleanupPolicy",
            ):
                values = table.columns[column.name]
                table.columns[column.name] = [chance.choice(HOSTILE) for _ in values]
    for time in (0, 2**63 - 2):
        found.tables["rates"].add(
            topic=HOSTILE[0], partition=0, fromTime=time, toTime=time + 1, records=1, bytes=1, recordsPerHour=1.0,
            bytesPerHour=1,
        )  # fmt: skip
    found.log_dirs = list(HOSTILE)
    return found


def huge(partitions: int = 10_000) -> Survey:
    """A directory with many partitions, one segment each."""
    chance = random.Random(5)
    found = Survey(log_dirs=["/var/kafka-logs"], now_ms=NOW)
    topics = partitions // 20
    for number in range(topics):
        topic = f"service-{chance.randrange(100)}.events-{number}"
        row, place = divmod(number, 25)
        found.tables["topics"].add(
            topic=topic,
            partitions=20,
            segments=20,
            records=chance.randrange(10**7),
            size=chance.randrange(10**9),
            files=100,
            allocated=chance.randrange(10**9),
            firstTime=NOW - chance.randrange(10**9),
            lastTime=NOW - chance.randrange(10**7),
            cleanupPolicy="delete",
            retentionMs=7 * DAY,
            retentionBytes=-1,
            x=place / 12.5,
            x2=(place + 1) / 12.5,
            y=row / (topics / 25),
            y2=(row + 1) / (topics / 25),
        )
        for partition in range(20):
            end, size = chance.randrange(10**7), chance.randrange(10**8)
            first, last = NOW - chance.randrange(10**9), NOW - chance.randrange(10**7)
            of = {"topic": topic, "partition": partition}
            found.tables["partitions"].add(
                **of,
                logDir="/var/kafka-logs",
                logStartOffset=end // 3,
                highWatermark=end,
                lastStableOffset=end,
                logEndOffset=end,
                records=end - end // 3,
                segments=1,
                size=size,
                firstTime=first,
                lastTime=last,
                openTransactions=0,
                dueBytes=0,
            )
            found.tables["segments"].add(
                **of,
                baseOffset=end // 3,
                endOffset=end,
                size=size,
                indexBytes=size // 400,
                minTimestamp=first,
                maxTimestamp=last,
                codec="lz4",
                held="it is the active segment",
                remote=False,
            )
            found.tables["codecs"].add(
                **of,
                codec="lz4",
                batches=size // 16000,
                records=end // 3,
                bytes=size,
                rawBytes=size * 3,
                savedBytes=size * 2,
                sampled=True,
            )
        for hour in range(24):
            found.tables["rates"].add(
                topic=topic,
                fromTime=NOW - (24 - hour) * HOUR,
                toTime=NOW - (23 - hour) * HOUR,
                records=chance.randrange(10**5),
                bytes=chance.randrange(10**7),
                recordsPerHour=chance.random() * 10**5,
                bytesPerHour=chance.randrange(10**7),
            )
    found.facts.update(
        topics=topics, partitions=partitions, segments=partitions, size=sum(found.tables["partitions"].columns["size"])
    )
    return found
