"""Spark reads Kafka log directories: `spark.read.format("kafkalog")`, with the columns and options of its Kafka source.

`source` (and of streams `streaming`) is what Spark sees; it finds it through `pyspark_kafkalog`.  The rest knows nothing
of pyspark: `options` and `triggers` say what is wanted, `planning` makes ranges of it, `followed` looks at partitions
again and again, `offsets` are the checkpoint's.
"""
