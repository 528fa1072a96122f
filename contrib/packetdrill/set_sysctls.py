#!/usr/bin/env python3
"""In place of the script collection's common/set_sysctls.py, which writes to /proc/sys.

Takes /proc/sys/net/ipv4/KEY=VALUE as often as you like, writes them to $FULLSEND_SETTINGS, and
leaves /tmp/sysctl_restore_PID.sh, of packetdrill's process number, which puts back what was there.
"""

import os
import sys


def packetdrill():
    """The process that runs the script: our parent, or the parent of the shell that is."""
    parent = os.getppid()
    with open(f"/proc/{parent}/stat", encoding="utf-8") as file:
        _, _, rest = file.read().partition("(")
    name, _, fields = rest.rpartition(")")
    return fields.split()[1] if name in ("sh", "dash", "bash") else parent


def main():
    settings = os.environ["FULLSEND_SETTINGS"]
    before = ""
    if os.path.exists(settings):
        with open(settings, encoding="utf-8") as file:
            before = file.read()
    with open(settings, "a", encoding="utf-8") as file:
        for argument in sys.argv[1:]:
            path, _, value = argument.partition("=")
            key = path.removeprefix("/proc/sys/").replace("/", ".")
            file.write(f"{key}={value}\n")
    pid = os.environ.get("PACKETDRILL_PID") or packetdrill()
    restore = f"/tmp/sysctl_restore_{pid}.sh"
    with open(restore, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncat >'{settings}' <<'END'\n{before}END\nrm -f '{restore}'\n")
    os.chmod(restore, 0o755)


if __name__ == "__main__":
    main()
