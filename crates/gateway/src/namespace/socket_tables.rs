//! The ports on which programs in a network namespace listen.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::fd::OwnedFd;

use super::child::{Message, in_child};
use super::{Namespaces, failed};
use crate::forward::Protocol;

/// The names of the kernel's tables, in the order of [`SocketTables`].
const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// `TCP_LISTEN`, and the state of a UDP socket without a peer (`TCP_CLOSE`).
const LISTEN: &str = "0A";
const UNCONNECTED: &str = "07";
/// Most sockets that are read from a table.
const SOCKETS_MAX: usize = 65_536;
/// Bytes that are read at once.
const BUFFER_LEN: usize = 16 << 10;
/// Longest line, bytes; the kernel's have up to 200.
const LINE_MAX: u64 = 512;

/// Open tables of the sockets in a network namespace, which can be read from outside of it.
pub struct SocketTables([File; 4]);

impl SocketTables {
    /// Opens the tables of other namespaces.
    ///
    /// # Errors
    /// The error of entering the namespaces, or of opening the tables.
    pub fn of(namespaces: &Namespaces) -> io::Result<Self> {
        let message = in_child(|| {
            namespaces.enter()?;
            let fds = open_files()?.map(OwnedFd::from);
            Ok(Message {
                bytes: Vec::new(),
                fds: fds.into(),
            })
        })?;
        let fds: [OwnedFd; 4] = message
            .fds
            .try_into()
            .map_err(|_| io::Error::other("the child process passed no tables"))?;
        Ok(Self(fds.map(File::from)))
    }

    /// Opens the tables of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of opening the tables.
    pub fn of_this_thread() -> io::Result<Self> {
        open_files().map(Self)
    }

    /// Returns the sorted ports that have a listening TCP socket, or an unconnected UDP socket.
    ///
    /// # Errors
    /// The error of reading the tables.
    pub fn listening(&mut self, protocol: Protocol) -> io::Result<Vec<u16>> {
        let (tables, state) = match protocol {
            Protocol::Tcp => (&mut self.0[..2], LISTEN),
            Protocol::Udp => (&mut self.0[2..], UNCONNECTED),
        };
        let mut ports = Vec::new();
        for table in tables {
            table.rewind()?;
            read_ports(table, state, &mut ports)?;
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(ports)
    }
}

fn open_files() -> io::Result<[File; 4]> {
    let open = |name: &str| {
        let path = format!("/proc/thread-self/net/{name}");
        File::open(&path).map_err(|e| failed(format_args!("open {path}"), e))
    };
    let [a, b, c, d] = TABLES;
    Ok([open(a)?, open(b)?, open(c)?, open(d)?])
}

/// Adds the ports of the sockets in a state. Reads at most [`SOCKETS_MAX`] sockets. The kernel lists
/// listening TCP sockets before all others, which are not read.
fn read_ports(table: impl Read, state: &str, ports: &mut Vec<u16>) -> io::Result<()> {
    let mut lines = BufReader::with_capacity(BUFFER_LEN, table);
    let mut line = Vec::new();
    lines.skip_until(b'\n')?;
    for _ in 0..SOCKETS_MAX {
        line.clear();
        lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        match parse_line(&String::from_utf8_lossy(&line)) {
            Some((port, line_state)) if line_state == state => ports.push(port),
            Some(_) if state != LISTEN => {}
            _ => break,
        }
    }
    Ok(())
}

/// Returns the local port and the state of a line `sl: ADDRESS:PORT ADDRESS:PORT STATE ...`.
fn parse_line(line: &str) -> Option<(u16, &str)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    let state = words.nth(1)?;
    Some((u16::from_str_radix(port, 16).ok()?, state))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::{LISTEN, SocketTables, UNCONNECTED, read_ports};
    use crate::forward::Protocol;

    #[test]
    fn the_ports_in_a_state_are_read_line_by_line() {
        let line = |port: u16, state| {
            format!("   1: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:0\n")
        };
        let header = "  sl  local_address rem_address   st tx_queue\n";
        let table = [
            header,
            &line(80, "0A"),
            &line(443, "0A"),
            &line(5000, "07"),
            &line(81, "0A"),
        ];
        let read = |table: &[&str], state| {
            let mut ports = Vec::new();
            read_ports(table.concat().as_bytes(), state, &mut ports).unwrap();
            ports
        };
        // TCP's table has no listening socket behind another one.
        assert_eq!(read(&table, LISTEN), [80, 443]);
        assert_eq!(read(&table, UNCONNECTED), [5000]);
        assert!(read(&[header], LISTEN).is_empty());
        let endless = [header, &line(80, "0A"), &"x".repeat(100_000)];
        assert_eq!(read(&endless, LISTEN), [80]);
    }

    #[test]
    fn listening_sockets_are_found_and_connected_ones_are_not() {
        let mut tables = SocketTables::of_this_thread().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let client = stream.local_addr().unwrap().port();
        let udp = UdpSocket::bind("[::1]:0").unwrap();
        let udp_port = udp.local_addr().unwrap().port();
        let tcp_ports = tables.listening(Protocol::Tcp).unwrap();
        assert!(tcp_ports.contains(&port) && !tcp_ports.contains(&client));
        assert!(tables.listening(Protocol::Udp).unwrap().contains(&udp_port));
        drop((listener, stream, udp));
        // Child processes of other tests may still have the descriptors.
        let mut is_gone = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !tables.listening(Protocol::Tcp).unwrap().contains(&port)
                && !tables.listening(Protocol::Udp).unwrap().contains(&udp_port)
        };
        assert!((0..500).any(|_| is_gone()));
    }
}
