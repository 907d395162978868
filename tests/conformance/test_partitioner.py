"""Partitions of keys, as Kafka's own producer chooses them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kafkalog._native.codec.murmur2 import murmur2
from kafkalog._native.codec.partitioner import partition_for_key
from tests.conformance.kafka_jars import KafkaMissingError, driver
from tests.unit.test_partitioner import keys

COUNTS = (1, 2, 3, 7, 50, 1000, 2**31 - 1)
# Asks Kafka's class: a key in hexadecimal a line; its hash and its partitions of COUNTS.
JAVA = """
import java.io.*;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

public class Partitions {
    public static void main(String[] counts) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            byte[] key = HexFormat.of().parseHex(line);
            StringBuilder out = new StringBuilder("[").append(Utils.murmur2(key));
            for (String count : counts)
                out.append(",").append(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(count)));
            System.out.println(out.append("]"));
        }
    }
}
"""


def test_kafka_says_the_same(tmp_path: Path) -> None:
    try:
        kafka = driver()
    except KafkaMissingError as missing:
        pytest.skip(str(missing))
    source = tmp_path / "Partitions.java"
    source.write_text(JAVA)
    asked = keys(5000)
    command = [kafka.java, "-cp", kafka.classpath, str(source), *map(str, COUNTS)]
    done = subprocess.run(
        command, input="".join(key.hex() + "\n" for key in asked), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(asked)
    for key, answer in zip(asked, answers, strict=True):
        assert [murmur2(key), *(partition_for_key(key, count) for count in COUNTS)] == answer
