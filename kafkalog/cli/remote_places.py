"""Places that are read: a log directory, a log directory with its remote tier (`--remote`), or a bucket (`s3://...`).

A tier or bucket is mounted before a command runs (`kafkalog.engine.files.mounts`); the command then reads it like any
other directory. Credentials come from the environment or from `--remote-option`, and are never printed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import click

from kafkalog.cli.app import LocalPath, Usage
from kafkalog.cli.console import note, some
from kafkalog.engine.files import OS_FILES, Files, OsFiles, parent_dir
from kafkalog.engine.files.mounts import mount, mounted, unmount
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import partition_of_folder
from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.remote import RemoteStorage, is_address, is_tier

C = TypeVar("C", bound=Callable[..., Any])

_STORAGE = "kafkalog.remote"  # key of the options' values in the context's meta
_USED = "kafkalog.remote.used"  # whether there is a remote tier
_BOTH = "kafkalog.remote.both"  # whether there is a log directory too


def storage(ctx: click.Context, url: str) -> RemoteStorage:
    """Returns the remote tier at an address, configured by the command's options."""
    given: dict[str, Any] = ctx.meta.get(_STORAGE, {})
    keys = {name: given[name] for name in ("layout", "prefix", "encryption", "topic_ids") if given.get(name)}
    if pairs := given.get("encryption"):
        keys["encryption_key"] = next(iter(pairs))
    ctx.meta[_USED] = True
    return RemoteStorage(url, options=given.get("options"), **keys)


class ReadPath(LocalPath):
    """A place that is only read: a path, or an address, which is mounted."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = os.fsdecode(value)
        if ctx is not None and ctx.resilient_parsing:  # shell completion must not access a network
            return text
        if ctx is not None and is_address(text):
            if not OS_FILES.owns(text):
                mount_bucket(ctx, text)
            return text.rstrip("/")
        path = super().convert(value, param, ctx)
        if ctx is None:
            return path
        above = parent_dir(path.rstrip("/"))  # the directory, if the path ends in a partition or topic
        if url := ctx.meta.get(_STORAGE, {}).get("remote"):
            ctx.meta[_BOTH] = True
            is_below = not OS_FILES.exists(path) or partition_of_folder(
                above, os.path.basename(path.rstrip("/")), OS_FILES
            )
            _mount_both(ctx, above if is_below and OS_FILES.is_dir(above) else path, url)
            return path
        if is_folder_of_tier(ctx, path) or (not OS_FILES.exists(path) and is_folder_of_tier(ctx, above)):
            path = os.path.abspath(path)
            mount_bucket(ctx, path)
        return path


def is_folder_of_tier(ctx: click.Context, path: str) -> bool:
    """Returns whether a local directory is a remote tier, judging by its files."""
    return is_tier(path, ctx.meta.get(_STORAGE, {}).get("prefix", ""))


def _mount(ctx: click.Context, place: str, files: Files) -> None:
    """Mounts `files` at `place` until the command ends."""
    mount(place, files)
    ctx.call_on_close(functools.partial(unmount, place))


def mount_bucket(ctx: click.Context, url: str) -> None:
    """Mounts the tier at an address or above it: the address may be that of a partition or topic in the tier."""
    base = url.rstrip("/")
    first: KafkalogError | None = None
    for _ in range(3):
        try:
            files = storage(ctx, base).read_only_files(OsFiles())  # must not read through the mount itself
            if not files.storage.partitions():
                raise IllegalArgumentException(
                    "found no segments of a remote tier in the layout that --layout names", path=base
                )
            _mount(ctx, base, files)
            return
        except IllegalArgumentException as error:
            first = first or error
        base, _, name = base.rpartition("/")
        if base.endswith("/") or not name:
            break
    assert first is not None
    raise first


def _mount_both(ctx: click.Context, path: str, url: str) -> None:
    tier = storage(ctx, url).with_layout([path], OsFiles())  # find out the layout once
    for directory in dict.fromkeys(place.rstrip("/") or "/" for place in (path, os.path.abspath(path))):
        _mount(ctx, directory, tier.tiered_files([directory], OsFiles()))


def note_tiered(log_dir: str, folders: Mapping[TopicPartition, str], advice: str = "--remote reads it too") -> None:
    """Reports partitions that are read without the remote tier that has their beginning."""
    from kafkalog._face.topic_settings import TopicSettings
    from kafkalog.engine.log.checkpoint_lines import CheckpointLines

    if mounted(log_dir) is not None:
        return
    settings, checkpoints, found = TopicSettings(log_dir), CheckpointLines(log_dir), []
    for partition, folder in folders.items():
        with contextlib.suppress(KafkalogError, OSError):  # the code that needs it reports the error
            if not settings.of(partition.topic).remote_storage_enable:
                continue
            first = min(
                (base for name in OS_FILES.list_dir(folder) if (base := names.segment_base(name)) is not None),
                default=0,
            )
            if (checkpoints.line(names.LOG_START_OFFSET_CHECKPOINT_FILE, partition) or 0) < first:
                found.append(f"{partition} below {first}")
    if found:
        where = some(found)
        note(f"note: only the disk is read: the remote tier has earlier offsets ({where}); {advice}")


def storages_of(places: list[str]) -> tuple[list[str | RemoteStorage], RemoteStorage | None]:
    """Returns the typed places in a form that other processes can mount, buckets with their settings, and the remote
    tier of --remote."""
    from kafkalog.engine.remote.remote_files import RemoteFiles

    ctx = click.get_current_context()
    url = ctx.meta.get(_STORAGE, {}).get("remote")
    found: list[str | RemoteStorage] = [
        storage(ctx, each) if is_address(each) or isinstance(mounted(each), RemoteFiles) else each for each in places
    ]
    return found, None if url is None else storage(ctx, url)


_OPTIONS = {
    "options": "--remote-option",
    "layout": "--layout",
    "prefix": "--prefix",
    "encryption": "--key-pair",
    "topic_ids": "--topic-id",
}


def _noted(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def note(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value:
            ctx.meta.setdefault(_STORAGE, {})[name] = value
        return value

    return note


def _options(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        key, equals, said = text.partition("=")
        if not equals:
            raise Usage(f"--remote-option {key!r} has no '=', expected such as endpoint_url=http://localhost:9000")
        ctx.meta.setdefault(_STORAGE, {}).setdefault("options", {})[key.strip()] = _value(said.strip())
    return value


def _topic_ids(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        topic, equals, topic_id = text.partition("=")
        if not equals:
            raise Usage(f"--topic-id {text!r} has no '=', expected TOPIC=ID, with the id of 22 characters")
        ctx.meta.setdefault(_STORAGE, {}).setdefault("topic_ids", {})[topic] = topic_id
    return value


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), int(text) if text.isdigit() else text)


def _key_pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        parts = text.split(":")
        if len(parts) != 3:
            raise Usage(f"--key-pair {text!r}: expected ID:PUBLIC.PEM:PRIVATE.PEM")
        ctx.meta.setdefault(_STORAGE, {}).setdefault("encryption", {})[parts[0]] = (parts[1], parts[2])
    return value


def both_tiers(command: C) -> C:
    """Gives a command the options for reading a log directory, a bucket, or both."""

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        _refuse_unused(click.get_current_context())
        return command(*args, **given)

    remote = click.option(
        "--remote", metavar="URL", is_eager=True, expose_value=False, callback=_noted("remote"),
        help="The remote tier of the directory: an address such as s3://bucket/prefix, or a directory.  To read a tier "
        "alone, give it instead of the directory.",
    )  # fmt: skip
    return remote(remote_options(cast(C, run)))


def _refuse_unused(ctx: click.Context) -> None:
    given = ctx.meta.get(_STORAGE, {})
    if given.get("remote") and _BOTH not in ctx.meta:
        raise Usage(f"--remote: found {given['remote']} and another remote tier, expected a log directory with it")
    if given and _USED not in ctx.meta:
        options = " ".join(_OPTIONS[name] for name in _OPTIONS if given.get(name))
        raise Usage(f"{options}: found no remote tier here, expected an address, a tier's directory, or --remote")


def remote_options(command: C) -> C:
    """Gives a command the options for a remote tier."""
    for option in reversed(
        (
            click.option(
                "--remote-option", multiple=True, metavar="KEY=VALUE", is_eager=True, expose_value=False,
                callback=_options,
                help="A storage client option (fsspec), such as endpoint_url=http://localhost:9000.  Repeatable.",
            ),
            click.option(
                "--layout", type=click.Choice(["local-tiered", "aiven"]), is_eager=True, expose_value=False,
                callback=_noted("layout"),
                help="How objects are named: as by Kafka's LocalTieredStorage, or as by Aiven's plugin.  "
                "[default: as the existing objects]",
            ),
            click.option(
                "--prefix", metavar="TEXT", is_eager=True, expose_value=False, callback=_noted("prefix"),
                help="With the layout aiven: the prefix of all keys (key.prefix).",
            ),
            click.option(
                "--key-pair", multiple=True, metavar="ID:PUBLIC:PRIVATE", is_eager=True, expose_value=False,
                callback=_key_pairs,
                help="With the layout aiven: id and PEM files of an RSA key pair.  Repeatable: the first one encrypts.",
            ),
            click.option(
                "--topic-id", multiple=True, metavar="TOPIC=ID", is_eager=True, expose_value=False,
                callback=_topic_ids, help="The id of a topic, if the tier has two topics with its name.  Repeatable.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command
