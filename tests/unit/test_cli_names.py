"""The names of topics, partitions and commands on a command line: globs, and the errors for wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

import kafkalog
from kafkalog._face.missing import whole_topics
from kafkalog._face.named import names_of_partition, names_partition, names_topic, say_which
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE, cli, one_line
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.errors import KafkalogError
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

NAMES = ("orders-eu-0", "orders-eu-1", "orders-us-0", "payments-0", f"{GROUP_METADATA_TOPIC}-7")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for name in NAMES:
        with kafkalog.open_log(tmp_path, name) as log:
            log.append(name.encode())
    return tmp_path


def described(run: Run, *argv: object) -> list[str]:
    result = run("describe", *argv, "--json")
    assert result.code == CLEAN, result.err
    found = [json.loads(line) for line in result.lines]
    return sorted(f"{one['topic']}-{one['partition']}" for one in found if one["kind"] == "partition")


@pytest.mark.parametrize(
    ("name", "partition", "expected"),
    [
        ("orders", "orders-0", True),
        ("orders-0", "orders-0", True),
        ("orders-*", "orders-0", True),
        ("orders-*", "orders-eu-0", True),
        ("orders-?", "orders-10", False),
        ("orders-[01]", "orders-1", True),
        ("orders-[01]", "orders-2", False),
        ("order*", "orders-0", True),
        ("ORDERS*", "orders-0", False),
        ("*", "orders-0", True),
        ("*", f"{GROUP_METADATA_TOPIC}-0", False),
        ("?_consumer*", f"{GROUP_METADATA_TOPIC}-0", False),
        ("__*", f"{GROUP_METADATA_TOPIC}-0", True),
        ("", "orders-0", False),
        ("[", "orders-0", False),
    ],
)
def test_what_a_name_takes(name: str, partition: str, expected: bool) -> None:
    topic, _, number = partition.rpartition("-")
    found = TopicPartition(topic, int(number))
    assert names_partition(name, found) is expected
    assert names_of_partition([name, "nobody"], found) == ({name} if expected else set())


def test_what_names_say() -> None:
    assert names_topic("orders-*", "orders-eu")
    assert not names_topic("orders-*", "orders")
    assert say_which(["orders", "p*"])
    assert not say_which([])
    assert not say_which(["orders", "**"])
    wanted = whole_topics(["orders-*", "payments-0"])
    assert wanted("orders-eu")
    assert not wanted("payments")


def test_globs_beside_a_directory_and_in_its_path(run: Run, log_dir: Path) -> None:
    assert described(run, log_dir, "orders-*") == ["orders-eu-0", "orders-eu-1", "orders-us-0"]
    assert described(run, log_dir / "orders-*") == ["orders-eu-0", "orders-eu-1", "orders-us-0"]
    assert described(run, log_dir, "*-0", "payments") == ["orders-eu-0", "orders-us-0", "payments-0"]
    assert described(run, log_dir, "__*") == [f"{GROUP_METADATA_TOPIC}-7"]
    assert len(described(run, log_dir)) == len(NAMES)
    for command in ("verify", "recover", "reindex", "transactions", "cat"):
        result = run(command, log_dir, "orders-e?", "--json")
        assert result.code == CLEAN, (command, result.err)
    assert b"orders-us" not in run("cat", log_dir, "*eu*").octets
    assert run("cat", log_dir, "*eu*").lines == ["orders-eu-0", "orders-eu-1"]


@pytest.mark.parametrize("command", ["describe", "verify", "cat", "recover", "compact", "retain"])
@pytest.mark.parametrize("beside", [True, False])
def test_a_glob_that_takes_nothing(run: Run, log_dir: Path, command: str, beside: bool) -> None:
    place = [log_dir, "order_*"] if beside else [log_dir / "order_*"]
    options = ["-X", "retention.ms=1"] if command == "retain" else []
    result = run(command, *place, *options)
    assert result.code == USAGE
    assert f"no topic or partition matches 'order_*' in {log_dir}" in result.err
    assert "it has the topics __consumer_offsets, orders-eu, orders-us, payments" in result.err


def test_explain_takes_several(run: Run, log_dir: Path) -> None:
    def explained(*argv: object) -> list[str]:
        result = run("explain", *argv, "--json")
        assert result.code == CLEAN, result.err
        found = [json.loads(line) for line in result.lines]
        segments = [f"{each['topic']}-{each['partition']}" for each in found if each["kind"] == "segment"]
        assert segments == [f"{each['topic']}-{each['partition']}" for each in found if each["kind"] == "summary"]
        return sorted(segments)

    assert explained(log_dir) == sorted(NAMES[:-1])
    assert explained(log_dir, "__*") == [NAMES[-1]]
    assert explained(log_dir / "orders-eu") == ["orders-eu-0", "orders-eu-1"]
    assert explained(log_dir, "*us", "payments-0") == ["orders-us-0", "payments-0"]
    result = run("explain", log_dir / "orders-eu")
    assert result.code == CLEAN
    assert [line.split(":")[0] for line in result.lines if ": log start " in line and not line.startswith(" ")] == [
        "orders-eu-0",
        "orders-eu-1",
    ]
    assert result.err.count("guessed: ") == 1


def test_a_star_alone_does_not_name_what_is_compacted(run: Run, log_dir: Path) -> None:
    for place in ([log_dir, "*"], [log_dir / "*"]):
        result = run("compact", *place, "-X", "cleanup.policy=compact")
        assert result.code == USAGE
        assert "found -X cleanup.policy for a whole directory" in result.err
    assert run("compact", log_dir, "pay*", "-X", "cleanup.policy=compact").code == CLEAN


def test_globs_of_cursors(run: Run, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        for topic in ("orders-eu", "orders-us", "payments"):
            store.create_topic(topic)
            store.topic(topic).append(b"1")
    argv = ("cursors", tmp_path, "--group", "g", "--to-latest")
    assert run(*argv, "--topic", "orders-*", "--yes").code == CLEAN
    shown = run("cursors", tmp_path, "--group", "g")
    assert [line.split()[1] for line in shown.rows] == ["orders-eu", "orders-us"]
    assert len(run("cursors", tmp_path, "--group", "g", "--topic", "*us").lines) == 2
    lost = run(*argv, "--topic", "nobody*")
    assert lost.code == USAGE
    assert f"no topic matches 'nobody*' in {tmp_path}" in lost.err
    assert run(*argv, "--topic", "orders-*:0").code == USAGE


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("desribe x", "no command 'desribe', did you mean describe? (see kafkalog --help)"),
        ("verfy x", "no command 'verfy', did you mean verify?"),
        ("zzzzz", "no command 'zzzzz', expected one of append, backup, cat,"),
        ("tier lst s3://x", "no command 'lst', did you mean list? (see kafkalog tier --help)"),
        ("spark verfy x", "no command 'verfy', did you mean verify? (see kafkalog spark --help)"),
        ("checkpoint sett x", "no command 'sett', did you mean set? (see kafkalog checkpoint --help)"),
        ("checkpoint /nowhere", "/nowhere: not found, expected a Kafka log directory"),
        ("describe --jsn x", "Did you mean"),
        ("cat x --start 5", "No such option '--start'. Did you mean --from? (see kafkalog cat --help)"),
        ("latest x --end 5", "No such option '--end'. Did you mean --until?"),
        ("cat x --isolation read_committed", "Did you mean --committed (isolation level read_committed)?"),
        ("cat x --key_prefix a", "Did you mean --key-prefix?"),
        ("cat x --on_damage skip", "Did you mean --skip-damage (on_damage='skip' in Python)?"),
        ("export x --limit 5 --to y", "Did you mean --last?"),
        ("cat x --columns key", "No such option '--columns': -f '%o %k %s' prints the fields that it names"),
        ("export x --by day --to y", "No such option '--by': it writes a file per partition"),
        (
            "cursors --list x",
            "No such option '--list': without an option that changes offsets the command lists groups",
        ),
        ("cursors x --describe --group g", "`kafkalog cursors LOG_DIR --group NAME` shows one group"),
        (
            "cat --from @1793232000 x",
            "--from @1793232000 looks like seconds, expected milliseconds since 1970: --from @1793232000000",
        ),
    ],
)
def test_wrong_names_of_commands(run: Run, argv: str, said: str) -> None:
    result = run(*argv.split())
    assert result.code == USAGE
    assert said in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "cat logs --partitions orders-0",
            "'--partitions': found 'orders-0', expected a whole number; to name partitions write ",
        ),
        ("transactions abort logs --start-offset abc", "'--start-offset': found 'abc', expected a whole number; "),
        ("cat logs -n 1.5", "'-n' / '--limit': found '1.5', expected a whole number (see kafkalog cat --help)"),
        ("cat logs -n -1", "-1 is not in the range x>=0."),
        ("transactions abort logs --start-offset " + "9" * 30, "is not in the range 0<=x<=9223372036854775807."),
        (
            "cat lgs",
            "lgs: not found, expected a Kafka log directory (the directory that holds topic-0 ...); did you mean log",
        ),
        ("cat far", "far: not found, expected a Kafka log directory (the directory that holds topic-0 ...)\n"),
        ("cat file", "file: found a file"),
        ("topics lgs", "did you mean logs?"),
        ("cat deep/lgs", "deep/lgs: not found, expected a Kafka log directory"),
        ("cat deep/dtaa", "did you mean deep/data?"),
        (
            "move logs/t-0 disk2",
            "disk2: not found, expected a Kafka log directory (an empty directory is enough: mkdir disk2)",
        ),
        ("move logs/t-0 lgos", "(an empty directory is enough: mkdir lgos); did you mean logs?"),
        ("retain logs --config x", "x: no such file, expected a broker's server.properties"),
    ],
)
def test_wrong_values(run: Run, argv: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0"):
        pass
    (tmp_path / "deep" / "data").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    result = run(*argv.split())
    assert result.code == USAGE
    assert said in result.err
    assert len(result.err.splitlines()) == 1


def test_a_folder_named_almost_like_a_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open_log(tmp_path / "sets", "t-0"):
        pass
    monkeypatch.chdir(tmp_path)
    assert run("checkpoint", "sets").code in (CLEAN, FINDINGS)


def test_the_help_of_a_default_has_its_options(run: Run) -> None:
    result = run("checkpoint", "--help")
    assert result.code == CLEAN
    assert "--json" in result.out
    assert "  set  Set one line of a checkpoint." in result.out


# --- several directories, and names behind them ------------------------------------------------------------------


def told(run: Run, command: str, *argv: object) -> list[str]:
    """The topics or partitions that a command of several directories tells of."""
    result = run(command, *argv, "--json")
    assert result.code == CLEAN, result.err
    found = [json.loads(line) for line in result.lines]
    if command == "log-dirs":
        return sorted(
            each["partition"] for broker in found[0]["brokers"] for at in broker["logDirs"] for each in at["partitions"]
        )
    if command == "checkpoint":
        return sorted(f"{each['topic']}-{each['partition']}" for each in found if each["kind"] == "partition")
    if command == "topics":
        return sorted(
            f"{each['topic']}-{number}" for each in found if each["kind"] == "topic" for number in each["partitions"]
        )
    return sorted({each["name"] for each in found if each["kind"] == "topic"})


@pytest.fixture
def other_dir(tmp_path: Path) -> Path:
    place = tmp_path / "more-1"  # named like a partition, and none
    for name in ("orders-eu-2", "invoices-0"):
        with kafkalog.open_log(place, name) as log:
            log.append(name.encode())
    return place


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    place = tmp_path / "disk-0"
    for name in NAMES:
        with kafkalog.open_log(place, name) as log:
            log.append(name.encode())
    return place


@pytest.mark.parametrize("command", ["topics", "log-dirs", "checkpoint"])
def test_names_behind_several_directories(
    command: str, disk: Path, other_dir: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(run, command, disk, other_dir) == sorted([*NAMES, "orders-eu-2", "invoices-0"])
    assert told(run, command, disk, other_dir, "orders-eu") == ["orders-eu-0", "orders-eu-1", "orders-eu-2"]
    assert told(run, command, disk, "orders-*") == ["orders-eu-0", "orders-eu-1", "orders-us-0"]
    assert told(run, command, disk, "payments", "orders-eu-1") == ["orders-eu-1", "payments-0"]
    assert told(run, command, other_dir, "orders-eu-?") == ["orders-eu-2"]
    for part, expected in (("orders-eu-1", ["orders-eu-1"]), ("orders-eu", ["orders-eu-0", "orders-eu-1"])):
        assert told(run, command, disk / part) == expected
    assert told(run, command, disk / "payments", disk / "orders-us-0") == ["orders-us-0", "payments-0"]
    monkeypatch.chdir(disk.parent)  # without a slash a directory is one, and a partition's directory is a name
    assert told(run, command, "disk-0", "more-1", "invoices") == ["invoices-0"]
    monkeypatch.chdir(disk)
    assert told(run, command, ".", "orders-eu-0") == ["orders-eu-0"]
    assert told(run, command, ".", "../more-1", "orders-eu-2") == ["orders-eu-2"]


def test_the_space_of_names(disk: Path, other_dir: Path, run: Run) -> None:
    whole = [json.loads(line) for line in run("du", disk, other_dir, "--json").lines]
    some = [json.loads(line) for line in run("du", disk, other_dir, "orders-*", "--json").lines]
    by_name = {each["name"]: each for each in whole if each["kind"] == "topic"}
    assert {each["name"]: each for each in some if each["kind"] == "topic"} == {
        name: by_name[name] for name in ("orders-eu", "orders-us")
    }
    assert some[-1]["size"] == sum(by_name[name]["size"] for name in ("orders-eu", "orders-us"))
    (disk / "payments-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    assert "-delete" in run("du", disk, "payments").out
    assert "-delete" not in run("du", disk, "orders-eu").out


@pytest.mark.parametrize("command", ["topics", "log-dirs", "du", "checkpoint"])
def test_names_that_no_directory_has(command: str, disk: Path, other_dir: Path, run: Run) -> None:
    for name, text in (("ordrs-us-0", "did you mean orders-us-0?"), ("x*", "no topic or partition matches 'x*'")):
        result = run(command, disk, other_dir, name)
        assert (result.code, result.out) == (USAGE, "")
        assert text in result.err
    for line in ((disk / "orders-eu", other_dir), (other_dir, disk / "orders-eu-1"), (disk / "payments", "orders-us")):
        result = run(command, *line)
        assert (result.code, result.out) == (USAGE, "")
        assert "expected the directories first, then the names" in result.err


def test_cursors_of_names(tmp_path: Path, run: Run) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        for name in ("orders", "payments"):
            store.create_topic(name, 2).append_many([b"x"] * 4)
        with store.reader("billing", topics=["orders", "payments"]) as reader:
            reader.read_arrow()
            reader.commit()
    place = tmp_path / "data"

    def seen(*names: str) -> list[tuple[str, int]]:
        result = run("cursors", place, *names, "--json")
        assert result.code == CLEAN, result.err
        rows = [json.loads(line) for line in result.lines]
        return [(each["topic"], each["partition"]) for each in rows if each["kind"] == "cursor"]

    assert seen() == [("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1)]
    assert seen("pay*", "orders-1") == [("orders", 1), ("payments", 0), ("payments", 1)]
    assert run("cursors", place, "orders-1", "--group", "billing", "--to-earliest", "--export").out.splitlines() == [
        "orders,1,0"
    ]


def test_one_more_directory_is_no_topic(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        kafkalog.open_log(tmp_path / name, "orders-0").close()
    for command in ("verify", "recover", "describe", "cat"):
        result = run(command, tmp_path / "one", tmp_path / "two")
        assert (result.code, f"{tmp_path / 'two'}: found a directory after" in result.err) == (2, True), command
        result = run(command, tmp_path / "one", tmp_path / "twoo")
        assert (result.code, "and no directory of that name" in result.err) == (2, True), command
    result = run("verify", tmp_path / "one", "order")
    assert "did you mean orders?" in result.err
    assert "no directory" not in result.err


def test_a_folder_of_log_directories_names_them(run: Run, tmp_path: Path) -> None:
    kafkalog.open_log(tmp_path / "saved" / "log-dir-1", "orders-0").close()
    result = run("verify", tmp_path / "saved")
    assert (result.code, f"they are in {tmp_path / 'saved' / 'log-dir-1'}: name one" in result.err) == (USAGE, True)
    (tmp_path / "empty").mkdir()
    assert "is this the broker's log.dirs?" in run("verify", tmp_path / "empty").err


def test_history_of_a_directory_asks_for_the_key_first(run: Run, tmp_path: Path) -> None:
    kafkalog.open_log(tmp_path, "orders-0").close()
    result = run("history", tmp_path, "customer-7")
    assert (result.code, "expected the key first: history KEY" in result.err) == (USAGE, True)
    assert run("history", tmp_path, tmp_path).code == CLEAN  # a key may look like a path


def test_an_empty_topic_is_no_guess(run: Run, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("empty")
        store.create_topic("orders").append(b"1")
    rows = {line.split()[0]: line.split() for line in run("topics", tmp_path).rows}
    assert rows["empty"][-4:] == ["0", "-", "-", "-"]
    assert rows["orders"][-4] == "~1"


@pytest.mark.parametrize("command", ["topics", "cursors", "log-dirs", "du", "checkpoint", "verify"])
def test_a_folder_that_is_no_log_directory(run: Run, tmp_path: Path, command: str) -> None:
    """It holds some, or anything: no advice to move away what is in it."""
    with kafkalog.open_log(tmp_path / "disks" / "one", "t-0") as log:
        log.append(b"1")
    (tmp_path / "etc" / "cron.d").mkdir(parents=True)
    (tmp_path / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    told = run(command, tmp_path / "disks")
    assert (told.code, told.out) == (2, "")
    assert f"found no partitions, expected directories such as topic-0 (they are in {tmp_path}/disks/one:" in told.err
    told = run(command, tmp_path / "etc")
    assert (told.code, told.out) == (2, "")
    assert "found no partitions, expected directories such as topic-0 (is this the broker's log.dirs?" in told.err
    assert run(command, tmp_path / "disks" / "one").code == 0


def test_an_export_that_matches_nothing_says_so(run: Run, log_dir: Path, tmp_path: Path) -> None:
    asked = ("export", log_dir, "payments", "--to", tmp_path / "out.csv", "--force")
    told = run(*asked, "--key", "custmer 7", "--header", "source=app")
    assert told.code == CLEAN
    assert "note: nothing matched --key 'custmer 7' --header source=app" in told.err
    assert "nothing matched" not in run(*asked).err
    told = run(*asked, "--header", "source:app")
    assert told.code == CLEAN  # a name may have a colon
    assert "note: --header 'source:app' is taken as a name; write a value after '=': --header source=app" in told.err


SHARED_OPTIONS = (
    *("--topic", "--from", "--key", "--grep", "--where", "--header", "--partitions", "--skip-damage", "--committed"),
    *("--dry-run", "--yes", "--take-over", "--progress", "--utc", "--deep", "--roll", "--only", "--config", "-X"),
    *("--remote-option", "--layout", "--prefix", "--key-pair", "--topic-id", "--log-dir", "--from-start"),
)


def test_an_option_has_one_help_text() -> None:
    own = {
        ("cursors", "--topic"),
        ("cursors", "--committed"),
        ("report", "--deep"),
        ("serve", "-X"),
        ("spark export", "--skip-damage"),
    }
    found: dict[str, set[str]] = {}
    contexts = [click.Context(cli, info_name="kafkalog")]
    for ctx in contexts:
        if isinstance(ctx.command, click.Group):
            names = [(name, ctx.command.get_command(ctx, name)) for name in ctx.command.list_commands(ctx)]
            contexts += [click.Context(command, info_name=name, parent=ctx) for name, command in names if command]
        for param in ctx.command.params:
            for option in set(param.opts) & set(SHARED_OPTIONS) if isinstance(param, click.Option) else ():
                if (ctx.command_path.removeprefix("kafkalog "), option) not in own:
                    found.setdefault(option, set()).add(param.help or "")
    assert set(found) == set(SHARED_OPTIONS)
    assert {option: texts for option, texts in found.items() if len(texts) > 1} == {}


def test_hints_name_options() -> None:
    error = KafkalogError("no", hint='on_damage="truncate" cuts; read_only=True reads; create=True makes it')
    assert one_line(error) == "no (`kafkalog recover --yes` cuts; a command that only reads reads; --create makes it)"
    error = KafkalogError("no", hint='kafkalog.open(..., remote="s3://bucket/prefix") reads both')
    assert one_line(error) == "no (--remote s3://bucket/prefix reads both)"
