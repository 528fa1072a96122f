//! Resolvers of names to addresses.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use crate::stack::Stack;

/// The future of [`Resolve::resolve`].
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// A resolver of names, which [`Builder::resolver`](crate::Builder::resolver) or
/// [`Stack::set_resolver`] sets for a stack. [`SystemResolver`] queries the operating system,
/// [`DnsResolver`](crate::DnsResolver) DNS servers over the stack. `localhost` is the stack itself,
/// whatever the resolver (RFC 6761 6.3).
///
/// # Example
/// A resolver with one name:
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Resolve, Resolving, Stack, TcpListener, TcpStream};
///
/// struct Hosts;
///
/// impl Resolve for Hosts {
///     fn resolve<'a>(&'a self, _: &'a Stack, name: &'a str) -> Resolving<'a> {
///         Box::pin(async move {
///             match name {
///                 "server.test" => Ok(vec!["10.0.0.2".parse().unwrap()]),
///                 _ => Err(std::io::ErrorKind::NotFound.into()),
///             }
///         })
///     }
/// }
///
/// let (here, there) = Stack::pair(&Pair::default())?;
/// here.set_resolver(Hosts);
/// let _listener = TcpListener::bind(&there, "10.0.0.2:80")?;
/// let stream = TcpStream::connect(&here, "server.test:80").await?;
/// assert_eq!(stream.peer_addr()?, "10.0.0.2:80".parse().unwrap());
/// # Ok(()) }
/// ```
pub trait Resolve: Send + Sync + 'static {
    /// Returns the addresses of host `name`, in the order in which they are to be tried. `stack` is the
    /// stack that connects or sends to the host; the resolver must not keep a handle to it, because the
    /// stack would then not end.
    ///
    /// The future's errors are returned by the call that needs the address.
    fn resolve<'a>(&'a self, stack: &'a Stack, name: &'a str) -> Resolving<'a>;
}

/// The operating system's resolver (`getaddrinfo`), which uses the host's files and network and not
/// the stack: in a VPN, its queries leave outside of the tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, _: &'a Stack, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot resolve {name:?}: {error}"))
            })?;
            Ok(found.map(|addr| addr.ip()).collect())
        })
    }
}
