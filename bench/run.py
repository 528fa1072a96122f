#!/usr/bin/env python3
"""Runs the speed table: ours, the kernel, smoltcp and gVisor, interleaved on this machine.

    bench/run.py --profiled       # everything, 5 repetitions; writes the table to bench/README.md
    bench/run.py -n 1 -t 0.5 --rows rr --no-write

Rows over veth and TUN need root; they run in network namespaces that are made and removed here.
"""

import argparse
import contextlib
import enum
import json
import os
import resource
import signal
import statistics
import subprocess
import sys

from tools import ROOT, build, build_go, build_profiled, machine, need, sh, write_between

README = ROOT / "bench" / "README.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
NS = ("fsbench-a", "fsbench-b")
VETH = {NS[0]: "10.88.1.1", NS[1]: "10.88.1.2"}
TUN_ADDRESS = "10.88.2.2"
# The TUN that a peer attaches to: the kernel's address, and the peer's.
PEER_TUN, PEER_KERNEL, PEER_ADDRESS = "fsb1", "10.88.3.1", "10.88.3.2"
# Socket buffers of a peer behind a TUN, for streams and for requests and responses.
STREAM_BUFFER, RR_BUFFER = 1 << 20, 64 << 10
# The packet socket's address, on the second end of the veth.
PACKET_ADDRESS = "10.88.1.3"
COLUMNS = ("kernel", "smoltcp", "gvisor", "tokio", "profiled", "set", "core")
OURS = ("tokio", "set", "core")
PEERS = ("kernel", "smoltcp", "gvisor")
TITLES = {"kernel": "kernel", "smoltcp": "smoltcp", "gvisor": "gVisor", "tokio": "ours, tokio",
          "profiled": "ours, tokio, profiled", "set": "ours, set", "core": "ours, core"}
# Training runs of the profiled build.
TRAINING = [f"perf {test} --time 1" for test in (
    "rr -r 4K,4K", "rr -r 4K,4K --flows 200", "stream", "stream --nic mtu", "stream -m 128")]
GBIT, KILO, MEGA, BYTES = "Gbit/s", "k/s", "M/s", "bytes"
# For a second of CPU time of the server's process.
GBIT_CPU, KILO_CPU = "Gbit/CPU s", "k/CPU s"


class Offloads(enum.Enum):
    """Which offloads the veth of the kernel's rows has, by `ethtool -K`."""

    DEVICE = ("on", "on")
    SOFTWARE = ("off", "on")
    NONE = ("off", "off")

    def features(self):
        device, software = self.value
        return [*(w for f in ("tx", "rx", "tso") for w in (f, device)),
                *(w for f in ("gso", "gro") for w in (f, software))]


class Namespaces:
    """Two namespaces joined by a veth."""

    def __enter__(self):
        self.__exit__()
        for ns in NS:
            sh("ip", "netns", "add", ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        sh("ip", "-n", NS[0], "link", "add", "veth0", "type", "veth",
           "peer", "name", "veth0", "netns", NS[1])
        for ns, address in VETH.items():
            sh("ip", "-n", ns, "address", "add", f"{address}/24", "dev", "veth0")
            sh("ip", "-n", ns, "link", "set", "veth0", "up")
        return self

    def __exit__(self, *_):
        for ns in NS:
            subprocess.run(("ip", "netns", "delete", ns), capture_output=True)

    def offloads(self, offloads):
        for ns in NS:
            sh("ip", "netns", "exec", ns, "ethtool", "-K", "veth0", *offloads.features())

    @contextlib.contextmanager
    def peer_tun(self):
        """A TUN of the first namespace for a program that does not configure one."""
        sh("ip", "-n", NS[0], "tuntap", "add", PEER_TUN, "mode", "tun")
        try:
            sh("ip", "-n", NS[0], "address", "add", f"{PEER_KERNEL}/24", "dev", PEER_TUN)
            sh("ip", "-n", NS[0], "link", "set", PEER_TUN, "up")
            yield
        finally:
            sh("ip", "-n", NS[0], "link", "delete", PEER_TUN)


class Bench:
    def __init__(self, ours, profiled, smoltcp, gvisor, seconds, namespaces):
        self.ours, self.profiled = ours, profiled
        self.smoltcp, self.gvisor = smoltcp, gvisor
        self.seconds, self.ns = seconds, namespaces

    def perf(self, line, prefix=(), program=None):
        args = [*prefix, program or self.ours, "perf", *line.split(), "--json", "--time", str(self.seconds),
                "--congestion", "cubic"]
        return json.loads(sh(*args, timeout=self.seconds + 60))

    def peer(self, program, names):
        """The best of a peer's ways to do it."""
        out = sh(program, str(self.seconds), *names.split(), timeout=300)
        found = [json.loads(line) for line in out.splitlines()]
        return max(found, key=lambda r: r["throughput_bps"])

    def served(self, server_ns, serve, client_ns, client):
        """A server's command in one namespace and a client in the same or another."""
        enter = lambda ns: ("ip", "netns", "exec", ns)
        server = subprocess.Popen([*enter(server_ns), *serve], stdout=subprocess.PIPE, text=True)
        try:
            if "listening" not in server.stdout.readline():
                raise RuntimeError(f"`{' '.join(serve)}` did not start")
            report = self.perf(client, enter(client_ns))
        finally:
            server.send_signal(signal.SIGINT)
            server.stdout.read()
            _, _, used = os.wait4(server.pid, 0)
            server.returncode = 0
        report["server_cpu_s"] = used.ru_utime + used.ru_stime
        return report

    def veth(self, line, offloads=Offloads.DEVICE):
        self.ns.offloads(offloads)
        to = f"{line} --kernel --connect {VETH[NS[1]]}"
        return self.served(NS[1], [self.ours, "perf", "serve", "--kernel"], NS[0], to)

    def tun(self, line, options=""):
        serve = f"perf serve --tun fsb0 --address {TUN_ADDRESS}/24 {options}"
        to = f"{line} --kernel --connect {TUN_ADDRESS}"
        return self.served(NS[0], [self.ours, *serve.split()], NS[0], to)

    def packet(self, line, device="packet"):
        serve = f"perf serve --{device} veth0 --address {PACKET_ADDRESS}/24"
        self.ns.offloads(Offloads.DEVICE)
        to = f"{line} --kernel --connect {PACKET_ADDRESS}"
        return self.served(NS[1], [self.ours, *serve.split()], NS[0], to)

    def peer_tun(self, program, line, buffer=STREAM_BUFFER, flows=1, serve="serve"):
        """A peer's server behind a TUN, and the kernel as its client."""
        serve = [program, serve, PEER_TUN, PEER_ADDRESS, str(buffer), str(flows)]
        with self.ns.peer_tun():
            return self.served(NS[0], serve, NS[0], f"{line} --kernel --connect {PEER_ADDRESS}")

    def idle(self, api):
        args = [self.ours, "perf", "idle", "--connections", "10000", "--api", api, "--json"]
        return json.loads(sh(*args, timeout=120))


def value(report, unit, message=128):
    if unit == GBIT:
        return report["throughput_bps"] / 1e9
    if unit == KILO:
        return report["transactions_per_s"] / 1e3
    if unit == GBIT_CPU:
        return report["throughput_bps"] * report["seconds"] / 1e9 / report["server_cpu_s"]
    if unit == KILO_CPU:
        return report["transactions_per_s"] * report["seconds"] / 1e3 / report["server_cpu_s"]
    if unit == MEGA:
        return report["throughput_bps"] / 8 / message / 1e6
    return report["bytes_per_end"]


def rows(b):
    """Name, unit, target, whether it needs root, and how each column is measured."""
    rr1, rr200 = "rr -r 4K,4K", "rr -r 4K,4K --flows 200"
    mtu = "--nic mtu"
    core, of_set = "--api core", "--api set"
    rr10000 = "rr -r 4K,4K --flows 10000"
    back = "stream --reverse"
    # Both builds of the program.
    tokio = lambda line: {"tokio": lambda: b.perf(line),
                          "profiled": lambda: b.perf(line, program=b.profiled)}
    vnet = lambda line, buffer=STREAM_BUFFER, flows=1: b.peer_tun(
        b.smoltcp, line, buffer, flows, "serve-vnet")
    return [
        ("stream, super-segments", GBIT, 150, False, {
            "kernel": lambda: b.perf("stream --kernel"),
            "smoltcp": lambda: b.peer(b.smoltcp, "stream-tso stream-jumbo"),
            "gvisor": lambda: b.peer(b.gvisor, "stream-gso stream-jumbo"),
            **tokio("stream"),
            "core": lambda: b.perf(f"stream {core}")}),
        ("the same, zero-copy, no byte written or read", GBIT, None, False, {
            "tokio": lambda: b.perf("stream --zerocopy"),
            "core": lambda: b.perf(f"stream --zerocopy {core}")}),
        ("stream, MTU 1500, checksums (kernel: software GSO and GRO)", GBIT, 90, True, {
            "kernel": lambda: b.veth("stream", Offloads.SOFTWARE),
            "smoltcp": lambda: b.peer(b.smoltcp, "stream-mtu"),
            "gvisor": lambda: b.peer(b.gvisor, "stream-mtu stream-mtu-software"),
            **tokio(f"stream {mtu}"),
            "core": lambda: b.perf(f"stream {mtu} {core}")}),
        ("the same, without GRO (kernel: without GSO, too)", GBIT, None, True, {
            "kernel": lambda: b.veth("stream", Offloads.NONE),
            "tokio": lambda: b.perf(f"stream {mtu} --gro off"),
            "core": lambda: b.perf(f"stream {mtu} --gro off {core}")}),
        ("rr 4K/4K, 1 flow", KILO, 800, False, {
            "kernel": lambda: b.perf(f"{rr1} --kernel"),
            "smoltcp": lambda: b.peer(b.smoltcp, "rr-1 rr-1-tso"),
            "gvisor": lambda: b.peer(b.gvisor, "rr-1 rr-1-gso"),
            **tokio(rr1),
            "set": lambda: b.perf(f"{rr1} {of_set}"),
            "core": lambda: b.perf(f"{rr1} {core}")}),
        ("rr 4K/4K, 200 flows", KILO, 850, False, {
            "kernel": lambda: b.perf(f"{rr200} --kernel"),
            "smoltcp": lambda: b.peer(b.smoltcp, "rr-200 rr-200-tso"),
            "gvisor": lambda: b.peer(b.gvisor, "rr-200 rr-200-gso"),
            **tokio(rr200),
            "set": lambda: b.perf(f"{rr200} {of_set}"),
            "core": lambda: b.perf(f"{rr200} {core}")}),
        ("rr 4K/4K, 10,000 flows", KILO, None, False, {
            "kernel": lambda: b.perf(f"{rr10000} --kernel"),
            **tokio(rr10000),
            "set": lambda: b.perf(f"{rr10000} {of_set}"),
            "core": lambda: b.perf(f"{rr10000} {core}")}),
        ("rr 4K/4K, 200 flows, 2 shards on 2 cores", KILO, None, False, {
            "tokio": lambda: b.perf(f"{rr200} --shards 2")}),
        ("connections with a byte each way (crr), 50 flows", KILO, None, False, {
            "kernel": lambda: b.perf("crr --flows 50 --kernel"),
            "tokio": lambda: b.perf("crr --flows 50")}),
        ("128-byte writes, receiver polled every 256 (ours, kernel: autocorking)", MEGA, 30, False, {
            "kernel": lambda: b.perf("stream -m 128 --kernel"),
            "smoltcp": lambda: b.peer(b.smoltcp, "write-128-moderated write-128-moderated-tso"),
            "gvisor": lambda: b.peer(b.gvisor, "write-128-moderated write-128-moderated-nagle"),
            **tokio("stream -m 128"),
            "core": lambda: b.perf(f"stream -m 128 {core}")}),
        ("128-byte writes, each sent at once (ours: tcp_autocorking=0)", MEGA, None, False, {
            "smoltcp": lambda: b.peer(b.smoltcp, "write-128 write-128-tso"),
            "gvisor": lambda: b.peer(b.gvisor, "write-128 write-128-gso"),
            "tokio": lambda: b.perf("stream -m 128 --set tcp_autocorking=0"),
            "core": lambda: b.perf(f"stream -m 128 --set tcp_autocorking=0 {core}")}),
        ("128-byte writes, sent when full", MEGA, None, False, {
            "smoltcp": lambda: b.peer(b.smoltcp, "write-128-full write-128-full-tso"),
            "gvisor": lambda: b.peer(b.gvisor, "write-128-full write-128-full-gso"),
            "core": lambda: b.perf(f"stream -m 128 --pump full {core}")}),
        ("TUN, kernel to us (kernel: veth)", GBIT, 52, True, {
            "kernel": lambda: b.veth("stream"),
            "smoltcp": lambda: vnet("stream"),
            "tokio": lambda: b.tun("stream")}),
        ("TUN, us to kernel (kernel: veth)", GBIT, 45, True, {
            "kernel": lambda: b.veth(back),
            "smoltcp": lambda: vnet(back),
            "tokio": lambda: b.tun(back)}),
        ("TUN, kernel to us, 4 flows, 1 shard", GBIT, None, True, {
            "tokio": lambda: b.tun("stream --flows 4")}),
        ("TUN, kernel to us, 4 flows, 2 shards", GBIT, None, True, {
            "tokio": lambda: b.tun("stream --flows 4", "--shards 2")}),
        ("packet socket, kernel to us (kernel: veth)", GBIT, None, True, {
            "kernel": lambda: b.veth("stream"),
            "tokio": lambda: b.packet("stream")}),
        ("packet socket, us to kernel (kernel: veth)", GBIT, None, True, {
            "kernel": lambda: b.veth(back),
            "tokio": lambda: b.packet(back)}),
        ("plain TUN, kernel to us", GBIT, 9, True, {
            "smoltcp": lambda: b.peer_tun(b.smoltcp, "stream"),
            "gvisor": lambda: b.peer_tun(b.gvisor, "stream"),
            "tokio": lambda: b.tun("stream", "--plain")}),
        ("plain TUN, us to kernel", GBIT, 3.5, True, {
            "smoltcp": lambda: b.peer_tun(b.smoltcp, back),
            "gvisor": lambda: b.peer_tun(b.gvisor, back),
            "tokio": lambda: b.tun(back, "--plain")}),
        ("rr 4K/4K over plain TUN, 1 flow", KILO, None, True, {
            "smoltcp": lambda: b.peer_tun(b.smoltcp, rr1, RR_BUFFER),
            "gvisor": lambda: b.peer_tun(b.gvisor, rr1, RR_BUFFER),
            "tokio": lambda: b.tun(rr1, "--plain")}),
        ("rr 4K/4K over plain TUN, 200 flows", KILO, None, True, {
            "smoltcp": lambda: b.peer_tun(b.smoltcp, rr200, RR_BUFFER, 200),
            "gvisor": lambda: b.peer_tun(b.gvisor, rr200, RR_BUFFER, 200),
            "tokio": lambda: b.tun(rr200, "--plain")}),
        ("rr 4K/4K over TUN, 1 flow (kernel: veth)", KILO, 20, True, {
            "kernel": lambda: b.veth(rr1),
            "smoltcp": lambda: vnet(rr1, RR_BUFFER),
            "tokio": lambda: b.tun(rr1)}),
        ("rr 4K/4K over TUN, 200 flows (kernel: veth)", KILO, 130, True, {
            "kernel": lambda: b.veth(rr200),
            "smoltcp": lambda: vnet(rr200, RR_BUFFER, 200),
            "tokio": lambda: b.tun(rr200)}),
        *((f"{title}, for a second of CPU", unit, None, True, {
            "smoltcp": lambda l=line, f=flows, s=buffer: vnet(l, s, f),
            "tokio": lambda l=line: b.tun(l)})
          for title, unit, line, buffer, flows in (
              ("TUN, kernel to us", GBIT_CPU, "stream", STREAM_BUFFER, 1),
              ("TUN, us to kernel", GBIT_CPU, back, STREAM_BUFFER, 1),
              ("rr 4K/4K over TUN, 200 flows", KILO_CPU, rr200, RR_BUFFER, 200))),
        *((f"{title}, for a second of CPU", unit, None, True, {
            "smoltcp": lambda l=line, f=flows, s=buffer: b.peer_tun(b.smoltcp, l, s, f),
            "gvisor": lambda l=line, f=flows, s=buffer: b.peer_tun(b.gvisor, l, s, f),
            "tokio": lambda l=line: b.tun(l, "--plain")})
          for title, unit, line, buffer, flows in (
              ("plain TUN, kernel to us", GBIT_CPU, "stream", STREAM_BUFFER, 1),
              ("plain TUN, us to kernel", GBIT_CPU, back, STREAM_BUFFER, 1),
              ("rr 4K/4K over plain TUN, 200 flows", KILO_CPU, rr200, RR_BUFFER, 200))),
        *((f"rr {size}, 200 flows, {title}, for a second of CPU", KILO_CPU, None, True, {
            "tokio": lambda d=device, z=size: b.packet(f"rr -r {z} --flows 200", d)})
          for size in ("64,64", "4K,4K")
          for title, device in (("packet socket", "packet"), ("AF_XDP", "xdp"))),
        ("idle connection, one end (less is better)", BYTES, 1024, False, {
            "tokio": lambda: b.idle("tokio"),
            "core": lambda: b.idle("core")}),
    ]


def measure(table, repetitions):
    """Every cell once, then every cell again: what disturbs the machine disturbs all alike. The
    columns begin with another one each time, as a run may leave a processor cold or hot."""
    samples = {}
    for repetition in range(repetitions):
        for name, unit, _, _, columns in table:
            cells = list(columns.items())
            first = repetition % len(cells)
            for column, run in cells[first:] + cells[:first]:
                try:
                    got = value(run(), unit)
                except (subprocess.SubprocessError, RuntimeError, KeyError, ValueError) as error:
                    detail = getattr(error, "stderr", None) or error
                    print(f"{name}, {column}: {detail}", file=sys.stderr)
                    continue
                samples.setdefault((name, column), []).append(got)
                print(f"{repetition + 1}/{repetitions}  {name}, {column}: {got:.4g} {unit}",
                      file=sys.stderr)
    return samples


def deviation(values):
    """The sample standard deviation as a part of the mean, in percent."""
    return 100 * statistics.stdev(values) / statistics.mean(values)


def shown(values):
    """A cell: the mean, and its deviation where there is more than one sample."""
    if not values:
        return "-"
    spread = f" ± {deviation(values):.0f} %" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4g}{spread}"


def markdown(table, samples):
    columns = [c for c in COLUMNS if c != "profiled" or any(c in row[4] for row in table)]
    against = (f"best of ours / {TITLES[peer]}" for peer in PEERS)
    titles = ["", "unit", *(TITLES[c] for c in columns), *against, "target"]
    lines = ["| " + " | ".join(titles).lstrip() + " |", "|---" * len(titles) + "|"]
    for name, unit, target, _, _ in table:
        cells = {c: samples.get((name, c)) for c in columns}
        means = {c: statistics.mean(v) for c, v in cells.items() if v}
        mine = [means[c] for c in OURS if c in means]
        best = (min if unit == BYTES else max)(mine, default=None)
        ratios = [f"{best / means[c]:.2f}" if best and means.get(c) else "-"
                  for c in PEERS]
        figures = [shown(cells[c]) for c in columns]
        lines.append("| " + " | ".join([name, unit, *figures, *ratios, str(target or "-")]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--repetitions", type=int, default=5)
    parser.add_argument("-t", "--time", type=float, default=2.0, help="seconds of each test")
    parser.add_argument("--rows", default="", help="only rows whose name has this in it")
    parser.add_argument("--profiled", action="store_true",
                        help="also build `fullsend` with a profile, which takes minutes")
    parser.add_argument("--no-write", action="store_true", help="leave bench/README.md alone")
    args = parser.parse_args()
    root = os.geteuid() == 0
    if root:
        need("ip", "ethtool")
    # 10,000 connections of the kernel need a descriptor for each end.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.getloadavg()[0] > 1:
        print("the machine is busy: the figures will be low, and the ratios noisy",
              file=sys.stderr)
    ours, smoltcp = build(), build("bench-smoltcp", "bench-smoltcp", ROOT / "bench" / "smoltcp")
    profiled = build_profiled(TRAINING) if args.profiled else None
    gvisor = build_go(ROOT / "bench" / "gvisor", "bench-gvisor")
    if not root:
        print("rows over veth and TUN are left out: they need root", file=sys.stderr)
    namespaces = Namespaces()
    bench = Bench(ours, profiled, smoltcp, gvisor, args.time, namespaces)
    table = [r for r in rows(bench) if args.rows in r[0] and (root or not r[3])]
    for row in table:
        for column, program in (("gvisor", gvisor), ("profiled", profiled)):
            if program is None:
                row[4].pop(column, None)
    if not table:
        sys.exit(f"--rows {args.rows}: no row's name has that in it")
    if root:
        with namespaces:
            samples = measure(table, args.repetitions)
    else:
        samples = measure(table, args.repetitions)
    text = (f"{machine()}; means of {args.repetitions} interleaved runs of {args.time:g} s, with standard deviations.\n\n"
            + markdown(table, samples))
    print(text)
    if not args.no_write:
        write_between(README, BEGIN, END, text)


if __name__ == "__main__":
    main()
