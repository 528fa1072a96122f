//! Sockets and messages of the relay's own queries to the resolvers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::config::Outbound;
use crate::message::dns::Query;
use crate::outbound_socket::bind_outbound;

/// A query of the guest with an identifier of the relay's own, which an attacker cannot guess from
/// the guest's (RFC 5452 4).
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

    /// Gives an answer the guest's identifier. `None` if it does not answer the query.
    pub(super) fn accept(&self, mut answer: Vec<u8>) -> Option<Vec<u8>> {
        if !self.query.is_answered_by(self.id, &answer) {
            return None;
        }
        answer[..2].copy_from_slice(&self.query.id.to_be_bytes());
        Some(answer)
    }
}

/// Opens a socket that is connected to a resolver, from a port of its own.
pub(super) fn connect_udp(resolver: SocketAddr, outbound: &Outbound) -> io::Result<UdpSocket> {
    let socket = open(resolver, Type::DGRAM, Protocol::UDP, outbound)?;
    socket.connect(&resolver.into())?;
    UdpSocket::from_std(socket.into())
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
    // A resolver of this host, such as systemd-resolved, answers only to the loopback's addresses.
    if !resolver.ip().is_loopback() {
        bind_outbound(&socket, resolver, outbound)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::dns::ResponseCode;

    const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01";

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
