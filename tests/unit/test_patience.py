"""A rank that can run no module in this moment is asked again; one that answers is not."""

from __future__ import annotations

from typing import Any

import pytest
from sparkpair.patience import PAUSE, TRIES, answered

NOTHING = {"failed": True, "msg": "No start of json char found", "module_stdout": "sudo: not found", "rc": 127}
FAILED = {"failed": True, "msg": "the lock is held"}
OK = {"changed": False}


@pytest.mark.parametrize(
    ("answers", "wanted", "waits"),
    [
        ([OK], OK, 0),
        ([FAILED], FAILED, 0),
        ([NOTHING, NOTHING, OK], OK, 2),
        ([NOTHING, FAILED], FAILED, 1),
        ([NOTHING] * TRIES, NOTHING, TRIES - 1),
    ],
)
def test_a_package_upgrade_in_the_moment_of_the_return_left_half_a_pair(
    answers: list[dict[str, Any]], wanted: dict[str, Any], waits: int
) -> None:
    slept: list[float] = []
    left = iter(answers)
    assert answered(lambda: next(left), sleep=slept.append) == wanted
    assert slept == [PAUSE] * waits
    assert list(left) == []
