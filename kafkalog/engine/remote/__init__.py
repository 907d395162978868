"""The remote tier of a partition: closed segments in an object storage, and what is known of them.

Kafka's classes of `org.apache.kafka.server.log.remote` by their names (KIP-405, 4.4.0).  `segment` has the words,
`records` their bytes, `metadata_cache` answers which segment holds an offset; `storage` is the door to the objects.
"""
