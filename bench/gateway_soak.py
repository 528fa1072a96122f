#!/usr/bin/env python3
"""Runs the gateway under load, loss and floods, and checks bytes, memory and descriptors.

    sudo bench/gateway_soak.py [--program target/release/fullsend] [--size 10G] [CASE...]

    guest ---- gateway ---- host ---- veth, 1 % of packets lost ---- machine

Everything is in network namespaces of this process and its children. Cases:

  up, down      --size bytes each way with losses on the host's side; each byte is checked
  stall         a server that reads nothing for --stall seconds, and then everything
  ends          connections that end by half-closes and resets, --count of them
  many          --many connections at once, each with data
  rate          --rate connections a second for --seconds
  syn dns fragments udp   floods of the guest for --flood seconds
  neighbours    the throughput of another guest, with a gateway of its own on another core, during
                each flood beside that without one

After each case the gateway must be back at its number of descriptors; its resident memory is printed.
"""

import argparse
import contextlib
import ctypes
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

CLONE_NEWNET = 0x40000000
MACHINE, HOST, GUEST, DNS = "198.18.0.2", "198.18.0.1", "10.0.2.100", "10.0.2.3"
PORT = 7000
# The port that floods of SYNs lead to: nothing accepts there.
FLOOD_PORT = 7001
BLOCK = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


def enter(path):
    with open(path) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def sh(command):
    subprocess.run(["sh", "-ec", command], check=True)


class Namespace:
    """A process that holds a network namespace."""

    def __init__(self):
        script = "ip link set lo up; echo ready; exec sleep 100000"
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.path = f"/proc/{self.process.pid}/ns/net"

    def sh(self, command):
        sh(f"nsenter --net={self.path} sh -ec '{command}'")

    def start(self, function, *arguments):
        """Runs a function in a process in the namespace; its result is an exit status."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            enter(self.path)
            function(*arguments)
            status = 0
        except BaseException as error:  # the child must not return
            print(f"    {function.__name__}: {error!r}", flush=True)
            status = 1
        os._exit(status)


def wait(pid):
    _, status = os.waitpid(pid, 0)
    return status == 0


def limits():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# A block whose place in the stream shows in its bytes.
BASE = bytearray(random.Random(1).randbytes(BLOCK))


def block(number):
    data = BASE
    for at in range(0, BLOCK, 1 << 14):
        struct.pack_into(">QQ", data, at, number, at)
    return data


def send_blocks(stream, count):
    for number in range(count):
        stream.sendall(block(number))
    stream.shutdown(socket.SHUT_WR)


def receive_blocks(stream, count):
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    for number in range(count):
        have = 0
        while have < BLOCK:
            got = stream.recv_into(view[have:])
            assert got, f"the stream ended in block {number} of {count}"
            have += got
        assert buffer == block(number), f"block {number} differs"
    assert stream.recv(1) == b"", "data behind the end"


def listen(port=PORT):
    listener = socket.create_server(("0.0.0.0", port), backlog=65535)
    return listener


def connect(timeout=120):
    return socket.create_connection((MACHINE, PORT), timeout=timeout)


class Soak:
    def __init__(self, options):
        self.options = options
        self.machine, self.host, self.guest = Namespace(), Namespace(), Namespace()
        machine = self.machine.process.pid
        self.host.sh(
            f"ip link add up0 type veth peer name eth0 netns {machine}; "
            f"ip addr add {HOST}/24 dev up0; ip link set up0 up; "
            "sysctl -qw net.ipv4.ip_local_port_range=\"1024 65535\"")
        self.machine.sh(
            f"ip addr add {MACHINE}/24 dev eth0; ip link set eth0 up; "
            "sysctl -qw net.core.somaxconn=65535 net.ipv4.tcp_max_syn_backlog=65535 "
            "net.ipv4.tcp_syncookies=0")
        # Packets, not super-segments, are lost.
        for namespace, name in (self.host, "up0"), (self.machine, "eth0"):
            namespace.sh(f"ethtool -K {name} tso off gso off gro off")
        resolv = os.path.join(options.folder, "resolv.conf")
        with open(resolv, "w") as file:
            file.write(f"nameserver {MACHINE}\n")
        self.resolv = resolv
        self.gateway = self.start_gateway(self.guest)
        self.failed = []

    def start_gateway(self, guest):
        """Starts a gateway for a guest, and waits until it serves."""
        command = (
            f"mount --make-rprivate /; mount --bind {self.resolv} /etc/resolv.conf; "
            f"exec {self.options.program} slirp4netns -c --mtu={self.options.mtu} --enable-sandbox "
            f"--enable-seccomp --enable-ipv6 --disable-host-loopback {guest.process.pid} tap0")
        gateway = subprocess.Popen(
            ["nsenter", f"--net={self.host.path}", "unshare", "--mount", "sh", "-ec", command],
            stdout=subprocess.DEVNULL)
        for _ in range(100):
            time.sleep(0.1)
            if os.path.exists(f"/proc/{guest.process.pid}/net/dev"):
                with open(f"/proc/{guest.process.pid}/net/dev") as file:
                    if "tap0" in file.read():
                        break
        guest.sh("sysctl -qw net.ipv4.ip_local_port_range=\"1024 65535\"")
        time.sleep(1)
        return gateway

    def lose(self, percent):
        chains = ("INPUT -i up0", "OUTPUT -o up0")
        self.host.sh("iptables -F")
        for chain in chains if percent else ():
            self.host.sh(f"iptables -A {chain} -m statistic --mode random "
                         f"--probability {percent / 100} -j DROP")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.gateway.pid}/fd"))

    def memory(self, name="VmRSS"):
        with open(f"/proc/{self.gateway.pid}/status") as file:
            lines = [line for line in file if line.startswith(name + ":")]
        return int(lines[0].split()[1]) / 1024

    def check(self, condition, text):
        if not condition:
            self.failed.append(text)
            print(f"    FAILED: {text}", flush=True)

    def run(self, name):
        before = self.descriptors()
        print(f"{name}: {before} descriptors, {self.memory():.1f} MiB", flush=True)
        # VmHWM is the peak since this.
        with open(f"/proc/{self.gateway.pid}/clear_refs", "w") as file:
            file.write("5")
        started = time.time()
        getattr(self, name)()
        seconds = time.time() - started
        self.check(self.gateway.poll() is None, f"{name}: the gateway ended")
        # UDP flows end after 30 s without an answer.
        for _ in range(self.options.settle):
            if self.descriptors() <= before:
                break
            time.sleep(1)
        after = self.descriptors()
        self.check(after <= before, f"{name}: {after} descriptors instead of {before}")
        print(f"    {seconds:.0f} s; peak {self.memory('VmHWM'):.1f} MiB, then "
              f"{self.memory():.1f} MiB, {after} descriptors", flush=True)

    # --- transfers

    def transfer(self, sender, receiver):
        count = self.options.size // BLOCK
        self.lose(1)

        def serve():
            stream, _ = listener.accept()
            (send_blocks if sender is self.machine else receive_blocks)(stream, count)
            if sender is self.machine:
                assert stream.recv(1) == b""

        def client():
            stream = connect()
            (send_blocks if sender is self.guest else receive_blocks)(stream, count)
            stream.close()

        listener = self.listener()
        started = time.time()
        pids = [self.machine.start(serve), self.guest.start(client)]
        listener.close()
        good = [wait(pid) for pid in pids]
        self.lose(0)
        self.check(all(good), f"a transfer of {count} MiB")
        rate = count * BLOCK * 8 / (time.time() - started) / 1e9
        print(f"    {count} MiB, {rate:.2f} Gbit/s", flush=True)

    def listener(self, port=PORT):
        """Returns a listener of the machine, which its processes inherit."""
        result = []

        def bind():
            enter(self.machine.path)
            result.append(listen(port))

        thread = threading.Thread(target=bind)
        thread.start()
        thread.join()
        return result[0]

    def up(self):
        self.transfer(self.guest, self.machine)

    def down(self):
        self.transfer(self.machine, self.guest)

    def stall(self):
        count = 256

        def serve():
            stream, _ = listener.accept()
            time.sleep(self.options.stall)
            receive_blocks(stream, count)

        def client():
            send_blocks(connect(), count)

        listener = self.listener()
        pids = [self.machine.start(serve), self.guest.start(client)]
        listener.close()
        time.sleep(self.options.stall / 2)
        print(f"    while stalled: {self.memory():.1f} MiB", flush=True)
        self.check(all([wait(pid) for pid in pids]), "data after a stall")

    # --- connections

    def echo_server(self, listener, ends=None):
        """Answers each connection with its request, until it is stopped."""
        limits()
        poll = select.epoll()
        poll.register(listener, select.EPOLLIN)
        listener.setblocking(False)
        streams = {}
        while True:
            for fd, _ in poll.poll():
                if fd == listener.fileno():
                    try:
                        while True:
                            stream, _ = listener.accept()
                            stream.setblocking(False)
                            streams[stream.fileno()] = stream
                            poll.register(stream, select.EPOLLIN)
                    except BlockingIOError:
                        continue
                stream = streams[fd]
                try:
                    data = stream.recv(65536)
                    if data:
                        stream.send(data)
                    if data and ends:
                        ends(stream)
                except OSError:
                    data = b""
                if not data or ends:
                    del streams[fd]
                    stream.close()

    def with_server(self, client, ends=None):
        listener = self.listener()
        server = self.machine.start(self.echo_server, listener, ends)
        listener.close()
        good = wait(self.guest.start(client))
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        return good

    def ends(self):
        reset = struct.pack("ii", 1, 0)

        def client():
            for number in range(self.options.count):
                stream = connect()
                request = struct.pack(">Q", number) * 16
                stream.sendall(request)
                assert stream.recv(128, socket.MSG_WAITALL) == request
                if number % 3 == 0:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                elif number % 3 == 1:
                    stream.shutdown(socket.SHUT_WR)
                    assert stream.recv(1) == b""
                stream.close()

        self.check(self.with_server(client), f"{self.options.count} ends")

    def many(self):
        many = self.options.many

        def client():
            limits()
            streams = []
            for number in range(many):
                stream = connect()
                stream.sendall(struct.pack(">Q", number))
                streams.append(stream)
            print(f"    {many} connections: {self.memory():.1f} MiB, "
                  f"{self.descriptors()} descriptors", flush=True)
            for number, stream in enumerate(streams):
                assert stream.recv(8, socket.MSG_WAITALL) == struct.pack(">Q", number)
            for stream in streams:
                stream.sendall(b"x" * 1000)
            for stream in streams:
                assert stream.recv(1000, socket.MSG_WAITALL) == b"x" * 1000

        self.check(self.with_server(client), f"{many} connections")

    def rate(self):
        rate, seconds = self.options.rate, self.options.seconds

        def client():
            started = time.time()
            done = late = 0
            while (now := time.time() - started) < seconds:
                if done >= now * rate:
                    time.sleep(0.001)
                    continue
                stream = connect()
                request = struct.pack(">Q", done) * 16
                stream.sendall(request)
                assert stream.recv(128, socket.MSG_WAITALL) == request
                assert stream.recv(1) == b"", "no end"
                stream.close()
                done += 1
                late = max(late, int(now * rate) - done)
            print(f"    {done} connections, {done / seconds:.0f} a second", flush=True)

        # The server closes first, so that TIME-WAIT is at the gateway.
        self.check(self.with_server(client, ends=lambda stream: None), "connections one by one")

    # --- floods

    def frames(self, make, seconds):
        """Sends frames of `make` to the gateway."""
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        raw.bind(("tap0", 0))
        mac = raw.getsockname()[4]
        end = time.time() + seconds
        sent = 0
        while time.time() < end:
            for _ in range(64):
                try:
                    raw.send(bytes.fromhex("52550a000202") + mac + b"\x08\0" + make())
                    sent += 1
                except OSError:  # the interface's queue is full
                    time.sleep(0.001)
        print(f"    {sent} packets, {sent / seconds:.0f} a second", flush=True)

    def flood(self, make):
        """Sends frames of `make` to the gateway, while a connection sends and receives."""
        seconds = self.options.flood

        def neighbour():
            stream = connect()
            end = time.time() + seconds
            exchanges = worst = 0
            while time.time() < end:
                begun = time.time()
                stream.sendall(b"y" * 1000)
                assert stream.recv(1000, socket.MSG_WAITALL) == b"y" * 1000
                worst = max(worst, time.time() - begun)
                exchanges += 1
            print(f"    beside it: {exchanges / seconds:.0f} exchanges a second, the slowest "
                  f"{worst * 1000:.0f} ms", flush=True)

        listener = self.listener()
        server = self.machine.start(self.echo_server, listener)
        listener.close()
        pids = [self.guest.start(self.frames, make, seconds), self.guest.start(neighbour)]
        most = 0
        while True:
            pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
            most = max(most, self.descriptors())
            if not pids:
                break
            time.sleep(0.2)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        print(f"    at most {most} descriptors", flush=True)

    def neighbours(self):
        seconds = self.options.flood
        other = Namespace()
        gateway = self.start_gateway(other)
        # The flood, and the gateway that it meets, have a core; everything else has the other ones.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(self.gateway.pid, cores[:1])
        os.sched_setaffinity(gateway.pid, cores[1:] or cores)

        def pinned(to, function, *arguments):
            os.sched_setaffinity(0, to)
            function(*arguments)

        def sink(listener):
            while True:
                stream, _ = listener.accept()
                with contextlib.suppress(OSError), stream:
                    while stream.recv(BLOCK):
                        pass

        def stream(to):
            sent, end, data = 0, time.time() + seconds, bytes(1 << 16)
            with connect() as out:
                while time.time() < end:
                    sent += out.send(data)
            os.write(to, str(sent).encode())

        def throughput():
            reader, writer = os.pipe()
            pid = other.start(pinned, cores[1:] or cores, stream, writer)
            os.close(writer)
            with os.fdopen(reader) as result:
                sent = int(result.read() or 0)
            wait(pid)
            return sent * 8 / seconds / 1e9

        listener = self.listener()
        server = self.machine.start(pinned, cores[1:] or cores, sink, listener)
        listener.close()
        flooded = self.listener(FLOOD_PORT)
        for name, make in self.floods().items():
            # What the last flood has left behind is not the neighbour's.
            time.sleep(seconds)
            alone = throughput()
            pid = self.guest.start(pinned, cores[:1], self.frames, make, seconds)
            beside = throughput()
            wait(pid)
            print(f"    {name}: {beside:.2f} Gbit/s of {alone:.2f}, "
                  f"{beside / max(alone, 1e-9) * 100:.0f} %", flush=True)
            self.check(beside >= 0.9 * alone, f"a neighbour during a flood of {name}")
        flooded.close()
        for pid in server, gateway.pid:
            os.kill(pid, signal.SIGTERM)
        gateway.wait()
        os.waitpid(server, 0)
        other.process.kill()
        os.sched_setaffinity(self.gateway.pid, cores)

    def syn(self):
        with self.listener(FLOOD_PORT):
            self.flood(self.make_syn)

    def dns(self):
        self.flood(self.make_query)

    def udp(self):
        self.flood(self.make_datagram)

    def fragments(self):
        self.flood(self.make_fragment)

    def floods(self):
        return {"syn": self.make_syn, "dns": self.make_query, "udp": self.make_datagram,
                "fragments": self.make_fragment}

    def make_syn(self):
        source = f"10.0.2.{random.randrange(101, 250)}"
        header = struct.pack(">HHIIBBHHH", random.randrange(1024, 65536), FLOOD_PORT,
                             random.getrandbits(32), 0, 0x50, 2, 64000, 0, 0)
        return packet(source, MACHINE, 6, header, 16)

    def make_query(self):
        query = struct.pack(">HHHHHH", random.getrandbits(16), 0x100, 1, 0, 0, 0)
        query += b"\x08" + b"%08x" % random.getrandbits(32) + b"\0\0\x01\0\x01"
        return datagram(DNS, 53, query)

    def make_datagram(self):
        return datagram(MACHINE, random.randrange(1024, 65536), b"x" * 100)

    def make_fragment(self):
        data = os.urandom(1200)
        return ipv4(GUEST, MACHINE, 17, data, random.getrandbits(16),
                    0x2000 | random.randrange(0, 7) * 150)


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ipv4(source, to, protocol, data, identifier=0, fragment=0x4000):
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(data), identifier, fragment, 64,
                         protocol, 0, socket.inet_aton(source), socket.inet_aton(to))
    return header[:10] + struct.pack(">H", checksum(header)) + header[12:] + data


def packet(source, to, protocol, data, checksum_at):
    pseudo = socket.inet_aton(source) + socket.inet_aton(to) + struct.pack(
        ">HH", protocol, len(data))
    value = struct.pack(">H", checksum(pseudo + data))
    data = data[:checksum_at] + value + data[checksum_at + 2:]
    return ipv4(source, to, protocol, data)


def datagram(to, port, payload):
    source = random.randrange(1024, 65536)
    header = struct.pack(">HHHH", source, port, 8 + len(payload), 0)
    return packet(GUEST, to, 17, header + payload, 6)


CASES = ["up", "down", "stall", "ends", "many", "rate", "syn", "dns", "fragments", "udp", "neighbours"]


def size(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/fullsend")
    parser.add_argument("--mtu", type=int, default=65520)
    parser.add_argument("--size", type=size, default=size("10G"))
    parser.add_argument("--stall", type=int, default=60)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--flood", type=int, default=30)
    parser.add_argument("--settle", type=int, default=200,
                        help="seconds within which all descriptors must be closed")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=" ".join(CASES))
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"{unknown[0]} is not a case; the cases are {' '.join(CASES)}")
    if os.geteuid() != 0:
        parser.error("needs root for network namespaces")
    missing = [tool for tool in ("iptables", "ethtool", "nsenter") if not shutil.which(tool)]
    if missing:
        parser.error(f"{missing[0]} is not installed")
    options.program = os.path.abspath(options.program)
    limits()
    with tempfile.TemporaryDirectory() as folder:
        options.folder = folder
        soak = Soak(options)
        for case in options.cases or CASES:
            soak.run(case)
        soak.gateway.terminate()
        soak.check(soak.gateway.wait(10) == 0, "the gateway's exit status")
        for namespace in soak.machine, soak.host, soak.guest:
            namespace.process.kill()
            namespace.process.wait()
    print("FAILED: " + "; ".join(soak.failed) if soak.failed else "all as expected")
    sys.exit(bool(soak.failed))


if __name__ == "__main__":
    main()
