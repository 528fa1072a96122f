use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{Addr, FlowKey, FlowOwner, FlowTable};
use crate::siphash::SipKey;

fn key(local: &str, remote: &str) -> FlowKey {
    FlowKey::new(local.parse().unwrap(), remote.parse().unwrap())
}

#[test]
fn addresses_survive_the_conversion_to_words() {
    for text in [
        "10.0.0.1",
        "255.255.255.255",
        "fd00::1",
        "127.0.0.1",
        "127.255.1.2",
        "126.0.0.1",
        "::",
        "::1",
        "ffff::ffff:0:1",
    ] {
        let ip: IpAddr = text.parse().unwrap();
        assert_eq!(Addr::from(ip).to_ip(), ip);
        assert_eq!(Addr::from(ip).is_v4(), ip.is_ipv4());
        assert_eq!(Addr::from(ip).is_loopback(), ip.is_loopback());
    }
}

#[test]
fn thousands_of_flows_are_distinguished() {
    let mut table = FlowTable::new(SipKey(1, 2));
    let keys: Vec<FlowKey> = (0..20_000u32)
        .map(|i| {
            let remote: IpAddr = if i % 2 == 0 {
                [10, 0, (i >> 8) as u8, i as u8].into()
            } else {
                [0xfd00, 0, 0, 0, 0, 0, 0, i as u16].into()
            };
            let local: SocketAddr = if i % 2 == 0 {
                "10.1.0.1:80".parse().unwrap()
            } else {
                "[fd00:1::1]:80".parse().unwrap()
            };
            FlowKey::new(local, SocketAddr::new(remote, 1024 + (i / 7) as u16))
        })
        .collect();
    let owner =
        |t: FlowOwner, k: &FlowKey| matches!(t, FlowOwner::Socket(i) if keys[i as usize] == *k);
    for (i, k) in keys.iter().enumerate() {
        assert_eq!(table.find(k, |t| owner(t, k)), None);
        table.insert(k, FlowOwner::Socket(i as u32));
    }
    for (i, k) in keys.iter().enumerate() {
        assert_eq!(
            table.find(k, |t| owner(t, k)),
            Some(FlowOwner::Socket(i as u32))
        );
    }
    for (i, k) in keys.iter().enumerate().skip(1) {
        table.remove(k, FlowOwner::Socket(i as u32));
        assert_eq!(table.find(k, |t| owner(t, k)), None);
    }
    assert_eq!(table.table.len(), 1);
    assert!(table.table.capacity() < 1000, "the table shrinks");
    assert!(table.find(&keys[0], |t| owner(t, &keys[0])).is_some());
}

#[test]
fn a_flow_moves_to_time_wait_and_leaves_the_lookup_cache() {
    let k = key("10.0.0.1:80", "10.0.0.2:9999");
    let mut table = FlowTable::new(SipKey(3, 4));
    table.insert(&k, FlowOwner::Socket(5));
    assert_eq!(table.find(&k, |_| true), Some(FlowOwner::Socket(5)));
    table.replace(&k, FlowOwner::Socket(5), FlowOwner::TimeWait(9));
    assert_eq!(table.find(&k, |_| true), Some(FlowOwner::TimeWait(9)));
    table.remove(&k, FlowOwner::TimeWait(9));
    assert_eq!(table.find(&k, |_| true), None);
}
