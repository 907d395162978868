"""Old home of reads after damage: a `Selection` with `on_damage` does this now.  Will be removed in the next
release."""

from kafkalog._renamed import moved

_INSTEAD = "on_damage='skip', or a function, for records(), read_arrow() and Selection"
__getattr__ = moved(__name__, dict.fromkeys(("PastDamage", "past_chunks"), ("kafkalog._face.past_damage", _INSTEAD)))
