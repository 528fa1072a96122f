//! Conversion to socket addresses and names, from every form that `tokio::net::ToSocketAddrs` accepts.

use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use smallvec::SmallVec;

use crate::engine::Engine;

/// Socket addresses, or a name that a [`Resolve`](crate::Resolve) turns into them, as [`ToAddrs`] returns
/// them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addrs(Target);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Target {
    Literal(SmallVec<[SocketAddr; 1]>),
    Name(String, u16),
}

impl Addrs {
    /// Returns these addresses, to be tried in order.
    pub fn literal(addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(Target::Literal(addrs.into_iter().collect()))
    }

    /// Returns the addresses of host `name` with `port`. An IP address is a literal one.
    pub fn name(name: &str, port: u16) -> Self {
        match name.parse::<IpAddr>() {
            Ok(ip) => Self::literal([SocketAddr::new(ip, port)]),
            Err(_) => Self(Target::Name(name.to_owned(), port)),
        }
    }

    /// Returns the addresses to try, in order. A name is resolved by the stack's resolver.
    pub(crate) async fn resolve(self, engine: &Engine) -> io::Result<SmallVec<[SocketAddr; 1]>> {
        let (name, port) = match self.0 {
            Target::Literal(addrs) => return checked(addrs),
            Target::Name(name, port) if is_localhost(&name) => return Ok(loopback(port)),
            Target::Name(name, port) => (name, port),
        };
        let ips = engine.group.resolve(&name).await?;
        if ips.is_empty() {
            let text = format!("{name:?} has no address; check the name");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        Ok(ips
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect())
    }

    /// Returns the first address that [`resolve`](Self::resolve) would return.
    pub(crate) async fn resolve_first(self, engine: &Engine) -> io::Result<SocketAddr> {
        if let Target::Literal(addrs) = &self.0
            && let Some(&first) = addrs.first()
        {
            return Ok(first);
        }
        Ok(self.resolve(engine).await?[0])
    }

    /// Returns the addresses to bind to, in order, without a resolver: the only name with addresses is
    /// `localhost` (RFC 6761 6.3).
    pub(crate) fn local(self) -> io::Result<SmallVec<[SocketAddr; 1]>> {
        match self.0 {
            Target::Literal(addrs) => checked(addrs),
            Target::Name(name, port) if is_localhost(&name) => Ok(loopback(port)),
            Target::Name(name, _) => {
                let text = format!(
                    "{name:?} is not an IP address, and this call does not wait for a resolver; \
                     write an address, or await bind_resolved"
                );
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
        }
    }

    /// Calls `bind` with each of the addresses to bind to until it succeeds. Returns its last error.
    pub(crate) fn bind<T>(self, bind: impl FnMut(SocketAddr) -> io::Result<T>) -> io::Result<T> {
        bind_any(&self.local()?, bind)
    }
}

/// Calls `bind` with each address until it succeeds. Returns its last error.
pub(crate) fn bind_any<T>(
    addrs: &[SocketAddr],
    mut bind: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut result = Err(ErrorKind::InvalidInput.into());
    for addr in addrs {
        result = bind(*addr);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The addresses of `localhost`.
pub(crate) const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

fn loopback(port: u16) -> SmallVec<[SocketAddr; 1]> {
    let addrs = LOOPBACK.iter().map(|ip| SocketAddr::new(*ip, port));
    addrs.collect()
}

/// Returns whether a name stands for the stack itself, as `localhost` and all names below it do; no server
/// is asked for them (RFC 6761 6.3).
pub(crate) fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

/// Returns an error for an empty list of addresses.
fn checked(addrs: SmallVec<[SocketAddr; 1]>) -> io::Result<SmallVec<[SocketAddr; 1]>> {
    if addrs.is_empty() {
        let text = "the list of addresses is empty; pass at least one";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(addrs)
}

impl From<SocketAddr> for Addrs {
    fn from(addr: SocketAddr) -> Self {
        Self::literal([addr])
    }
}

/// Conversion to socket addresses to connect, send or bind to, for `SocketAddr`, `"10.0.0.2:80"`,
/// `"[fd00::2]:80"`, `"example.com:80"`, `(ip, port)`, `("example.com", 80)` and `&[SocketAddr]`. It
/// corresponds to `tokio::net::ToSocketAddrs`.
pub trait ToAddrs {
    /// Returns the addresses, or the name to resolve.
    ///
    /// # Errors
    /// `InvalidInput` for a string that is not a name or an IP address with a port.
    fn to_addrs(&self) -> io::Result<Addrs>;
}

macro_rules! to_addrs {
    ($($ty:ty),*) => {$(
        impl ToAddrs for $ty {
            fn to_addrs(&self) -> io::Result<Addrs> {
                Ok(SocketAddr::from(*self).into())
            }
        }
    )*};
}

to_addrs!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    ([u8; 4], u16)
);

impl ToAddrs for str {
    fn to_addrs(&self) -> io::Result<Addrs> {
        if let Ok(addr) = self.parse::<SocketAddr>() {
            return Ok(addr.into());
        }
        let parts = self
            .rsplit_once(':')
            .filter(|(name, _)| !name.contains(':'));
        let named = parts.and_then(|(name, port)| Some((name, port.parse().ok()?)));
        let Some((name, port)) = named.filter(|(name, _)| !name.is_empty()) else {
            let text = format!(
                "{self:?} is not a host with a port; write e.g. example.com:80, 10.0.0.2:80 or \
                 [fd00::2]:80"
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        };
        Ok(Addrs::name(name, port))
    }
}

impl ToAddrs for String {
    fn to_addrs(&self) -> io::Result<Addrs> {
        self.as_str().to_addrs()
    }
}

impl ToAddrs for (&str, u16) {
    fn to_addrs(&self) -> io::Result<Addrs> {
        Ok(Addrs::name(self.0, self.1))
    }
}

impl ToAddrs for (String, u16) {
    fn to_addrs(&self) -> io::Result<Addrs> {
        Ok(Addrs::name(&self.0, self.1))
    }
}

impl ToAddrs for [SocketAddr] {
    fn to_addrs(&self) -> io::Result<Addrs> {
        Ok(Addrs::literal(self.iter().copied()))
    }
}

impl ToAddrs for Addrs {
    fn to_addrs(&self) -> io::Result<Addrs> {
        Ok(self.clone())
    }
}

impl<T: ToAddrs + ?Sized> ToAddrs for &T {
    fn to_addrs(&self) -> io::Result<Addrs> {
        (**self).to_addrs()
    }
}

/// Returns an error for port 0, which cannot be a destination.
pub(crate) fn check_port(remote: SocketAddr) -> io::Result<()> {
    if remote.port() == 0 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{remote} has port 0; write the port to connect to"),
        ));
    }
    Ok(())
}
