"""Tables of a catalog: `CREATE TABLE t USING kafkalog OPTIONS (path ..., subscribe ...)`.

Spark shows a table's options to a Python source only once, when CREATE TABLE asks it for the columns: among the table's
properties, each under its name with `option.` before it, and the location as `path`.  A SELECT or an INSERT gets no
options but those of its own WITH clause.  It does get the columns as the catalog keeps them, each with its metadata.
So the last column's metadata holds the options, and whoever reads the table takes them from there.

They are under a key of Spark's own, which it removes from a new table that is made of a query's rows: such a table is
not to read what that query read.  It removes it from an INSERT, too, so that each INSERT says its path and its topic.

Nothing here opens a file.  Called on the driver only, by `source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafkalog.errors import IllegalArgumentException
from kafkalog.remote import is_address
from kafkalog.spark import options as source_options
from kafkalog.spark import write_options as sink_options

__all__ = ["check_sink", "is_of_table", "kept_options", "options_to_keep", "options_to_read"]

KEPT = "__file_source_generated_metadata_col"  # one of Spark's INTERNAL_METADATA_KEYS; asked of files' columns only
PREFIX = "option."  # of an option among a table's properties
PLACES = ("path", "paths", "remote")

# A statement's WITH clause that gives one of a line replaces all of that line that the table has.
TOGETHER = (
    source_options.STRATEGIES,
    ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"),
    ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"),
    ("kafka.isolation.level", "isolation"),
)
# These are credentials, or may hold some: a catalog's columns are shown to everyone who may read the table.
SECRET_PREFIXES = ("remote.option.", "fs.s3a.", "fs.gs.", "fs.azure.", "spark.hadoop.")
SECRETS = ("remote.key", "remote.keypairs")

WITHOUT_COLUMNS = (
    "a table is made without a list of columns and without AS SELECT, so that it keeps its options: CREATE TABLE t "
    "USING kafkalog OPTIONS (path '/dir', subscribe 'topic'); otherwise each statement says them: "
    "SELECT ... FROM t WITH (path '/dir', subscribe 'topic')"
)
INSERTING = "INSERT INTO t WITH (path '/dir', topic 'topic') SELECT ..."


def is_of_table(options: Mapping[str, str]) -> bool:
    """Whether these are a new table's properties, which name its provider, and not options of a reader."""
    return _lowered(options).get("provider", "").lower() == "kafkalog"


def options_to_keep(properties: Mapping[str, str]) -> dict[str, str]:
    """The options among a new table's properties, by names in lower case.

    IllegalArgumentException for credentials, and for a place that is not the same wherever the table is used.
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
            f"option {secret} may be a credential, and the options of a table are kept in the open",
            hint="give it to the session, as spark.hadoop.fs.*, and call kafkalog.spark.source.register(spark)",
        )
    if not any(name in kept for name in source_options.STRATEGIES):
        misplaced = [name for name in given if name in source_options.STRATEGIES]
        if misplaced:
            raise IllegalArgumentException(
                f"{misplaced[0]} is among the table's properties", hint=f"expected OPTIONS ({misplaced[0]} '...')"
            )
    of_sink = next((name for name in kept if _is_sinks_alone(name)), None)
    if of_sink is not None:
        raise IllegalArgumentException(
            f"option {of_sink} is a writer's, and a table keeps those of a reader", hint=f"give it by {INSERTING}"
        )
    return kept


def kept_options(columns: Sequence[Any]) -> dict[str, str]:
    """What the columns of a table (pyspark's StructFields) say of its options; nothing for others."""
    for column in columns:
        kept = (column.metadata or {}).get(KEPT)
        if isinstance(kept, Mapping):
            return {str(name): str(value) for name, value in kept.items()}
    return {}


def options_to_read(columns: Sequence[Any], given: Mapping[str, str]) -> dict[str, str]:
    """What a reader is given, over what the table keeps; that is no matter if the reader is given a path.

    IllegalArgumentException if neither says which directory is meant, or if other columns are asked for than the
    table's.
    """
    kept = _kept_for(columns, given)
    if kept:
        names = [column.name for column in columns]
        if _lowered(given).get("includeheaders", "").strip().lower() == "true" and "headers" not in names:
            raise IllegalArgumentException(
                "option includeHeaders is true, and the table was made without the column headers",
                hint="make the table with OPTIONS (includeHeaders 'true', ...)",
            )
    return _merged(kept, given)


def check_sink(given: Mapping[str, str]) -> None:
    """IllegalArgumentException if a writer is given no path, which may be an INSERT into a table."""
    if "path" not in _lowered(given):
        raise IllegalArgumentException(
            "option path is missing",
            hint="expected the log directory, as .save(dir), .start(dir) or .option('path', dir); "
            f"rows get into a table by {INSERTING}",
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
    """Spark writes a local location as file:/dir, with nothing percent-encoded; several directories are one of its
    paths, in which `file:` may stand before each."""
    parts = path.split(",")
    return ",".join(part[part.index(":") + 1 :] if _is_file_uri(part) else part for part in parts)


def _is_file_uri(part: str) -> bool:
    return part.strip().lower().startswith("file:/")


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
