"""Apache Kafka's own jars and our driver over them: built once by Maven, then one `java` command.

Maven writes to `driver/target` (or `KAFKALOG_DRIVER_TARGET`). A stamp of the sources says whether its output is still
valid, so that later runs need neither Maven nor the network.  Maven tries offline first, then with network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DRIVER = Path(__file__).parent / "driver"
TOOLS = Path(__file__).parent / "tools"
MAIN = "io.kafkalog.conformance.Main"
# Thousands of small scripts in one JVM: start quickly, stay small.
JAVA_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx768m", "-Xshare:auto")
BUILD_SECONDS_MAX = 900


class KafkaMissingError(RuntimeError):
    """This machine cannot run Apache Kafka's classes; the text says what is missing."""


@dataclass(frozen=True)
class Driver:
    """The built driver: how to run its main class, or any other class of the same jars."""

    java: str
    classpath: str

    def command(self, *args: str, main: str = MAIN) -> list[str]:
        return [self.java, *JAVA_FLAGS, "-cp", self.classpath, main, *args]

    def run_many(self, listfile: Path, *, timeout_seconds: float = 600) -> None:
        """Runs a list of scripts; raises with the driver's own words when it could not."""
        done = subprocess.run(
            self.command("--many", str(listfile)), capture_output=True, text=True, timeout=timeout_seconds
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the driver ended with {done.returncode}:\n{done.stderr[-4000:]}")

    @contextmanager
    def serve(self) -> Iterator[Served]:
        """A JVM that stays: a script costs milliseconds."""
        with (
            tempfile.TemporaryFile("w+") as stderr,
            subprocess.Popen(
                self.command("--serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield Served(process.stdin, process.stdout, stderr)
            finally:
                process.stdin.close()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


@dataclass(frozen=True)
class Served:
    """The pipes to a driver that takes scripts one by one."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def run(self, script: Path, work_dir: Path, out: Path) -> bool:
        """Runs one script; False when the script itself was wrong.  Raises with the driver's last words."""
        self.stdin.write(f"{script}\t{work_dir}\t{out}\n")
        self.stdin.flush()
        for line in self.stdout:  # all other output of Kafka is skipped
            verdict, _, name = line.rstrip("\n").partition("\t")
            if name == str(out):
                return verdict == "good"
        self.stderr.seek(0)
        raise RuntimeError(f"the driver has ended:\n{self.stderr.read()[-4000:]}")


def find_tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        what = "Maven" if name == "mvn" else "a JDK (17 or later)"
        raise KafkaMissingError(f"`{name}` is not on the PATH: Apache Kafka's classes need {what}")
    return found


def driver(*, profile: str | None = None) -> Driver:
    """The driver with its classpath; `profile="broker"` adds the whole broker and Kafka's tools."""
    target = Path(os.environ.get("KAFKALOG_DRIVER_TARGET", DRIVER / "target")).absolute() / (profile or "storage")
    target.mkdir(parents=True, exist_ok=True)
    java = find_tool("java")
    # Test processes may come at the same time: one builds, the others wait.
    with (target / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        classpath = _built(target) or _build(target, profile)
    return Driver(java, classpath)


def tools() -> Driver:
    """Kafka's command-line tools (`main="org.apache.kafka.tools.DumpLogSegments"`), in a separate class path."""
    return Driver(find_tool("java"), os.pathsep.join(fetched(TOOLS / "pom.xml", "tools", "Kafka's tools")))


def fetched(pom: Path, name: str, what: str) -> list[str]:
    """Paths of the jars that a pom requests, downloaded by Maven once.  KafkaMissingError if it cannot fetch `what`."""
    maven = find_tool("mvn")
    target = Path(os.environ.get("KAFKALOG_DRIVER_TARGET", DRIVER / "target")).absolute() / name
    target.mkdir(parents=True, exist_ok=True)
    paths = target / "classpath"
    with (target / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = paths.exists() and paths.stat().st_mtime > pom.stat().st_mtime
        if not fresh or not all(Path(part).exists() for part in paths.read_text().split(os.pathsep)):
            found = target / "dependencies"
            command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
            done = _maven(command)
            if done.returncode != 0:
                raise KafkaMissingError(f"Maven could not fetch {what}:\n{done.stdout[-3000:]}")
            paths.write_text(found.read_text().strip())
        return paths.read_text().split(os.pathsep)


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in [DRIVER / "pom.xml", *sorted((DRIVER / "src").rglob("*.java"))]:
        digest.update(path.relative_to(DRIVER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _built(target: Path) -> str | None:
    stamp, paths = target / "stamp", target / "classpath"
    if not stamp.exists() or stamp.read_text() != _sources_digest():
        return None
    classpath = paths.read_text()
    # Somebody may have emptied the local repository meanwhile.
    return classpath if all(Path(part).exists() for part in classpath.split(os.pathsep)) else None


def _build(target: Path, profile: str | None) -> str:
    maven = find_tool("mvn")
    find_tool("javac")
    paths = target / "dependencies"
    command = [maven, "-q", "-B", "-f", str(DRIVER / "pom.xml"), f"-Ddriver.target={target / 'maven'}"]
    command += [f"-P{profile}"] if profile else []
    goals = ["package", "dependency:build-classpath", f"-Dmdep.outputFile={paths}"]
    try:
        # Offline is quicker, and enough when the local repository has everything.
        done = _maven([*command, "-o", *goals])
        if done.returncode != 0:
            done = _maven([*command, *goals])
    except subprocess.TimeoutExpired:
        raise KafkaMissingError(f"Maven did not finish within {BUILD_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise KafkaMissingError(f"Maven could not build the conformance driver:\n{done.stdout[-3000:]}")
    jar = next((target / "maven").glob("conformance-driver-*.jar"))
    classpath = os.pathsep.join([str(jar), paths.read_text().strip()])
    (target / "classpath").write_text(classpath)
    (target / "stamp").write_text(_sources_digest())
    return classpath


def _maven(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)


if __name__ == "__main__":
    print(driver().classpath)
