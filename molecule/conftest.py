"""Fixtures for the tests of every scenario, and a file of what failed, which ``make`` shows once more at the end."""

from pathlib import Path

import pytest

from tests.labtest import sparks, verb

FAILED = Path(__file__).resolve().parents[1] / ".cache" / "failed.txt"
LAST_LINES = 60


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure: Molecule frames and colours its output, and a log that is cut shows only the frame."""
    if report.failed:
        FAILED.parent.mkdir(exist_ok=True)
        lines = report.longreprtext.splitlines()[-LAST_LINES:]
        with FAILED.open("a") as stream:
            stream.write("\n".join([f"FAILED {report.nodeid} ({report.when})", *lines, ""]))


__all__ = ["pytest_runtest_logreport", "sparks", "verb"]
