"""Spark reads Kafka log directories: `spark.read.format("kafkalog")`, with the columns and options of its Kafka source.

`options` and `planning` know nothing of pyspark; `source` does, and is found by Spark through `pyspark_kafkalog`.
"""
