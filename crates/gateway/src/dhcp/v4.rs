//! The DHCPv4 server (RFC 2131 4.3).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fullsend::UdpSocket;
use tokio::time::Instant;

use super::leases::Leases;
use crate::config::Ipv4Config;
use crate::counters::add;
use crate::gateway::Shared;
use crate::message::dhcp::{ClientMessage, MessageType, Settings};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const LEASE_TIME: Duration = Duration::from_hours(24);
/// Longest message that is read.
const MAX_MESSAGE: usize = 1500;

/// Serves DHCP until the stack stops.
pub(crate) async fn serve(shared: Arc<Shared>, config: Ipv4Config) {
    if let Err(error) = try_serve(&shared, &config).await {
        tracing::debug!(%error, "the DHCP server has ended");
    }
}

async fn try_serve(shared: &Shared, config: &Ipv4Config) -> io::Result<()> {
    let socket = UdpSocket::bind(&shared.stack, (Ipv4Addr::UNSPECIFIED, SERVER_PORT))?;
    let from = SocketAddr::from((config.gateway, SERVER_PORT));
    let mut leases = Leases::new(config);
    let settings = settings(shared, config);
    let mut buf = vec![0; MAX_MESSAGE];
    loop {
        let (len, _) = socket.recv_from(&mut buf).await?;
        let Some(message) = ClientMessage::parse(&buf[..len]) else {
            continue;
        };
        let Some((kind, yours)) = decide(&mut leases, config, &message) else {
            continue;
        };
        let answer = message.answer(kind, yours, &settings);
        // RFC 2131 4.1: a client that has no address receives broadcasts.
        let to = match message.client_address {
            Some(address) if kind == MessageType::Ack => address,
            _ => Ipv4Addr::BROADCAST,
        };
        let to = SocketAddr::from((to, CLIENT_PORT));
        match socket.send_from(&answer, from, to).await {
            Ok(_) => add(&shared.counters.dhcp_answers, 1),
            Err(error) => tracing::debug!(%error, %to, "a DHCP answer was not sent"),
        }
    }
}

/// Returns the type of the answer and the client's address, or `None` if there is no answer.
fn decide(
    leases: &mut Leases,
    config: &Ipv4Config,
    message: &ClientMessage,
) -> Option<(MessageType, Option<Ipv4Addr>)> {
    let (now, client) = (Instant::now(), &message.client_id);
    let for_us = message.server.is_none_or(|server| server == config.gateway);
    match message.message_type {
        MessageType::Discover => {
            let yours = leases.offer(now, client, message.requested)?;
            Some((MessageType::Offer, Some(yours)))
        }
        MessageType::Request if for_us => {
            let requested = message.requested.or(message.client_address)?;
            if leases.confirm(now, client, requested, LEASE_TIME) {
                Some((MessageType::Ack, Some(requested)))
            } else {
                Some((MessageType::Nak, None))
            }
        }
        MessageType::Inform => Some((MessageType::Ack, None)),
        MessageType::Release | MessageType::Decline => {
            leases.release(client);
            None
        }
        _ => None,
    }
}

fn settings(shared: &Shared, config: &Ipv4Config) -> Settings {
    let dns = &shared.config.dns;
    let announced = dns.announce.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let mut resolvers: Vec<_> = announced.collect();
    if dns.announce.is_empty() {
        resolvers.extend(config.dns);
    }
    Settings {
        server: config.gateway,
        prefix: config.prefix,
        router: config.gateway,
        dns: resolvers,
        mtu: u16::try_from(shared.config.mtu).unwrap_or(u16::MAX),
        lease_s: LEASE_TIME.as_secs() as u32,
        host_name: dns.host_name.clone(),
        domain: dns.domain.clone(),
        search: dns.search.clone(),
    }
}
