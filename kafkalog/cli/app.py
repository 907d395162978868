"""The command table and what all commands share: lazy imports, one-line errors, exit codes.

A command's options are its parameters, however many there are: click hands each over by its name.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

import kafkalog
from kafkalog.cli.groups import TableGroup
from kafkalog.cli.harmless import harmless
from kafkalog.engine.files import OS_FILES, local_path
from kafkalog.errors import (
    BadBytesError,
    BeingWrittenException,
    DiskError,
    IllegalArgumentException,
    KafkalogError,
    LogDirLockedException,
    RemoteStorageException,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

CLEAN, FINDINGS, USAGE, IO, BEING_WRITTEN = 0, 1, 2, 3, 4
_FROM_HARMLESS = (CLEAN, BEING_WRITTEN, FINDINGS, USAGE, IO)
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the number of the signal, as a shell tells it

# Name -> what `kafkalog --help` says.  The module kafkalog.cli.<name>, dashes as underscores, has it as `command`.
COMMANDS = {
    "append": "Append records from stdin to a partition.",
    "backup": "Copy log directories beside their writer: consistent, checked, incremental.",
    "cat": "Print the records of a partition: all, the last ones, or those with a key, a text, a header.",
    "checkpoint": "Show what a log directory's checkpoints say beside what is there; set one line with care.",
    "compact": "Compact partitions as a broker's cleaner does, offline.",
    "compare": "Compare two log directories, record by record: a backup with its original, replicas.",
    "completion": "Print what completes commands, options, topics and partitions in bash, zsh or fish.",
    "cursors": "Show how far groups have read, and what lies before them; set and delete their offsets.",
    "delete-records": "Raise a partition's log start: what lies below is unreadable for ever.",
    "describe": "Show partitions, segments, sizes, offsets, times and codecs of a log directory.",
    "du": "Show what takes the space: by topic, kind of file and age of segments.",
    "dump": "Print batches, records, indexes and checkpoints of files, line by line as kafka-dump-log.",
    "explain": "Tell why each segment of a partition is still here, and when it goes.",
    "export": "Write the records of partitions to Parquet, Arrow, CSV or JSON files.",
    "history": "Print every value of a key that is still there, and which of them counts.",
    "latest": "Print the last value of each key, as text or JSON, or to Parquet, Arrow, CSV or JSON files.",
    "log-dirs": "Print partitions and sizes of log directories as kafka-log-dirs does.",
    "move": "Move a partition to another log directory, offline.",
    "recover": "Tell or do what an open after a crash does: cut what is torn, rebuild the rest.",
    "reindex": "Check the indexes of partitions against their logs and rebuild the wrong ones.",
    "restore": "Check a backup, and bring it, or some partitions of it, back as log directories.",
    "retain": "Delete old segments by retention's rules, or until so many bytes are free.",
    "salvage": "Copy what can be read of damaged partitions to a new directory.",
    "spark": "Verify, recover, compact, export and import over a Spark cluster.",
    "tail": "Print the last records of all topics, and what comes.",
    "tier": "Look into a remote tier: what is where, checks, uploads, restores, orphans.",
    "topics": "Show the topics of log directories in one table.",
    "transactions": "Show open and hanging transactions, and which one holds read_committed readers back.",
    "verify": "Check every batch and every index entry of a log directory.",
}
# What `kafkalog <command> --help` ends with.
EXAMPLES = {
    "append": ("kafkalog append /var/kafka-logs orders-0 -K : < lines.txt",),
    "backup": (
        "kafkalog backup /var/kafka-logs --to /backups/2026-11-27",
        "kafkalog backup /var/kafka-logs --to /backups/2026-11-28 --base /backups",
    ),
    "cat": (
        "kafkalog cat /var/kafka-logs orders --key customer-7 --json",
        "kafkalog cat /var/kafka-logs orders-0 --last 10 -f '%o %T %k: %s\\n'",
        "kafkalog cat /var/kafka-logs orders --from 2026-11-01T09:00 --until 2026-11-01T09:05 --grep 'refused|failed'",
    ),
    "checkpoint": (
        "kafkalog checkpoint /var/kafka-logs",
        "kafkalog checkpoint set /var/kafka-logs/recovery-point-offset-checkpoint orders-0 1200",
    ),
    "compact": (
        "kafkalog compact /var/kafka-logs",
        "kafkalog compact /var/kafka-logs/prices -X cleanup.policy=compact --yes",
    ),
    "compare": (
        "kafkalog compare /var/kafka-logs /backups/2026-11-27/log-dir-1 --common",
        "kafkalog compare /var/kafka-logs /mnt/broker-2/kafka-logs 'orders-*' --bytes",
    ),
    "completion": (
        "kafkalog completion bash > ~/.local/share/bash-completion/completions/kafkalog",
        "kafkalog completion zsh > ~/.zfunc/_kafkalog",
        "kafkalog completion fish > ~/.config/fish/completions/kafkalog.fish",
    ),
    "cursors": (
        "kafkalog cursors /var/kafka-logs --group billing",
        "kafkalog cursors /var/kafka-logs --group billing --topic orders --to-datetime 2026-11-01T09:00:00Z --yes",
    ),
    "delete-records": ("kafkalog delete-records /var/kafka-logs/orders-0 --before 2026-01-01T00:00:00Z",),
    "describe": ("kafkalog describe /var/kafka-logs orders --segments",),
    "du": ("kafkalog du /var/kafka-logs",),
    "dump": ("kafkalog dump --files /var/kafka-logs/orders-0/00000000000000000000.log --print-data-log",),
    "explain": ("kafkalog explain /var/kafka-logs/orders-0 -X retention.ms=86400000",),
    "export": (
        "kafkalog export /var/kafka-logs orders --to orders/ --from 2026-11-01",
        "kafkalog export /var/kafka-logs orders-0 --to orders-0.csv --skip-damage",
    ),
    "history": ("kafkalog history customer-7 /var/kafka-logs customers --partitions 12",),
    "latest": (
        "kafkalog latest /var/kafka-logs/customers -f '%k %T %s\\n'",
        "kafkalog latest /var/kafka-logs customers --until 2026-11-01 --to customers.parquet",
    ),
    "log-dirs": ("kafkalog log-dirs /disk1/kafka-logs /disk2/kafka-logs --topic-list orders,payments",),
    "move": ("kafkalog move /disk1/kafka-logs/orders-0 /disk2/kafka-logs --yes",),
    "recover": ("kafkalog recover /var/kafka-logs orders-0",),
    "reindex": ("kafkalog reindex /var/kafka-logs orders-0 --yes",),
    "restore": (
        "kafkalog restore /backups/2026-11-28 /var/kafka-logs",
        "kafkalog restore /backups/2026-11-28 /tmp/orders orders --yes",
    ),
    "retain": (
        "kafkalog retain /var/kafka-logs --target-free 10GiB",
        "kafkalog retain /var/kafka-logs/orders -X retention.ms=86400000 --yes",
    ),
    "salvage": ("kafkalog salvage /var/kafka-logs /mnt/rescued orders",),
    "spark": (
        "kafkalog spark verify /disk1/kafka-logs /disk2/kafka-logs",
        "kafkalog spark recover /disk1/kafka-logs",
    ),
    "tail": ("kafkalog tail /var/kafka-logs", "kafkalog tail /var/kafka-logs 'orders-*' --grep 'refused|failed'"),
    "tier": (
        "kafkalog tier list /var/kafka-logs --remote s3://bucket/prefix",
        "kafkalog tier restore s3://bucket/prefix /mnt/restored orders --yes",
    ),
    "topics": ("kafkalog topics /disk1/kafka-logs /disk2/kafka-logs",),
    "transactions": (
        "kafkalog transactions /var/kafka-logs orders --hanging-after 1h",
        "kafkalog transactions abort /var/kafka-logs orders-0 --start-offset 38",
    ),
    "verify": ("kafkalog verify /var/kafka-logs orders-0 --deep",),
}


BESIDE = "look beside it: commands that read, and those that change something without --yes, take no lock"
TAKE_OVER = (
    "`kafkalog topics`, `cat`, `export`, `verify` and `explain` read it as it is; --take-over writes to it, in the "
    "place of its broker, which is stopped meanwhile"
)


class PipeClosed(Exception):
    """Whoever read our output (head, less) has gone.  No OSError: click makes exit code 1 of those, our "findings"."""


@contextlib.contextmanager
def _watching_the_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeClosed from error


class LazyGroup(TableGroup):
    """Commands by name, imported when they are asked for."""

    table = COMMANDS

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _watching_the_pipe():  # --help prints here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _watching_the_pipe():
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kafkalog.cli.{cmd_name.replace('-', '_')}").command
        command.epilog = "\b\n" + "\n".join(("For example:", *(f"  {line}" for line in EXAMPLES[cmd_name])))
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(kafkalog.__version__, prog_name="kafkalog")
def cli() -> None:
    """Look into, check and mend Apache Kafka log directories, without a broker.

    Partitions are named as such (orders-0), by their topic (orders), or by a glob (in quotes: 'orders-*'); commands
    that take several take all where none is named.  A glob takes Kafka's own topics only where it begins as they do
    ('__*').

    Exit codes: 0 clean, 1 findings, 2 usage, 3 locked or I/O, 4 nothing is wrong that stays so, but some of it is being
    written by a broker or another program (ask again), 130 interrupted, 141 when whoever read the output (such as head)
    went away.  If standard output is closed from the start, what would be printed goes nowhere.
    """


class LocalPath(click.Path):
    """A path of this machine, as each door takes them (`kafkalog.engine.files.local_path`)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return local_path(os.fsdecode(super().convert(value, param, ctx)))


class Number(click.IntRange):
    """A whole number in a range.  `instead` is what to type if it was meant otherwise."""

    def __init__(self, min: int | None = None, max: int | None = None, *, instead: str = "") -> None:
        super().__init__(min, max)
        self._instead = instead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            int(value)
        except ValueError:
            hint = f"; {self._instead}" if self._instead else ""
            self.fail(f"found {value!r}, expected a whole number{hint}", param, ctx)
        return super().convert(value, param, ctx)


class Usage(Exception):
    """The command line asks for something that is not there or makes no sense; exit 2."""


def exit_code_of(error: BaseException) -> int:
    """The exit code that an error stands for."""
    if isinstance(error, BeingWrittenException):
        return BEING_WRITTEN
    if isinstance(error, (LogDirLockedException, DiskError, RemoteStorageException)):
        return IO
    if isinstance(error, BadBytesError):
        return FINDINGS
    if isinstance(error, (KafkalogError, Usage)):
        return USAGE
    return IO


def worse(code: int, other: int) -> int:
    """Of two exit codes the one that a command ends with: what was found counts more than what cannot be told yet."""
    return max(code, other, key=_FROM_HARMLESS.index)


def one_line(error: BaseException) -> str:
    """What was found, what was expected, what to do: in one line."""
    if isinstance(error, PermissionError) and not isinstance(error, KafkalogError):
        return f"{error.filename or error}: {_no_permission(error.filename)}"
    if isinstance(error, OSError) and not isinstance(error, KafkalogError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    text = " ".join(str(error).split()) or type(error).__name__
    refusal = error.__cause__ if isinstance(error, RemoteStorageException) else None
    if isinstance(refusal, PermissionError) and refusal.filename is None:  # no file's; the text has the answer
        return f"{text} (the storage refuses it: check the credentials, --remote-option, and what they may do there)"
    cause = error.__cause__
    if not isinstance(cause, (OSError, KafkalogError)):
        return text
    told = one_line(cause)
    if told in text:
        return text
    parts = (cause.filename, cause.strerror) if isinstance(cause, OSError) else (None,)
    if not all(part and str(part) in text for part in parts):
        return f"{text}: {told}"
    if isinstance(cause, PermissionError):  # the file stands there already, what to do does not
        return f"{text.removesuffix(f': {cause.strerror}')}: {_no_permission(cause.filename)}"
    return text


def _no_permission(path: object) -> str:
    do = "write there" if isinstance(path, str) and _is_readable(path) else "read it"
    return (
        f"no permission for user {_user()} (expected to be able to {do}; run as the user that owns the log directory, "
        f"or ask for {do.split()[0]} access)"
    )


def _is_readable(path: str) -> bool:
    try:
        if OS_FILES.is_dir(path):
            OS_FILES.list_dir(path)
        else:
            OS_FILES.open(path, writable=False).close()
    except FileNotFoundError:
        return True  # it was to be made
    except OSError:
        return False
    return True


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "?")


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _name_stdout()
    sys.exit(invoke(argv))


def invoke(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code.  Errors become one line on stderr."""
    _open_closed_streams()
    try:
        code = _invoke(argv)
    except (PipeClosed, BrokenPipeError):
        code = PIPE_CLOSED
    _drop_what_cannot_be_written()
    return code


def _open_closed_streams() -> None:
    """Descriptors 0 to 2 that are closed would be given to the files that we open: nothing stands in their place."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


class _StandardOutput(io.FileIO):
    """Says in an error whose it is."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


def _name_stdout() -> None:
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and isinstance(getattr(out.buffer, "raw", out.buffer), io.FileIO):
        out.flush()
        named: Any = _StandardOutput(out.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            named if out.write_through else io.BufferedWriter(named),  # as it is with PYTHONUNBUFFERED
            encoding=out.encoding,
            errors=out.errors,
            line_buffering=out.line_buffering,
            write_through=out.write_through,
        )


def _drop_what_cannot_be_written() -> None:
    """A broken pipe, a full disk: told by the exit code; Python's own flush at exit shall not complain again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _invoke(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name that is no UTF-8 is shown, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        result = cli.main(args=None if argv is None else list(argv), prog_name="kafkalog", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else CLEAN
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message())
        return USAGE
    except click.ClickException as error:
        where = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        text = error.format_message()
        if isinstance(error, click.NoSuchOption):
            from kafkalog.cli.meant_options import told

            text = told(error)
        return _fail(" ".join(text.split()) + where, USAGE)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        raise
    except LogDirLockedException as error:
        if error.hint is not None:  # Python's door is not the commands'
            error.hint = re.sub("open with read_only=True to read .*", BESIDE, error.hint)
        return _fail(one_line(error), exit_code_of(error))
    except (KafkalogError, OSError, Usage) as error:
        if isinstance(error, IllegalArgumentException) and error.hint is not None:  # as above
            error.hint = re.sub("read_only=True reads it as it is.*take_over=True.*", TAKE_OVER, error.hint)
        return _fail(one_line(error), exit_code_of(error))


def _fail(text: str, code: int) -> int:
    click.echo(f"kafkalog: {harmless(text)}", err=True)
    return code
