"""Private parts of `kafkalog.store`, `topic`, `partition`, `reader`, `producer` and `transaction`."""
