"""What was dropped without being closed lets go of its files and locks, as a crash would leave them.

A finalizer may run inside of any lock, so it only starts a thread that does it; whoever takes a directory waits for
these threads first.  Nothing is flushed, and no marker is written: the next open recovers.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable

from kafkalog.engine.files.lines import Lines

_log = Lines("kafkalog.files")  # about no partition
# Each is released when its thread is through.  An Event's methods are Python: interrupted, they keep its lock.
_GOING: dict[int, _thread.LockType] = {}  # each step of it is one of C's


def let_go_later(let_go: Callable[[], object]) -> None:
    """Has a thread call `let_go`, which waits for nobody else.  For finalizers."""
    done = _thread.allocate_lock()
    done.acquire()
    _GOING[id(done)] = done

    def run() -> None:
        try:
            let_go()
        except Exception:
            _log.warning("what was dropped was not let go in order", exc_info=True)
        finally:
            _GOING.pop(id(done), None)
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no thread to be had: the files go with the process
        _GOING.pop(id(done), None)
        done.release()


def wait_for_dropped() -> None:
    """Until everything that was dropped so far has let go."""
    for done in list(_GOING.values()):
        with done:
            pass


def _forget_in_child() -> None:
    _GOING.clear()


os.register_at_fork(after_in_child=_forget_in_child)
