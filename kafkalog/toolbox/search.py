"""Old home of a search's conditions: a `Selection` has them now.  Will be removed in the next release."""

from kafkalog._renamed import moved

_INSTEAD = "kafkalog.toolbox.export.Selection(key=..., headers=..., grep=..., where=...), or filters of records()"
_HOMES = {"Condition": "match", "Match": "old_search", "matching": "old_search", "records_of": "match"}
__getattr__ = moved(__name__, {name: (f"kafkalog._face.{home}", _INSTEAD) for name, home in _HOMES.items()})
