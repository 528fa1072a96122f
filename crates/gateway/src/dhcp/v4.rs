//! The DHCPv4 server (RFC 2131 4.3).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fullsend::{Stack, UdpSocket};
use tokio::time::Instant;

use super::leases::{Client, Leases};
use crate::config::Ipv4Config;
use crate::counters::add;
use crate::gateway::Shared;
use crate::message::dhcp::{ClientMessage, MessageType, Settings};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const LEASE_TIME: Duration = Duration::from_secs(24 * 3600);
/// Longest message that is read.
const MAX_MESSAGE: usize = 1500;

/// Opens the server's socket.
///
/// # Errors
/// The errors of [`UdpSocket::bind`].
pub(crate) fn open(stack: &Stack) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(stack, (Ipv4Addr::UNSPECIFIED, SERVER_PORT))?;
    // Clients without an address receive broadcasts only (RFC 2131 4.1).
    socket.set_broadcast(true)?;
    Ok(socket)
}

/// Serves DHCP until the stack stops.
pub(crate) async fn serve(shared: Arc<Shared>, config: Ipv4Config, socket: UdpSocket) {
    if let Err(error) = try_serve(&shared, &config, &socket).await {
        tracing::debug!(%error, "the DHCP server has ended");
    }
}

async fn try_serve(shared: &Shared, config: &Ipv4Config, socket: &UdpSocket) -> io::Result<()> {
    let from = SocketAddr::from((config.gateway, SERVER_PORT));
    let settings = settings(shared, config);
    let mut buf = vec![0; MAX_MESSAGE];
    loop {
        let (len, source) = socket.recv_from(&mut buf).await?;
        let Some(message) = ClientMessage::parse(&buf[..len]) else {
            continue;
        };
        let Some((kind, yours)) = decide(shared, config, &message) else {
            continue;
        };
        let answer = message.answer(kind, yours, &settings);
        let to = destination(&message, (kind, yours), source.ip());
        let to = SocketAddr::from((to, CLIENT_PORT));
        match socket.send_from(&answer, from, to).await {
            Ok(_) => add(&shared.counters.dhcp_answers, 1),
            Err(error) => tracing::debug!(%error, %to, "a DHCP answer was not sent"),
        }
    }
}

/// Returns the destination of an answer. A client without an address receives broadcasts (RFC 2131 4.1).
/// An address that the client has not proven to be its own gets no answer.
fn destination(
    message: &ClientMessage,
    (kind, yours): (MessageType, Option<Ipv4Addr>),
    source: IpAddr,
) -> Ipv4Addr {
    let claimed = message.client_address.filter(|_| kind == MessageType::Ack);
    claimed
        .filter(|address| yours == Some(*address) || source == IpAddr::V4(*address))
        .unwrap_or(Ipv4Addr::BROADCAST)
}

/// Returns the type of the answer and the client's address, or `None` if there is no answer.
fn decide(
    shared: &Shared,
    config: &Ipv4Config,
    message: &ClientMessage,
) -> Option<(MessageType, Option<Ipv4Addr>)> {
    let (now, guests) = (Instant::now(), &shared.guests);
    // The switch has verified the Ethernet address, but not the identifier.
    let id = if guests.are_several() {
        &message.mac[..]
    } else {
        &message.client_id
    };
    let guest = guests.port_of_mac(message.mac);
    if guests.are_several() && guest.is_none() {
        return None;
    }
    // The identifier of a declined address is empty. A guest whose link was connected again has another
    // port.
    let is_present = |id: &[u8]| {
        let mac = <[u8; 6]>::try_from(id);
        mac.is_ok_and(|mac| guests.port_of_mac(mac).is_some()) || id.is_empty()
    };
    let client = Client {
        id,
        guest,
        is_present: &is_present,
    };
    let end_leases = |leases: &mut Leases| {
        for address in leases.take_ended() {
            guests.end_lease(address.into());
        }
    };
    let mut leases = shared.leases.lock();
    let for_us = message.server.is_none_or(|server| server == config.gateway);
    match message.message_type {
        MessageType::Discover => {
            let yours = leases.offer(now, &client, message.requested);
            end_leases(&mut leases);
            Some((MessageType::Offer, Some(yours?)))
        }
        MessageType::Request if for_us => {
            let requested = message.requested.or(message.client_address)?;
            let is_confirmed = leases.confirm(now, &client, requested, LEASE_TIME);
            end_leases(&mut leases);
            if is_confirmed {
                leases.set_mac(id, message.mac);
                guests.lease(requested.into(), message.mac, LEASE_TIME);
                Some((MessageType::Ack, Some(requested)))
            } else {
                Some((MessageType::Nak, None))
            }
        }
        MessageType::Inform => Some((MessageType::Ack, None)),
        MessageType::Release if for_us => {
            leases.release(id);
            end_leases(&mut leases);
            None
        }
        MessageType::Decline if for_us => {
            leases.decline(now, id);
            end_leases(&mut leases);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn message(message_type: u8, claimed: [u8; 4]) -> ClientMessage {
        message_with(message_type, claimed, &[])
    }

    /// Returns a message of the client with the address [`MAC`] with further options.
    fn message_with(message_type: u8, claimed: [u8; 4], options: &[u8]) -> ClientMessage {
        let mut bytes = vec![0; 236];
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[12..16].copy_from_slice(&claimed);
        bytes[28..34].copy_from_slice(&MAC);
        bytes.extend([99, 130, 83, 99, 53, 1, message_type]);
        bytes.extend(options);
        bytes.push(255);
        ClientMessage::parse(&bytes).unwrap()
    }

    /// Returns the decision of a gateway about a message, and the number of its leases and offers.
    fn decision(
        builder: crate::Builder,
        message: &ClientMessage,
    ) -> (Option<(MessageType, Option<Ipv4Addr>)>, usize) {
        let gateway = builder.build().unwrap();
        let shared = gateway.handle().shared;
        let config = shared.config.ipv4.clone().unwrap();
        let decided = decide(&shared, &config, message);
        let leases = shared.leases.lock().views(Instant::now()).len();
        (decided, leases)
    }

    fn for_one_guest() -> crate::Builder {
        let (_, link) = std::os::unix::net::UnixStream::pair().unwrap();
        let framing = fullsend_device::Framing::Qemu;
        let device = fullsend_device::FrameLink::connected(link.into(), framing, 65_520);
        crate::Gateway::builder().device(Box::new(device.unwrap()))
    }

    #[tokio::test]
    async fn a_request_for_another_server_gets_neither_an_answer_nor_an_address() {
        let guest = Ipv4Addr::new(10, 0, 2, 100);
        let request = |server: u8| {
            let options = [50, 4, 10, 0, 2, 100, 54, 4, 10, 0, 2, server];
            message_with(3, [0; 4], &options)
        };
        assert_eq!(decision(for_one_guest(), &request(77)), (None, 0));
        let ack = Some((MessageType::Ack, Some(guest)));
        assert_eq!(decision(for_one_guest(), &request(2)), (ack, 1));
    }

    #[tokio::test]
    async fn of_several_guests_only_a_known_station_gets_an_address() {
        let discover = message(1, [0; 4]);
        let several = crate::Gateway::builder().join_guests(true);
        assert_eq!(decision(several, &discover), (None, 0));
        let (offer, leases) = decision(for_one_guest(), &discover);
        assert_eq!(
            (offer.map(|(kind, _)| kind), leases),
            (Some(MessageType::Offer), 1)
        );
    }

    #[test]
    fn an_answer_goes_to_the_leased_address_the_source_or_all() {
        let (lease, victim) = (Ipv4Addr::new(10, 0, 2, 100), Ipv4Addr::new(192, 0, 2, 9));
        let ack = |claimed: Ipv4Addr, yours, source: Ipv4Addr| {
            let message = message(3, claimed.octets());
            destination(&message, (MessageType::Ack, yours), source.into())
        };
        let none = Ipv4Addr::UNSPECIFIED;
        assert_eq!(ack(lease, Some(lease), none), lease);
        assert_eq!(ack(lease, None, lease), lease);
        assert_eq!(ack(victim, Some(lease), lease), Ipv4Addr::BROADCAST);
        assert_eq!(ack(victim, None, lease), Ipv4Addr::BROADCAST);
        assert_eq!(ack(none, Some(lease), none), Ipv4Addr::BROADCAST);
        let nak = (MessageType::Nak, None);
        let to = destination(&message(3, lease.octets()), nak, lease.into());
        assert_eq!(to, Ipv4Addr::BROADCAST);
    }
}
