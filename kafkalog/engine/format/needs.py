"""Imports optional packages at their first use; the error for a missing package says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from kafkalog.errors import MissingPackageException


def need_pyarrow() -> Any:
    """Returns the module pyarrow; MissingPackageException (an ImportError) says how to install it."""
    return _need("pyarrow", "arrow")


def need_pandas() -> Any:
    """Returns the module pandas; raises like `need_pyarrow`."""
    return _need("pandas", "pandas")


def need_polars() -> Any:
    """Returns the module polars; raises like `need_pyarrow`."""
    return _need("polars", "polars")


def need_duckdb() -> Any:
    """Returns the module duckdb; raises like `need_pyarrow`."""
    return _need("duckdb", "duckdb")


def need_altair() -> Any:
    """Returns the module altair; raises like `need_pyarrow`."""
    return _need("altair", "report")


def need_prometheus_client() -> Any:
    """Returns the module prometheus_client; MissingPackageException (an ImportError) says how to install it."""
    return _need("prometheus_client", "metrics")


def need_cryptography() -> Any:
    """Returns the module cryptography; raises like `need_pyarrow`."""
    return _need("cryptography", "oauth")


def need_joserfc() -> Any:
    """Returns the module joserfc; raises like `need_pyarrow`."""
    return _need("joserfc", "oauth")


def need_jinja2() -> Any:
    """Returns the module jinja2; raises like `need_prometheus_client`."""
    return _need("jinja2", "report")


def need_vl_convert() -> Any:
    """Returns the module vl_convert; raises like `need_prometheus_client`."""
    return _need("vl_convert", "report")


def need_starlette() -> Any:
    """Returns the module starlette; raises like `need_prometheus_client`."""
    return _need("starlette", "ui")


def need_uvicorn() -> Any:
    """Returns the module uvicorn; raises like `need_prometheus_client`."""
    return _need("uvicorn", "ui")


def _need(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is installed, but one of its dependencies is missing
            raise
        raise MissingPackageException(
            f"this needs the package {package}, which is not installed", hint=f"pip install 'kafkalog[{extra}]'"
        ) from None
