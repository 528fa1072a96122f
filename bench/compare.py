#!/usr/bin/env python3
"""Two builds of `fullsend` beside each other: bytes for a second of CPU time, which other work on
the machine distorts least, as the median of interleaved runs; or instructions for a packet
(callgrind).

    bench/compare.py OLD NEW [--runs 5] [--seconds 1] [--flows 1 4 200 10000] [--instructions]
"""
import argparse, json, os, re, statistics, subprocess, tempfile

RR = ["rr", "-r", "4K,4K"]
STREAM = ["stream"]
SMALL = ["stream", "-m", "128"]


def run(binary, test, seconds, before=()):
    args = [*before, binary, "perf", *test, "--time", str(seconds), "--json"]
    return subprocess.run(args, capture_output=True, text=True, check=True)


def speed(binary, test, seconds):
    result = json.loads(run(binary, test, seconds).stdout)
    cpu = result["cpu"]
    return result["bytes"] / (cpu["user_s"] + cpu["sys_s"])


def instructions(binary, test):
    """The difference of a long and a short run: what only begins and ends is not in it."""
    counts = []
    for seconds in (2, 6):
        with tempfile.TemporaryDirectory() as here:
            out = os.path.join(here, "out")
            callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
            done = run(binary, test, seconds, callgrind)
        total = int(re.findall(r"Collected : (\d+)", done.stderr)[-1])
        result = json.loads(done.stdout)
        counters = result["counters"]
        packets = sum(counters[side]["IpInReceives"] for side in ("client", "server"))
        counts.append((total, packets))
    (short, few), (long, many) = counts
    return (long - short) / (many - few)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--flows", type=int, nargs="+", default=[1, 4, 200, 10_000])
    parser.add_argument("--instructions", action="store_true", help="count, instead of timing")
    args = parser.parse_args()
    tests = [(t, n, api) for api in ("core", "tokio") for t in (RR, STREAM) for n in args.flows]
    tests += [(SMALL, 1, api) for api in ("core", "tokio")]
    if args.instructions:
        tests = [test for test in tests if test[2] == "core"]
    for test, flows, api in tests:
        full = [*test, "--flows", str(flows), "--api", api]
        name = f"{api:5} {' '.join(test):14} {flows:6} flows"
        if args.instructions:
            old, new = instructions(args.old, full), instructions(args.new, full)
            print(f"{name}  {old:9.0f} {new:9.0f} instructions a packet  {new / old:.3f}", flush=True)
            continue
        both = [(speed(args.old, full, args.seconds), speed(args.new, full, args.seconds))
                for _ in range(args.runs)]
        old, new = (statistics.median(side) for side in zip(*both))
        ratio = statistics.median(n / o for o, n in both)
        print(f"{name}  {old:14.4g} {new:14.4g}  {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
