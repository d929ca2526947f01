"""The role and the verb in a real ansible-playbook run, with an ssh that counts its calls and runs them here."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.planning import host_variables, plan
from tests.sshhere import ROOT, configure

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
ROLE = [
    {"ansible.builtin.include_role": {"name": "spark_preflight"}},
    {"ansible.builtin.debug": {"msg": "verdict {{ spark_preflight_output.verdict }}"}, "run_once": True},
]
DISCOVER = [{"ansible.builtin.include_role": {"name": "spark_preflight", "tasks_from": "discover.yml"}}]


class Site:
    """Two hosts behind an ssh that runs commands on this machine, except for the address that is to be dead."""

    def __init__(self, folder: Path, dead: str = "") -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.program("ssh", f'echo x >> {self.calls}\ncase "$*" in *"{dead or "nowhere"}"*) exit 255;; esac')
        # Ansible hands sudo its flags and the command as one shell word at the end.
        self.program("sudo", "")
        configure(folder)
        hosts = {
            f"spark-{n}": {
                "ansible_host": f"192.0.2.{n + 1}",
                "ansible_python_interpreter": sys.executable,
                "ansible_become_exe": str(folder / "sudo"),
                **host_variables(n),
            }
            for n in (0, 1)
        }
        (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))

    def program(self, name: str, first: str) -> None:
        """A program that runs its last argument as a shell command."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\n{first}\nfor last; do :; done\nexec sh -c "$last"\n')
        path.chmod(0o755)

    def run(self, tasks: list[dict[str, Any]], *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run a play of ``tasks`` on both hosts."""
        given = {"spark_preflight_plan": plan(), "spark_preflight_rank": "{{ spark_rank }}", **variables}
        play = {"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "vars": given, "tasks": tasks}
        (self.folder / "play.yml").write_text(json.dumps([play]))
        return subprocess.run(
            [PLAYBOOK, "-i", "hosts.json", "play.yml", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the verb itself."""
        inventory = json.loads((self.folder / "hosts.json").read_text())
        (self.folder / "group.json").write_text(json.dumps({"sparks": {"hosts": inventory["all"]["hosts"]}}))
        return subprocess.run(
            [PLAYBOOK, "-i", "group.json", ROOT / "playbooks" / "preflight.yml", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )


def count(site: Site) -> int:
    return len(site.calls.read_text().split())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two hosts that answer."""
    return Site(tmp_path)


# Only this check depends on nothing but the machine that runs the tests.
ONE = {"spark_preflight_only": ["architecture"]}


def test_a_ready_pair_costs_one_login_for_each_rank_and_changes_nothing(site: Site) -> None:
    done = site.run(ROLE, **ONE, spark_preflight_architecture=platform.machine())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preflight: ready" in done.stdout
    assert "verdict ready" in done.stdout
    assert "changed=0" in done.stdout
    assert count(site) == 2


def test_check_mode_gives_the_same_result(site: Site) -> None:
    done = site.run(ROLE, "--check", **ONE, spark_preflight_architecture=platform.machine())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preflight: ready" in done.stdout


def test_a_blocked_pair_fails_with_the_findings_of_all_ranks_in_one_message(site: Site) -> None:
    done = site.run(ROLE, **ONE, spark_preflight_architecture="pdp11")
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "the pair is blocked by 2 findings:" in output
    for rank in (0, 1):
        assert f"blocked: rank {rank}, architecture: {platform.machine()}" in output
    assert "verdict ready" not in output


def test_a_dead_rank_is_a_finding_beside_those_of_the_other(tmp_path: Path) -> None:
    done = Site(tmp_path, dead="192.0.2.2").run(ROLE, **ONE, spark_preflight_architecture="pdp11")
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "the pair is blocked by 2 findings:" in output
    assert "rank 0, architecture" in output
    assert "rank 1, reach: spark-1 was not checked" in output


def test_a_refused_sudo_is_a_finding(site: Site) -> None:
    (site.folder / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    done = site.run(ROLE, **ONE)
    assert done.returncode != 0
    assert "the pair is blocked by 2 findings:" in done.stdout + done.stderr
    assert "Missing sudo password" in done.stdout + done.stderr


BEGUN = """from ansible.module_utils.basic import AnsibleModule
given = "plan rank only skip wanted_architecture root image staged probe_image engine_flags thresholds"
AnsibleModule({name: {"type": "raw"} for name in given.split()})
"""


@pytest.mark.parametrize("before", ["", BEGUN], ids=["at its import", "while it checks"])
def test_a_crash_of_the_module_is_not_told_as_a_host_without_login(site: Site, before: str) -> None:
    (site.folder / "library").mkdir()
    crashing = f"#!/usr/bin/python\n{before}raise RuntimeError('a row of nine columns')\n"
    (site.folder / "library" / "spark_preflight.py").write_text(crashing)
    config = site.folder / "ansible.cfg"
    config.write_text(config.read_text().replace("library = ", f"library = {site.folder}/library:"))
    done = site.run(ROLE, **ONE)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "MODULE FAILURE: spark_preflight crashed on this host: " in output
    assert "a row of nine columns" in output
    assert "correct address, user, key" not in output


def test_login_noise_does_not_confuse_the_reader(site: Site) -> None:
    noisy = 'echo "Welcome to DGX OS {\'a\': [1}"\necho "mesg: ttyname failed" >&2'
    site.program("ssh", f"echo x >> {site.calls}\n{noisy}\ntrap 'echo bye' EXIT")
    text = (site.folder / "ssh").read_text()
    (site.folder / "ssh").write_text(text.replace('exec sh -c "$last"', 'sh -c "$last"'))
    done = site.run(ROLE, **ONE, spark_preflight_architecture=platform.machine())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preflight: ready" in done.stdout
    assert count(site) == 2


def test_ranks_may_have_users_and_sudo_passwords_of_their_own(site: Site) -> None:
    site.program("ssh", f'echo "$*" >> {site.calls}')
    # As sudo does with -S: ask on the screen of errors, read one line, and say no to a wrong one.
    (site.folder / "sudo").write_text(
        "#!/bin/sh\n"
        'while [ "$#" -gt 1 ]; do [ "$1" = -p ] && prompt=$2; shift; done\n'
        'printf %s "$prompt" >&2; read -r given\n'
        f'grep -qx "$given" {site.folder}/known || {{ echo "Sorry, try again." >&2; exit 1; }}\n'
        f'echo "$given" >> {site.folder}/given\nexec sh -c "$1"\n'
    )
    (site.folder / "known").write_text("first-pw\nsecond-pw\n")
    inventory = json.loads((site.folder / "hosts.json").read_text())
    for host, user, password in (("spark-0", "alice", "first-pw"), ("spark-1", "bob", "second-pw")):
        inventory["all"]["hosts"][host] |= {"ansible_user": user, "ansible_become_password": password}
    (site.folder / "hosts.json").write_text(json.dumps(inventory))
    done = site.run(ROLE, "-vvv", **ONE, spark_preflight_architecture=platform.machine())
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert sorted((site.folder / "given").read_text().split()) == ["first-pw", "second-pw"]
    calls = site.calls.read_text()
    assert all(f'User="{user}"' in calls for user in ("alice", "bob"))
    assert "first-pw" not in output + calls
    inventory["all"]["hosts"]["spark-1"]["ansible_become_password"] = "wrong"
    (site.folder / "hosts.json").write_text(json.dumps(inventory))
    refused = site.run(ROLE, **ONE, spark_preflight_architecture=platform.machine())
    assert refused.returncode != 0
    assert "rank 1, reach: spark-1 was not checked" in refused.stdout + refused.stderr


def test_a_wrong_threshold_is_named(site: Site) -> None:
    done = site.run(ROLE, **ONE, spark_preflight_thresholds={"mtu": 1})
    assert done.returncode != 0
    assert "threshold mtu does not exist" in done.stdout + done.stderr


def test_discovery_needs_no_plan_and_no_root(site: Site) -> None:
    (site.folder / "sudo").unlink()
    done = site.run(DISCOVER)
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("spark-0", "spark-1"):
        assert f"# {host}: no interface that is up" in done.stdout or f"# host_vars/{host}.yml" in done.stdout
    assert count(site) == 2


def test_the_verb_with_discover_prints_host_variables_and_checks_nothing(site: Site) -> None:
    done = site.verb("-e", "discover=true")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("spark-0", "spark-1"):
        assert f"# {host}: no interface that is up" in done.stdout or f"# host_vars/{host}.yml" in done.stdout
    assert "rank  host" not in done.stdout
    assert "TASK [spark_plan :" not in done.stdout
    assert count(site) == 2


def test_the_verb_without_discover_plans_and_checks(site: Site) -> None:
    only = {"spark_preflight_only": ["architecture", "ray"], "spark_architecture": platform.machine()}
    done = site.verb("-e", json.dumps(only))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preflight: ready" in done.stdout
    assert "# host_vars/" not in done.stdout


def test_a_ready_pair_whose_image_was_not_asked_says_what_was_not_judged(site: Site) -> None:
    mine = {"spark_preflight_only": ["architecture", "ray", "engine_flags", "self_check"]}
    mine["spark_preflight_architecture"] = platform.machine()
    done = site.run(ROLE, **mine)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("not judged: "))
    assert line.startswith("not judged: ray, engine_flags, self_check; the image was not asked. ")
    assert "-e spark_preflight_probe_image=true" in line
    # Asked, it is another reason why they were not judged: no such image is on this machine.
    asked = site.run(ROLE, **mine, spark_preflight_probe_image=True)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert "not judged: " not in asked.stdout
