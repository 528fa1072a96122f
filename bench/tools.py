"""What the benchmarks share: programs that they need, the build, and the tables that they write."""

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Program, and Debian's package of it.
PACKAGES = {"ip": "iproute2", "ethtool": "ethtool", "sysctl": "procps",
            "hping3": "hping3"}


def need(*programs):
    """Installs what is missing (as root, with apt), or ends with a line that says what is."""
    missing = [p for p in programs if shutil.which(p) is None]
    packages = [PACKAGES[p] for p in missing]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True)
        missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} missing: apt-get install {' '.join(packages)}")


def sh(*args, **kwargs):
    return subprocess.run(args, check=True, text=True, capture_output=True, **kwargs).stdout


def build(package="fullsend-cli", program="fullsend", folder=ROOT):
    """Builds a package of the workspace in `folder` for release; returns its program's path."""
    subprocess.run(["cargo", "build", "--release", "-p", package], cwd=folder, check=True)
    meta = sh("cargo", "metadata", "--no-deps", "--format-version=1", cwd=folder)
    return str(Path(json.loads(meta)["target_directory"]) / "release" / program)


def build_profiled(training):
    """Builds `fullsend` with a profile of its runs with the arguments of `training`, as docs/tuning.md
    describes; returns its path. Without LLVM's tools it prints what is missing and returns None."""
    about = sh("rustc", "-vV").splitlines()
    host = next(line.split()[1] for line in about if line.startswith("host: "))
    profdata = Path(sh("rustc", "--print", "sysroot").strip(), "lib/rustlib", host, "bin/llvm-profdata")
    if not profdata.exists():
        print(f"the profiled build is left out: no {profdata}: rustup component add llvm-tools",
              file=sys.stderr)
        return None
    home = ROOT / "target" / "profiled"
    flags = os.environ.get("RUSTFLAGS", "")
    inherited = {k: v for k, v in os.environ.items() if k != "CARGO_ENCODED_RUSTFLAGS"}

    def compile_with(flag, target):
        # With `--target` the flags do not apply to build scripts, which would leave profiles, too.
        subprocess.run(["cargo", "build", "--release", "-p", "fullsend-cli", "--target", host,
                        "--target-dir", target], cwd=ROOT, check=True,
                       env={**inherited, "RUSTFLAGS": f"{flags} {flag}"})
        return target / host / "release" / "fullsend"

    raw, merged = home / "raw", home / "merged.profdata"
    shutil.rmtree(raw, ignore_errors=True)
    program = compile_with(f"-Cprofile-generate={raw}", home / "generate")
    for arguments in training:
        sh(program, *arguments.split())
    sh(profdata, "merge", "-o", merged, raw)
    # Cargo does not compile a dependency again because a profile has changed.
    shutil.rmtree(home / "use", ignore_errors=True)
    return str(compile_with(f"-Cprofile-use={merged}", home / "use"))


def build_go(folder, program):
    """Builds a Go program; returns its path. If that fails it prints what is missing and returns None."""
    go = next(line.split()[1] for line in open(folder / "go.mod") if line.startswith("go "))
    out = folder / "target" / program
    if shutil.which("go") is None:
        error = "no `go` is on the PATH"
    else:
        # A Go from 1.21 on downloads the version that go.mod names.
        built = subprocess.run(["go", "build", "-o", out, "."], cwd=folder, text=True,
                               capture_output=True, env={"GOTOOLCHAIN": "auto", **os.environ})
        if built.returncode == 0:
            return str(out)
        error = (built.stderr.strip() or "it failed").splitlines()[-1]
    print(f"{program} is left out: {error}; it needs Go {go} or later, e.g. of "
          f"https://proxy.golang.org/golang.org/toolchain/@v/v0.0.1-go{go}.linux-amd64.zip "
          "(its bin on the PATH)", file=sys.stderr)
    return None


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                  if line.startswith("model name")), platform.machine())
    commit = sh("git", "describe", "--always", "--dirty", cwd=ROOT).strip()
    today = datetime.date.today().isoformat()
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}; commit {commit}, {today}"


def write_between(document, begin, end, text):
    """Replaces what stands between two lines of a document."""
    old = document.read_text()
    head, tail = old.split(begin)[0], old.split(end)[1]
    document.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
