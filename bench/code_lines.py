#!/usr/bin/env python3
"""Shows how much code a message of `fullsend perf rr` runs through.

Prints instructions and misses of a simulated instruction cache of 32 KiB for each message, the lines of
code (64 bytes) that it touches, and the largest gaps: bytes in these lines that are not executed, with
the branch before each gap. They take up room in the cache; `fullsend_wire::cold_path` in a rare branch
removes them. The counts do not depend on the machine's load. Needs valgrind and binutils.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/release/fullsend"
LINE = 64


def valgrind(tool, options, perf, seconds):
    """The messages of a `fullsend perf` under a tool of valgrind, and the tool's output."""
    done = subprocess.run(("valgrind", f"--tool={tool}", *options, BINARY, *perf, "--time", seconds),
                          check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    return 2 * report["transactions_per_s"] * report["seconds"], done.stderr


def for_a_message(perf):
    """Instructions and misses for a message: the difference of a long and a short run, so that begin
    and end of the program are not in it."""
    cache = ("--cache-sim=yes", "--I1=32768,8,64", "--cachegrind-out-file=/dev/null")
    totals = []
    for seconds in ("1", "4"):
        messages, report = valgrind("cachegrind", cache, perf, seconds)
        found = [re.search(rf"{name}:\s+([\d,]+)", report) for name in ("I\\s+refs", "I1\\s+misses")]
        totals.append((messages, *(int(count.group(1).replace(",", "")) for count in found)))
    messages, *events = (long - short for short, long in zip(*totals))
    return [count / messages for count in events]


def counts(perf, file):
    """Executions of each instruction, and the number of messages."""
    options = ("--dump-instr=yes", "--compress-pos=no", "--compress-strings=no",
               f"--callgrind-out-file={file}")
    messages, _ = valgrind("callgrind", options, perf, "2")
    executed, binary, in_call = collections.Counter(), False, False
    with open(file) as lines:
        for line in lines:
            if line.startswith("ob="):
                binary = line.strip().endswith(BINARY.name)
            elif line.startswith("calls="):
                in_call = True
            elif line.startswith("0x"):
                # The line after `calls=` has the cost of the callee.
                if binary and not in_call:
                    address, *_, cost = line.split()
                    executed[int(address, 16)] += int(cost)
                in_call = False
    return executed, messages


def instructions():
    """Address and function of each instruction of the binary."""
    out = subprocess.run(("objdump", "-d", "-C", "-w", "--no-show-raw-insn", BINARY),
                         check=True, capture_output=True, text=True).stdout
    function = None
    for line in out.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = header.group(1)
        elif code := re.match(r"\s+([0-9a-f]+):\t", line):
            yield int(code.group(1), 16), function


def gaps(code, hot, lines):
    """Bytes that are not executed, between executed ones: waste, the branch before, function."""
    start = None
    for i, (address, function) in enumerate(code):
        begins = i == 0 or code[i - 1][1] != function
        if start is not None and (hot[i] or begins):
            first = code[start][0]
            # Longer ones belong to functions that are not executed.
            waste = sum(b // LINE in lines for b in range(first, min(address, first + 8192)))
            if waste and start > 0:
                yield waste, code[start - 1][0], code[start][1]
            start = None
        if start is None and not hot[i]:
            start = i


def positions(addresses):
    """The innermost source positions within this workspace."""
    query = "\n".join(map(hex, addresses))
    out = subprocess.run(("addr2line", "-a", "-i", "-e", BINARY), input=query, check=True,
                         capture_output=True, text=True).stdout
    for block in re.split(r"^0x[0-9a-f]+\n", out, flags=re.MULTILINE)[1:]:
        ours = re.findall(r"crates/(\S+:\d+)", block)
        yield " < ".join(ours[:3]) or block.split("\n")[0]


def main():
    args = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--api", choices=("tokio", "set", "core"), default="tokio")
    args.add_argument("--gaps", type=int, default=40, help="how many gaps to print")
    args = args.parse_args()
    subprocess.run(("cargo", "build", "--release", "-p", "fullsend-cli"), cwd=ROOT, check=True)
    perf = ("perf", "rr", "-r", "4K,4K", "--api", args.api, "--json")
    total, missed = for_a_message(perf)
    print(f"for a message: {total:.0f} instructions, {missed:.0f} misses")
    with tempfile.NamedTemporaryFile() as file:
        executed, messages = counts(perf, file.name)
    code = list(instructions())
    # Instructions that fewer than a quarter of the messages execute are not on their path.
    hot = [executed[address] > messages / 4 for address, _ in code]
    lines = {address // LINE for (address, _), is_hot in zip(code, hot) if is_hot}
    print(f"{len(lines)} lines of code, without those of libraries")
    largest = sorted(gaps(code, hot, lines), reverse=True)[:args.gaps]
    for (waste, _, function), where in zip(largest, positions(gap[1] for gap in largest)):
        name = re.sub(r"<[^<>]*>", "", function).rstrip(":").split("::")[-1]
        print(f"{waste:4} bytes in {name or function}: {where}")


if __name__ == "__main__":
    main()
