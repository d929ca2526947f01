"""Preflight checks of the fabric: interface, route, MTU, speed, RDMA devices, GID rows, names; and discovery.

All of RDMA is read from sysfs, so that neither ibv_devinfo nor ethtool has to be installed. One QSFP cable shows as two
PCIe functions, each with an interface and an RDMA device (enp1s0f1np1/rocep1s0f1 and enP2p1s0f1np1/roceP2p1s0f1).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .preflight_host import Context, Finding, Host, Skipped

NET = "/sys/class/net"
IB = "/sys/class/infiniband"
DISCOVER = "run playbooks/preflight.yml -e discover=true to see what this host offers"


@dataclass(frozen=True)
class GidRow:
    """One used row of a port's GID table; ``address`` is the IPv4 address that it stands for, or ""."""

    index: int
    gid: str
    kind: str
    netdev: str
    address: str

    @property
    def v2(self) -> bool:
        """Whether the row speaks RoCE v2, the only version that is routed over UDP."""
        return self.kind.lower() == "roce v2"


def gid_rows(host: Host, device: str) -> list[GidRow]:
    """Rows of port 1 that hold something: an all-zero row is an empty one."""
    port = f"{IB}/{device}/ports/1"
    rows = []
    for name in host.names(f"{port}/gids"):
        gid = host.read(f"{port}/gids/{name}") or ""
        if not name.isdigit() or not gid.strip("0:"):
            continue
        kind = host.read(f"{port}/gid_attrs/types/{name}") or ""
        netdev = host.read(f"{port}/gid_attrs/ndevs/{name}") or ""
        rows.append(GidRow(int(name), gid, kind, netdev, _mapped(gid)))
    return sorted(rows, key=lambda row: row.index)


def _mapped(gid: str) -> str:
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return ""
    return str(mapped) if mapped else ""


def netdev_of(host: Host, device: str) -> str:
    """Interface that an RDMA device is bound to; "" when it has none."""
    for name in host.names(f"{IB}/{device}/ports/1/gid_attrs/ndevs"):
        if found := host.read(f"{IB}/{device}/ports/1/gid_attrs/ndevs/{name}"):
            return found
    return next(iter(host.names(f"{IB}/{device}/device/net")), "")


def port_state(host: Host, device: str) -> str:
    """State word of port 1, such as ACTIVE or DOWN; "unknown" when it cannot be read."""
    text = host.read(f"{IB}/{device}/ports/1/state") or ""
    return text.rpartition(":")[2].strip() or "unknown"


def is_up(host: Host, interface: str) -> bool:
    """Whether the link carries; drivers without link detection report ``unknown`` with a carrier."""
    state = host.read(f"{NET}/{interface}/operstate")
    return state == "up" or (state == "unknown" and host.read(f"{NET}/{interface}/carrier") == "1")


def _offers(ctx: Context) -> str:
    names = [
        f"{name} ({', '.join(addresses)})"
        for name, addresses in sorted(ctx.interfaces.items())
        if addresses and name != "lo" and is_up(ctx.host, name)
    ]
    return "up with IPv4: " + (", ".join(names) or "none")


def fabric_interface(ctx: Context) -> Iterator[Finding]:
    """The fabric interface exists, carries, and holds the plan's address."""
    name, address = ctx.rank["interface"], ctx.rank["address"]
    wanted = f"interface {name} up with {address}"
    if name not in ctx.host.names(NET):
        yield ctx.finding(
            "fabric_interface",
            "blocked",
            observed=f"no interface {name}; {_offers(ctx)}",
            wanted=wanted,
            remedy=f"correct spark_fabric_interface; {DISCOVER}",
        )
    elif not is_up(ctx.host, name):
        state = ctx.host.read(f"{NET}/{name}/operstate")
        yield ctx.finding(
            "fabric_interface",
            "blocked",
            observed=f"{name} is {state}; {_offers(ctx)}",
            wanted=wanted,
            remedy=f"plug the cable into this port or set spark_fabric_interface to the cabled one; {DISCOVER}",
        )
    elif address not in ctx.interfaces.get(name, []):
        holders = [other for other, addresses in ctx.interfaces.items() if address in addresses]
        where = f"{address} is on {', '.join(holders)}" if holders else f"{address} is nowhere"
        has = ", ".join(ctx.interfaces.get(name, [])) or "no IPv4 address"
        yield ctx.finding(
            "fabric_interface",
            "blocked",
            observed=f"{name} has {has}; {where}",
            wanted=wanted,
            remedy="give the interface its address (netplan keeps it over a reboot) or correct spark_fabric_address",
        )


def fabric_route(ctx: Context) -> Iterator[Finding]:
    """Traffic to every other rank leaves through the fabric interface."""
    for peer in ctx.plan["ranks"]:
        if peer["rank"] == ctx.rank["rank"]:
            continue
        done = ctx.host.run(["ip", "-j", "-4", "route", "get", peer["address"]], timeout=30)
        through = ""
        with suppress(ValueError, LookupError):
            through = json.loads(done.out)[0]["dev"]
        if through != ctx.rank["interface"]:
            yield ctx.finding(
                "fabric_route",
                "blocked",
                observed=f"rank {peer['rank']} ({peer['address']}) "
                + (f"is reached through {through}" if through else f"cannot be reached: {done.why()}"),
                wanted=f"a route through {ctx.rank['interface']}",
                remedy="put the fabric addresses of all ranks into one subnet that no other interface has",
            )


def fabric_mtu(ctx: Context) -> Iterator[Finding]:
    """Jumbo frames with RDMA. A firmware capsule resets the MTU to 1500, which RDMA shows as RETRY_EXC_ERR."""
    mtu = ctx.host.number(f"{NET}/{ctx.rank['interface']}/mtu")
    ctx.facts["mtu"] = mtu
    if not ctx.rdma:
        raise Skipped("only RDMA needs jumbo frames")
    if mtu is not None and mtu < ctx.thresholds.mtu_min:
        yield ctx.finding(
            "fabric_mtu",
            "degraded",
            observed=f"MTU {mtu} on {ctx.rank['interface']}",
            wanted=f"at least {ctx.thresholds.mtu_min}, the same on every rank",
            remedy="set mtu: 9000 for the interface in a netplan drop-in on every rank, then netplan apply",
        )


def fabric_speed(ctx: Context) -> Iterator[Finding]:
    """The link came up at full speed."""
    speed = ctx.host.number(f"{NET}/{ctx.rank['interface']}/speed")
    ctx.facts["speed_mbps"] = speed
    if not ctx.rdma:
        raise Skipped("only judged with RDMA")
    if speed is None or speed < 0:
        raise Skipped("the driver reports no link speed")
    if speed < ctx.thresholds.speed_min_mbps:
        yield ctx.finding(
            "fabric_speed",
            "degraded",
            observed=f"{ctx.rank['interface']} runs at {speed} Mb/s",
            wanted=f"at least {ctx.thresholds.speed_min_mbps} Mb/s",
            remedy="reseat or replace the cable, and check the switch port",
        )


def _devices(host: Host) -> str:
    found = [f"{d} ({netdev_of(host, d) or 'no interface'}, {port_state(host, d)})" for d in host.names(IB)]
    return ", ".join(found) or "none"


def rdma(ctx: Context) -> Iterator[Finding]:
    """Every RDMA device of the rank exists, is ACTIVE on Ethernet, and can be opened; one is the fabric interface's."""
    if not ctx.rdma:
        raise Skipped("the plan uses no RDMA")
    host, devices, interface = ctx.host, list(ctx.rank["rdma_devices"]), ctx.rank["interface"]
    wanted = f"RDMA devices that are ACTIVE, one of them bound to {interface}"

    def refuse(observed: str, remedy: str) -> Finding:
        return ctx.finding("rdma", "blocked", observed=observed, wanted=wanted, remedy=remedy)

    if not devices:
        yield refuse(f"no device in the plan; the host has {_devices(host)}", f"set spark_rdma_devices; {DISCOVER}")
        return
    missing = [d for d in devices if d not in host.names(IB)]
    if missing:
        yield refuse(
            f"no RDMA device {', '.join(missing)}; the host has {_devices(host)}",
            f"correct spark_rdma_devices; {DISCOVER}",
        )
        return
    for device in devices:
        state, layer = port_state(host, device), host.read(f"{IB}/{device}/ports/1/link_layer") or "Ethernet"
        if state != "ACTIVE":
            yield refuse(
                f"{device} ({netdev_of(host, device)}) is {state}",
                f"plug the cable into the port of {device} or take it out of spark_rdma_devices; {DISCOVER}",
            )
        elif layer != "Ethernet":
            yield refuse(f"{device} has link layer {layer}", "set the port to Ethernet with mlxconfig; RoCE needs it")
        else:
            nodes = host.names(f"{IB}/{device}/device/infiniband_verbs")
            absent = [n for n in nodes if not host.path(f"/dev/infiniband/{n}").exists()]
            if absent or not nodes:
                what = ", ".join(absent) or "a verbs device"
                yield refuse(f"{device} lacks {what} in /dev/infiniband", "load the module: modprobe ib_uverbs")
    if interface not in [netdev_of(host, d) for d in devices]:
        right = [d for d in host.names(IB) if netdev_of(host, d) == interface]
        bound = ", ".join(f"{d} is bound to {netdev_of(host, d) or 'no interface'}" for d in devices)
        yield refuse(bound, f"set spark_rdma_devices to {', '.join(right) or 'a device of ' + interface}")


def gid(ctx: Context) -> Iterator[Finding]:
    """Each device has a RoCE v2 row for its own IPv4 address, and a pinned index points at it.

    Without a pin NCCL picks that row itself, so that one must be there is all that is asked.
    An empty row passes silently until ibv_modify_qp fails with errno 61 about a minute into a start.
    """
    if not ctx.rdma:
        raise Skipped("the plan uses no RDMA")
    right: dict[str, list[int]] = {}
    problems: dict[str, str] = {}
    pinned = ctx.rank["gid_index"]
    for device in ctx.rank["rdma_devices"]:
        netdev = netdev_of(ctx.host, device)
        primary = netdev == ctx.rank["interface"]
        addresses = [ctx.rank["address"]] if primary else ctx.interfaces.get(netdev, [])
        rows = gid_rows(ctx.host, device)
        right[device] = [r.index for r in rows if r.v2 and r.address in addresses]
        if not addresses:
            problems[device] = f"{netdev} of {device} has no IPv4 address, so no row can stand for it"
        elif pinned is not None and pinned not in right[device]:
            problems[device] = f"{device}: row {pinned} " + _row_text(rows, int(pinned))
        elif not right[device]:
            problems[device] = f"{device}: no RoCE v2 row for {' or '.join(addresses)}"
    ctx.facts["gid"] = right
    for device, observed in problems.items():
        yield ctx.finding(
            "gid",
            "blocked",
            observed=observed,
            wanted=f"a RoCE v2 row for the IPv4 address of {netdev_of(ctx.host, device)}"
            + ("" if pinned is None else f" at the pinned index {pinned}"),
            remedy=_gid_remedy(right, device),
        )


def _row_text(rows: list[GidRow], index: int) -> str:
    row = next((r for r in rows if r.index == index), None)
    if row is None:
        return "is empty (all zero)"
    return f"is {row.address or row.gid} with type {row.kind or 'unknown'}"


def _gid_remedy(right: dict[str, list[int]], device: str) -> str:
    if not right[device]:
        return (
            "give the interface its IPv4 address and set ipv6.addr-gen-mode eui64 so that the table keeps its order, "
            "then unbind and bind mlx5_core for this function; adding the address again is not enough"
        )
    common = set.intersection(*(set(rows) for rows in right.values()))
    if common:
        return f"set spark_gid_index: {min(common)}"
    table = ", ".join(f"{d} has {rows[0] if rows else 'none'}" for d, rows in right.items())
    return (
        f"no index fits all devices ({table}): leave spark_gid_index out, so that NCCL picks the row of each, "
        "or unbind and bind mlx5_core on them, or list one device only"
    )


def names(ctx: Context) -> Iterator[Finding]:
    """The own name resolves, and looking up any rank's address is quick and leads back to it.

    Ray and torch look names up while they connect: a resolver that times out costs ten seconds at each step.
    """
    host, limit = ctx.host, ctx.thresholds.name_lookup_seconds
    own = host.read("/proc/sys/kernel/hostname") or ""
    ctx.facts["hostname"] = own
    try:
        resolved = host.forward(own)
    except OSError as error:
        resolved = []
        yield ctx.finding(
            "names",
            "degraded",
            observed=f"the own name {own} does not resolve: {error}",
            wanted="a host name that resolves on its host",
            remedy=f"add '{ctx.rank['address']} {own}' to /etc/hosts",
        )
    for peer in ctx.plan["ranks"]:
        address, begun = peer["address"], host.monotonic()
        name, back = "", [address]
        # A missing name is fine on a cable without DNS, as long as the answer comes at once.
        with suppress(OSError):
            name = host.reverse(address)
            back = resolved if name == own else host.forward(name)
        spent = host.monotonic() - begun
        loop = bool(back) and all(a.startswith("127.") for a in back)
        if spent > limit:
            yield ctx.finding(
                "names",
                "degraded",
                observed=f"looking up {address} (rank {peer['rank']}) took {spent:.1f} s",
                wanted=f"an answer within {limit:.0f} s",
                remedy="write the fabric addresses and names of all ranks into /etc/hosts on every rank",
            )
        elif name and back and address not in back and not (loop and peer["rank"] == ctx.rank["rank"]):
            yield ctx.finding(
                "names",
                "degraded",
                observed=f"{address} (rank {peer['rank']}) is named {name}, which resolves to {', '.join(back)}",
                wanted=f"a name that leads back to {address}",
                remedy="correct /etc/hosts or DNS, so that name and fabric address agree on every rank",
            )


def discover(host: Host) -> dict[str, Any]:
    """Propose the inventory variables of this host.

    Returns ``candidates`` (interfaces that are up with IPv4 and have an ACTIVE RDMA device with a RoCE v2 row:
    ``interface``, ``addresses``, ``mtu``, ``speed_mbps``, ``device``, ``gid_index``) and ``host_vars``, made of all of
    them: the first function's interface and address, every device, and the index that fits all devices (null when
    there is none, or when nothing was found).
    """
    done = host.run(["ip", "-j", "-4", "addr", "show"], timeout=30)
    held: dict[str, list[str]] = {}
    with suppress(ValueError, KeyError, TypeError):
        held = {e["ifname"]: [a["local"] for a in e.get("addr_info", [])] for e in json.loads(done.out or "[]") if e}
    candidates: list[dict[str, Any]] = []
    for device in host.names(IB):
        netdev = netdev_of(host, device)
        addresses = held.get(netdev, [])
        indexes = [r for r in gid_rows(host, device) if r.v2 and r.address in addresses]
        if port_state(host, device) == "ACTIVE" and is_up(host, netdev) and indexes:
            candidates.append(
                {
                    "interface": netdev,
                    "addresses": addresses,
                    "mtu": host.number(f"{NET}/{netdev}/mtu"),
                    "speed_mbps": host.number(f"{NET}/{netdev}/speed"),
                    "device": device,
                    "gid_index": indexes[0].index,
                    "address": indexes[0].address,
                }
            )
    # The first PCIe function (enp1s0...) before the second one (enP2p1s0...) of the same cable.
    candidates.sort(key=lambda c: ("P" in c["interface"], c["interface"]))
    shared = {c["gid_index"] for c in candidates}
    return {
        "hostname": host.read("/proc/sys/kernel/hostname"),
        "candidates": candidates,
        "host_vars": {
            "spark_fabric_interface": candidates[0]["interface"] if candidates else None,
            "spark_fabric_address": candidates[0]["address"] if candidates else None,
            "spark_rdma_devices": [c["device"] for c in candidates],
            "spark_gid_index": shared.pop() if len(shared) == 1 else None,
        },
    }
