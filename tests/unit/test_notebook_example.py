"""The notebook in examples/ runs from its first cell to its last, and shows tables and pictures."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
for package in ("ipykernel", "altair", "vl_convert", "pandas", "polars", "duckdb"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "explore.ipynb"


def cells() -> list[Any]:
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def test_the_file_has_no_outputs() -> None:
    nbformat.validate(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    for cell in cells():
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell, by its source."""
    place = tmp_path_factory.mktemp("notebook")
    shutil.copy(NOTEBOOK, place)
    notebook = nbformat.read(place / NOTEBOOK.name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(place)}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(kafkalog.__file__).parents[1]), *sys.path]))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        client.execute()
    assert (place / "orders-0.svg").read_text(encoding="utf-8").startswith("<svg")
    with kafkalog.open(place / "shop", read_only=True) as store:
        assert len(store.topic("orders").read_arrow(columns=["offset"])) == 20_002
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def html_of(outputs: dict[str, list[Any]], source: str) -> str:
    (output,) = outputs[source]
    found = output["data"]["text/html"]
    return "".join(found) if isinstance(found, list) else str(found)


def text_of(outputs: dict[str, list[Any]], beginning: str) -> str:
    (found,) = [each for source, each in outputs.items() if source.startswith(beginning)]
    (output,) = found
    return str(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])


def test_no_cell_writes_to_stderr(outputs: dict[str, list[Any]]) -> None:
    for source, found in outputs.items():
        assert not [each for each in found if each["output_type"] == "error" or each.get("name") == "stderr"], source


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("store", "<td"),
        ("orders", "orders-3"),
        ("orders.partition(0)", "orders-0"),
        ("orders.describe()", "20,000 records"),
        ('next(orders.records(key="c-7"))', "customer"),
        ("reader.commit()\nreader", "StoreReader"),
        ("store.cursors()", "billing"),
    ],
)
def test_tables(outputs: dict[str, list[Any]], source: str, told: str) -> None:
    text = html_of(outputs, source)
    assert text.startswith("<table")
    assert told in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("source", "table"),
    [
        ('store.plot("topics")', '"topics": [{'),
        ("orders.plot()", '"partitions": [{'),
        ("chart = orders.partition(0).plot()\nchart", '"segments": [{'),
    ],
)
def test_pictures(outputs: dict[str, list[Any]], source: str, table: str) -> None:
    """A chart is its specification with its rows, and a picture."""
    (output,) = outputs[source]
    assert set(output["data"]) == {"application/vnd.vegalite.v6+json", "image/svg+xml", "text/plain"}
    assert table in json.dumps(output["data"]["application/vnd.vegalite.v6+json"])
    assert output["data"]["image/svg+xml"].startswith("<svg")


def test_numbers(outputs: dict[str, list[Any]]) -> None:
    assert "tea" in text_of(outputs, "columns = ")
    assert "binary[pyarrow]" in text_of(outputs, "orders.to_pandas(dtype_backend")
    assert "shape: (12, 5)" in text_of(outputs, "orders.to_polars")
    assert text_of(outputs, "reader.to_polars") == str(20_000 - 3)
    assert "b'an order that comes later'" in text_of(outputs, "import threading")
    assert "biller-1" in text_of(outputs, "with store.transaction")
    assert text_of(outputs, "store.close()").endswith(", closed>")
