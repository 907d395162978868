"""Old home of windows of offsets and times: a `Selection` has them now.  Will be removed in the next release."""

from kafkalog._renamed import moved

_INSTEAD = "kafkalog.toolbox.export.Selection(start, end)"
__getattr__ = moved(
    __name__,
    dict.fromkeys(("Bound", "Near", "Range", "Time", "Window", "found_in"), ("kafkalog._face.window", _INSTEAD)),
)
