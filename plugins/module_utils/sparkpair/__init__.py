"""Typed logic of sparkpair.

Controller code imports this package as ``sparkpair`` (installed in editable mode by requirements.txt); modules that
run on a Spark import the same files as ``ansible.module_utils.sparkpair``. Files that a module imports therefore use
relative imports and the standard library only.
"""
