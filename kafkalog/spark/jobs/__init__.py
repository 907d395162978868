"""Jobs over a cluster: the engine's own work, a Spark task for each partition or range, a DataFrame of what came.

    from kafkalog.spark import jobs
    jobs.verify(spark, ["/disk1/kafka-logs", "/disk2/kafka-logs"]).where("not ok").show()

`run` gives work to executors, `shared` lets them change partitions of a directory that the driver holds; each job is a
plan on the driver and a function of the toolbox on the executors.  The directories are where driver and executors
both find them.  `kafkalog spark` is the same on a command line.
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
