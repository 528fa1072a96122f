//! A resolver that queries DNS servers over the stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fullsend_wire::dns::{self, Data, MAX_QUERY_LEN, Response, kind, rcode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::addr::{LOOPBACK, is_localhost};
use crate::resolve::{Resolve, Resolving};
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::udp::UdpSocket;

/// The port of DNS servers.
const PORT: u16 = 53;
/// Most addresses of one name; further ones are ignored.
const MAX_ADDRESSES: usize = 64;
/// Most aliases that lead from a name to its addresses.
const MAX_ALIASES: usize = 8;
/// Most datagrams that are read while one answer is awaited; forged ones are among them.
const MAX_DATAGRAMS: usize = 64;
/// Longest datagram that is read.
const MAX_DATAGRAM: usize = 4096;

/// A resolver that queries DNS servers over the stack (RFC 1035), with UDP, or with TCP if an answer
/// is too long for a datagram. Set it with [`Builder::dns_server`](crate::Builder::dns_server), or with
/// [`Stack::set_resolver`].
///
/// It queries the servers in turn, for IPv4 and IPv6 addresses at once as far as the stack has
/// addresses of that family, and returns those of IPv6 first. Each query has a random ID and a random
/// port; answers to other questions are ignored. It has no cache, and reads no file of the operating
/// system; `localhost` is the stack itself.
///
/// # Example
/// ```no_run
/// # async fn example(stack: fullsend::Stack) -> std::io::Result<()> {
/// use fullsend::{DnsResolver, TcpStream};
///
/// stack.set_resolver(DnsResolver::new(["10.9.0.1".parse().unwrap()]));
/// let stream = TcpStream::connect(&stack, "example.com:80").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DnsResolver {
    servers: Vec<SocketAddr>,
    timeout: Duration,
    attempts: u32,
}

impl DnsResolver {
    /// Returns a resolver that queries port 53 of these servers, in order.
    pub fn new(servers: impl IntoIterator<Item = IpAddr>) -> Self {
        let servers = servers.into_iter().map(|ip| SocketAddr::new(ip, PORT));
        Self::with_ports(servers)
    }

    /// Returns a resolver that queries these servers, in order.
    pub fn with_ports(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            servers: servers.into_iter().collect(),
            timeout: Duration::from_secs(5),
            attempts: 2,
        }
    }

    /// Sets the time to wait for the answer of one server; 5 s by default.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of queries to each server, at least one; two by default.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    async fn addresses(&self, stack: &Stack, name: &str) -> io::Result<Vec<IpAddr>> {
        let has = |v6: bool| {
            let mut own = stack.addresses().into_iter();
            own.any(|own| own.cidr.addr.is_ipv6() == v6)
        };
        let (v6, v4) = tokio::join!(
            self.query_if(has(true), stack, name, kind::AAAA),
            self.query_if(has(false), stack, name, kind::A),
        );
        match (v6, v4) {
            (Ok(mut v6), Ok(v4)) => {
                v6.extend(v4);
                Ok(v6)
            }
            (Ok(addresses), Err(error)) | (Err(error), Ok(addresses)) => {
                if addresses.is_empty() {
                    return Err(error);
                }
                Ok(addresses)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    async fn query_if(
        &self,
        has_family: bool,
        stack: &Stack,
        name: &str,
        kind: u16,
    ) -> io::Result<Vec<IpAddr>> {
        if has_family {
            self.query(stack, name, kind).await
        } else {
            Ok(Vec::new())
        }
    }

    /// Queries the servers in turn until one answers.
    async fn query(&self, stack: &Stack, name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
        let mut failure = io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "cannot resolve {name:?}: there is no DNS server; pass one to DnsResolver::new"
            ),
        );
        for _ in 0..self.attempts.max(1) {
            for &server in &self.servers {
                let query = Query::new(stack, name, kind)?;
                let answer = timeout(self.timeout, query.exchange(stack, server)).await;
                let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                match answer {
                    Ok(addresses) => return Ok(addresses),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                    Err(error) => {
                        let text = format!("cannot resolve {name:?} with {server}: {error}");
                        failure = io::Error::new(error.kind(), text);
                    }
                }
            }
        }
        Err(failure)
    }
}

impl Resolve for DnsResolver {
    fn resolve<'a>(&'a self, stack: &'a Stack, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            // Queries for `localhost` are not sent (RFC 6761 6.3).
            if is_localhost(name) {
                return Ok(LOOPBACK.to_vec());
            }
            self.addresses(stack, name).await
        })
    }
}

/// A query for the addresses of one family.
struct Query<'a> {
    id: u16,
    name: &'a str,
    kind: u16,
    message: [u8; MAX_QUERY_LEN],
    len: usize,
}

impl<'a> Query<'a> {
    fn new(stack: &Stack, name: &'a str, kind: u16) -> io::Result<Self> {
        let id = stack.engine.op(|host, _| Ok(host.random_u64()))? as u16;
        let mut message = [0; MAX_QUERY_LEN];
        let len = dns::emit_query(id, name, kind, &mut message).map_err(|_| {
            let text = format!(
                "{name:?} is not a host name: labels have 1 to 63 ASCII characters; write other \
                 names in their ASCII form (xn--...)"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(Self {
            id,
            name,
            kind,
            message,
            len,
        })
    }

    async fn exchange(&self, stack: &Stack, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
        let any: IpAddr = if server.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind(stack, (any, 0))?;
        socket.connect(server).await?;
        socket.send(&self.message[..self.len]).await?;
        let mut buf = vec![0; MAX_DATAGRAM];
        for _ in 0..MAX_DATAGRAMS {
            let (len, from) = socket.recv_from(&mut buf).await?;
            // A datagram from another host may have arrived before the socket was connected.
            let is_server = from.ip().to_canonical() == server.ip().to_canonical();
            if !is_server || from.port() != server.port() {
                continue;
            }
            if let Some(response) = self.parse(&buf[..len]) {
                if response.is_truncated() {
                    return self.exchange_over_tcp(stack, server).await;
                }
                return self.addresses(&response);
            }
        }
        Err(io::Error::other("too many datagrams are not the answer"))
    }

    async fn exchange_over_tcp(
        &self,
        stack: &Stack,
        server: SocketAddr,
    ) -> io::Result<Vec<IpAddr>> {
        let mut stream = TcpStream::connect(stack, server).await?;
        let mut framed = (self.len as u16).to_be_bytes().to_vec();
        framed.extend_from_slice(&self.message[..self.len]);
        stream.write_all(&framed).await?;
        let mut answer = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut answer).await?;
        let response = self.parse(&answer).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the answer is not a valid one")
        })?;
        self.addresses(&response)
    }

    /// Returns the response if it answers this query.
    fn parse<'m>(&self, message: &'m [u8]) -> Option<Response<'m>> {
        let response = Response::new(message).ok()?;
        let is_answer = response.id() == self.id && response.is_about(self.name, self.kind);
        is_answer.then_some(response)
    }

    /// Returns the addresses in a response.
    fn addresses(&self, response: &Response<'_>) -> io::Result<Vec<IpAddr>> {
        match response.rcode() {
            rcode::NO_ERROR => {}
            rcode::NAME_ERROR => {
                let text = format!("{:?} does not exist; check the name", self.name);
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
            code => {
                let text = format!("the server answers with the response code {code}");
                return Err(io::Error::other(text));
            }
        }
        let mut name = response.question();
        for _ in 0..MAX_ALIASES {
            let alias = response.answers().find_map(|answer| match answer.data {
                Data::Alias(alias) if answer.owner.is_same(name) => Some(alias),
                _ => None,
            });
            let Some(alias) = alias else { break };
            name = alias;
        }
        let addresses = response.answers().filter_map(|answer| match answer.data {
            Data::Address(ip) if answer.kind == self.kind && answer.owner.is_same(name) => Some(ip),
            _ => None,
        });
        Ok(addresses.take(MAX_ADDRESSES).collect())
    }
}
