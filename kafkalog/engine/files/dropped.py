"""Releases the files and locks of objects that were dropped without being closed, as a crash would.

A finalizer may run while any lock is held, so it only starts a thread that does the work.  Code that acquires a
directory waits for these threads first.  Nothing is flushed, and no marker is written: the next open recovers.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable

from kafkalog.engine.files.lines import Lines

_log = Lines("kafkalog.files")  # about no partition
# Each is released when its thread is done.  Not Events: their methods are Python, and keep a lock if interrupted.
_GOING: dict[int, _thread.LockType] = {}  # each operation on it is one step in C


def let_go_later(let_go: Callable[[], object]) -> None:
    """Calls `let_go` in a thread.  `let_go` must not wait for other code.  For finalizers."""
    done = _thread.allocate_lock()
    done.acquire()
    _GOING[id(done)] = done

    def run() -> None:
        try:
            let_go()
        except Exception:
            _log.warning("an object that was dropped without being closed was not released in order", exc_info=True)
        finally:
            _GOING.pop(id(done), None)
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no thread can be started: the files are closed with the process
        _GOING.pop(id(done), None)
        done.release()


def wait_for_dropped() -> None:
    """Waits until all objects that were dropped so far are released."""
    for done in list(_GOING.values()):
        with done:
            pass


def _forget_in_child() -> None:
    _GOING.clear()


os.register_at_fork(after_in_child=_forget_in_child)
