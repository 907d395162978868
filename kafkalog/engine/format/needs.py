"""Packages that only some uses need: asked for where they are used, and told how to get."""

from __future__ import annotations

import importlib
from typing import Any

from kafkalog.errors import MissingPackageException


def need_pyarrow() -> Any:
    """The module pyarrow; MissingPackageException (an ImportError) says how to install it."""
    return _need("pyarrow", "arrow")


def need_pandas() -> Any:
    """The module pandas, as `need_pyarrow`."""
    return _need("pandas", "pandas")


def need_polars() -> Any:
    """The module polars, as `need_pyarrow`."""
    return _need("polars", "polars")


def need_duckdb() -> Any:
    """The module duckdb, as `need_pyarrow`."""
    return _need("duckdb", "duckdb")


def need_prometheus_client() -> Any:
    """The module prometheus_client; MissingPackageException (an ImportError) says how to install it."""
    return _need("prometheus_client", "metrics")


def _need(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, and something that it wants is not
            raise
        raise MissingPackageException(
            f"this needs the package {package}, which is not installed", hint=f"pip install 'kafkalog[{extra}]'"
        ) from None
