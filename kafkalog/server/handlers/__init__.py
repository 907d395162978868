"""The handlers of requests, one module for each area.

A module ends with `HANDLERS: dict[int, Handler]`, by the api key.  It may also have `BLOCKING: set[int]`, the keys
whose handler may wait for the disk and runs in the pool.  `BLOCKING_IF` has keys whose handler runs there only for
some requests, with a function that says for which; most say so for large ones.  `DECODERS` take the place of the
table-driven reader of a request's body, and `ENCODERS` that of the writer of an answer.
`kafkalog.server.api.MODULES` names the modules.
"""
