"""A record's place in its file: the segment, the batch around it, and each field of both with its bytes.

The fields of a batch header are those of `engine.format.batch.HEADER`, and of older entries those of
`engine.format.legacy.ENTRY_HEADERS`; this module adds what they mean.  A record's fields are read as
`_native/codec/record.pxd` reads them.  Positions count from the start of the file; those of compressed records count
from the start of the decompressed bytes.  Long fields are cut for the page, and damaged batches are shown as far as
they can be read.  Only reads.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog import _shown
from kafkalog._native.codec import batches as native
from kafkalog._native.codec import records as native_records
from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.format.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_FIELDS,
    LOG_OVERHEAD,
    MAGIC_AT,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    declared_size,
    magic_byte,
    smallest_bytes,
)
from kafkalog.engine.format.control import ControlRecordType, parse_type_id
from kafkalog.engine.format.records import MAX_RECORD_BYTES, PART_RECORDS, READ_BYTES_MAX
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.scan import crcs_in
from kafkalog.errors import IllegalArgumentException, KafkalogError, OffsetOutOfRangeException
from kafkalog.toolbox.words import counted

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File
    from kafkalog.engine.log.snapshot import SegmentView, Snapshot
    from kafkalog.engine.log.view import PartitionView

SHOWN_BYTES = 256  # the most of one field
HEADERS_SHOWN = 100
VARINT_BYTES_MAX, VARLONG_BYTES_MAX = 5, 10

Field = dict[str, Any]

# The meaning of each field of a batch header; HEADER_FIELDS has their order.
MEANINGS: Mapping[str, str] = {
    "baseOffset": "The offset of the first record. The CRC does not cover it, so a broker can set it.",
    "batchLength": "The bytes of the batch after this field.",
    "partitionLeaderEpoch": "The epoch of the leader that appended the batch. The CRC does not cover it.",
    "magic": "The version of the format.",
    "crc": "The CRC-32C of everything after this field.",
    "attributes": "Codec, kind of timestamp, transaction, control batch, delete horizon.",
    "lastOffsetDelta": "The last offset minus the base offset. It stays when compaction removes records.",
    "baseTimestamp": "The timestamp from which those of the records count, or the delete horizon if that flag is set.",
    "maxTimestamp": "The largest timestamp of the records; with LogAppendTime the timestamp of all of them.",
    "producerId": "The idempotent or transactional producer; -1 if there is none.",
    "producerEpoch": "The producer's epoch, which rises when it starts again.",
    "baseSequence": "The producer's sequence number of the first record; a broker detects repeated batches by it.",
    "recordsCount": "The number of records in the batch.",
    # fields of entries of magic 0 and 1
    "offset": "The offset of the message; of a compressed wrapper, that of its last message.",
    "messageSize": "The bytes of the message after this field.",
    "timestamp": "The timestamp of the message in ms since 1970.",
    # fields of records
    "length": "The bytes of the record after this field, as a zigzag varint.",
    "timestampDelta": "The timestamp minus the batch's base timestamp.",
    "offsetDelta": "The offset minus the batch's base offset.",
    "keyLength": "The bytes of the key; -1 means that there is no key.",
    "key": "The key's bytes.",
    "valueLength": "The bytes of the value; -1 means that there is no value: a tombstone in a compacted topic.",
    "value": "The value's bytes.",
    "headerCount": "The number of headers.",
    "headerKeyLength": "The bytes of the header's name.",
    "headerKey": "The header's name in UTF-8.",
    "headerValueLength": "The bytes of the header's value; -1 means that it has none.",
    "headerValue": "The header's value.",
}
LEGACY_CRC = "The CRC-32 of everything after this field."
RECORD_ATTRIBUTES = "Not used in this version of the format."


class Octets(NamedTuple):
    """Bytes, the position of their first byte, and the name of what they are: "file" or "records"."""

    data: memoryview
    origin: int
    space: str


def field(octets: Octets, start: int, end: int, name: str, kind: str, **more: Any) -> Field:
    """Returns a field of a page: its range, its bytes as far as they are shown, its value and its meaning."""
    data = octets.data[start:end]
    return {
        "name": name, "kind": kind, "space": octets.space, "from": octets.origin + start, "to": octets.origin + end,
        "shown": base64.b64encode(data[:SHOWN_BYTES]).decode(), "meaning": MEANINGS.get(name, ""), **more,
    }  # fmt: skip


def place(
    view: PartitionView,
    *,
    offset: int | None,
    segment: str | None = None,
    position: int | None = None,
    index: int | None = None,
) -> dict[str, Any]:
    """Returns the place of a record: by offset, or by the batch at a position of a segment's file.

    `index` is the record's number in the batch, instead of its offset.

    Raises OffsetOutOfRangeException for an offset that the log does not have, IllegalArgumentException for a place that
    no segment has, and CorruptRecordException if damage hides the batch.
    """

    def find(seen: Snapshot) -> dict[str, Any]:
        if segment is not None and position is not None:
            found = next((each for each in seen.segments if os.path.basename(each.path) == segment), None)
            if found is None or not 0 <= position < found.size:
                raise IllegalArgumentException(f"no position {position} in a segment {segment!r:.80}", hint="reload")
            return _batch(seen, found, position, offset, index)
        if offset is None:
            raise IllegalArgumentException("found neither an offset nor a position, expected one of them")
        if not seen.log_start_offset <= offset < seen.log_end_offset:
            raise OffsetOutOfRangeException(
                f"offset {offset} of {view.topic_partition} is out of range: the log has "
                f"[{seen.log_start_offset}, {seen.log_end_offset})"
            )
        number, at = seen.position_of(offset)
        if number >= len(seen.segments):
            raise OffsetOutOfRangeException(f"no batch at or after offset {offset} of {view.topic_partition}")
        return _batch(seen, seen.segments[number], at, offset, index)

    return view.over(find)


def _batch(
    seen: Snapshot, segment: SegmentView, position: int, offset: int | None, index: int | None
) -> dict[str, Any]:
    file = seen.file(segment)
    head = file.pread(RECORD_BATCH_OVERHEAD, position)
    size = file.size()
    made: dict[str, Any] = {
        "path": segment.path, "segment": os.path.basename(segment.path), "baseOffset": segment.base_offset,
        "fileSize": size, "position": position,
        "fields": [], "problems": [], "crc": None, "record": None,
    }  # fmt: skip
    view = Octets(memoryview(head), position, "file")
    if len(head) <= MAGIC_AT:
        made["problems"].append(f"the file ends {len(head)} bytes after this position")
        made["fields"].append(field(view, 0, len(head), "rest", "bytes", group="batch"))
        return made
    magic, declared = magic_byte(head), declared_size(head)
    made |= {"magic": magic, "size": declared}
    if not 0 <= magic <= 2:
        made["problems"].append(reason(native.BAD_MAGIC))
    elif declared < smallest_bytes(magic):
        made["problems"].append(f"{reason(native.BAD_SIZE)}: {declared} bytes")
    elif position + declared > size:
        made["problems"].append(f"{reason(native.TORN)}: it needs {declared} bytes, {size - position} are left")
    made["fields"] += (_header_fields if magic not in (0, 1) else _entry_fields)(view)
    if made["problems"]:
        return made
    crcs = crcs_in(file, position, declared)
    if crcs is not None:
        stored, computed = crcs
        first = CRC_AT + 4 if magic == 2 else MAGIC_AT
        made["crc"] = {
            "stored": f"{stored:08x}", "computed": f"{computed:08x}", "matches": stored == computed,
            "kind": "CRC-32C" if magic == 2 else "CRC-32", "from": position + first, "to": position + declared,
        }  # fmt: skip
        if stored != computed:
            made["problems"].append("the CRC does not match: some of these bytes were changed after they were written")
    following = position + declared
    made["nextPosition"] = following if following < seen.readable_bytes(segment) else None
    header = native.header_at(head)
    try:
        (_records if magic == 2 else _messages)(made, file, header, position, offset, index)
    except KafkalogError as error:
        made["problems"].append(error.message)
    return made


# --- batches of magic 2 ------------------------------------------------------------------------------------------


def _header_fields(octets: Octets) -> Iterator[Field]:
    """Yields the fields of a batch header, as far as it is there."""
    for number, (name, code) in enumerate(zip(HEADER_FIELDS, HEADER.format[1:], strict=True)):
        start, end = (struct.calcsize(HEADER.format[: 1 + upto]) for upto in (number, number + 1))
        if end > len(octets.data):
            yield field(octets, start, len(octets.data), name, "cut", group="batch", text="the file ends here")
            return
        value = struct.unpack_from(f">{code}", octets.data, start)[0]
        yield field(octets, start, end, name, KINDS[code], group="batch", **_words(name, value))


KINDS = {"q": "int64", "i": "int32", "I": "uint32", "h": "int16", "b": "int8"}


def _words(name: str, value: int) -> dict[str, str]:
    """Returns a number as text, and in words if there are any."""
    words = {"text": str(value)}
    if name in ("baseTimestamp", "maxTimestamp", "timestamp") and value >= 0:
        words["words"] = _shown.moment(value)
    elif name == "crc":
        words["words"] = f"{value:08x} in hexadecimal"
    elif name == "attributes":
        words["words"] = attribute_words(value)
    elif name == "batchLength":
        words["words"] = f"with the {LOG_OVERHEAD} bytes before: {value + LOG_OVERHEAD}"
    return words


def attribute_words(value: int) -> str:
    """Returns the attributes of a batch in words."""
    codec = value & CODEC_MASK
    kinds = ["LogAppendTime" if value & TIMESTAMP_TYPE_FLAG else "CreateTime"]
    kinds += [
        word
        for flag, word in (
            (TRANSACTIONAL_FLAG, "transactional"),
            (CONTROL_FLAG, "control"),
            (DELETE_HORIZON_FLAG, "delete horizon set"),
        )
        if value & flag
    ]
    return ", ".join((f"codec {codecs.shown_name(codec)}", *kinds))


def _records(
    made: dict[str, Any], file: File, header: BatchHeader, position: int, offset: int | None, index: int | None
) -> None:
    """Adds the record of a batch, and the range of all of its records."""
    body_at, size = position + RECORD_BATCH_OVERHEAD, header.size - RECORD_BATCH_OVERHEAD
    made |= {"codec": codecs.shown_name(header.codec), "count": header.count, "control": header.is_control}
    if size > READ_BYTES_MAX:
        made["problems"].append(f"the records have {size} bytes: more than {READ_BYTES_MAX} are not decoded here")
        return
    data = file.pread(size, body_at)
    raw = Octets(memoryview(data), body_at, "file")
    failure: KafkalogError | None = None
    if header.is_compressed:
        made["fields"].append(
            field(
                raw,
                0,
                len(data),
                "compressed records",
                "bytes",
                group="records",
                meaning=counted(header.count, "record"),
            )
        )
        payload, failure = codecs.decompress_partial(header.codec, data, max_bytes=READ_BYTES_MAX)
        raw = Octets(memoryview(payload), 0, "records")
        made["decompressed"] = len(payload)
    if failure is not None:
        made["problems"].append(failure.message)
    found = _find(raw.data, header, offset, index)
    if found is None:
        if len(raw.data):
            made["fields"].append(field(raw, 0, len(raw.data), "records", "bytes", group="records"))
        if offset is not None and header.count:
            made["problems"].append(f"the batch has no readable record at offset {offset}")
        return
    number, start, record = found
    fields, end = _record_fields(raw, start, header)
    if start:
        text = f"{counted(number, 'record')} before this one"
        made["fields"].append(field(raw, 0, start, "records before", "bytes", group="records", text=text))
    made["fields"] += fields
    if end < len(raw.data):
        text = f"{counted(header.count - number - 1, 'record')} after this one"
        made["fields"].append(field(raw, end, len(raw.data), "records after", "bytes", group="records", text=text))
    made["record"] = {
        "index": number, "offset": record.offset, "timestamp": record.timestamp, "from": raw.origin + start,
        "to": raw.origin + end, "space": raw.space, "sequence": record.sequence,
    }  # fmt: skip
    if header.is_control:
        made["record"]["control"] = _control_word(record.key)


def _control_word(key: bytes | None) -> str:
    try:
        return ControlRecordType.from_type_id(parse_type_id(key)).name
    except KafkalogError as error:
        return error.message


def _find(body: memoryview, header: BatchHeader, offset: int | None, index: int | None) -> tuple[int, int, Any] | None:
    """Returns (number, position in the body, record) of the record with that number or offset; of the first one if
    neither is given, or if nothing has that offset any more."""

    def walk(rest: memoryview, count: int) -> tuple[list[Any], int]:
        found, _, reached, _, _ = native_records.read_records(
            rest, count, header.base_offset, header.base_timestamp,
            header.max_timestamp if header.log_append else None, header.base_sequence, header.is_compressed,
            MAX_RECORD_BYTES,
        )  # fmt: skip
        return found, reached

    start, number, left = 0, 0, header.count
    while left > 0:
        found, reached = walk(body[start:], min(left, PART_RECORDS))
        if not found:
            return None
        for at, record in enumerate(found):
            is_it = number + at == index if index is not None else offset is None or record.offset >= offset
            if is_it:
                return number + at, start + (walk(body[start:], at)[1] if at else 0), record
        start, number, left = start + reached, number + len(found), left - len(found)
    return None


class _Cut(Exception):
    """The bytes end inside a field."""


def _varint(data: memoryview, at: int, most: int) -> tuple[int, int]:
    """Returns a zigzag varint and the position after it."""
    number = shift = 0
    for place in range(at, min(at + most, len(data))):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), place + 1
    raise _Cut


class _Walk:
    """Collects the fields of one record, one after the other."""

    def __init__(self, octets: Octets, start: int) -> None:
        self.octets, self.at = octets, start
        self.fields: list[Field] = []

    def varint(self, name: str, group: str = "record", *, most: int = VARINT_BYTES_MAX, words: str = "") -> int:
        value, end = _varint(self.octets.data, self.at, most)
        self._add(end, name, "varint" if most == VARINT_BYTES_MAX else "varlong", group, str(value), words)
        return value

    def octets_of(self, length: int, name: str, group: str = "record") -> None:
        if length <= 0:
            return
        end = self.at + length
        if end > len(self.octets.data):
            raise _Cut
        self._add(end, name, "bytes", group, "", "")

    def byte(self, name: str) -> int:
        if self.at >= len(self.octets.data):
            raise _Cut
        value = self.octets.data[self.at]
        self._add(self.at + 1, name, "int8", "record", str(value), "")
        return value

    def _add(self, end: int, name: str, kind: str, group: str, text: str, words: str) -> None:
        more = {"words": words} if words else {}
        self.fields.append(field(self.octets, self.at, end, name, kind, group=group, text=text, **more))
        self.at = end


def _record_fields(octets: Octets, start: int, header: BatchHeader) -> tuple[list[Field], int]:
    """Returns the fields of the record at a position, and the position after it."""
    walk = _Walk(octets, start)
    end = start
    try:
        length = walk.varint("length")
        end = walk.at + length
        walk.byte("attributes")
        walk.fields[-1]["meaning"] = RECORD_ATTRIBUTES
        delta = walk.varint("timestampDelta", most=VARLONG_BYTES_MAX)
        if not header.log_append and header.base_timestamp + delta >= 0:
            walk.fields[-1]["words"] = _shown.moment(header.base_timestamp + delta)
        delta = walk.varint("offsetDelta")
        walk.fields[-1]["words"] = f"offset {header.base_offset + delta}"
        walk.octets_of(walk.varint("keyLength"), "key")
        walk.octets_of(walk.varint("valueLength"), "value")
        count = walk.varint("headerCount")
        for number in range(count):
            if number == HEADERS_SHOWN:
                text = f"{count - number} more headers"
                walk.fields.append(field(octets, walk.at, end, "more headers", "bytes", group="record", text=text))
                break
            group = f"header {number}"
            walk.octets_of(walk.varint("headerKeyLength", group), "headerKey", group)
            walk.octets_of(walk.varint("headerValueLength", group), "headerValue", group)
    except _Cut:
        walk.fields.append(
            field(octets, walk.at, max(walk.at, min(end, len(octets.data))), "cut", "cut", group="record")
            | {"text": "the record ends inside its next field"}
        )
    return walk.fields, max(end, walk.at)


# --- entries of magic 0 and 1 ------------------------------------------------------------------------------------


def _entry_fields(octets: Octets, group: str = "batch") -> Iterator[Field]:
    """Yields the fields of an entry before its key, as far as they are there."""
    form = legacy.ENTRY_HEADERS[1 if octets.data[MAGIC_AT] == 1 else 0].format
    for number, (name, code) in enumerate(zip(legacy.ENTRY_FIELDS, form[1:], strict=False)):
        start, end = (struct.calcsize(form[: 1 + upto]) for upto in (number, number + 1))
        if end > len(octets.data):
            return
        value = struct.unpack_from(f">{code}", octets.data, start)[0]
        more: dict[str, str] = _words(name, value)
        if name == "crc":
            more["meaning"] = LEGACY_CRC
        yield field(octets, start, end, name, KINDS[code], **{"group": group, **more})


def _messages(
    made: dict[str, Any], file: File, header: BatchHeader, position: int, offset: int | None, index: int | None
) -> None:
    """Adds the message of an entry, or of a compressed wrapper."""
    made |= {"codec": codecs.shown_name(header.codec), "control": False}
    if header.size > READ_BYTES_MAX:
        made["problems"].append(f"the batch has {header.size} bytes: more than {READ_BYTES_MAX} are not decoded here")
        return
    data = memoryview(file.pread(header.size, position))
    outer = Octets(data, position, "file")
    entries = legacy.entries(data, 0, header.size, max_bytes=READ_BYTES_MAX)
    made["count"] = len(entries)
    at = legacy.ENTRY_HEADERS[header.magic].size
    number = next(
        (
            place
            for place, each in enumerate(entries)
            if (place == index if index is not None else offset is None or each.offset >= offset)
        ),
        0,
    )
    entry = entries[number]
    if not header.is_compressed:
        fields, end = _key_and_value(outer, at, "record")
        made["fields"] += fields
        start, space, origin = 0, "file", position
    else:
        fields, _ = _key_and_value(outer, at, "records")
        fields[-1] |= {"name": "compressed records", "meaning": counted(len(entries), "message")}
        made["fields"] += fields
        sizes = [len(each.message) + LOG_OVERHEAD for each in entries]
        start, end = sum(sizes[:number]), sum(sizes[: number + 1])
        value = legacy.Entry(0, data[LOG_OVERHEAD:]).value()
        payload, _ = codecs.decompress_partial(
            header.codec, b"" if value is None else value, magic=header.magic, max_bytes=READ_BYTES_MAX
        )
        made["decompressed"] = len(payload)
        inner = Octets(memoryview(payload)[start:end], start, "records")
        space, origin = "records", 0
        whole = Octets(memoryview(payload), 0, "records")
        if start:
            text = f"{number} messages before this one"
            made["fields"].append(field(whole, 0, start, "records before", "bytes", group="records", text=text))
        made["fields"] += _entry_fields(inner, "record")
        made["fields"] += _key_and_value(inner, legacy.ENTRY_HEADERS[entry.magic].size, "record")[0]
        if end < len(payload):
            text = f"{len(entries) - number - 1} messages after this one"
            made["fields"].append(field(whole, end, len(payload), "records after", "bytes", group="records", text=text))
    made["record"] = {
        "index": number, "offset": entry.offset, "timestamp": entry.timestamp, "from": origin + start,
        "to": origin + end, "space": space, "sequence": -1,
    }  # fmt: skip


def _key_and_value(octets: Octets, at: int, group: str) -> tuple[list[Field], int]:
    """Returns the fields of a key and a value, each after its size, and the position after them."""
    found = []
    for name in ("key", "value"):
        if at + 4 > len(octets.data):
            break
        length = struct.unpack_from(">i", octets.data, at)[0]
        found.append(field(octets, at, at + 4, f"{name}Length", "int32", group=group, text=str(length)))
        at += 4
        if length > 0:
            end = min(at + length, len(octets.data))
            found.append(field(octets, at, end, name, "bytes", group=group))
            at = end
    return found, at
