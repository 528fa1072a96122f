//! The sockets and messages with which the relay queries the resolvers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;

use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::config::Outbound;
use crate::message::dns::Query;
use crate::outbound_socket::bind_outbound;

/// Longest answer, bytes: the payload of the longest datagram.
const MAX_ANSWER: usize = 65_535;

/// A query of the guest with an identifier chosen by the relay, which an attacker cannot derive from the
/// guest's (RFC 5452 4).
pub(super) struct UpstreamQuery<'a> {
    query: &'a Query<'a>,
    id: u16,
    /// The message to the resolver.
    pub(super) message: Vec<u8>,
}

impl<'a> UpstreamQuery<'a> {
    pub(super) fn new(query: &'a Query<'a>, message: &[u8]) -> Self {
        // A keyed hash whose keys the operating system has chosen.
        let id = RandomState::new().build_hasher().finish() as u16;
        let mut message = message.to_vec();
        message[..2].copy_from_slice(&id.to_be_bytes());
        Self { query, id, message }
    }

    /// Replaces the identifier of an answer with the guest's. Returns `None` if it does not answer the
    /// query.
    pub(super) fn accept(&self, mut answer: Vec<u8>) -> Option<Vec<u8>> {
        if !self.query.is_answered_by(self.id, &answer) {
            return None;
        }
        answer[..2].copy_from_slice(&self.query.id.to_be_bytes());
        Some(answer)
    }
}

/// Opens a socket on its own port that is connected to a resolver.
pub(super) fn connect_udp(resolver: SocketAddr, outbound: &Outbound) -> io::Result<UdpSocket> {
    let socket = open(resolver, Type::DGRAM, Protocol::UDP, outbound)?;
    socket.connect(&resolver.into())?;
    UdpSocket::from_std(socket.into())
}

/// Waits for a datagram, or for an ICMP error about one that was sent, such as a closed port.
///
/// # Errors
/// The error of the operating system.
pub(super) async fn receive_answer(socket: &UdpSocket) -> io::Result<Vec<u8>> {
    // An error alone does not make a socket readable.
    let interest = Interest::READABLE | Interest::ERROR;
    let receive = || {
        // The buffer is allocated only once there is a datagram.
        let mut answer = vec![0; MAX_ANSWER];
        let (_, len) = rustix::net::recv(socket, &mut answer[..], RecvFlags::DONTWAIT)?;
        answer.truncate(len);
        answer.shrink_to_fit();
        Ok(answer)
    };
    socket.async_io(interest, receive).await
}

/// Connects to a resolver.
pub(super) async fn connect_tcp(
    resolver: SocketAddr,
    outbound: &Outbound,
) -> io::Result<TcpStream> {
    let socket = open(resolver, Type::STREAM, Protocol::TCP, outbound)?;
    let socket = TcpSocket::from_std_stream(socket.into());
    socket.connect(resolver).await
}

fn open(
    resolver: SocketAddr,
    kind: Type,
    protocol: Protocol,
    outbound: &Outbound,
) -> io::Result<Socket> {
    let kind = kind.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(resolver), kind, Some(protocol))?;
    // A resolver of this host, such as systemd-resolved, answers loopback addresses only.
    if !resolver.ip().is_loopback() {
        bind_outbound(&socket, resolver, outbound)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::message::dns::ResponseCode;

    const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01";

    #[tokio::test(start_paused = true)]
    async fn a_closed_port_is_an_error_at_once() {
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let resolver = closed.local_addr().unwrap();
        drop(closed);
        let socket = connect_udp(resolver, &Outbound::default()).unwrap();
        socket.send(QUERY).await.unwrap();
        // The time is virtual: it passes only if nothing wakes the task.
        let received = timeout(Duration::from_secs(1), receive_answer(&socket)).await;
        let error = received.expect("the error wakes the task").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        // A later answer is received.
        let server = std::net::UdpSocket::bind(resolver).unwrap();
        let from = socket.local_addr().unwrap();
        server.send_to(b"answer", from).unwrap();
        assert_eq!(receive_answer(&socket).await.unwrap(), b"answer");
    }

    #[test]
    fn identifiers_differ_from_the_guests_and_are_restored() {
        let query = Query::parse(QUERY).unwrap();
        let mut ids = Vec::new();
        for _ in 0..100 {
            let upstream = UpstreamQuery::new(&query, QUERY);
            assert_eq!(upstream.message[2..], QUERY[2..]);
            let sent = Query::parse(&upstream.message).unwrap();
            let answer = sent.respond(ResponseCode::NoError);
            let to_guest = upstream.accept(answer).unwrap();
            assert_eq!(to_guest[..2], QUERY[..2]);
            // An answer with the guest's identifier is a guess.
            let guess = query.respond(ResponseCode::NoError);
            assert!(sent.id == query.id || upstream.accept(guess).is_none());
            ids.push(sent.id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() > 90, "{} identifiers", ids.len());
    }
}
