"""Delta's jars for the recipe of docs/how-to/spark-lake.md that needs them: by Maven, once, from the pom in this
directory.

python -m tests.spark.lake JARS PLACE        runs that recipe in PLACE, twice, in a session of its own
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conformance import kafka_jars

POM = Path(__file__).parent / "pom.xml"
PYSPARK_VERSIONS = ("4.2.",)  # the versions for which the jars are built
DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "spark-lake.md"


def need(*packages: str) -> None:
    """Skips the test without these packages; but not in CI, which installs them all."""
    for package in packages:
        if not os.environ.get("CI"):
            pytest.importorskip(package)


def missing() -> str | None:
    """None if the recipe can run, else what it lacks."""
    try:
        import pyspark
    except ImportError:
        return "pyspark is not installed"
    if not pyspark.__version__.startswith(PYSPARK_VERSIONS):
        return f"Delta's jar is made for PySpark 4.2, this is {pyspark.__version__}"
    return None


def jars() -> list[str]:
    """Paths of the jars.  KafkaMissingError if Maven cannot fetch them."""
    return kafka_jars.fetched(POM, "lake", "Delta's jars")


def recipes() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)


def recipe(marker: str) -> str:
    """The one that has this text."""
    [found] = [each for each in recipes() if marker in each]
    return str(found)


def in_place(code: str, place: Path) -> str:
    """With paths under `place`: those of a session's workers are relative to where it began."""
    paths = r"(kafka-logs|split-logs|replayed-logs|lake/(?:delta-stream|delta|iceberg)|checkpoints/\w+)"
    code = re.sub(rf'"{paths}"', lambda found: repr(str(place / found[1])), code)
    return code.replace("sqlite:///lake/", f"sqlite:///{place}/lake/").replace("file://lake/", f"file://{place}/lake/")
