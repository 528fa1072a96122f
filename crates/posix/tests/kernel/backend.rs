//! The calls of a scenario, and the log of their results.

use std::fmt::{Debug, Write};

/// A result as a C function returns it: a count, a handle, or a negative errno.
pub(crate) type Ret = i64;

/// Control messages: level, type, data.
pub(crate) type Control = Vec<(i32, i32, Vec<u8>)>;

/// Splits a control buffer into messages.
pub(crate) fn split(mut control: &[u8]) -> Control {
    let mut out = Vec::new();
    while control.len() >= 16 {
        let word = |at| i32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
        let len = word(0) as usize;
        out.push((word(8), word(12), control[16..len].to_vec()));
        control = control.get(len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    out
}

/// Sockets of the kernel or of this crate. Handles are small numbers.
pub(crate) trait Backend {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Ret;
    /// Binds to an address of this machine; `port` 0 chooses a free port.
    fn bind(&mut self, fd: Ret, ip: &str, port: u16) -> Ret;
    fn listen(&mut self, fd: Ret, backlog: i32) -> Ret;
    fn accept(&mut self, fd: Ret) -> Ret;
    fn connect(&mut self, fd: Ret, ip: &str, port: u16) -> Ret;
    /// Dissolves the association: `connect` to `AF_UNSPEC`.
    fn disconnect(&mut self, fd: Ret) -> Ret;
    /// Returns the bound port, or the peer's port; or an errno.
    fn port(&mut self, fd: Ret) -> Ret;
    fn peer_port(&mut self, fd: Ret) -> Ret;
    /// Returns the local address, or the peer's, without the port.
    fn name(&mut self, fd: Ret, peer: bool) -> String;
    fn shutdown(&mut self, fd: Ret, how: i32) -> Ret;
    fn close(&mut self, fd: Ret) -> Ret;
    fn send(&mut self, fd: Ret, data: &[u8], flags: i32) -> Ret;
    fn send_to(&mut self, fd: Ret, data: &[u8], flags: i32, ip: &str, port: u16) -> Ret;
    /// Receives at most `len` bytes. Returns the result, the bytes and `msg_flags`.
    fn recv(&mut self, fd: Ret, len: usize, flags: i32) -> (Ret, Vec<u8>, i32);
    /// Receives at most `len` bytes, with `room` bytes for control messages. Returns the result,
    /// `msg_flags` and the messages.
    fn recv_control(&mut self, fd: Ret, len: usize, room: usize, flags: i32)
    -> (Ret, i32, Control);
    fn read(&mut self, fd: Ret, len: usize) -> Ret;
    fn write(&mut self, fd: Ret, data: &[u8]) -> Ret;
    fn set(&mut self, fd: Ret, level: i32, name: i32, value: &[u8]) -> Ret;
    /// Returns the result and the bytes of the value.
    fn get(&mut self, fd: Ret, level: i32, name: i32, len: usize) -> (Ret, Vec<u8>);
    fn ioctl(&mut self, fd: Ret, request: u32) -> Ret;
    fn poll(&mut self, fd: Ret) -> Ret;
    fn epoll_create(&mut self) -> Ret;
    fn epoll_ctl(&mut self, set: Ret, op: i32, fd: Ret, events: u32, data: u64) -> Ret;
    /// Returns the members that are ready now, at most `max`.
    fn epoll_wait(&mut self, set: Ret, max: usize) -> (Ret, Vec<(u32, u64)>);
    fn pipe(&mut self) -> (Ret, Ret);
    fn splice(&mut self, from: Ret, to: Ret, len: usize) -> Ret;
    /// Waits until everything in flight has arrived.
    fn wait_until_idle(&mut self);
}

/// The results of a scenario, line by line.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Log(Vec<String>);

impl Log {
    /// Appends a result.
    pub(crate) fn note(&mut self, what: &str, got: impl Debug) {
        let mut line = String::new();
        write!(line, "{what}: {got:?}").unwrap();
        self.0.push(line);
    }

    /// Returns the lines that differ, each with the line before.
    pub(crate) fn difference(&self, own: &Self) -> String {
        let mut out = String::new();
        for i in 0..self.0.len().max(own.0.len()) {
            let none = String::from("nothing");
            let (kernel, own) = (
                self.0.get(i).unwrap_or(&none),
                own.0.get(i).unwrap_or(&none),
            );
            if kernel != own {
                writeln!(out, "  kernel {kernel}\n  ours   {own}").unwrap();
            }
        }
        out
    }
}

/// Encodes an option that is an integer.
pub(crate) fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

impl dyn Backend + '_ {
    pub(crate) fn set_int(&mut self, fd: Ret, level: i32, name: i32, value: i32) -> Ret {
        self.set(fd, level, name, &int(value))
    }

    pub(crate) fn get_int(&mut self, fd: Ret, level: i32, name: i32) -> Ret {
        let (ret, value) = self.get(fd, level, name, 4);
        if ret < 0 {
            return ret;
        }
        match value.as_slice() {
            [a, b, c, d] => i32::from_ne_bytes([*a, *b, *c, *d]).into(),
            [a] => (*a).into(),
            _ => -9999,
        }
    }

    /// Returns a listener on `ip` and its port.
    pub(crate) fn listener(&mut self, domain: i32, ip: &str) -> (Ret, u16) {
        let fd = self.socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        assert!(fd >= 0, "{fd}");
        assert_eq!(self.bind(fd, ip, 0), 0);
        assert_eq!(self.listen(fd, 8), 0);
        let port = self.port(fd);
        assert!(port > 0);
        (fd, port as u16)
    }

    /// Returns the two ends of a connection: the client's, then the server's.
    pub(crate) fn pair(&mut self) -> (Ret, Ret) {
        let (listener, port) = self.listener(libc::AF_INET, "127.0.0.1");
        let client = self.tcp();
        let _ = self.connect(client, "127.0.0.1", port);
        self.wait_until_idle();
        assert_eq!(self.connect(client, "127.0.0.1", port), 0);
        let server = self.accept(listener);
        assert!(server >= 0);
        self.close(listener);
        (client, server)
    }

    /// Waits until delayed acknowledgements have arrived, too.
    pub(crate) fn wait_for_delayed_acks(&mut self) {
        (0..40).for_each(|_| self.wait_until_idle());
    }

    /// Returns an unconnected, non-blocking IPv4 stream socket.
    pub(crate) fn tcp(&mut self) -> Ret {
        self.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
    }
}
