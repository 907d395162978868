"""The lock file between a JVM and kafkalog: each keeps the other out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, lock
from kafkalog.errors import LogDirLockedException
from tests.live.test_files_lock import finish, hold, said
from tests.unit.test_files_lock import kind, path

__all__ = ["kind", "path"]
JAVA_HOLDER = """
import java.nio.channels.*;
import java.nio.file.*;
public class Holder {
    public static void main(String[] args) throws Exception {
        FileChannel channel = FileChannel.open(Path.of(args[0]),
            StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
        FileLock held = channel.tryLock();
        System.out.println(held == null ? "refused" : "held");
        System.out.flush();
        System.in.read();
    }
}
"""


@pytest.mark.jvm
@pytest.mark.usefixtures("kind")
def test_a_java_broker_is_kept_out_and_keeps_us_out(tmp_path: Path, path: str) -> None:
    source = tmp_path / "Holder.java"
    source.write_text(JAVA_HOLDER)
    program = ["java", "-XX:TieredStopAtLevel=1", str(source)]
    broker = hold(program, path)
    assert said(broker) == "held"
    with pytest.raises(LogDirLockedException) as refused:
        OS_FILES.lock(path)
    if lock._F_OFD_GETLK is not None:
        assert f"process {broker.pid} (java) holds it" in str(refused.value)
    finish(broker)
    with OS_FILES.lock(path):
        late = hold(program, path)
        assert said(late) == "refused"
        finish(late)
