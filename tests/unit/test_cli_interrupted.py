"""Ctrl-C while the command is still being imported: one line and 130, no traceback."""

from __future__ import annotations

from typing import NoReturn

import pytest

import kafkalog.cli


@pytest.mark.parametrize("place", ["find_spec", "_main"])
def test_an_interrupt_during_the_start(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(kafkalog.cli, place, interrupted)
    with pytest.raises(SystemExit) as ended:
        kafkalog.cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "kafkalog: interrupted\n")
