#!/usr/bin/env python3
"""Many short or idle connections for bench/gateway.py. Each carries one byte and its answer.

    bench/connections.py serve PORT               # answers on 127.0.0.1
    bench/connections.py crr ADDRESS PORT TIME    # connects in turn; prints the median in microseconds
    bench/connections.py hold ADDRESS PORT COUNT  # prints "held", and ends with its standard input
"""

import resource
import selectors
import socket
import statistics
import sys
import time

BACKLOG = 4096
TIMEOUT = 10
HOLD_TIMEOUT = 60


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(port):
    """Answers each byte until the program is ended."""
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    selector.register(client, selectors.EVENT_READ)
                elif not answer(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def answer(client):
    """Returns whether the connection goes on."""
    try:
        byte = client.recv(1)
        return bool(byte) and client.send(byte) == 1
    except OSError:
        return False


def exchange(address, port):
    client = socket.create_connection((address, port), TIMEOUT)
    client.send(b"x")
    if client.recv(1) != b"x":
        sys.exit("the connection was closed")
    return client


def crr(address, port, seconds):
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        exchange(address, port).close()
        times.append(time.perf_counter() - start)
    print(statistics.median(times) * 1e6)


def hold(address, port, count):
    end = time.monotonic() + HOLD_TIMEOUT
    held = []
    while len(held) < count:
        if time.monotonic() > end:
            sys.exit(f"only {len(held)} connections in {HOLD_TIMEOUT} s")
        held.append(exchange(address, port))
    print("held", flush=True)
    sys.stdin.read()
    for client in held:
        client.close()


def main():
    raise_descriptor_limit()
    match sys.argv[1:]:
        case ["serve", port]:
            serve(int(port))
        case ["crr", address, port, seconds]:
            crr(address, int(port), float(seconds))
        case ["hold", address, port, count]:
            hold(address, int(port), int(count))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
