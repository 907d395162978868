"""How a shell asks how a line may go on: the program's name, and the variable that click's scripts set."""

from __future__ import annotations

NAME = "kafkalog"
VARIABLE = "_KAFKALOG_COMPLETE"
