//! The ports on which programs in a network namespace listen.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;

use super::child::{Message, in_child};
use super::{Namespaces, failed};
use crate::forward::Protocol;

/// The kernel's tables, in this order.
const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// `TCP_LISTEN`, and the state of a UDP socket without a peer (`TCP_CLOSE`).
const LISTEN: &str = "0A";
const UNCONNECTED: &str = "07";

/// Open tables of the sockets in a network namespace. They can be read from outside.
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

    /// Returns the ports that have a listening TCP socket, or an unconnected UDP socket, sorted.
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
            let mut text = String::new();
            table.rewind()?;
            table.read_to_string(&mut text)?;
            ports.extend(text.lines().skip(1).filter_map(|line| port(line, state)));
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

/// Returns the local port of a line `sl: ADDRESS:PORT ADDRESS:PORT STATE ...` in this state.
fn port(line: &str, state: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    let is_wanted = words.nth(1)? == state;
    let port = u16::from_str_radix(port, 16).ok()?;
    is_wanted.then_some(port)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::SocketTables;
    use crate::forward::Protocol;

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
