"""Where a search's conditions were: a `Selection` has them now.  Goes with the next release."""

from kafkalog._renamed import moved

_INSTEAD = "kafkalog.toolbox.export.Selection(key=..., headers=..., grep=..., where=...), or filters of records()"
_HOMES = {"Condition": "match", "Match": "old_search", "matching": "old_search", "records_of": "match"}
__getattr__ = moved(__name__, {name: (f"kafkalog._face.{home}", _INSTEAD) for name, home in _HOMES.items()})
