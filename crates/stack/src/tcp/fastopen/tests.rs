use core::net::IpAddr;

use fullsend_tcp::Sysctl;
use fullsend_wire::tcp::FastopenCookie;
use fullsend_wire::{Instant, Nanos};

use super::{FastopenState, MAX_COOKIES, make_cookie};
use crate::demux::Addr;
use crate::siphash::SipKey;

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().unwrap().into()
}

/// Cookies that Linux makes for the same addresses and key: several hosts behind one address can
/// accept each other's cookies.
#[test]
fn cookies_match_linux() {
    let mut sysctl = Sysctl::default();
    let mut cookie = |key, peer, local| {
        sysctl.set("tcp_fastopen_key", key).unwrap();
        let keys = sysctl.tcp_fastopen_key.unwrap();
        make_cookie(&keys.primary, addr(peer), addr(local))
    };
    let want = |bytes: u64| FastopenCookie::new(&bytes.to_be_bytes()).unwrap();
    let key = "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4";
    let zero = "00000000-00000000-00000000-00000000";
    let v4 = ("192.0.2.1", "192.168.0.1");
    assert_eq!(cookie(key, v4.0, v4.1), want(0x3021_b9d8_8901_7eeb));
    assert_eq!(cookie(zero, v4.0, v4.1), want(0xb7c1_2350_a90d_c8f5));
    let v6 = ("fd3d:fa7b:d17d::1", "fd3d:a0b:17d6::1");
    assert_eq!(cookie(key, v6.0, v6.1), want(0xc1d1_e974_2a47_a9bc));
    assert_eq!(cookie(zero, v6.0, v6.1), want(0x82af_1a8f_9a20_5c34));
}

#[test]
fn the_oldest_destination_is_evicted_when_the_cache_is_full() {
    let mut fastopen = FastopenState::new(SipKey(1, 2));
    let cookie = FastopenCookie::new(&[1; 8]).unwrap();
    let peer = |n: u32| IpAddr::from(n.to_be_bytes());
    for n in 0..=MAX_COOKIES as u32 {
        fastopen.on_syn_ack(peer(n), 1460, Some(cookie), None);
        fastopen.on_syn_ack(peer(n), 1400, None, None);
    }
    assert_eq!(fastopen.cookies.len(), MAX_COOKIES);
    assert_eq!(fastopen.order.len(), MAX_COOKIES);
    assert!(!fastopen.cookies.contains_key(&peer(0)));
    let server = fastopen.cookies[&peer(1)];
    assert_eq!((server.cookie, server.mss), (cookie, Some(1400)));
}

#[test]
fn both_forms_of_the_option_are_tried_and_then_the_new_one() {
    let mut fastopen = FastopenState::new(SipKey(1, 2));
    let peer = IpAddr::from([192, 0, 2, 1]);
    let mut refuse = |old| {
        fastopen.on_syn_ack(peer, 1460, None, Some(old));
        fastopen.cookies[&peer].cookie.is_experimental()
    };
    assert!(refuse(false));
    assert!(!refuse(true));
    assert!(!refuse(false));
    let cookie = FastopenCookie::new(&[1; 8]).unwrap();
    fastopen.on_syn_ack(peer, 1460, Some(cookie), None);
    fastopen.on_syn_ack(peer, 1460, None, Some(false));
    assert_eq!(fastopen.cookies[&peer].cookie, cookie);
}

#[test]
fn each_black_hole_doubles_the_disabled_time() {
    let mut fastopen = FastopenState::new(SipKey(1, 2));
    let at = |s| Instant::ZERO + Nanos::from_secs(s);
    assert!(!fastopen.is_disabled(at(0), 10));
    (fastopen.disabled_at, fastopen.disable_count) = (at(100), 1);
    assert!(fastopen.is_disabled(at(109), 10) && !fastopen.is_disabled(at(110), 10));
    fastopen.disable_count = 3;
    assert!(fastopen.is_disabled(at(139), 10) && !fastopen.is_disabled(at(140), 10));
    fastopen.disable_count = 40;
    assert!(!fastopen.is_disabled(at(740), 10));
    assert!(!fastopen.is_disabled(at(100), 0));
}
