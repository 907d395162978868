"""Shell completion: the program's name, and the environment variable that click's scripts set."""

from __future__ import annotations

NAME = "kafkalog"
VARIABLE = "_KAFKALOG_COMPLETE"
