//! Multicast options of UDP sockets, on a host with one interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::{Caps, Link};
use fullsend_posix::abi::*;
use fullsend_posix::{Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceConfig, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER_OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 7);
/// The index of the interface, after the loopback interface.
const INDEX: i32 = 2;

struct Net {
    posix: Posix,
    now: Instant,
}

impl Net {
    fn new() -> Self {
        let mut host = Host::new(HostConfig {
            seed: Seed([3; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        let now = Instant::ZERO + Nanos::from_secs(1);
        let config = IfaceConfig::new(Caps::plain(Link::Ip, 1500), Mac([2, 0, 0, 0, 0, 1]));
        let iface = host.add_interface(config);
        for (addr, prefix) in [
            (IpAddr::from(OWN), 24),
            (OTHER_OWN.into(), 24),
            ("fd00::1".parse().unwrap(), 64),
        ] {
            host.add_address(now, iface, Cidr { addr, prefix }).unwrap();
        }
        Self {
            posix: Posix::new(host),
            now,
        }
    }

    fn socket(&mut self, domain: i32) -> Handle {
        self.posix.socket(domain, SOCK_DGRAM, 0).unwrap()
    }

    fn bind(&mut self, handle: Handle, text: &str) {
        let at: std::net::SocketAddr = text.parse().unwrap();
        self.posix.bind(self.now, handle, at.into()).unwrap();
    }

    fn set(&mut self, handle: Handle, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.posix
            .setsockopt(self.now, handle, IPPROTO_IP, name, value)
    }

    fn set_v6(&mut self, handle: Handle, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.posix
            .setsockopt(self.now, handle, IPPROTO_IPV6, name, value)
    }

    fn send(&mut self, handle: Handle, data: &[u8], to: IpAddr) {
        let to = SockAddr::from(std::net::SocketAddr::new(to, 5000));
        let sent = self
            .posix
            .sendmsg(self.now, handle, &[data], 0, Some(to), &[]);
        assert_eq!(sent, Ok(data.len()));
        self.posix.host_mut().poll(self.now);
    }

    /// Receives a datagram without waiting, and returns its data and its sender's address.
    fn recv(&mut self, handle: Handle) -> Result<(Vec<u8>, SockAddr), Errno> {
        let mut buf = [0; 64];
        let received = self
            .posix
            .recvmsg(self.now, handle, &mut [&mut buf], 0, &mut [])?;
        Ok((buf[..received.len].to_vec(), received.from.unwrap()))
    }
}

/// `struct ip_mreq`.
fn mreq(group: Ipv4Addr, interface: Ipv4Addr) -> Vec<u8> {
    [group.octets(), interface.octets()].concat()
}

/// `struct ip_mreqn`.
fn mreqn(group: Ipv4Addr, index: i32) -> Vec<u8> {
    let mut bytes = mreq(group, Ipv4Addr::UNSPECIFIED);
    bytes.extend(index.to_ne_bytes());
    bytes
}

/// `struct ipv6_mreq`.
fn mreq_v6(group: Ipv6Addr, index: i32) -> Vec<u8> {
    let mut bytes = group.octets().to_vec();
    bytes.extend(index.to_ne_bytes());
    bytes
}

const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

#[test]
fn members_receive_and_those_that_left_do_not() {
    // Joined before the socket is bound, or after.
    for early in [true, false] {
        for join in [mreq(GROUP, ANY), mreq(GROUP, OWN), mreqn(GROUP, INDEX)] {
            let mut net = Net::new();
            let member = net.socket(AF_INET);
            let sender = net.socket(AF_INET);
            if early {
                net.set(member, IP_ADD_MEMBERSHIP, &join).unwrap();
            }
            net.bind(member, "0.0.0.0:5000");
            if !early {
                net.set(member, IP_ADD_MEMBERSHIP, &join).unwrap();
            }
            let again = net.set(member, IP_ADD_MEMBERSHIP, &join);
            assert_eq!(again, Err(Errno::EADDRINUSE));
            net.send(sender, b"data", GROUP.into());
            assert_eq!(net.recv(member).unwrap().0, b"data");
            net.set(member, IP_DROP_MEMBERSHIP, &join).unwrap();
            let again = net.set(member, IP_DROP_MEMBERSHIP, &join);
            assert_eq!(again, Err(Errno::EADDRNOTAVAIL));
            net.send(sender, b"lost", GROUP.into());
            assert_eq!(net.recv(member).unwrap_err(), Errno::EAGAIN);
        }
    }
}

#[test]
fn members_of_ipv6_groups_receive() {
    for index in [0, INDEX] {
        let mut net = Net::new();
        let member = net.socket(AF_INET6);
        let join = mreq_v6(GROUP_V6, index);
        net.set_v6(member, IPV6_JOIN_GROUP, &join).unwrap();
        net.bind(member, "[::]:5000");
        let sender = net.socket(AF_INET6);
        net.send(sender, b"data", GROUP_V6.into());
        assert_eq!(net.recv(member).unwrap().0, b"data");
        net.set_v6(sender, IPV6_MULTICAST_LOOP, &0i32.to_ne_bytes())
            .unwrap();
        net.send(sender, b"not looped", GROUP_V6.into());
        assert_eq!(net.recv(member).unwrap_err(), Errno::EAGAIN);
        net.set_v6(member, IPV6_LEAVE_GROUP, &join).unwrap();
    }
}

#[test]
fn invalid_memberships_are_refused() {
    let mut net = Net::new();
    let foreign = Ipv4Addr::new(192, 0, 2, 1);
    for bound in [false, true] {
        let [v4, v6] = [net.socket(AF_INET), net.socket(AF_INET6)];
        if bound {
            net.bind(v4, "0.0.0.0:0");
            net.bind(v6, "[::]:0");
        }
        for (value, errno) in [
            (mreq(OWN, ANY), Errno::EINVAL),
            (mreq(GROUP, ANY)[..7].to_vec(), Errno::EINVAL),
            (mreq(GROUP, foreign), Errno::ENODEV),
            (mreqn(GROUP, 9), Errno::ENODEV),
            (mreqn(GROUP, -1), Errno::ENODEV),
        ] {
            assert_eq!(net.set(v4, IP_ADD_MEMBERSHIP, &value), Err(errno));
        }
        let left = net.set(v4, IP_DROP_MEMBERSHIP, &mreq(GROUP, ANY));
        assert_eq!(left, Err(Errno::EADDRNOTAVAIL));
        for (value, errno) in [
            (mreq_v6("fd00::1".parse().unwrap(), 0), Errno::EINVAL),
            (mreq_v6(GROUP_V6, 0)[..19].to_vec(), Errno::EINVAL),
            (mreq_v6(GROUP_V6, 9), Errno::ENODEV),
        ] {
            assert_eq!(net.set_v6(v6, IPV6_JOIN_GROUP, &value), Err(errno));
        }
        // The options of IPv6 do not exist on a socket for IPv4.
        let refused = net.set_v6(v4, IPV6_JOIN_GROUP, &mreq_v6(GROUP_V6, 0));
        assert_eq!(refused, Err(Errno::ENOPROTOOPT));
        for n in 0..20 {
            let group = Ipv4Addr::new(239, 0, 0, n);
            net.set(v4, IP_ADD_MEMBERSHIP, &mreq(group, ANY)).unwrap();
        }
        let over = net.set(v4, IP_ADD_MEMBERSHIP, &mreq(GROUP, ANY));
        assert_eq!(over, Err(Errno::ENOBUFS));
    }
}

#[test]
fn the_ttl_the_loop_and_the_source_apply_to_datagrams_to_groups() {
    let mut net = Net::new();
    let default = net.posix.host_mut().source_address(GROUP.into()).unwrap();
    let other = if default == OWN { OTHER_OWN } else { OWN };
    let member = net.socket(AF_INET);
    net.set(member, IP_ADD_MEMBERSHIP, &mreq(GROUP, ANY))
        .unwrap();
    net.bind(member, "0.0.0.0:5000");
    let sender = net.socket(AF_INET);
    // Set before the socket is bound by its first datagram.
    net.set(sender, IP_MULTICAST_IF, &other.octets()).unwrap();
    net.set(sender, IP_MULTICAST_TTL, &[7]).unwrap();
    net.send(sender, b"bind", GROUP.into());
    net.send(sender, b"data", GROUP.into());
    for data in [b"bind", b"data"] {
        let (received, from) = net.recv(member).unwrap();
        assert_eq!(received, data);
        let SockAddr::V4(from) = from else {
            panic!("{from:?}")
        };
        assert_eq!(*from.ip(), other);
    }
    let mut sent = Vec::new();
    let iface = net.posix.host_mut().iface_with_index(INDEX as u32).unwrap();
    net.posix.host_mut().transmit(net.now, iface, &mut sent, 64);
    let datagrams = sent
        .iter()
        .filter(|packet| packet.network_header()[9] == 17);
    let ttls: Vec<u8> = datagrams.map(|packet| packet.network_header()[8]).collect();
    assert_eq!(ttls, [7, 7]);
    let mut value = [0; 4];
    let len = net
        .posix
        .getsockopt(net.now, sender, IPPROTO_IP, IP_MULTICAST_IF, &mut value);
    assert_eq!((len, value), (Ok(4), other.octets()));
    let foreign = net.set(sender, IP_MULTICAST_IF, &[192, 0, 2, 1]);
    assert_eq!(foreign, Err(Errno::EADDRNOTAVAIL));
    let device = net.set_v6(sender, IPV6_MULTICAST_IF, &INDEX.to_ne_bytes());
    assert_eq!(device, Err(Errno::ENOPROTOOPT));
    let v6 = net.socket(AF_INET6);
    net.set_v6(v6, IPV6_MULTICAST_IF, &INDEX.to_ne_bytes())
        .unwrap();
    let unknown = net.set_v6(v6, IPV6_MULTICAST_IF, &9i32.to_ne_bytes());
    assert_eq!(unknown, Err(Errno::ENODEV));
    // The unspecified address is the default.
    net.set(sender, IP_MULTICAST_IF, &[0; 4]).unwrap();
    net.send(sender, b"any ", GROUP.into());
    let SockAddr::V4(from) = net.recv(member).unwrap().1 else {
        panic!()
    };
    assert_eq!(*from.ip(), default);
}
