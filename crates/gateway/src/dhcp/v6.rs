//! The DHCPv6 server. It has one address, so that it keeps no state.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use fullsend::{Stack, UdpSocket};

use crate::config::Ipv6Config;
use crate::counters::add;
use crate::gateway::Shared;
use crate::message::dhcpv6::{ClientMessage, Settings};

const SERVER_PORT: u16 = 547;
const LIFETIME_S: u32 = 86_400;
/// The group of all relay agents and servers (RFC 8415 7.1).
const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// Longest message that is read.
const MAX_MESSAGE: usize = 1500;

/// Opens the server's socket.
///
/// # Errors
/// The errors of [`UdpSocket::bind`].
pub(crate) fn open(stack: &Stack) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(stack, (Ipv6Addr::UNSPECIFIED, SERVER_PORT))?;
    socket.join_multicast_v6(&ALL_SERVERS, 0)?;
    Ok(socket)
}

/// Serves DHCPv6 until the stack stops.
pub(crate) async fn serve(shared: Arc<Shared>, config: Ipv6Config, socket: UdpSocket) {
    if let Err(error) = try_serve(&shared, &config, &socket).await {
        tracing::debug!(%error, "the DHCPv6 server has ended");
    }
}

async fn try_serve(shared: &Shared, config: &Ipv6Config, socket: &UdpSocket) -> io::Result<()> {
    let from = SocketAddr::from((shared.link_local(), SERVER_PORT));
    let settings = settings(shared, config);
    let mut buf = vec![0; MAX_MESSAGE];
    loop {
        let (len, client) = socket.recv_from(&mut buf).await?;
        shared.record_link_local(client.ip());
        let answer = ClientMessage::parse(&buf[..len]).and_then(|m| m.answer(&settings));
        let Some(answer) = answer else {
            continue;
        };
        match socket.send_from(&answer, from, client).await {
            Ok(_) => add(&shared.counters.dhcp_answers, 1),
            Err(error) => tracing::debug!(%error, %client, "a DHCPv6 answer was not sent"),
        }
    }
}

fn settings(shared: &Shared, config: &Ipv6Config) -> Settings {
    let dns = &shared.config.dns;
    let fqdn = dns.host_name.as_ref().map(|host| match &dns.domain {
        Some(domain) => format!("{host}.{domain}"),
        None => host.clone(),
    });
    Settings {
        mac: shared.config.mac,
        address: config.guest,
        dns: announced_resolvers(&dns.announce, config),
        search: dns.search.clone(),
        fqdn,
        lifetime_s: LIFETIME_S,
    }
}

/// Returns the IPv6 resolvers that are announced to the guest.
pub(crate) fn announced_resolvers(announce: &[IpAddr], config: &Ipv6Config) -> Vec<Ipv6Addr> {
    if announce.is_empty() {
        return config.dns.into_iter().collect();
    }
    let v6 = announce.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    });
    v6.collect()
}
