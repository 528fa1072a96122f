#!/usr/bin/env python3
"""What a bulk transfer keeps while SYNs flood its listener, beside the kernel's.

    bench/flood.py                     # everything; writes the table to docs/hardening.md
    bench/flood.py -n 1 -t 2 --no-write

The kernel sends to our stack over a TUN, and to another kernel over a veth; meanwhile `hping3 --flood
-S` runs beside the sender against the same port. All of it is in network namespaces that are made
and removed here (this needs root): nothing that is sent leaves the machine, and answers to random
sources end in the attacker's namespace, which forwards nothing.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from loss import enter
from tools import ROOT, build, machine, need, sh, write_between

DOCUMENT = ROOT / "docs" / "hardening.md"
BEGIN, END = "<!-- flood table begins -->", "<!-- flood table ends -->"
ATTACKER, VICTIM = NAMESPACES = ("fsflood-a", "fsflood-v")
OURS, GATEWAY = "10.93.1.2", "10.93.1.1"
KERNEL, KERNEL_GATEWAY = "10.93.2.2", "10.93.2.1"
PORT = 5210
FLOODS = {"none": None, "from the peer's address": [], "random sources": ["--rand-source"]}


class Namespaces:
    """The attacker's namespace, where our stack's TUN is too, and the kernel's, joined by a veth."""

    def __enter__(self):
        self.__exit__()
        for ns in NAMESPACES:
            sh("ip", "netns", "add", ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            for key in ("all.rp_filter", "default.rp_filter", "ip_forward"):
                key = key if key == "ip_forward" else f"conf.{key}"
                sh(*enter(ns), "sysctl", "-qw", f"net.ipv4.{key}=0")
        sh("ip", "-n", ATTACKER, "link", "add", "fsveth", "type", "veth",
           "peer", "name", "fsveth", "netns", VICTIM)
        for ns, address in ((ATTACKER, KERNEL_GATEWAY), (VICTIM, KERNEL)):
            sh("ip", "-n", ns, "address", "add", f"{address}/24", "dev", "fsveth")
            sh("ip", "-n", ns, "link", "set", "fsveth", "up")
        sh("ip", "-n", VICTIM, "route", "add", "default", "via", KERNEL_GATEWAY)
        sh("ip", "-n", ATTACKER, "route", "add", "unreachable", "default")
        return self

    def __exit__(self, *_):
        for ns in NAMESPACES:
            subprocess.run(("ip", "netns", "delete", ns), capture_output=True)


def stop(process):
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)


def sent_by(ns, device):
    """Packets that the attacker's device has sent."""
    text = sh("ip", "-n", ns, "-j", "-s", "link", "show", "dev", device)
    return json.loads(text)[0]["stats64"]["tx"]["packets"]


def one_run(program, who, flood, args):
    """Gbit/s of the transfer."""
    ours = who == "ours"
    to, device, ns = (OURS, "fsflood0", ATTACKER) if ours else (KERNEL, "fsveth", VICTIM)
    serve = ["--tun", device, "--address", f"{to}/24", "--gateway", GATEWAY] if ours else ["--kernel"]
    serve += ["--bind", f"{to}:{PORT}"]
    server = subprocess.Popen((*enter(ns), program, "perf", "serve", *serve),
                              stdout=subprocess.PIPE, text=True)
    hping = None
    try:
        if "listening" not in server.stdout.readline():
            raise RuntimeError("`perf serve` did not start")
        line = ["perf", "stream", "--json", "--kernel", "-t", str(args.time), "--congestion", "cubic",
                "--connect", f"{to}:{PORT}", *(["--reverse"] if args.reverse else [])]
        client = subprocess.Popen((*enter(ATTACKER), program, *line), stdout=subprocess.PIPE,
                                  text=True)
        time.sleep(0.3)
        before, at = sent_by(ATTACKER, device), time.monotonic()
        if FLOODS[flood] is not None:
            attack = ("hping3", "--flood", "-q", "-S", "-p", str(PORT), *FLOODS[flood], to)
            hping = subprocess.Popen((*enter(ATTACKER), *attack), stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
        out, _ = client.communicate(timeout=args.time + 60)
        if client.returncode:
            # The transfer did not end within half a minute after its time.
            return 0.0
        if args.verbose:
            rate = (sent_by(ATTACKER, device) - before) / (time.monotonic() - at)
            print(f"{rate:.0f} packets/s to the victim\n{out}", file=sys.stderr)
        return json.loads(out)["throughput_bps"] / 1e9
    finally:
        for process in (hping, server):
            if process:
                stop(process)


def measure(program, args):
    """Every cell once, then every cell again: what disturbs the machine disturbs all alike."""
    samples = {}
    for repetition in range(args.repetitions):
        for flood in FLOODS:
            for who in ("kernel", "ours"):
                got = one_run(program, who, flood, args)
                samples.setdefault((who, flood), []).append(got)
                print(f"{repetition} {who}, {flood}: {got:.2f} Gbit/s", file=sys.stderr)
    return samples


def markdown(samples):
    lines = ["| SYNs | kernel | kept | ours | kept |", "|" + "---|" * 5]
    median = {cell: statistics.median(runs) for cell, runs in samples.items()}
    for flood in FLOODS:
        row = [flood]
        for who in ("kernel", "ours"):
            runs = samples[who, flood]
            kept = median[who, flood] / median[who, "none"]
            row += [f"{median[who, flood]:.1f} ({min(runs):.1f}-{max(runs):.1f})", f"{100 * kept:.0f} %"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--repetitions", type=int, default=5)
    parser.add_argument("-t", "--time", type=float, default=3.0, help="seconds of each run")
    parser.add_argument("--reverse", action="store_true", help="the victim sends")
    parser.add_argument("--program", help="do not build, run this")
    parser.add_argument("--verbose", action="store_true", help="show the whole report of each run")
    parser.add_argument("--no-write", action="store_true", help="leave docs/hardening.md alone")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces and TUN devices need root")
    need("ip", "sysctl", "hping3")
    with Namespaces():
        samples = measure(args.program or build(), args)
    text = (f"{machine()}; medians (least-most) of {args.repetitions} interleaved runs of "
            f"{args.time:g} s, Gbit/s.\n\n" + markdown(samples))
    print(text)
    if not args.no_write:
        write_between(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
