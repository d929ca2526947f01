"""What the documentation says is what the checkout holds: verbs, role inputs, settings, gates, example, links."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sparkpair.gates import GATES
from sparkpair.inputs import passed_on
from sparkpair.plan import RANK_VARIABLES
from sparkpair.preflight_host import Thresholds
from sparkpair.report import Report
from sparkpair.settings import ABOUT, NAME_OF_KEY

from tests.fault_matrix import FAULTS, PHASES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "inventories" / "example"
ROLES = sorted(p for p in (ROOT / "roles").iterdir() if p.is_dir())
# Joined here, so that this file does not hold what it looks for.
FOREIGN = ("/wo" + "rk/", "/root/" + ".pyenv")


def tracked() -> list[Path]:
    """Files in git, or every file outside hidden folders where there is no git."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [n for n in done.stdout.split("\0") if n]
    if names:
        return [p for n in names if (p := ROOT / n).is_file() and not p.is_symlink()]
    return [
        p
        for p in ROOT.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(ROOT).parts)
    ]


def section(text: str, title: str) -> str:
    """Text below a heading of level two, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"there is no section {title!r}"
    return found.group(1)


def rows(text: str, columns: int) -> list[list[str]]:
    """Cells of the body rows of all tables with this many columns."""
    cells = [
        [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line.startswith("|")
    ]
    found = [row for row in cells if len(row) == columns]
    heads = {i - 1 for i, row in enumerate(found) if all(set(c) <= set("-:") for c in row)}
    return [row for i, row in enumerate(found) if i not in heads and i - 1 not in heads]


def code(cell: str) -> str:
    """The text of a cell that is one piece of code."""
    return cell.strip("`")


# --- README -----------------------------------------------------------------------------------------------------------


def test_the_verbs_table_names_every_playbook_and_no_other() -> None:
    documented = [code(row[0]) for row in rows(section(README, "Verbs"), 4)]
    assert sorted(documented) == sorted(p.name for p in (ROOT / "playbooks").glob("*.yml"))


def test_the_fault_matrix_shows_every_row_that_is_injected() -> None:
    shown = [tuple(row) for row in rows(section(README, "Fault matrix"), 4)]
    assert shown == [(f.name + " *" * f.again, f.phase, f.what, f.end) for f in FAULTS]
    assert {f.phase for f in FAULTS} <= set(PHASES)
    assert len({f.name for f in FAULTS}) == len(FAULTS)
    assert len([f for f in FAULTS if not f.again]) >= 30


def test_the_settings_table_agrees_with_the_generated_page() -> None:
    generated = {
        code(row[0]): (code(row[1]), code(row[2]))
        for row in rows((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"), 6)
    }
    table = rows(section(README, "Settings"), 4)
    assert len(table) == 10
    for name, key, default, _ in table:
        assert ABOUT[code(name)].key == code(key)
        assert generated[code(name)] == (code(key), code(default)), name


def test_the_gates_table_names_every_gate_in_its_order() -> None:
    text = section(README, "Gates")
    after = ["temperature", "memory", "kernel"]
    assert [code(row[0]) for row in rows(text, 2)] == [g.name for g in GATES if not g.extra] + after
    assert all(f"`{g.name}`" in text for g in GATES)


def test_the_fields_of_a_result_are_named() -> None:
    text = section(README, "When something fails")
    assert [key for key in Report("deploy").result(failed=False) if f"`{key}`" not in text] == []


# --- roles ------------------------------------------------------------------------------------------------------------


def shown(options: dict[str, Any]) -> str:
    """The default of an option as the tables show it."""
    if options.get("required"):
        return "required"
    if "default" not in options:
        return "none"
    value = options["default"]
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"


def kind(options: dict[str, Any]) -> str:
    """The type of an option as the tables show it."""
    name = str(options.get("type", "str"))
    return f"list of {options['elements']}" if name == "list" else name


def specs(role: Path) -> dict[str, Any]:
    """Argument specs of a role by entry point."""
    text = (role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["argument_specs"])


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_the_inputs_of_a_role_are_its_argument_specs(role: Path) -> None:
    text = (role / "README.md").read_text(encoding="utf-8")
    for entry, spec in specs(role).items():
        title = "Inputs" if entry == "main" else f"Inputs with `tasks_from: {entry}.yml`"
        documented = {code(row[0]): (row[1], row[2]) for row in rows(section(text, title), 4)}
        wanted = {n: (kind(o), shown(o).replace("|", "\\|")) for n, o in (spec.get("options") or {}).items()}
        assert documented == wanted, f"{role.name}/README.md, section {title}"


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_the_defaults_of_a_role_are_its_argument_specs(role: Path) -> None:
    file = role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.exists() else {}
    wanted = {
        name: options["default"]
        for spec in specs(role).values()
        for name, options in (spec.get("options") or {}).items()
        if "default" in options
    }
    assert defaults == wanted


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_a_role_says_what_it_promises(role: Path) -> None:
    text = (role / "README.md").read_text(encoding="utf-8")
    for title in ("Outcome", "Outputs", "Idempotence", "Atomicity", "Way back", "Check and diff mode"):
        assert section(text, title).strip(), title


# --- example inventory ------------------------------------------------------------------------------------------------


def ansible(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible with the checkout's configuration and an ssh that records every call."""
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {folder}/ssh-calls\nexit 255\n', encoding="utf-8")
    ssh.chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if k not in NAME_OF_KEY and not k.startswith("ANSIBLE_")}
    mine = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_SSH_EXECUTABLE": str(ssh)}
    return subprocess.run(
        [Path(sys.executable).with_name(program), "-i", EXAMPLE, *arguments],
        cwd=ROOT,
        env={**clean, **mine, "SPARKPAIR_REPORTS": str(folder / "reports")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_plans_the_stock_width_without_a_connection(tmp_path: Path) -> None:
    play = tmp_path / "plan.yml"
    tasks = [
        {"name": "Plan", "spark_plan": {}, "run_once": True, "register": "made"},
        {
            "name": "Keep",
            "ansible.builtin.copy": {"content": "{{ made.plan | to_json }}", "dest": str(tmp_path / "plan.json")},
            "delegate_to": "localhost",
            "connection": "local",
            "run_once": True,
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        },
    ]
    play.write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    done = ansible(tmp_path, "ansible-playbook", str(play))
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert (plan["verify_tokens"], plan["expected_width"], plan["overlays"]) == (0, 7, [])
    assert [(r["rank"], r["role"], r["rdma_devices"]) for r in plan["ranks"]] == [
        (0, "head", ["rocep1s0f1"]),
        (1, "worker", ["rocep1s0f1"]),
    ]
    assert not (tmp_path / "ssh-calls").exists()


def test_a_refused_deploy_of_the_example_makes_no_connection(tmp_path: Path) -> None:
    done = ansible(tmp_path, "ansible-playbook", "playbooks/deploy.yml", "-e", "verify_tokens=2")
    assert done.returncode == 2, done.stdout + done.stderr
    result = json.loads((tmp_path / "reports" / "deploy" / "latest" / "result.json").read_text(encoding="utf-8"))
    assert result["outcome"] == "refused"
    # The README quotes this line.
    assert [f"- {message}" in README for message in result["messages"]] == [True]
    assert not (tmp_path / "ssh-calls").exists()


def test_the_example_uses_reserved_addresses_and_names_every_rank_variable() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(EXAMPLE.rglob("*.yml")))
    found = re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text)
    assert found
    assert [a for a in found if not a.startswith("192.0.2.")] == []
    assert [name for name in RANK_VARIABLES if not re.search(rf"^(# )?{name}: ", text, re.M)] == []


def shown_in_the_example() -> dict[str, str]:
    """Variables of the example's group, set or commented out, with the text of their value."""
    text = (EXAMPLE / "group_vars" / "sparks" / "main.yml").read_text(encoding="utf-8")
    return dict(re.findall(r"^(?:# )?([a-z][a-z0-9_]*): (\S.*)$", text, re.M))


def test_settings_that_the_example_shows_exist_with_their_default() -> None:
    generated = {
        code(row[0]): code(row[2]) for row in rows((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"), 6)
    }
    there = shown_in_the_example()
    free = {"image", "api_key", "extra_args", "registry_user", "registry_password_file", "ray_wheels"}  # an example
    assert {n for n in there if not n.startswith(("ansible_", "spark_"))} <= set(ABOUT)
    for name in set(there) & set(ABOUT) - free:
        assert there[name] == generated[name], name


def test_role_variables_that_the_example_shows_exist_with_their_default_or_a_value_that_fits() -> None:
    options = {
        name: option
        for role in ROLES
        for spec in specs(role).values()
        for name, option in (spec.get("options") or {}).items()
    }
    there = {n: yaml.safe_load(v) for n, v in shown_in_the_example().items() if n.startswith("spark_")}
    assert set(there) <= set(options)
    free = {"spark_weights_token", "spark_weights_environment", "spark_preflight_thresholds", "spark_gate_also"}
    assert {n: v for n, v in there.items() if n not in free} == {n: options[n]["default"] for n in set(there) - free}
    types = {"dict": dict, "str": str, "list": list}
    assert [n for n in free if not isinstance(there[n], types[options[n]["type"]])] == []
    Thresholds.read(there["spark_preflight_thresholds"])


def test_the_example_shows_what_a_pair_behind_a_proxy_or_without_internet_needs() -> None:
    wanted = {"ray_wheels", "spark_weights_source", "spark_weights_transfer", "spark_weights_token"}
    wanted |= {"spark_weights_environment", "spark_rollout_preflight_skip", "spark_preflight_thresholds"}
    assert sorted(wanted - set(shown_in_the_example())) == []


# --- every page -------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


PAGES = [p for p in tracked() if p.suffix == ".md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


def test_no_file_names_a_place_outside_the_checkout() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in FOREIGN
        if word.encode() in path.read_bytes()
    ]
    assert found == []


def test_no_variable_that_is_documented_for_operators_is_refused_from_the_command_line() -> None:
    paths = [ROOT / "README.md", *(ROOT / "docs").iterdir(), *(ROOT / "inventories" / "example").rglob("*.yml")]
    named = {n for path in paths for n in re.findall(r"\bspark_\w+", path.read_text(encoding="utf-8"))}
    assert {"spark_gate_skip", "spark_hf_home", "spark_rank"} <= named
    assert passed_on(named - {p.stem for p in (ROOT / "plugins").rglob("spark_*.py")}) == []


def test_what_a_role_is_told_about_engine_release_and_lock_is_refused_from_the_command_line() -> None:
    for role in ("spark_engine", "spark_release", "spark_lock", "spark_overlay"):
        inputs = {name for entry in specs(ROOT / "roles" / role).values() for name in entry["options"]}
        assert set(passed_on(inputs)) == inputs - {"spark_engine_stall_timeout"}
