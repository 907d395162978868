"""Makes `format("kafkalog")` known to Spark 4, which imports each top-level module that is named pyspark_*."""

from kafkalog.spark.source import KafkalogDataSource as DefaultSource

__all__ = ["DefaultSource"]
