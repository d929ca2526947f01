"""An ansible.cfg for plays whose ssh runs here, and the programs that stand in for what a host has."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def program(path: Path, text: str) -> None:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def configure(folder: Path) -> None:
    """Make the checkout's roles and plugins known to plays in ``folder``, and ``folder/ssh`` their ssh."""
    (folder / "ansible.cfg").write_text(
        "[defaults]\n"
        f"roles_path = {ROOT}/roles\naction_plugins = {ROOT}/plugins/action\nlibrary = {ROOT}/plugins/modules\n"
        f"module_utils = {ROOT}/plugins/module_utils\nlocal_tmp = {folder}/tmp\n"
        "[connection]\npipelining = true\n"
        f"[ssh_connection]\nssh_executable = {folder}/ssh\nssh_args =\nretries = 0\n"
    )
