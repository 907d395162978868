"""Spark reads and writes Kafka log directories: `format("kafkalog")`, with the columns and options of its Kafka source
and sink.

`options` and `planning`, `write_options`, `staging` and `committing` know nothing of pyspark; `source` and `writing`
do.  Spark finds `source` through `pyspark_kafkalog`.
"""
