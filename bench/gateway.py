#!/usr/bin/env python3
"""Measures the gateway beside slirp4netns and pasta, interleaved on this machine.

    bench/gateway.py                     # everything, 3 repetitions; writes the table to docs/gateway.md
    bench/gateway.py -n 1 -t 2 --rows tcp --mtus 1500 --no-write

A namespace stands for the host, another one for the guest; both are made and removed here, which
needs root. The guest's kernel connects through the program to servers on the host's loopback. In the
rows "forwarded", a client on the host's loopback connects to a port of the guest.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tools
from tools import ROOT, build, machine, need, sh, write_between

DOCUMENT = ROOT / "docs" / "gateway.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
HOST, GUEST = NAMESPACES = ("fsgateway-h", "fsgateway-g")
# The host's default route, whose gateway stands for the loopback in pasta.
ADDRESS, ROUTER = "192.0.2.1", "192.0.2.254"
SLIRP_GATEWAY = "10.0.2.2"
PORT, PERF_PORT, CONNECTIONS_PORT, FORWARD_PORT = 5211, 5212, 5213, 5214
ROWS = ("tcp", "udp", "rr", "crr", "forward", "memory")
CONNECTIONS = [sys.executable, str(ROOT / "bench" / "connections.py")]
IDLE_FLOWS = 10_000
IDLE_SECONDS = 12
PROGRAMS = ("ours", "slirp4netns", "pasta")


def enter(namespace):
    return ["ip", "netns", "exec", namespace]


class Namespaces:
    """The host's namespace, with an interface that leads nowhere, and the guest's."""

    def __enter__(self):
        self.__exit__()
        for namespace in NAMESPACES:
            sh("ip", "netns", "add", namespace)
            sh("ip", "-n", namespace, "link", "set", "lo", "up")
            # Otherwise the ports of one program's connections in TIME-WAIT are missing for the next.
            sh(*enter(namespace), "sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65535",
               "net.ipv4.tcp_tw_reuse=1")
        sh("ip", "-n", HOST, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
        sh("ip", "-n", HOST, "address", "add", f"{ADDRESS}/24", "dev", "up0")
        for interface in ("up0", "up1"):
            sh("ip", "-n", HOST, "link", "set", interface, "up")
        sh("ip", "-n", HOST, "route", "add", "default", "via", ROUTER)
        return self

    def __exit__(self, *_):
        for namespace in NAMESPACES:
            subprocess.run(("ip", "netns", "delete", namespace), capture_output=True)


class Program:
    """A program that serves the guest, and the address at which the guest reaches the host."""

    def __init__(self, name, path, is_pasta, api):
        self.name, self.path, self.is_pasta, self.api = name, path, is_pasta, api
        self.gateway = ROUTER if is_pasta else SLIRP_GATEWAY

    def line(self, mtu):
        netns = f"/run/netns/{GUEST}"
        if self.is_pasta:
            return [self.path, "--foreground", "--config-net", "--quiet", "--ipv4-only",
                    "--runas", "0", "--mtu", str(mtu), "--ns-ifname", "tap0",
                    "-t", f"127.0.0.1/{FORWARD_PORT}", "-u", "none", "-T", "none", "-U", "none",
                    "--netns", netns]
        return [self.path, "--configure", "--mtu", str(mtu), "--api-socket", self.api,
                "--netns-type=path", netns, "tap0"]

    def forward(self):
        """Forwards the port as slirp4netns's API does; pasta's command line does so already."""
        if self.is_pasta:
            return
        arguments = {"proto": "tcp", "host_addr": "127.0.0.1", "host_port": FORWARD_PORT,
                     "guest_port": FORWARD_PORT}
        with socket.socket(socket.AF_UNIX) as api:
            api.connect(self.api)
            api.send(json.dumps({"execute": "add_hostfwd", "arguments": arguments}).encode())
            api.shutdown(socket.SHUT_WR)
            answer = api.recv(4096).decode()
        if "error" in answer:
            sys.exit(f"{self.name} does not forward: {answer}")

    @contextlib.contextmanager
    def running(self, mtu):
        with tempfile.TemporaryFile() as output:
            Path(self.api).unlink(missing_ok=True)
            process = subprocess.Popen([*enter(HOST), *self.line(mtu)], stdout=output,
                                       stderr=output)
            try:
                for _ in range(100):
                    routes = sh("ip", "-n", GUEST, "route")
                    if "default" in routes:
                        break
                    time.sleep(0.1)
                else:
                    output.seek(0)
                    sys.exit(f"{self.name} does not start: {output.read().decode()}")
                self.forward()
                yield Running(self, process.pid)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()
                # An interface that outlives the program would be taken over by the next one.
                subprocess.run(("ip", "-n", GUEST, "link", "delete", "tap0"), capture_output=True)


class Running:
    """A program that serves the guest, with its use of the processor and of memory."""

    def __init__(self, program, pid):
        self.program, self.pid = program, pid

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines()
                    if line.startswith("VmRSS"))


def iperf(running, seconds, *options):
    """Measures from the guest to the host's server."""
    return iperf_to(GUEST, running.program.gateway, PORT, running, seconds, *options)


def iperf_to(client, address, port, running, seconds, *options):
    """Returns Gbit/s as the receiver has counted them, and the program's CPU seconds for a GB."""
    line = [*enter(client), "iperf3", "-c", address, "-p", str(port), "-J",
            "-t", str(seconds), "-O", "0.5", *options]
    for _ in range(10):
        before = running.cpu_seconds()
        done = subprocess.run(line, text=True, capture_output=True, timeout=seconds + 30)
        report = json.loads(done.stdout)
        error = report.get("error", "")
        if not error:
            break
        # The server serves one client at a time, and may not have finished with the last one.
        if "busy" not in error:
            sys.exit(f"{running.program.name}: iperf3 {' '.join(options)}: {error}")
        time.sleep(0.3)
    rate = report["end"]["sum_received"]["bits_per_second"]
    moved = rate * (seconds + 0.5) / 8e9
    return rate / 1e9, (running.cpu_seconds() - before) / max(moved, 1e-9)


def rr(ours, running, seconds, flows):
    out = sh(*enter(GUEST), ours, "perf", "rr", "-r", "4K,4K", "--flows", str(flows), "--nodelay",
             "--connect", f"{running.program.gateway}:{PERF_PORT}", "--kernel", "--json",
             "--time", str(seconds), timeout=seconds + 60)
    return json.loads(out)["transactions_per_s"] / 1e3


def crr(running, seconds):
    out = sh(*enter(GUEST), *CONNECTIONS, "crr", running.program.gateway, str(CONNECTIONS_PORT),
             str(seconds), timeout=seconds + 60)
    return float(out)


def with_idle_flows(running):
    """Returns the memory with many flows, or `None` if the program does not carry so many."""
    line = [*enter(GUEST), *CONNECTIONS, "hold", running.program.gateway, str(CONNECTIONS_PORT),
            str(IDLE_FLOWS)]
    with subprocess.Popen(line, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as client:
        held = client.stdout.readline().strip() == "held"
        resident = running.resident()
        client.stdin.close()
    return resident / 2**20 if held else None


def measure(ours, running, mtu, args):
    """Yields the name, unit and value of each row."""
    if "memory" in args.rows:
        yield "resident memory, idle", "MiB", running.resident() / 2**20
    if "tcp" in args.rows:
        for flows in args.flows:
            for way, options in (("guest to host", []), ("host to guest", ["-R"])):
                gbit, cpu = iperf(running, args.time, "-P", str(flows), *options)
                label = f"TCP {way}, {flows} flow{'s' * (flows > 1)}"
                yield label, "Gbit/s", gbit
                yield f"CPU time, {label}", "s/GB", cpu
    if "udp" in args.rows:
        for size in (64, 1400):
            for way, options in (("guest to host", []), ("host to guest", ["-R"])):
                gbit, _ = iperf(running, args.time, "-u", "-b", "0", "-l", str(size), *options)
                yield f"UDP {way}, {size} bytes", "k/s", gbit * 1e6 / 8 / size
    if "rr" in args.rows:
        for flows in (1, 200):
            yield f"rr 4K/4K, {flows} flow{'s' * (flows > 1)}", "k/s", rr(ours, running, args.time, flows)
    if "crr" in args.rows:
        yield "connect, request, response", "us", crr(running, args.time)
    if "forward" in args.rows:
        for way, options in (("host to guest", []), ("guest to host", ["-R"])):
            gbit, cpu = iperf_to(HOST, "127.0.0.1", FORWARD_PORT, running, args.time, *options)
            yield f"TCP forwarded, {way}, 1 flow", "Gbit/s", gbit
            yield f"CPU time, TCP forwarded, {way}", "s/GB", cpu
    if "memory" in args.rows:
        time.sleep(IDLE_SECONDS)
        yield f"resident memory, idle for {IDLE_SECONDS} s", "MiB", running.resident() / 2**20
        held = with_idle_flows(running)
        if held is not None:
            yield f"resident memory, {IDLE_FLOWS:,} idle flows", "MiB", held


def servers(ours):
    """Starts the servers on the host's loopback, and the one of the guest."""
    lines = [[*enter(HOST), "iperf3", "-s", "-p", str(PORT), "-B", "127.0.0.1"],
             [*enter(HOST), ours, "perf", "serve", "--kernel", "--bind", f"127.0.0.1:{PERF_PORT}"],
             [*enter(HOST), *CONNECTIONS, "serve", str(CONNECTIONS_PORT)],
             [*enter(GUEST), "iperf3", "-s", "-p", str(FORWARD_PORT)]]
    return [subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for line in lines]


def table(results, programs):
    """Formats rows of means with their standard deviations, and ratios of ours to the others."""
    others = [p.name for p in programs[1:]]
    head = ["MTU", "", "unit", *(p.name for p in programs), *(f"ours / {o}" for o in others)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (mtu, label, unit), values in results.items():
        means = {name: statistics.mean(v) for name, v in values.items()}
        shown = []
        for program in programs:
            found = values.get(program.name)
            if not found:
                shown.append("-")
                continue
            mean = means[program.name]
            spread = statistics.stdev(found) / mean * 100 if len(found) > 1 and mean else 0
            shown.append(f"{mean:.3g} ± {spread:.0f} %")
        ours = means.get(programs[0].name)
        ratios = [f"{ours / means[o]:.2f}" if ours and means.get(o) else "-" for o in others]
        lines.append("| " + " | ".join([str(mtu), label, unit, *shown, *ratios]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--runs", type=int, default=3)
    parser.add_argument("-t", "--time", type=float, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--mtus", nargs="+", type=int, default=[1500, 65520])
    parser.add_argument("--flows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--program", help="the program instead of a release build")
    parser.add_argument("--no-write", action="store_true", help="only print the table")
    args = parser.parse_args()
    tools.PACKAGES.update({"iperf3": "iperf3", "slirp4netns": "slirp4netns", "pasta": "passt"})
    need("ip", "iperf3", "slirp4netns", "pasta")
    ours = args.program or build()
    results = {}
    with tempfile.TemporaryDirectory() as folder, Namespaces():
        sh(ours, "gateway", "install-links", folder)
        api = f"{folder}/api"
        programs = [Program("ours", f"{folder}/pasta", True, api),
                    Program("slirp4netns", shutil.which("slirp4netns"), False, api),
                    Program("pasta", shutil.which("pasta"), True, api)]
        programs = [p for p in programs if p.name in args.programs]
        started = servers(ours)
        try:
            for _ in range(args.runs):
                for mtu in args.mtus:
                    for program in programs:
                        with program.running(mtu) as running:
                            for label, unit, value in measure(ours, running, mtu, args):
                                row = results.setdefault((mtu, label, unit), {})
                                row.setdefault(program.name, []).append(value)
                                print(f"{program.name}, MTU {mtu}: {label}: {value:.3g} {unit}",
                                      file=sys.stderr)
        finally:
            for process in started:
                process.terminate()
    text = (f"{machine()}; means of {args.runs} interleaved runs of {args.time:g} s, with standard "
            f"deviations.\n\n{table(results, programs)}")
    print(text)
    if not args.no_write:
        write_between(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
