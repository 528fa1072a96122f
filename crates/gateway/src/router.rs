//! Router advertisements: at the start, periodically, and when the guest requests them.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::Ipv6Config;
use crate::counters::add;
use crate::dhcp::announced_resolvers;
use crate::gateway::Shared;
use crate::message::router_advert::RouterAdvert;

/// Interval between unsolicited advertisements: a third of their lifetime (RFC 4861 6.2.1).
const INTERVAL: Duration = Duration::from_secs(10 * 60);
const LIFETIME_S: u16 = 1800;
/// Shortest interval between advertisements, also for a guest that sends many solicitations.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Hop limit that proves that a message originates on the link (RFC 4861 6.1).
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Sends router advertisements until the gateway stops.
pub(crate) async fn advertise(shared: Arc<Shared>, config: Ipv6Config) {
    let message = advert(&shared, &config).emit();
    let from = IpAddr::V6(shared.link_local());
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.router_solicited.notified() => {}
        }
        let sent = shared
            .icmp
            .send(from, ALL_NODES.into(), message.clone(), Some(HOP_LIMIT));
        add(
            &shared.counters.router_advertisements,
            u64::from(sent.is_ok()),
        );
        tokio::time::sleep_until(Instant::now() + MIN_INTERVAL).await;
    }
}

fn advert(shared: &Shared, config: &Ipv6Config) -> RouterAdvert {
    let dns = &shared.config.dns;
    RouterAdvert {
        mac: shared.config.mac,
        prefix: (config.guest.unwrap_or(config.gateway), config.prefix),
        mtu: shared.config.mtu,
        managed: config.dhcp && config.guest.is_some(),
        other: config.dhcp,
        dns: announced_resolvers(&dns.announce, config),
        search: dns.search.clone(),
        lifetime_s: LIFETIME_S,
    }
}
