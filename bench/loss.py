#!/usr/bin/env python3
"""Goodput and retransmissions over lossy paths, beside the kernel's: the same link, the same seeds.

    bench/loss.py                      # everything; writes the table to bench/README.md
    bench/loss.py -n 1 -t 5 --path "delay 10ms 1ms loss 0.5% rate 500mbit" --congestion cubic --no-write

`fullsend wan` emulates the path between two TUN devices, each in a network namespace of its own
(this needs root; they are made and removed here). The kernel sends to the kernel, our stack to the
kernel, the kernel to our stack. Whoever is on the left is one hop away from the path: ours behind
a TUN of its own in the first namespace, whose kernel forwards, the kernel behind a veth in a third.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from tools import ROOT, build, machine, need, sh, write_between

README = ROOT / "bench" / "README.md"
BEGIN, END = "<!-- loss table begins -->", "<!-- loss table ends -->"
LEFT, RIGHT, CLIENT = "fsloss-l", "fsloss-r", "fsloss-c"
NAMESPACES = (LEFT, RIGHT, CLIENT)
ADDRESS = {LEFT: "10.92.1.1", RIGHT: "10.92.2.1"}
OURS, GATEWAY = "10.92.3.2", "10.92.3.1"
PATHS = (
    "delay 25ms loss 1% rate 100mbit",
    "delay 25ms loss 1% rate 1gbit",
    "delay 3ms loss 0.8% reorder 5% rate 500mbit",
    "delay 10ms 1ms loss 0.5% rate 500mbit",
    "delay 3ms 1ms loss 0.3% rate 500mbit",
)
SEGMENT = 1448
BUFFERS = {"tcp_wmem": "4096 16384 67108864", "tcp_rmem": "4096 131072 67108864"}


def enter(ns):
    return ("ip", "netns", "exec", ns)


class Wan:
    """Two namespaces with a lossy path between them, for one run."""

    def __init__(self, program, netem, back, seed):
        self.args = (program, "wan", "wanl", "wanr", "--netem", netem, "--back", back,
                     "--seed", str(seed))

    def __enter__(self):
        for ns in NAMESPACES:
            subprocess.run(("ip", "netns", "delete", ns), capture_output=True)
            sh("ip", "netns", "add", ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            for key, value in BUFFERS.items():
                sh(*enter(ns), "sysctl", "-qw", f"net.ipv4.{key}={value}")
        sh(*enter(LEFT), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.wan = subprocess.Popen((*enter(LEFT), *self.args), stdout=subprocess.PIPE, text=True)
        if "Ctrl-C" not in self.wan.stdout.readline():
            raise RuntimeError("`fullsend wan` did not start")
        sh("ip", "-n", LEFT, "link", "set", "wanr", "netns", RIGHT)
        for ns, device in ((LEFT, "wanl"), (RIGHT, "wanr")):
            sh("ip", "-n", ns, "address", "add", f"{ADDRESS[ns]}/32", "dev", device)
            sh("ip", "-n", ns, "link", "set", device, "up")
            sh("ip", "-n", ns, "route", "add", "default", "dev", device)
        return self

    def join_kernel(self):
        """A kernel where our stack would be: at the same address, behind the same forwarding."""
        sh("ip", "-n", LEFT, "link", "add", "fsours", "type", "veth",
           "peer", "name", "eth0", "netns", CLIENT)
        for ns, device, address in ((LEFT, "fsours", GATEWAY), (CLIENT, "eth0", OURS)):
            sh("ip", "-n", ns, "address", "add", f"{address}/24", "dev", device)
            sh("ip", "-n", ns, "link", "set", device, "up")
        sh("ip", "-n", CLIENT, "route", "add", "default", "via", GATEWAY)

    def __exit__(self, *_):
        self.wan.send_signal(signal.SIGINT)
        out, _ = self.wan.communicate(timeout=10)
        print("    " + out.strip().replace("\n", "; "), file=sys.stderr)
        for ns in NAMESPACES:
            subprocess.run(("ip", "netns", "delete", ns), capture_output=True)


def back_of(path):
    """The way back: the same delay and rate, without jitter, loss and reordering."""
    words = path.split()
    value = lambda name: words[words.index(name) + 1]
    return f"delay {value('delay')} rate {value('rate')}"


def one_run(program, who, path, congestion, args, seed):
    """Mbit/s of `who`, and the percentage of segments sent again: from the left to the right, or
    `kernel to us` the other way."""
    to_us = who == "kernel to us"
    there, back = (f"{words} limit {args.limit}" for words in (path, back_of(path)))
    netem = (back, there) if to_us else (there, back)
    line = ["perf", "stream", "--json", "-t", str(args.time), "-K", congestion,
            "--connect", ADDRESS[RIGHT]]
    if who == "kernel to kernel":
        line += ["--kernel"]
    else:
        line += ["--tun", "fsours", "--address", f"{OURS}/24", "--gateway", GATEWAY]
        line += [word for key, value in BUFFERS.items() for word in ("--set", f"{key}={value}")]
    if to_us:
        line += ["--reverse"]
    if to_us:
        # The way back has a seed of its own, which is this one with the highest bit changed: the
        # same packets are lost as on the way there.
        seed ^= 1 << 63
    at = LEFT
    with Wan(program, *netem, seed) as wan:
        if who == "kernel to kernel":
            wan.join_kernel()
            at = CLIENT
        server = subprocess.Popen((*enter(RIGHT), program, "perf", "serve", "--kernel"),
                                  stdout=subprocess.PIPE, text=True)
        try:
            if "listening" not in server.stdout.readline():
                raise RuntimeError("`perf serve` did not start")
            report = json.loads(sh(*enter(at), program, *line, timeout=args.time + 60))
            sender = report["counters"]["server" if to_us else "client"]
            if args.verbose:
                print(json.dumps(report), file=sys.stderr)
            segments = report["bytes"] / SEGMENT
            return report["throughput_bps"] / 1e6, 100 * sender["TcpRetransSegs"] / segments
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=30)


WHO = ("kernel to kernel", "us to kernel", "kernel to us")


def cells(args):
    return [(path, congestion) for path in args.path or PATHS
            for congestion in args.congestion.split(",")]


def measure(program, args):
    """Every cell once, then every cell again: what disturbs the machine disturbs all alike."""
    samples = {}
    for seed in range(args.seed, args.seed + args.repetitions):
        for path, congestion in cells(args):
            for who in args.who.split(","):
                got = one_run(program, who, path, congestion, args, seed)
                samples.setdefault((path, congestion, who), []).append(got)
                print(f"seed {seed}  {path} {congestion}, {who}: {got[0]:.1f} Mbit/s, "
                      f"{got[1]:.2f} % sent again", file=sys.stderr)
    return samples


def markdown(samples, args):
    lines = ["| path | congestion control | kernel to kernel | us to kernel | ours / kernel's "
             "| kernel to us | sent again, kernel to kernel | us to kernel | ours / kernel's |",
             "|" + "---|" * 9]
    mean = lambda runs, i: statistics.mean(run[i] for run in runs)
    for path, congestion in cells(args):
        runs = [samples.get((path, congestion, who), [(0, 0)]) for who in WHO]
        shown = [f"{mean(r, 0):.1f} ({min(r)[0]:.1f}-{max(r)[0]:.1f})" for r in runs]
        again = [mean(r, 1) for r in runs]
        ratio = lambda ours, kernels: f"{ours / kernels:.2f}" if kernels else "-"
        lines.append(f"| {path} | {congestion} | {shown[0]} | {shown[1]} "
                     f"| {ratio(mean(runs[1], 0), mean(runs[0], 0))} | {shown[2]} "
                     f"| {again[0]:.2f} % | {again[1]:.2f} % | {ratio(again[1], again[0])} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--repetitions", type=int, default=5)
    parser.add_argument("-t", "--time", type=float, default=10.0, help="seconds of each run")
    parser.add_argument("--path", action="append", help="in netem's words, of the packets with "
                        "data; the way back has its delay and rate alone (default: five paths)")
    parser.add_argument("--congestion", default="cubic,reno,bbr")
    parser.add_argument("--who", default=",".join(WHO), help="who sends to whom")
    parser.add_argument("--seed", type=int, default=1, help="of the first repetition")
    parser.add_argument("--limit", default="1000", help="packets that wait for the bottleneck")
    parser.add_argument("--program", help="do not build, run this")
    parser.add_argument("--verbose", action="store_true", help="show the whole report of each run")
    parser.add_argument("--no-write", action="store_true", help="leave bench/README.md alone")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces and TUN devices need root")
    need("ip", "sysctl")
    began = time.monotonic()
    samples = measure(args.program or build(), args)
    text = (f"{machine()}; {args.limit} packets of queue; mean (least-most) of "
            f"{args.repetitions} runs of {args.time:g} s, Mbit/s.\n\n" + markdown(samples, args))
    print(text)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if not args.no_write:
        write_between(README, BEGIN, END, text)


if __name__ == "__main__":
    main()
