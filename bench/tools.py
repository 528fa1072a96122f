"""Programs that the benchmarks need beside cargo's."""

import os
import shutil
import subprocess
import sys

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
