"""Public docstrings have one form: a summary of one sentence, then Args, Returns or Yields, Raises and Example."""

from __future__ import annotations

import inspect
import re
import textwrap

import pytest

from tests.unit.public_api import Documented, documented

ORDER = ["Args", "Returns", "Yields", "Raises", "Attributes", "Example"]
HEADING = re.compile(r"^([A-Z]\w+):$", re.MULTILINE)
ALL = documented()
FUNCTIONS = [each for each in ALL if each.function is not None]


def sections(doc: str) -> dict[str, str]:
    """The text of each section by its heading."""
    parts = HEADING.split(doc)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def entries(section: str) -> list[str]:
    """The names of a section's entries, in order."""
    return re.findall(r"^(\*{0,2}[\w.]+): \S", textwrap.dedent(section.strip("\n")), re.MULTILINE)


def test_there_are_public_names() -> None:
    names = {each.name for each in ALL}
    assert {
        "kafkalog.store.Store.reader",
        "kafkalog._face.opening.open_log",
        "kafkalog.store.open",
        "kafkalog.reader.StoreReader",
    } <= names
    assert "kafkalog._face.readable.Readable.records" in names
    assert len(names) > 150


@pytest.mark.parametrize("each", ALL, ids=str)
def test_a_docstring_begins_with_one_sentence(each: Documented) -> None:
    summary = each.doc.partition("\n\n")[0]
    assert summary.endswith("."), summary
    assert "\n" not in summary, summary
    assert not re.search(r"[.!?] +[A-Z]", summary), summary


@pytest.mark.parametrize("each", ALL, ids=str)
def test_sections_are_known_and_in_order(each: Documented) -> None:
    found = HEADING.findall(each.doc)
    assert found == [name for name in ORDER if name in found]


@pytest.mark.parametrize("each", FUNCTIONS, ids=str)
def test_each_parameter_has_an_entry(each: Documented) -> None:
    parameters = list(inspect.signature(each.function).parameters.values())
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    expected = [stars.get(it.kind, "") + it.name for it in parameters if it.name not in ("self", "cls")]
    assert entries(sections(each.doc).get("Args", "")) == expected


@pytest.mark.parametrize("each", FUNCTIONS, ids=str)
def test_a_result_is_described(each: Documented) -> None:
    annotation = inspect.signature(each.function).return_annotation
    found = {"Returns", "Yields"} & sections(each.doc).keys()
    assert bool(found) == (annotation not in (None, "None", "NoReturn"))


@pytest.mark.parametrize("each", ALL, ids=str)
def test_errors_are_named(each: Documented) -> None:
    import kafkalog.errors

    known = {*dir(kafkalog.errors), "OSError", "TimeoutError", "TypeError"}
    raised = sections(each.doc).get("Raises")
    if raised is not None:
        assert entries(raised)
        assert set(entries(raised)) <= known
