#!/usr/bin/env python3
"""Inventory of the local pair for any number of ranks (SPARK_LAB_RANKS, or what the last ``make lab-up`` made)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "molecule" / "lab"))

from sparklab import images, layout


def main() -> None:
    """Print the inventory as Ansible's script plugin reads it."""
    keys = layout.home() / "ssh"
    hostvars = {
        layout.name(rank): {
            "ansible_host": layout.address(rank),
            "spark_rank": rank,
            "spark_fabric_address": layout.address(rank),
        }
        for rank in range(layout.ranks())
    }
    common: dict[str, object] = {
        "ansible_user": layout.USER,
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(keys / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={keys / 'known_hosts'} -o IdentitiesOnly=yes",
        "spark_fabric_interface": layout.INTERFACE,
        "spark_hf_home": f"/home/{layout.USER}/.cache/huggingface",
        "spark_cache_dir": f"/home/{layout.USER}/.cache/sparkpair",
        "image": images.engine_image(),
        "lab_revisions": dict(images.model_revisions().values()),
    }
    groups = {"sparks": {"hosts": sorted(hostvars), "vars": common}, "_meta": {"hostvars": hostvars}}
    print(json.dumps(groups, indent=1))


if __name__ == "__main__":
    main()
