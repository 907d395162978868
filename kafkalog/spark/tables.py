"""Tables of a catalog: `CREATE TABLE t USING kafkalog OPTIONS (path ..., subscribe ...)`.

Spark shows a table's options to a Python source only once: CREATE TABLE requests the columns with the table's
properties, which have each option as `option.<name>`, and the location as `path`.  A SELECT or an INSERT gets no
options but those of its WITH clause.  It does get the columns as the catalog stores them, with their metadata.  The
metadata of the last column therefore holds the options, and readers of the table take them from there.

The metadata key is one of Spark's, which Spark removes from a new table that is created from a query's rows: such a
table must not read what that query read.  Spark removes it from an INSERT too, so each INSERT names its path and its
topic.

Nothing here opens a file.  `source` calls this on the driver only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafkalog.errors import IllegalArgumentException
from kafkalog.remote import is_address
from kafkalog.spark import options as source_options
from kafkalog.spark import write_options as sink_options

__all__ = ["check_sink", "is_of_table", "kept_options", "options_to_keep", "options_to_read"]

KEPT = "__file_source_generated_metadata_col"  # one of Spark's INTERNAL_METADATA_KEYS, read in columns of files only
PREFIX = "option."  # before the name of an option in a table's properties
PLACES = ("path", "paths", "remote")

# A WITH clause with one option of a group replaces all options of that group in the table.
TOGETHER = (
    source_options.STRATEGIES,
    ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"),
    ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"),
    ("kafka.isolation.level", "isolation"),
)
# These are credentials or may contain some; a catalog shows its columns to everybody who may read the table.
SECRET_PREFIXES = ("remote.option.", "fs.s3a.", "fs.gs.", "fs.azure.", "spark.hadoop.")
SECRETS = ("remote.key", "remote.keypairs")

WITHOUT_COLUMNS = (
    "create the table without a list of columns and without AS SELECT, so that it keeps its options: CREATE TABLE t "
    "USING kafkalog OPTIONS (path '/dir', subscribe 'topic'); or give the options in each statement: "
    "SELECT ... FROM t WITH (path '/dir', subscribe 'topic')"
)
INSERTING = "INSERT INTO t WITH (path '/dir', topic 'topic') SELECT ..."


def is_of_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a new table, which name its provider, and not options of a reader."""
    return _lowered(options).get("provider", "").lower() == "kafkalog"


def options_to_keep(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the options in a new table's properties, with names in lower case.

    Raises IllegalArgumentException for credentials, and for a path that depends on where the table is used.
    """
    given = _lowered(properties)
    kept = {name[len(PREFIX) :]: value for name, value in given.items() if name.startswith(PREFIX)}
    path = given.get("path")
    if path is not None:  # it is also the location
        kept["path"] = ",".join(part.strip() for part in _without_scheme(path).split(","))
        for part in kept["path"].split(","):
            if not part.startswith("/") and not is_address(part):
                raise IllegalArgumentException(
                    f"the table's path is {part}", hint="expected an absolute path, such as /disk1/kafka-logs"
                )
    secret = next((name for name in kept if name in SECRETS or name.startswith(SECRET_PREFIXES)), None)
    if secret is not None:
        raise IllegalArgumentException(
            f"option {secret} may be a credential, but everybody can read the options of a table",
            hint="set spark.hadoop.fs.* in the session instead, and call kafkalog.spark.source.register(spark)",
        )
    if not any(name in kept for name in source_options.STRATEGIES):
        misplaced = [name for name in given if name in source_options.STRATEGIES]
        if misplaced:
            raise IllegalArgumentException(
                f"{misplaced[0]} is among the table's properties", hint=f"write OPTIONS ({misplaced[0]} '...')"
            )
    of_sink = next((name for name in kept if _is_sinks_alone(name)), None)
    if of_sink is not None:
        raise IllegalArgumentException(
            f"option {of_sink} is for writers, but a table keeps options for readers", hint=f"give it with {INSERTING}"
        )
    return kept


def kept_options(columns: Sequence[Any]) -> dict[str, str]:
    """Returns the options in the metadata of a table's columns (StructFields of pyspark); none for other columns."""
    for column in columns:
        kept = (column.metadata or {}).get(KEPT)
        if isinstance(kept, Mapping):
            return {str(name): str(value) for name, value in kept.items()}
    return {}


def options_to_read(columns: Sequence[Any], given: Mapping[str, str]) -> dict[str, str]:
    """Merges a reader's options over the table's; the table's do not count if the reader has a path.

    Raises IllegalArgumentException if neither names a directory, or if a column is requested that the table does not
    have.
    """
    kept = _kept_for(columns, given)
    if kept:
        names = [column.name for column in columns]
        if _lowered(given).get("includeheaders", "").strip().lower() == "true" and "headers" not in names:
            raise IllegalArgumentException(
                "option includeHeaders is true, but the table was created without the column headers",
                hint="create the table with OPTIONS (includeHeaders 'true', ...)",
            )
    return _merged(kept, given)


def check_sink(given: Mapping[str, str]) -> None:
    """Raises IllegalArgumentException if a writer has no path, as in an INSERT into a table without it."""
    if "path" not in _lowered(given):
        raise IllegalArgumentException(
            "option path is missing",
            hint="expected the log directory, as .save(dir), .start(dir) or .option('path', dir); "
            f"to write rows to a table: {INSERTING}",
        )


def _kept_for(columns: Sequence[Any], given: Mapping[str, str]) -> dict[str, str]:
    if _lowered(given).keys() & set(PLACES):
        return {}
    kept = kept_options(columns)
    if not kept.keys() & set(PLACES):
        raise IllegalArgumentException(
            "option path is missing", hint=f"expected the log directory, as .option('path', dir); {WITHOUT_COLUMNS}"
        )
    return kept


def _merged(kept: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    names = set(_lowered(given))
    for together in TOGETHER:
        if names.intersection(together):
            names.update(together)
    return {**{name: value for name, value in kept.items() if name not in names}, **given}


def _is_sinks_alone(name: str) -> bool:
    of_sink, of_source = (
        {known.lower() for known in names}
        for names in (sink_options.KNOWN, (*source_options.KNOWN, *source_options.IGNORED))
    )
    return name in of_sink and name not in of_source


def _without_scheme(path: str) -> str:
    """Removes `file:` from a local location, which Spark writes as file:/dir without percent-encoding.

    Several directories are one location for Spark, in which `file:` may precede each.
    """
    parts = path.split(",")
    return ",".join(part[part.index(":") + 1 :] if _is_file_uri(part) else part for part in parts)


def _is_file_uri(part: str) -> bool:
    return part.strip().lower().startswith("file:/")


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
