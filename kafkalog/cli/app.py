"""The table of commands, and what all commands share: lazy imports, one-line errors, exit codes.

The parameters of a command function are its options: click passes each one by name, so there may be many.
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
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 plus the signal number, as in a shell

# Name -> its line in `kafkalog --help`.  The command is `command` in kafkalog.cli.<name>, with _ for each dash.
COMMANDS = {
    "append": "Append records from standard input to a partition.",
    "backup": "Copy log directories, also while they are written: consistent, checked, incremental.",
    "cat": "Print the records of partitions: all, the last ones, or those that match.",
    "checkpoint": "Show the checkpoints of log directories and compare them with the logs; set one line.",
    "compact": "Compact partitions offline, as a broker's log cleaner does.",
    "compare": "Compare two log directories record by record, such as a backup and its original.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "cursors": "Show the committed offsets and the lag of consumer groups; set and delete offsets.",
    "delete-records": "Raise a partition's log start offset: records before it become unreadable forever.",
    "describe": "Show the partitions of a log directory: segments, sizes, offsets, times and codecs.",
    "du": "Show what uses disk space: by topic, by kind of file and by age of segments.",
    "dump": "Print the contents of single files in the format of kafka-dump-log.",
    "explain": "Explain why each segment is kept, and when it will be deleted.",
    "export": "Write the records of partitions to Parquet, Arrow, CSV or JSON files.",
    "history": "Print every stored value of a key, and say which one is current.",
    "latest": "Print the last value of each key, or write it to Parquet, Arrow, CSV or JSON files.",
    "log-dirs": "Print partitions and their sizes as JSON in the format of kafka-log-dirs.",
    "move": "Move a partition to another log directory, offline.",
    "recover": "Recover partitions after a crash: truncate logs at damage and rebuild the rest.",
    "reindex": "Check indexes against their logs, and rebuild the wrong ones.",
    "report": "Write pictures and tables of log directories as one HTML file.",
    "restore": "Check a backup, and restore it or some of its partitions as log directories.",
    "retain": "Delete old segments by the retention settings, or until enough disk space is free.",
    "salvage": "Copy all readable records of damaged partitions to a new directory.",
    "serve": "Serve a store to clients of Apache Kafka: no JVM, one node.",
    "spark": "Run verify, recover, compact, export and import on a Spark cluster.",
    "tail": "Print the newest records of all topics, and new ones as they arrive.",
    "tier": "Work with a remote tier: list, verify, upload, restore, find orphans.",
    "topics": "Show the topics of log directories in one table.",
    "transactions": "Show open and hanging transactions; abort one offline.",
    "ui": "Serve live pages to a browser: the report, and a browser of records.",
    "verify": "Check every batch and index entry of a log directory for damage.",
}
# Examples at the end of `kafkalog <command> --help`.
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
    "report": (
        "kafkalog report /var/kafka-logs -o report.html",
        "kafkalog report /disk1/kafka-logs /disk2/kafka-logs orders --deep -o orders.html",
    ),
    "restore": (
        "kafkalog restore /backups/2026-11-28 /var/kafka-logs",
        "kafkalog restore /backups/2026-11-28 /tmp/orders orders --yes",
    ),
    "retain": (
        "kafkalog retain /var/kafka-logs --target-free 10GiB",
        "kafkalog retain /var/kafka-logs/orders -X retention.ms=86400000 --yes",
    ),
    "salvage": ("kafkalog salvage /var/kafka-logs /mnt/rescued orders",),
    "serve": (
        "kafkalog serve shop",
        "kafkalog serve shop --listen 127.0.0.1:0 -X num.partitions=3",
    ),
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
    "ui": (
        "kafkalog ui /var/kafka-logs --open",
        "kafkalog ui /disk1/kafka-logs /disk2/kafka-logs --registry-dir schemas/ --schema orders=order.avsc",
    ),
    "verify": ("kafkalog verify /var/kafka-logs orders-0 --deep",),
}


BESIDE = "use a command that takes no lock: those that only read, and all others without --yes"
TAKE_OVER = (
    "`kafkalog topics`, `cat`, `export`, `verify` and `explain` read it and change nothing; --take-over writes to it "
    "in place of its broker, which must be stopped"
)


class PipeClosed(Exception):
    """The reader of our output (such as head or less) has closed the pipe. Not an OSError, for which click exits with
    1: our code for findings."""


@contextlib.contextmanager
def _watching_the_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeClosed from error


class LazyGroup(TableGroup):
    """A group whose commands are imported when they are used."""

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
    """Inspect, check and repair Apache Kafka log directories, without a broker.

    PARTITIONS names partitions (orders-0), topics (orders) or globs (in quotes: 'orders-*'). If none is named, a
    command uses all partitions. A glob matches Kafka's internal topics only if it begins with two underscores ('__*').

    Commands that change files only report the change, until --yes is given. The exceptions are `append`, which always
    appends, and `backup`, `salvage` and `export`, which only write new files.

    \b
    Exit codes:
      0    clean
      1    findings, such as damage
      2    wrong command line
      3    the directory is locked, or an I/O error
      4    a broker or another program was writing: try again
      130  interrupted
      141  the reader of the output (such as head) closed the pipe

    If standard output is closed at the start, all output is discarded.
    """


class LocalPath(click.Path):
    """A path on this machine, in each form that the Python API accepts (`kafkalog.engine.files.local_path`)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return local_path(os.fsdecode(super().convert(value, param, ctx)))


class Number(click.IntRange):
    """A whole number in a range. `instead` says in the error what the caller may have meant to type."""

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
    """The command line makes no sense, or names something that does not exist; exit 2."""


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code for an error."""
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
    """Returns the exit code that prevails: a finding counts more than a partition that is being written."""
    return max(code, other, key=_FROM_HARMLESS.index)


def one_line(error: BaseException) -> str:
    """Returns an error as one line: what was found, what was expected, what to do."""
    if isinstance(error, PermissionError) and not isinstance(error, KafkalogError):
        return f"{error.filename or error}: {_no_permission(error.filename)}"
    if isinstance(error, OSError) and not isinstance(error, KafkalogError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, KafkalogError) and error.hint is not None:
        error.hint = _in_options(error.hint)
    text = " ".join(str(error).split()) or type(error).__name__
    refusal = error.__cause__ if isinstance(error, RemoteStorageException) else None
    if isinstance(refusal, PermissionError) and refusal.filename is None:  # the storage refused, not a file
        return f"{text} (the storage refuses access: check the credentials, --remote-option, and their permissions)"
    cause = error.__cause__
    if not isinstance(cause, (OSError, KafkalogError)):
        return text
    told = one_line(cause)
    if told in text:
        return text
    parts = (cause.filename, cause.strerror) if isinstance(cause, OSError) else (None,)
    if not all(part and str(part) in text for part in parts):
        return f"{text}: {told}"
    if isinstance(cause, PermissionError):  # the text names the file, but not what to do
        return f"{text.removesuffix(f': {cause.strerror}')}: {_no_permission(cause.filename)}"
    return text


# Arguments of the Python API that hints name -> what to type instead.
_INSTEAD_OF_ARGUMENTS = (
    (r"""on_damage=["']truncate["']""", "`kafkalog recover --yes`"),
    (r"""on_damage=["']skip["']""", "--skip-damage"),
    (r"skip_damage=True \(--skip-damage\)", "--skip-damage"),
    (r"\bcreate=True", "--create"),
    (r"\btake_over=True(?: \(--take-over[^)]*\))?", "--take-over"),
    (r"\bread_only=True", "a command that only reads"),
    (r"""kafkalog\.open\(\.\.\., remote=(?:"([^"]*)"|\.\.\.)\)""", r"--remote \1"),
    (r"""\bremote="([^"]*)\"""", r"--remote \1"),
)


def _in_options(hint: str) -> str:
    """Returns a hint of the Python API in the words of the command line."""
    for argument, option in _INSTEAD_OF_ARGUMENTS:
        hint = re.sub(argument, option, hint)
    return hint


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
        return True  # the command would create it
    except OSError:
        return False
    return True


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "?")


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    _name_stdout()
    sys.exit(invoke(argv))


def invoke(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code.  An error becomes one line on stderr."""
    _open_closed_streams()
    try:
        code = _invoke(argv)
    except (PipeClosed, BrokenPipeError):
        code = PIPE_CLOSED
    _drop_what_cannot_be_written()
    return code


def _open_closed_streams() -> None:
    """Opens os.devnull for each closed descriptor from 0 to 2: else the files that we open would get these numbers."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


class _StandardOutput(io.FileIO):
    """Standard output that names itself in its errors."""

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
            named if out.write_through else io.BufferedWriter(named),  # with PYTHONUNBUFFERED
            encoding=out.encoding,
            errors=out.errors,
            line_buffering=out.line_buffering,
            write_through=out.write_through,
        )


def _drop_what_cannot_be_written() -> None:
    """Flushes stdout and stderr. If that fails (broken pipe, full disk), redirects them to os.devnull: the exit code
    reports it, and Python's flush at exit must not complain again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _invoke(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name that is not UTF-8 must not raise
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
        if error.hint is not None:
            error.hint = re.sub("(open (it )?)?(with )?read_only=True.*", BESIDE, error.hint)
        return _fail(one_line(error), exit_code_of(error))
    except (KafkalogError, OSError, Usage) as error:
        if isinstance(error, IllegalArgumentException) and error.hint is not None:
            error.hint = re.sub("read_only=True.*take_over=True.*", TAKE_OVER, error.hint)
        return _fail(one_line(error), exit_code_of(error))


def _fail(text: str, code: int) -> int:
    click.echo(f"kafkalog: {harmless(text)}", err=True)
    return code
