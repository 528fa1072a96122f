#!/usr/bin/env python3
"""Fetches a page over a userspace stack, through ctypes.

    sudo ./fetch.py tun=fs0,address=10.9.0.2/24,kernel_address=10.9.0.1/24 10.9.0.1 8000 /

for example from `python3 -m http.server`. Set FULLSEND_LIBRARY to the path of the library if the
system does not find it.
"""

import ctypes
import os
import socket
import struct
import sys

fs = ctypes.CDLL(os.environ.get("FULLSEND_LIBRARY", "libfullsend.so"), use_errno=True)
fs.fs_stack_create.restype = ctypes.c_void_p
fs.fs_stack_create.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
fs.fs_stack_destroy.argtypes = [ctypes.c_void_p]
fs.fs_stack_shutdown.argtypes = [ctypes.c_void_p, ctypes.c_int]
fs.fs_last_error.restype = ctypes.c_char_p
fs.fs_socket.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
fs.fs_connect.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
for name in ("fs_read", "fs_write"):
    call = getattr(fs, name)
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]


def checked(result):
    """The result of a call, or its errno as OSError."""
    if result is None or result == -1:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result


def sockaddr_in(address, port):
    """struct sockaddr_in."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + \
        socket.inet_aton(address) + bytes(8)


def fetch(stack, address, port, path):
    """The answer to a GET, head and page."""
    fd = checked(fs.fs_socket(stack, socket.AF_INET, socket.SOCK_STREAM, 0))
    try:
        name = sockaddr_in(address, port)
        checked(fs.fs_connect(fd, name, len(name)))
        request = f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode()
        checked(fs.fs_write(fd, request, len(request)))
        buffer = ctypes.create_string_buffer(65536)
        answer = bytearray()
        while got := checked(fs.fs_read(fd, buffer, len(buffer))):
            answer += buffer.raw[:got]
        head, _, page = bytes(answer).partition(b"\r\n\r\n")
        return head, page
    finally:
        fs.fs_close(fd)


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SETTINGS ADDRESS PORT PATH")
    settings, address, port, path = sys.argv[1:]
    stack = fs.fs_stack_create(settings.encode(), None)
    if not stack:
        sys.exit(fs.fs_last_error().decode())
    try:
        head, page = fetch(stack, address, int(port), path)
    finally:
        # The server still gets the end of the connection.
        if fs.fs_stack_shutdown(stack, 1000) < 0:
            fs.fs_stack_destroy(stack)
    print(head.decode(errors="replace"), file=sys.stderr)
    sys.stdout.buffer.write(page)


if __name__ == "__main__":
    main()
