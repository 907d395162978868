"""Every example of docs/how-to/spark-decoding.md runs, next to a registry in a separate process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.avro_jar import add_avro
from tests.spark.registry import Running, running
from tests.spark.test_decoding import SUBJECTS, V1, WHOLE_V2, avro, event

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-decoding.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
STATEMENTS = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
EXPECTED = {
    "from_registry": r"\|\s*n1\|",
    "schema_id": r"\|\s*n1\|\s*1\|",
    "debezium": r"\|\s*u\|\{1, a\}\|\{1, b\}\|customers\|\s*5\|",
    "foreachBatch": r"\|\s*1\|\s*b\|\n\|\s*3\|\s*d\|\n\+",
    "offsetBefore": r"\|\s*b\|\s*delete\|\s*NULL\|\s*2\|\s*5\|\s*1\|",
    "update_postimage": r"\|\s*a\|\s*3\|update_postimage\|\s*4\|",
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Running]:
    with running(SUBJECTS) as found:
        yield found


def fill(root: Path) -> None:
    with kafkalog.open_log(root, "orders-0") as log:
        log.append(avro(3, V1, {"id": 1, "old": "x"}))
        log.append(avro(300, WHOLE_V2, {"id": 2, "note": "n1", "place": {"city": "Bern"}}))
    source = {"source": {"table": "customers"}}
    with kafkalog.open_log(root, "db.customers-0") as log:
        one, other = {"id": 1, "email": "a"}, {"id": 1, "email": "b"}
        for key, value in [
            (b"1", event("c", None, one, **source)),
            (b"2", event("r", None, {"id": 2, "email": "c"}, **source)),
            (b"1", event("u", one, other, **source)),
            (b"2", event("d", {"id": 2, "email": "c"}, None, **source)),
            (b"2", None),
            (b"3", json.dumps({"schema": {}, "payload": json.loads(event("c", None, {"id": 3, "email": "d"}))})),
        ]:
            log.append(None if value is None else value.encode(), key=key)
    with kafkalog.open_log(root, "customers-0") as log:
        for key, value in [
            (b"a", b"1"),
            (b"b", b"2"),
            (b"d", b"0"),
            (b"c", b"2"),
            (b"a", b"3"),
            (b"b", None),
            (b"e", b"4"),
        ]:
            log.append(value, key=key)


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"line{TEXT[: TEXT.index(each)].count(chr(10))}" for each in EXAMPLES])
def test_an_example_runs(
    spark: Any,
    registry: Running,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "readStream" in code:
        pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")
    add_avro(spark)
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "kafka-logs")
    # Paths are the driver's: a session's workers are in the directory where it began.
    place = r'"(kafka-logs|lake/customers|checkpoints/customers)"'
    code = re.sub(place, lambda found: repr(str(tmp_path / found[1])), code)
    code = code.replace("http://registry:8081", registry.address)
    exec(compile(code, "docs/how-to/spark-decoding.md", "exec"), {})
    out = capfd.readouterr().out
    wanted = [pattern for word, pattern in EXPECTED.items() if word in code]
    assert wanted
    assert re.search(wanted[-1], out), out


def test_the_statement_is_sparks(spark: Any) -> None:
    [statement] = STATEMENTS
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    assert "MergeIntoTable" in parsed.getClass().getSimpleName()
