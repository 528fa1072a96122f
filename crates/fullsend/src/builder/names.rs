//! The resolver of a stack's names.

use std::net::IpAddr;
use std::sync::Arc;

use super::Builder;
use crate::dns::DnsResolver;
use crate::resolve::Resolve;

impl Builder {
    /// Adds a DNS server, which the stack queries over its own network (see [`DnsResolver`]) for names
    /// such as `TcpStream::connect(&stack, "example.com:80")`. Call it once for each server, in the order
    /// in which they are to be queried.
    ///
    /// Without a server or a [`resolver`](Self::resolver), the operating system resolves names, over the
    /// *host's* network. Names that should stay within a tunnel are then revealed outside of it; the
    /// stack logs a warning at the first name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Stack, UserDeviceConfig};
    ///
    /// let (builder, _port) = Stack::builder().user_device(UserDeviceConfig::ip(1420));
    /// let stack = builder.address("10.9.0.2/24").dns_server([10, 9, 0, 1]).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn dns_server(mut self, server: impl Into<IpAddr>) -> Self {
        self.dns_servers.push(server.into());
        self
    }

    /// Sets the resolver of names, which replaces the DNS servers.
    /// [`SystemResolver`](crate::SystemResolver) selects the operating system's.
    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Returns the chosen resolver, or `None`.
    pub(super) fn take_resolver(&mut self) -> Option<Arc<dyn Resolve>> {
        let servers = std::mem::take(&mut self.dns_servers);
        let dns = (!servers.is_empty()).then(|| Arc::new(DnsResolver::new(servers)) as _);
        self.resolver.take().or(dns)
    }
}
