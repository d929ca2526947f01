"""Ansible run in a folder of a test: its configuration, an ssh that runs here, programs that stand in for a host's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ansible(
    folder: Path, *arguments: str | Path, program: str = "ansible-playbook", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible in a folder, with that folder's ansible.cfg unless ``environment`` says otherwise."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}
    return subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


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
