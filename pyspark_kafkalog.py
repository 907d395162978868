"""Spark 4 imports every top-level module named pyspark_*: through this one it finds `format("kafkalog")` by itself."""

from kafkalog.spark.source import KafkalogDataSource as DefaultSource

__all__ = ["DefaultSource"]
