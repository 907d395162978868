"""Spark reads Kafka log directories: `spark.read.format("kafkalog")`, with the columns and options of its Kafka source.

`source`, `streaming` and `tasks` are what Spark sees, through `pyspark_kafkalog`.  The rest knows nothing
of pyspark: `options` and `triggers` say what is wanted, `planning` makes ranges of it, `followed` looks at partitions
again and again, `offsets` are the checkpoint's.
"""
