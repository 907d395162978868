"""Runs conformance scripts on kafkalog: the counterpart of the Java driver in `driver/`.

    python tests/conformance/replay.py SCRIPT WORKDIR       one script; result lines on standard output
    python tests/conformance/replay.py --many LISTFILE      many; each line is SCRIPT TAB WORKDIR TAB OUT, and may end
                                                            in TAB short or long, the way of ordinary appends

The exit code is 0 if every script ran to its end, whatever its operations answered.  It is 1 if a script itself was
wrong (an unknown operation, a batch that differs from its `raw_hex`), and 2 for wrong usage.  An operation that
kafkalog does not have answers `error: NotImplementedError`, never a guess.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a script: the repository's root is not on the path yet
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.conformance import replay_files, replay_manager, replay_metrics, replay_partition, ways
from tests.conformance.replay_rendering import state
from tests.conformance.replay_session import Op, ScriptError, Session

# After these the state of the log is not shown.
WITHOUT_STATE = frozenset({"read", "dump"})


def error_fields(error: BaseException) -> dict[str, Any]:
    """The error's name as Kafka has it, and its text."""
    name = type(error).__name__
    if isinstance(error, FileNotFoundError):
        name = "NoSuchFileException"
    elif type(error) is OSError:
        name = "IOException"
    fields = {"error": name, "message": str(error)}
    if error.__cause__ is not None:
        fields["cause"] = repr(error.__cause__)
    return fields


def _advance_clock(session: Session, op: Op, result: dict[str, Any]) -> None:
    now = op["to_ms"] if "to_ms" in op else session.clock.milliseconds() + op["by_ms"]
    session.clock.advance_to(now)
    result["now_ms"] = now


def _tick(session: Session, op: Op, result: dict[str, Any]) -> None:
    session.scheduler.tick()


Operation = Callable[[Session, Op, dict[str, Any]], None]
OPERATIONS: dict[str, Operation] = {
    "advance_clock": _advance_clock,
    "tick": _tick,
    **replay_partition.OPERATIONS,
    **replay_files.OPERATIONS,
    **replay_manager.OPERATIONS,
    **replay_metrics.OPERATIONS,
}


def run_line(session: Session, line: str, result: dict[str, Any]) -> bool:
    """One operation; False when the script itself is wrong."""
    op = Op(json.loads(line))
    result["op"] = op.name
    if "note" in op:
        result["note"] = op["note"]
    operation = OPERATIONS.get(op.name)
    try:
        if operation is None:
            raise ScriptError(f"unknown operation {op.name}")
        operation(session, op, result)
    except ScriptError as error:
        result.update(error_fields(error))
        return False
    except Exception as error:
        result.update(error_fields(error))
        if session.tracebacks:
            sys.excepthook(type(error), error, error.__traceback__)
    if not session.manual_scheduler:
        session.scheduler.tick()
    log = session.find(op.handle)
    if log is not None and op.name not in WITHOUT_STATE and not op.name.startswith("fs_"):
        try:
            result["state"] = state(log.log)
        except Exception as error:
            result["state_error"] = type(error).__name__
    return True


def run_script(lines: Iterable[str], work_dir: Path, out: Callable[[str], None], *, tracebacks: bool = False) -> bool:
    """Runs a whole script with its clock, scheduler and handles."""
    session = Session(work_dir, tracebacks=tracebacks)
    try:
        for number, text in enumerate(lines, 1):
            line = text.strip()
            if not line or line.startswith("#"):
                continue
            result: dict[str, Any] = {"line": number}
            good = run_line(session, line, result)
            out(json.dumps(result, separators=(",", ":")))
            if not good:
                return False
        return True
    finally:
        session.drop_handles()


def load_script(path: Path) -> list[dict[str, Any]]:
    """The operations of a script, without its comments."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines if line and not line.startswith("#")]


def run_row(script: Path, work_dir: Path, out: Path, way: str = ways.SHORT) -> bool:
    """One script, its results in `out`; False when the script itself was wrong."""
    work_dir.mkdir(parents=True, exist_ok=True)
    results: list[str] = []
    with ways.taking(way):
        good = run_script(script.read_text().splitlines(), work_dir, results.append)
    beside = Path(f"{out}.part")
    beside.write_text("".join(f"{result}\n" for result in results))
    os.replace(beside, out)  # an OUT that exists is whole
    return good


def run_many(listfile: Path) -> bool:
    good = True
    for line in listfile.read_text().splitlines():
        if line.strip():
            script, work_dir, out, *way = line.split("\t")
            good &= run_row(Path(script), Path(work_dir), Path(out), *way)
    return good


@contextmanager
def quiet() -> Iterator[None]:
    """Scripts provoke warnings by the hundred; a test that runs some in its process logs again after them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    tracebacks = os.environ.get("KAFKALOG_REPLAY_TRACEBACKS") == "1"
    with nullcontext() if tracebacks else quiet():
        if argv[0] == "--many":
            return 0 if run_many(Path(argv[1])) else 1
        work_dir = Path(argv[1])
        work_dir.mkdir(parents=True, exist_ok=True)
        lines = Path(argv[0]).read_text().splitlines()
        return 0 if run_script(lines, work_dir, lambda line: print(line, flush=True), tracebacks=tracebacks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
