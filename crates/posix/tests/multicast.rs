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

/// The index of a second interface, and its addresses.
const SECOND: i32 = 3;
const SECOND_OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const SECOND_OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);

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

    /// Adds the interface with index [`SECOND`], which no route to a group uses.
    fn with_second() -> Self {
        let mut net = Self::new();
        let host = net.posix.host_mut();
        let config = IfaceConfig::new(Caps::plain(Link::Ip, 1500), Mac([2, 0, 0, 0, 0, 2]));
        let iface = host.add_interface(config);
        for (addr, prefix) in [(IpAddr::from(SECOND_OWN), 24), (SECOND_OWN_V6.into(), 64)] {
            let cidr = Cidr { addr, prefix };
            host.add_address(net.now, iface, cidr).unwrap();
        }
        net
    }

    /// Sends a datagram to a group, or to the peer. Returns the interface on which it left and its
    /// source address.
    fn sent_on(&mut self, handle: Handle, to: Option<IpAddr>) -> (i32, IpAddr) {
        let to = to.map(|to| SockAddr::from(std::net::SocketAddr::new(to, 5000)));
        let sent = self.posix.sendmsg(self.now, handle, &[b"data"], 0, to, &[]);
        assert_eq!(sent, Ok(4));
        let host = self.posix.host_mut();
        let mut datagrams = Vec::new();
        for index in [INDEX, SECOND] {
            let iface = host.iface_with_index(index as u32).unwrap();
            let mut packets = Vec::new();
            host.transmit(self.now, iface, &mut packets, 64);
            for packet in packets {
                let header = packet.network_header();
                let source: IpAddr = if header[0] >> 4 == 4 {
                    <[u8; 4]>::try_from(&header[12..16]).unwrap().into()
                } else {
                    <[u8; 16]>::try_from(&header[8..24]).unwrap().into()
                };
                datagrams.push((index, source));
            }
        }
        assert_eq!(datagrams.len(), 1, "{datagrams:?}");
        datagrams[0]
    }

    fn get(&mut self, handle: Handle, level: i32, name: i32) -> [u8; 4] {
        let mut value = [0; 4];
        let len = self
            .posix
            .getsockopt(self.now, handle, level, name, &mut value);
        assert_eq!(len, Ok(4));
        value
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

/// The memberships are those of the interface that is found when they are made, whether the socket is
/// bound or not.
#[test]
fn a_membership_has_one_interface_before_and_after_the_bind() {
    for bound in [false, true] {
        let mut net = Net::new();
        let socket = net.socket(AF_INET);
        if bound {
            net.bind(socket, "0.0.0.0:0");
        }
        net.set(socket, IP_ADD_MEMBERSHIP, &mreq(GROUP, ANY))
            .unwrap();
        for again in [mreq(GROUP, OWN), mreqn(GROUP, INDEX)] {
            let again = net.set(socket, IP_ADD_MEMBERSHIP, &again);
            assert_eq!(again, Err(Errno::EADDRINUSE), "bound: {bound}");
        }
        net.set(socket, IP_DROP_MEMBERSHIP, &mreq(GROUP, OWN))
            .unwrap();
        net.set(socket, IP_ADD_MEMBERSHIP, &mreq(GROUP, OWN))
            .unwrap();
        net.set(socket, IP_DROP_MEMBERSHIP, &mreq(GROUP, ANY))
            .unwrap();
        // A host without interfaces has no groups.
        let host = Host::new(HostConfig {
            seed: Seed([3; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        net.posix = Posix::new(host);
        let socket = net.socket(AF_INET6);
        if bound {
            net.bind(socket, "[::]:0");
        }
        let joined = net.set_v6(socket, IPV6_JOIN_GROUP, &mreq_v6(GROUP_V6, 0));
        assert_eq!(joined, Err(Errno::ENODEV), "bound: {bound}");
    }
}

#[test]
fn a_socket_keeps_its_memberships_when_it_cannot_be_bound() {
    let mut net = Net::new();
    // The groups of a host are limited to 256.
    let mut full = Vec::new();
    for a in 0..13 {
        let socket = net.socket(AF_INET);
        net.bind(socket, "0.0.0.0:0");
        for b in 0..if a < 12 { 20 } else { 16 } {
            let group = Ipv4Addr::new(239, 0, a, b);
            net.set(socket, IP_ADD_MEMBERSHIP, &mreq(group, ANY))
                .unwrap();
        }
        full.push(socket);
    }
    let member = net.socket(AF_INET);
    net.set(member, IP_ADD_MEMBERSHIP, &mreq(GROUP, ANY))
        .unwrap();
    let at: std::net::SocketAddr = "0.0.0.0:5000".parse().unwrap();
    let bound = net.posix.bind(net.now, member, at.into());
    assert_eq!(bound.unwrap_err(), Errno::ENOBUFS);
    net.posix.close(net.now, full[0]).unwrap();
    net.bind(member, "0.0.0.0:5000");
    let sender = net.socket(AF_INET);
    net.send(sender, b"data", GROUP.into());
    assert_eq!(net.recv(member).unwrap().0, b"data");
}

#[test]
fn datagrams_to_groups_leave_on_the_chosen_interface() {
    let v4 = |address: Ipv4Addr, index: i32| {
        let mut bytes = mreq(ANY, address);
        bytes.extend(index.to_ne_bytes());
        bytes
    };
    let on_first = |source: Ipv4Addr| (INDEX, IpAddr::from(source));
    let on_second = (SECOND, IpAddr::from(SECOND_OWN));
    for (value, sent, reported) in [
        (SECOND_OWN.octets().to_vec(), on_second, SECOND_OWN),
        (mreq(ANY, SECOND_OWN), on_second, SECOND_OWN),
        (v4(ANY, SECOND), on_second, ANY),
        (v4(SECOND_OWN, SECOND), on_second, SECOND_OWN),
        (v4(OTHER_OWN, SECOND), (SECOND, OTHER_OWN.into()), OTHER_OWN),
        (v4(OTHER_OWN, 0), on_first(OTHER_OWN), OTHER_OWN),
        (v4(OWN, INDEX), on_first(OWN), OWN),
    ] {
        // Set before the socket is bound or after, and on a socket that is connected to the group.
        for (bind, connect) in [(false, false), (true, false), (false, true)] {
            let mut net = Net::with_second();
            let sender = net.socket(AF_INET);
            if bind {
                net.bind(sender, "0.0.0.0:0");
            }
            net.set(sender, IP_MULTICAST_IF, &value).unwrap();
            let get = net.get(sender, IPPROTO_IP, IP_MULTICAST_IF);
            assert_eq!(get, reported.octets());
            let to = std::net::SocketAddr::from((GROUP, 5000));
            if connect {
                net.posix.connect(net.now, sender, to.into()).unwrap();
                let SockAddr::V4(own) = net.posix.getsockname(sender).unwrap() else {
                    panic!()
                };
                assert_eq!(IpAddr::from(*own.ip()), sent.1);
            }
            let to = (!connect).then_some(GROUP.into());
            assert_eq!(net.sent_on(sender, to), sent, "{value:?}");
            // Datagrams to a host are sent as before.
            let host = Ipv4Addr::new(10, 0, 0, 9).into();
            if !connect {
                assert_eq!(net.sent_on(sender, Some(host)).0, INDEX);
            }
        }
    }
    let mut net = Net::with_second();
    let sender = net.socket(AF_INET6);
    let sent = net.sent_on(sender, Some(GROUP_V6.into()));
    assert_eq!(sent, (INDEX, "fd00::1".parse().unwrap()));
    let second = SECOND.to_ne_bytes();
    net.set_v6(sender, IPV6_MULTICAST_IF, &second).unwrap();
    let get = net.get(sender, IPPROTO_IPV6, IPV6_MULTICAST_IF);
    assert_eq!(get, second);
    let sent = net.sent_on(sender, Some(GROUP_V6.into()));
    assert_eq!(sent, (SECOND, SECOND_OWN_V6.into()));
    net.set_v6(sender, IPV6_MULTICAST_IF, &[0; 4]).unwrap();
    assert_eq!(net.sent_on(sender, Some(GROUP_V6.into())).0, INDEX);
}

#[test]
fn an_interface_or_a_source_that_the_host_lacks_is_refused() {
    let mut net = Net::with_second();
    let sender = net.socket(AF_INET);
    net.set(sender, IP_MULTICAST_IF, &SECOND_OWN.octets())
        .unwrap();
    let foreign = Ipv4Addr::new(192, 0, 2, 1);
    let mut with_index = mreq(ANY, foreign);
    with_index.extend(INDEX.to_ne_bytes());
    for (value, errno) in [
        (foreign.octets().to_vec(), Errno::EADDRNOTAVAIL),
        (with_index, Errno::EADDRNOTAVAIL),
        (mreqn(ANY, 9), Errno::EADDRNOTAVAIL),
        (mreqn(ANY, -1), Errno::EADDRNOTAVAIL),
        (vec![0; 3], Errno::EINVAL),
    ] {
        let refused = net.set(sender, IP_MULTICAST_IF, &value);
        assert_eq!(refused, Err(errno), "{value:?}");
    }
    // The options that were set before still apply.
    let sent = net.sent_on(sender, Some(GROUP.into()));
    assert_eq!(sent, (SECOND, SECOND_OWN.into()));
}

/// A socket that is bound to an address sends from it to a connected peer, too.
#[test]
fn a_connected_socket_sends_from_the_address_it_is_bound_to() {
    for own in [OWN, OTHER_OWN] {
        let mut net = Net::with_second();
        let sender = net.socket(AF_INET);
        net.bind(sender, &format!("{own}:0"));
        let to = std::net::SocketAddr::from(([10, 0, 0, 9], 5000));
        net.posix.connect(net.now, sender, to.into()).unwrap();
        assert_eq!(net.sent_on(sender, None), (INDEX, own.into()));
    }
}
