"""Joins the preflight results of all ranks: parity, clock skew, one verdict, a table. Controller only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .images import same_image, short
from .preflight import IDS, PAIR_IDS, verdict
from .preflight_content import ARCHIVE
from .preflight_host import LEVELS, NOT_ASKED, Finding, Level, Thresholds
from .screen import short_image, table

ASK = (
    "the image was not asked. A deploy of a new release asks it, and so does preflight.yml with "
    "-e spark_preflight_probe_image=true where the image is on the rank"
)


@dataclass(frozen=True)
class Same:
    """A fact that all ranks should share; None counts as not observed and is left out.

    A rank whose own ``check`` found the fact wrong is left out as well: that is one fault, and it is told already.
    """

    fact: str
    words: str
    level: Level
    remedy: str
    check: str = ""


MTU = Same(
    "mtu",
    "MTU of the fabric interface",
    "blocked",
    "set mtu: 9000 for the interface in a netplan drop-in on every rank, then netplan apply",
)
SAME = (
    MTU,
    Same("kernel", "kernel", "degraded", "apt full-upgrade and reboot until all ranks run the same kernel", "kernel"),
    Same("driver", "NVIDIA driver", "degraded", "install the same driver on every rank and reboot"),
    Same("docker", "Docker", "degraded", "install the same Docker version on every rank", "docker"),
    Same("compose", "Compose", "info", "install the same Compose version on every rank", "compose"),
    Same(
        "storage_driver",
        "storage driver of Docker",
        "degraded",
        "use one image store everywhere: set features.containerd-snapshotter alike in /etc/docker/daemon.json",
    ),
    Same("ray", "Ray in the image", "blocked", "let every rank have the same image"),
)


@dataclass(frozen=True)
class Outcome:
    """The pair's preflight: ``verdict`` (blocked, degraded or ready), all findings, and a table for the screen.

    ``unasked`` are the checks that were left out because they start containers of the image.
    """

    verdict: str
    findings: list[dict[str, Any]]
    table: list[str]
    unasked: list[str]

    @property
    def lines(self) -> list[str]:
        """All of it for the screen, the verdict last; what blocks is shown by the failure instead."""
        unasked = [f"not judged: {', '.join(self.unasked)}; {ASK}"] if self.unasked else []
        return [*self.table, *finding_lines(self.of("degraded", "info")), *unasked, f"preflight: {self.verdict}"]

    def of(self, *levels: Level) -> list[dict[str, Any]]:
        """Findings of these levels, worst first."""
        return [f for f in self.findings if f["level"] in levels]


def sentence(finding: Mapping[str, Any]) -> str:
    """One finding as one line."""
    return f"rank {finding['rank']}, {finding['check']}: {finding['observed']}"


def finding_lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Findings for the screen, three lines each."""
    lines: list[str] = []
    for finding in findings:
        lines += [
            f"{finding['level']}: {sentence(finding)}",
            f"  wanted: {finding['wanted']}",
            f"  remedy: {finding['remedy']}",
        ]
    return lines


def join(
    results: Mapping[str, Mapping[str, Any]],
    *,
    ranks: Mapping[str, int],
    thresholds: Thresholds | None = None,
    skip: Collection[str] = (),
    staged: bool = False,
) -> Outcome:
    """Judge the pair.

    Args:
        results: what ``spark_preflight`` returned, by host; a host may lack, and a result without ``facts`` is a host
            that could not be asked (``msg`` says why).
        ranks: the rank of every host that is wanted.
        thresholds: ``clock_warn_seconds`` and ``clock_max_seconds`` are used.
        skip: ids of checks between ranks to leave out (``reach``, ``clock``, ``parity``).
        staged: images were put in place, so that a difference blocks.
    """
    asked = {rank: results.get(host, {}) for host, rank in ranks.items()}
    answered = {rank: r for rank, r in sorted(asked.items()) if "facts" in r}
    findings: list[dict[str, Any]] = [f for r in answered.values() for f in r["findings"]]
    checks = {
        "reach": lambda: _reach(ranks, results),
        "clock": lambda: _clock(answered, thresholds or Thresholds()),
        "parity": lambda: _parity(answered, staged),
    }
    for name in PAIR_IDS:
        if name not in skip:
            findings += [f.as_dict() for f in checks[name]()]
    # An MTU that differs is one fault, and the worse level tells it.
    uneven = any(f["check"] == "parity" and f["observed"].startswith(MTU.words) for f in findings)
    findings = [f for f in findings if not (uneven and f["check"] == "fabric_mtu")]
    if _nothing_to_send(answered, ranks):
        findings = [f for f in findings if not (f["check"] == "disk" and ARCHIVE in f["wanted"])]
    findings.sort(key=lambda f: (LEVELS.index(f["level"]), f["rank"]))
    unasked = [name for name in IDS if any(r["checks"].get(name) == f"skipped: {NOT_ASKED}" for r in answered.values())]
    return Outcome(verdict(findings), findings, _table(findings, ranks, answered), unasked)


def _nothing_to_send(answered: Mapping[int, Mapping[str, Any]], ranks: Mapping[str, int]) -> bool:
    """Tell whether every rank is known to hold the same image, so that the head needs no room to send one."""
    images = [r["facts"].get("image") for r in answered.values()]
    return len(images) == len(ranks) and all(image and same_image(images[0], image) for image in images)


def _reach(ranks: Mapping[str, int], results: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    return [
        Finding(
            "reach",
            "blocked",
            rank,
            observed=f"{host} was not checked: {results.get(host, {}).get('msg') or 'no result'}",
            wanted="a login that works, with sudo",
            remedy=f"try ansible {host} -b -m ansible.builtin.ping; correct address, user, key, or sudo (-K asks)",
        )
        for host, rank in sorted(ranks.items(), key=lambda item: item[1])
        if "facts" not in results.get(host, {})
    ]


def _offset(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Bounds of (host clock - controller clock) in seconds; None when the controller's stamps are missing."""
    clock, time = result.get("clock"), result.get("time")
    if not clock or not time:
        return None
    # The host read its clock after the request was sent, and at least `elapsed` before the answer came.
    return time["wall"] - (clock["received"] - time["elapsed"]), time["wall"] - clock["sent"]


def _clock(answered: Mapping[int, Mapping[str, Any]], limits: Thresholds) -> list[Finding]:
    """Skew that is certain: the gap between two ranks' bounds, so that slow logins never count as skew."""
    bounds = {rank: bound for rank, r in answered.items() if (bound := _offset(r)) is not None}
    found = []
    for (first, (low, high)), (second, (other_low, other_high)) in combinations(bounds.items(), 2):
        skew = max(other_low - high, low - other_high)
        if skew > limits.clock_warn_seconds:
            found.append(
                Finding(
                    "clock",
                    "blocked" if skew > limits.clock_max_seconds else "degraded",
                    second,
                    observed=f"the clocks of rank {first} and rank {second} differ by at least {skew:.1f} s",
                    wanted=f"at most {limits.clock_warn_seconds:.0f} s",
                    remedy="timedatectl set-ntp true on every rank; without internet a rank can follow the head",
                )
            )
    return found


def _parity(answered: Mapping[int, Mapping[str, Any]], staged: bool) -> list[Finding]:
    found = []
    for same in SAME:
        values = {
            rank: r["facts"][same.fact]
            for rank, r in answered.items()
            if r["facts"].get(same.fact) is not None and same.check not in {f["check"] for f in r["findings"]}
        }
        if len({str(v) for v in values.values()}) > 1:
            first = next(iter(values))
            odd = next(rank for rank, value in values.items() if value != values[first])
            found.append(
                Finding(
                    "parity",
                    same.level,
                    odd,
                    observed=f"{same.words}: " + ", ".join(f"rank {rank} has {v}" for rank, v in values.items()),
                    wanted=f"the same {same.words} on every rank",
                    remedy=same.remedy,
                )
            )
    return found + _image_parity(answered, staged)


def _image_parity(answered: Mapping[int, Mapping[str, Any]], staged: bool) -> list[Finding]:
    images = {rank: r["facts"]["image"] for rank, r in answered.items() if r["facts"].get("image")}
    if not images:
        return []
    first = next(iter(images))
    for rank, image in images.items():
        if not same_image(images[first], image):
            return [
                Finding(
                    "parity",
                    "blocked" if staged else "info",
                    rank,
                    observed=f"image: rank {first} has {short(images[first])}, rank {rank} {short(image)}",
                    wanted="the same image content on every rank",
                    remedy="deploy.yml brings the head's image to every rank, unless image_transfer is none",
                )
            ]
    return []


def _table(
    findings: Sequence[Mapping[str, Any]],
    ranks: Mapping[str, int],
    answered: Mapping[int, Mapping[str, Any]],
) -> list[str]:
    rows = []
    for host, rank in sorted(ranks.items(), key=lambda item: item[1]):
        facts = answered.get(rank, {}).get("facts", {})
        mine = verdict([f for f in findings if f["rank"] == rank])
        reference = (facts.get("image") or {}).get("reference")
        shown = [facts.get(name) for name in ("kernel", "driver", "docker", "mtu", "gid")]
        shown[-1] = " ".join(f"{d}:{rows[0]}" for d, rows in (shown[-1] or {}).items() if rows) or None
        rows.append((rank, host, mine, *shown, short_image(reference)))
    return table(("rank", "host", "verdict", "kernel", "driver", "docker", "mtu", "gid", "image"), rows)


def proposal_lines(host: str, proposal: Mapping[str, Any]) -> list[str]:
    """The proposed inventory variables of one host as lines of YAML, to be pasted into its host_vars by a person."""
    variables = proposal["host_vars"]
    if not proposal["candidates"]:
        return [f"# {host}: no interface that is up with IPv4 and has an ACTIVE RDMA device with a RoCE v2 row"]
    lines = [f"# host_vars/{host}.yml"]
    lines += [f"spark_fabric_interface: {variables['spark_fabric_interface']}"]
    lines += [f"spark_fabric_address: {variables['spark_fabric_address']}"]
    lines += [f"spark_rdma_devices: [{', '.join(variables['spark_rdma_devices'])}]"]
    if variables["spark_gid_index"] is None:
        lines.append("# no GID index fits all of these devices: without spark_gid_index NCCL picks the row of each")
    else:
        lines.append(f"spark_gid_index: {variables['spark_gid_index']}")
    return lines + [
        f"# {c['device']} on {c['interface']} ({', '.join(c['addresses'])}): GID index {c['gid_index']}, "
        f"MTU {c['mtu']}, {c['speed_mbps']} Mb/s"
        for c in proposal["candidates"]
    ]
