"""One local Spark session for all tests of the data source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = local_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
