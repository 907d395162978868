"""Fixtures of the conformance tests: the driver over Kafka's jars, or a named reason why there is none."""

from __future__ import annotations

import pytest

from tests.conformance import kafka_jars
from tests.conftest import leave_out


@pytest.fixture(scope="session")
def kafka_driver() -> kafka_jars.Driver:
    """The built driver.  Where Maven cannot build it: left out by name; with CI=true a failure."""
    try:
        return kafka_jars.driver()
    except kafka_jars.KafkaMissingError as error:
        leave_out(error)
