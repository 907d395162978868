"""Places that are read: a log directory, one that goes on in a remote tier (`--remote`), or a bucket (`s3://...`).

Both of the latter are mounted before a command runs (`kafkalog.engine.files.mounts`), which then reads them as any
other directory.  Credentials come from the environment, or from `--remote-option`, and are never printed.
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

_STORAGE = "kafkalog.remote"  # what the options say, in the context's notes
_USED = "kafkalog.remote.used"  # whether there is a remote tier
_BOTH = "kafkalog.remote.both"  # whether there is a directory beside it


def storage(ctx: click.Context, url: str) -> RemoteStorage:
    """The remote tier at an address, as the command's options say."""
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
        if ctx is not None and ctx.resilient_parsing:  # a shell asks: nobody is asked for that
            return text
        if ctx is not None and is_address(text):
            if not OS_FILES.owns(text):
                mount_bucket(ctx, text)
            return text.rstrip("/")
        path = super().convert(value, param, ctx)
        if ctx is None:
            return path
        above = parent_dir(path.rstrip("/"))  # of a partition's or a topic's name
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
    """Whether a local folder is a remote tier, by its objects."""
    return is_tier(path, ctx.meta.get(_STORAGE, {}).get("prefix", ""))


def _mount(ctx: click.Context, place: str, files: Files) -> None:
    """For as long as the command runs."""
    mount(place, files)
    ctx.call_on_close(functools.partial(unmount, place))


def mount_bucket(ctx: click.Context, url: str) -> None:
    """Mounts the tier at an address, or above it: what was typed may be one of its partitions or topics."""
    base = url.rstrip("/")
    first: KafkalogError | None = None
    for _ in range(3):
        try:
            files = storage(ctx, base).read_only_files(OsFiles())  # not through the mount itself
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
    tier = storage(ctx, url).with_layout([path], OsFiles())  # asked once
    for directory in dict.fromkeys(place.rstrip("/") or "/" for place in (path, os.path.abspath(path))):
        _mount(ctx, directory, tier.tiered_files([directory], OsFiles()))


def note_tiered(log_dir: str, folders: Mapping[TopicPartition, str], advice: str = "--remote reads it, too") -> None:
    """Tells which partitions of a directory are read without the remote tier that has their beginning."""
    from kafkalog._face.topic_settings import TopicSettings
    from kafkalog.engine.log.checkpoint_lines import CheckpointLines

    if mounted(log_dir) is not None:
        return
    settings, checkpoints, found = TopicSettings(log_dir), CheckpointLines(log_dir), []
    for partition, folder in folders.items():
        with contextlib.suppress(KafkalogError, OSError):  # what cannot be read is told by who needs it
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
        note(f"note: only the disk is read: the remote tier has what lies before ({where}); {advice}")


def storages_of(places: list[str]) -> tuple[list[str | RemoteStorage], RemoteStorage | None]:
    """Places that were typed as other processes need them, to mount them, too: buckets as their settings, and the
    remote tier in which directories go on."""
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
    """The options of a command that reads a log directory, a bucket, or both."""

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        _refuse_unused(click.get_current_context())
        return command(*args, **given)

    remote = click.option(
        "--remote", metavar="URL", is_eager=True, expose_value=False, callback=_noted("remote"),
        help="The remote tier that the directory goes on in, such as s3://bucket/prefix, or a folder.  A tier may also "
        "stand in the directory's place, to be read alone.",
    )  # fmt: skip
    return remote(remote_options(cast(C, run)))


def _refuse_unused(ctx: click.Context) -> None:
    given = ctx.meta.get(_STORAGE, {})
    if given.get("remote") and _BOTH not in ctx.meta:
        raise Usage(f"--remote: found {given['remote']} beside another remote tier, expected a log directory beside it")
    if given and _USED not in ctx.meta:
        options = " ".join(_OPTIONS[name] for name in _OPTIONS if given.get(name))
        raise Usage(f"{options}: found no remote tier here, expected an address, a tier's folder, or --remote")


def remote_options(command: C) -> C:
    """The options of a command that has a remote tier."""
    for option in reversed(
        (
            click.option(
                "--remote-option", multiple=True, metavar="KEY=VALUE", is_eager=True, expose_value=False,
                callback=_options,
                help="An option of the storage's client (fsspec), such as endpoint_url=http://localhost:9000.",
            ),
            click.option(
                "--layout", type=click.Choice(["local-tiered", "aiven"]), is_eager=True, expose_value=False,
                callback=_noted("layout"),
                help="Whose names objects have: those of Kafka's LocalTieredStorage, or of Aiven's plugin.  "
                "[default: as what lies there]",
            ),
            click.option(
                "--prefix", metavar="TEXT", is_eager=True, expose_value=False, callback=_noted("prefix"),
                help="Of the layout aiven: what all keys begin with (key.prefix).",
            ),
            click.option(
                "--key-pair", multiple=True, metavar="ID:PUBLIC:PRIVATE", is_eager=True, expose_value=False,
                callback=_key_pairs,
                help="Of the layout aiven: an RSA key pair's id and PEM files.  Of several the first encrypts.",
            ),
            click.option(
                "--topic-id", multiple=True, metavar="TOPIC=ID", is_eager=True, expose_value=False,
                callback=_topic_ids, help="Which topic is meant where the tier has two of the name.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command
