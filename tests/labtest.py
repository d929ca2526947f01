"""Fixtures of the lab's tests: the Sparks as testinfra hosts, and verbs run as an operator runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra

CHECKOUT = Path(__file__).resolve().parents[1]
INVENTORY = CHECKOUT / "inventories" / "lab"


@dataclass(frozen=True)
class Run:
    """A finished verb: exit code, what the screen showed, result.json, and SSH executions per host name."""

    code: int
    screen: str
    result: dict[str, Any]
    executions: dict[str, int]


@pytest.fixture(scope="session")
def sparks() -> list[Any]:
    """All ranks as testinfra hosts, rank 0 first."""
    return testinfra.get_hosts(["ansible://sparks"], ansible_inventory=str(INVENTORY))


def engine(spark: Any) -> dict[str, Any]:
    """``docker inspect`` of a rank's engine container."""
    with spark.sudo():
        return json.loads(spark.check_output("docker inspect sparkpair-engine"))[0]


def tree(spark: Any) -> str:
    """Everything below /opt/sparkpair with type, mode, owner, link target and content hash, secrets included."""
    script = (
        "cd /opt 2>/dev/null && find sparkpair -printf '%y %m %u:%g %p %l\\n' | sort; "
        "find sparkpair -type f -exec sha256sum {} + 2>/dev/null | sort -k2"
    )
    with spark.sudo():
        return spark.run(script).stdout


def weights_ledger(spark: Any) -> str:
    """Path, inode and times of every file of weights, manifest and remembered hash: hashing and bringing change it."""
    folders = "/opt/sparkpair/weights /home/spark/.cache/huggingface/hub"
    with spark.sudo():
        return spark.check_output(f"find {folders} -type f -printf '%p %i %T@ %C@\\n' | sort")


@pytest.fixture
def verb(tmp_path: Path) -> Callable[..., Run]:
    """Run ``ansible-playbook playbooks/<verb>.yml`` on the lab with further arguments and environment.

    ``then`` is called with the process when a line of its screen contains ``at`` for the first time.
    """

    def run(
        name: str,
        *args: str,
        at: str = "",
        then: Callable[[subprocess.Popen[str]], object] | None = None,
        **environment: str,
    ) -> Run:
        # A run may be started from within another one, so each has a folder of its own.
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        count = folder / "ssh.log"
        wrapper = folder / "ssh"
        wrapper.write_text(f'#!/bin/sh\necho "$*" >> {count}\nexec ssh "$@"\n')
        wrapper.chmod(0o755)
        reports = folder / "reports"
        process = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                str(INVENTORY),
                f"playbooks/{name}.yml",
                *args,
            ],
            cwd=CHECKOUT,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("MOLECULE", "ANSIBLE"))},
                "ANSIBLE_SSH_EXECUTABLE": str(wrapper),
                "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
                "SPARKPAIR_REPORTS": str(reports),
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout
        screen = []
        for line in process.stdout:
            screen.append(line)
            if then and at in line:
                then(process)
                then = None
        code = process.wait()
        latest = sorted((reports / name).glob("2*/result.json"))
        lines = count.read_text().splitlines() if count.exists() else []
        hosts = [f"spark-{rank}" for rank in range(2)]
        addresses = dict(zip(hosts, ("10.213.77.10", "10.213.77.11"), strict=True))
        return Run(
            code,
            "".join(screen),
            json.loads(latest[-1].read_text()) if latest else {},
            {h: sum(1 for line in lines if f" {a} " in f" {line} ") for h, a in addresses.items()},
        )

    return run
