"""A Java console producer and a Python consumer talk through `kafkalog serve`: `make demo-serve`.

kafkalog serves an empty directory. Kafka's own console producer writes lines to a topic, confluent-kafka reads them in
a group, and the command line shows the topic and the group from the files. The server is then killed with -9 and
started again: the records and the group's offset are still there. If a check fails, the demo ends with exit code 1.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.broker.kraft import free_ports
from tests.clients.java_programs import run_java
from tests.demo import check, command_line, say

LINES = [f"order {number}" for number in range(1, 11)]
SECONDS_MAX = 30


def serve(place: Path, address: str) -> subprocess.Popen[str]:
    print(f"   $ kafkalog serve {place} --listen {address}", flush=True)
    command = [sys.executable, "-m", "kafkalog", "serve", str(place), "--listen", address]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "-X", "group.initial.rebalance.delay.ms=0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    check("serving" in process.stdout.readline(), f"the server is up after {time.perf_counter() - began:.2f} s")
    return process


def consume(address: str, count: int) -> list[str]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "billing", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe(["orders"])
    found: list[str] = []
    until = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < until:
        found += [each.value().decode() for each in consumer.consume(100, 0.2) if each.error() is None]
    if found:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def produce(address: str, lines: list[str]) -> None:
    print(f"   $ kafka-console-producer.sh --bootstrap-server {address} --topic orders", flush=True)
    text = "".join(f"{each}\n" for each in lines)
    run_java("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", address, "--topic", "orders", stdin=text)


def main(folder: Path) -> None:
    shop, address = folder / "shop", f"127.0.0.1:{free_ports(1)[0]}"
    say("kafkalog serves an empty directory")
    server = serve(shop, address)
    say("Kafka's console producer writes, a consumer of confluent-kafka reads")
    produce(address, LINES)
    check(consume(address, len(LINES)) == LINES, f"the consumer has the {len(LINES)} lines in order")
    say("kill -9 of the server, and a new start")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = serve(shop, address)
    produce(address, ["order 11"])
    check(consume(address, 1) == ["order 11"], "the group goes on where it was")
    server.terminate()
    check(server.wait(SECONDS_MAX) == 0, "the server has ended cleanly")
    say("The same directory on the command line")
    print(command_line("cursors", str(shop)))
    check(command_line("verify", str(shop)).startswith("clean"), "every batch is valid")
    say("The demo is done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
