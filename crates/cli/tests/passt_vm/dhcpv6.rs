//! A DHCPv6 client for a guest (RFC 8415), whose busybox has none.

use std::fs;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::Duration;

const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const CLIENT_PORT: u16 = 546;
const SERVER_PORT: u16 = 547;
/// Attempts, of a second each.
const ATTEMPTS: usize = 30;

// Messages and options.
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const REPLY: u8 = 7;
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;

/// Requests an address for `eth0` with the four messages of DHCPv6, and returns it.
pub(crate) fn request_address() -> io::Result<Ipv6Addr> {
    let index = fs::read_to_string("/sys/class/net/eth0/ifindex")?;
    let scope = index.trim().parse().expect("a number");
    let socket = UdpSocket::bind(SocketAddrV6::new(
        Ipv6Addr::UNSPECIFIED,
        CLIENT_PORT,
        0,
        scope,
    ))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let servers = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, scope);
    let identity = [0, 3, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56];
    let own = [
        option(CLIENT_ID, &identity),
        option(IA_NA, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
    ]
    .concat();
    let advertised = exchange(&socket, servers, (SOLICIT, ADVERTISE), &own)?;
    let server = find(&advertised, SERVER_ID).expect("a server has an identity");
    let chosen = [own, option(SERVER_ID, server)].concat();
    let reply = exchange(&socket, servers, (REQUEST, REPLY), &chosen)?;
    let association = find(&reply, IA_NA).expect("an answer has the association");
    let address = find(&association[12..], IA_ADDRESS).expect("it has an address");
    Ok(Ipv6Addr::from(*address.first_chunk().expect("16 bytes")))
}

/// Sends a message each second until its answer arrives, and returns the options of that.
fn exchange(
    socket: &UdpSocket,
    servers: SocketAddrV6,
    (message, answer): (u8, u8),
    options: &[u8],
) -> io::Result<Vec<u8>> {
    let request = [&[message, 1, 2, message], options].concat();
    for _ in 0..ATTEMPTS {
        socket.send_to(&request, servers)?;
        let mut bytes = [0; 1500];
        // An error is a timeout.
        let Ok(len) = socket.recv(&mut bytes) else {
            continue;
        };
        if bytes[0] == answer && bytes[1..4] == request[1..4] {
            return Ok(bytes[4..len].to_vec());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let header = [code.to_be_bytes(), (value.len() as u16).to_be_bytes()];
    [header.as_flattened(), value].concat()
}

/// Returns the value of an option.
fn find(mut options: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [a, b, c, d, rest @ ..] = options {
        let (value, behind) = rest.split_at(usize::from(u16::from_be_bytes([*c, *d])));
        if u16::from_be_bytes([*a, *b]) == wanted {
            return Some(value);
        }
        options = behind;
    }
    None
}
