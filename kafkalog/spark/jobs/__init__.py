"""Jobs that run the engine's work on a Spark cluster.

Each job runs one task a partition or range and returns a DataFrame with the results.  The driver and the executors must
see the log directories under the same paths.  The command line has the same jobs: `kafkalog spark`.

Example:
    Show the partitions that are damaged:

        from kafkalog.spark import jobs
        jobs.verify(spark, ["/disk1/kafka-logs", "/disk2/kafka-logs"]).where("not ok").show()

Internally, `run` sends work to executors, and `shared` lets them change partitions of a directory that the driver
locks.  Each job is a plan on the driver and a function of `kafkalog.toolbox` on the executors.
"""

from kafkalog.spark.jobs.compacting import compact
from kafkalog.spark.jobs.doctor import doctor
from kafkalog.spark.jobs.exporting import export
from kafkalog.spark.jobs.importing import import_
from kafkalog.spark.jobs.recovery import recover
from kafkalog.spark.jobs.shuffle import compact_by_shuffle
from kafkalog.spark.jobs.verification import verify

__all__ = ["compact", "compact_by_shuffle", "doctor", "export", "import_", "recover", "verify"]


def __dir__() -> list[str]:
    return __all__
