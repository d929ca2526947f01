"""Fixtures for the tests of every scenario."""

from tests.labtest import sparks, verb

__all__ = ["sparks", "verb"]
