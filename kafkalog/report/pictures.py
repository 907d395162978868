"""The pictures of a report, as Vega-Lite specifications over the tables of a survey.

A specification names its table as `data: {"name": ...}`; the page, a notebook and the tests give it the rows.  The same
picture is used everywhere: the page draws it with vegaEmbed, a notebook as an altair chart, and `vl_convert` makes an
SVG of it without a browser.  Knows no files and no HTML.

Vega-Lite was chosen out of four libraries.  Its script, with Vega, has 0.9 MB (0.3 MB gzip) and comes in a wheel
(vl-convert).  Its charts are data, so one description serves the page, notebooks and SVGs.  Its expressions can be
interpreted without `eval`, and its SVG has roles and labels for screen readers.  Plotly's script has 4.8 MB.  ECharts
(1.1 MB) has no wheel from its authors, and no objects for notebooks.  uPlot (50 KB) draws lines and bars over numbers,
but no treemap and no map of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkalog.report import state_pictures as states
from kafkalog.report import storage_pictures as storage
from kafkalog.report.vega import Spec


class Picture(NamedTuple):
    """One picture: the page that shows it, its title, what it shows in words, and its table.

    `page` is "overview", "topic", "partition", "transactions", "groups" or "damage".  `table` names the table that it
    is drawn from, which is shown next to it.  `spec` is a Vega-Lite specification without data.  If no row has a value
    in each column of `needs`, there is nothing to draw.
    """

    name: str
    page: str
    title: str
    about: str
    table: str
    spec: Spec
    needs: tuple[str, ...] = ()


_ALL = (
    Picture(
        "topics",
        "overview",
        "Bytes by topic",
        "The area of a topic is the size of its logs. A click opens it. Topics too small to see are not drawn.",
        "topics",
        storage.treemap(),
        ("x",),
    ),
    Picture(
        "disks",
        "overview",
        "Disks",
        "What these logs use, what other files use, and what is free.",
        "disks",
        storage.disks(),
        ("diskBytes",),
    ),
    Picture("kinds", "overview", "Kinds of files", "The size of all files of a kind.", "kinds", storage.kinds()),
    Picture(
        "rateBytes",
        "overview",
        "Bytes an hour",
        "What was written when, by the largest topics.",
        "rates",
        storage.rates("bytesPerHour", "topic"),
        ("bytesPerHour",),
    ),
    Picture(
        "rateRecords",
        "overview",
        "Records an hour",
        "What was written when, by the largest topics.",
        "rates",
        storage.rates("recordsPerHour", "topic"),
        ("recordsPerHour",),
    ),
    Picture(
        "codecs",
        "overview",
        "What codecs save",
        "Bytes as they are stored, in front of their uncompressed size.",
        "codecs",
        storage.codecs(),
        ("bytes",),
    ),
    Picture(
        "ages",
        "overview",
        "From the oldest to the newest record",
        "The 25 topics whose records are oldest. A dot is the newest record.",
        "topics",
        storage.ages(),
        ("firstTime",),
    ),
    Picture(
        "skewBytes",
        "topic",
        "Bytes by partition",
        "The dashed line is the mean. A click opens a partition.",
        "partitions",
        storage.skew("size", "Size"),
    ),
    Picture(
        "skewRecords",
        "topic",
        "Offsets by partition",
        "The dashed line is the mean.",
        "partitions",
        storage.skew("records", "Offsets"),
        ("records",),
    ),
    Picture(
        "topicRateBytes",
        "topic",
        "Bytes an hour",
        "What was written when, by the largest partitions.",
        "rates",
        storage.rates("bytesPerHour", "partition"),
        ("bytesPerHour",),
    ),
    Picture(
        "topicRateRecords",
        "topic",
        "Records an hour",
        "What was written when, by the largest partitions.",
        "rates",
        storage.rates("recordsPerHour", "partition"),
        ("recordsPerHour",),
    ),
    Picture(
        "keys",
        "topic",
        "Keys with the most records",
        "The 25 keys with the most records, over all partitions.",
        "keys",
        storage.keys(),
    ),
    Picture(
        "segments",
        "partition",
        "Segments",
        "A segment lies between its first and last time and offset. The area of a mark is the segment's size, its "
        "shape and colour are the codec.",
        "segments",
        storage.segments(),
        ("maxTimestamp",),
    ),
    Picture(
        "partitionRateBytes",
        "partition",
        "Bytes an hour",
        "What was written when.",
        "rates",
        storage.rates("bytesPerHour", ""),
        ("bytesPerHour",),
    ),
    Picture(
        "partitionRateRecords",
        "partition",
        "Records an hour",
        "What was written when.",
        "rates",
        storage.rates("recordsPerHour", ""),
        ("recordsPerHour",),
    ),
    Picture(
        "batchSizes",
        "partition",
        "Sizes of batches",
        "How many batches have about this size.",
        "batches",
        storage.batch_sizes(),
        ("batches",),
    ),
    Picture(
        "batchRatios",
        "partition",
        "Compression by records a batch",
        "Larger batches mostly compress better. The area of a mark is the bytes of its batches.",
        "batches",
        storage.batch_ratios(),
        ("ratio", "recordsPerBatch"),
    ),
    Picture("gaps", "partition", "Gaps", "Ranges of offsets that the log no longer has.", "gaps", storage.gaps()),
    Picture(
        "retention",
        "partition",
        "What retention will delete",
        "The bytes that are deleted by a time, summed up.",
        "segments",
        storage.retention(),
        ("goesAtMs",),
    ),
    Picture(
        "compaction",
        "partition",
        "What compaction would gain",
        "The log's compacted and new part, and what a compaction would leave.",
        "partitions",
        storage.compaction(),
        ("cleanBytes",),
    ),
    Picture(
        "transactions",
        "transactions",
        "Transactions over offsets",
        "At most 30 transactions, open and hanging ones first. A thin bar is what such a one holds back.",
        "transactions",
        states.transactions("offsets"),
    ),
    Picture(
        "transactionTimes",
        "transactions",
        "Transactions over time",
        "At most 30 transactions, open and hanging ones first. A thin bar is how long such a one is open.",
        "transactions",
        states.transactions("times"),
        ("startTimestamp",),
    ),
    Picture(
        "lag", "groups", "Lag by partition", "The 40 partitions with the largest lag.", "groups", states.lag(), ("lag",)
    ),
    Picture(
        "lagOverTime",
        "groups",
        "Lag over time",
        "The lag that each commit left, for the eight largest.",
        "lags",
        states.lag_over_time(),
        ("lag",),
    ),
    Picture(
        "damage",
        "damage",
        "Map of the file",
        "The file's bytes: as they are now, after a recovery, and what a salvage saves.",
        "damage",
        states.damage(),
    ),
)

PICTURES: Mapping[str, Picture] = {picture.name: picture for picture in _ALL}
