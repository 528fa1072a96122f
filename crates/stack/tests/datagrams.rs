//! Path MTU discovery of datagrams (`IP_MTU_DISCOVER`), and which "too big" messages they accept.
//! The lengths and errors are those of Linux 6.18. Datagrams to groups, on the interface that the socket
//! has chosen.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::{IFACE, Nic, config, forge, host};
use fullsend_offload::{Caps, Link, Packet, Slice};
use fullsend_stack::{
    Cidr, Host, IfaceConfig, IfaceId, Mac, MulticastSettings, StackError, UdpError, UdpId,
};
use fullsend_tcp::{IpSettings, MtuDiscover, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::protocol;

const PEERS: [&str; 2] = ["10.0.0.2:9", "[fd00::2]:9"];
const ROUTERS: [&str; 2] = ["10.0.0.9", "fd00::9"];

/// A host on a link with an MTU of 1500, and a UDP socket.
struct Rig {
    host: Host,
    now: Instant,
    id: UdpId,
}

impl Rig {
    fn new(how: MtuDiscover) -> Self {
        let mut host = host(1);
        let iface = host.add_interface(config(Link::Ip, Nic::Mtu, 1));
        let now = Instant::from_nanos(1);
        for addr in ["10.0.0.1/8", "fd00::1/64"] {
            let cidr: Cidr = addr.parse().unwrap();
            host.add_address(now, iface, cidr).unwrap();
        }
        let id = host.udp_bind("[::]:7".parse().unwrap()).unwrap();
        let settings = IpSettings {
            mtu_discover: how,
            ..IpSettings::default()
        };
        host.udp(id).set_ip(settings).unwrap();
        host.udp(id).set_v6_mtu_discover(how).unwrap();
        Self { host, now, id }
    }

    /// Sends a datagram that is `len` bytes long with its headers. Returns the packets sent.
    fn send(&mut self, to: SocketAddr, len: usize) -> Result<Vec<Vec<u8>>, StackError> {
        let data = Slice::copied_from(&vec![7; len - headers(to)]);
        self.host.udp(self.id).send_to(self.now, data, to, None)?;
        let mut out = Vec::new();
        self.host.transmit(self.now, IFACE, &mut out, 64);
        Ok(out.iter().map(Packet::to_bytes).collect())
    }

    /// Sends like [`send`](Self::send). Returns the length and DF of each packet.
    fn sent(&mut self, to: SocketAddr, len: usize) -> Result<Vec<(usize, bool)>, StackError> {
        let packets = self.send(to, len)?;
        let show = |packet: &Vec<u8>| (packet.len(), packet[0] >> 4 == 4 && packet[6] & 0x40 != 0);
        Ok(packets.iter().map(show).collect())
    }

    /// Delivers a router's report that `packet` exceeds `mtu`.
    fn too_big(&mut self, packet: &[u8], mtu: u32) {
        let v6 = packet[0] >> 4 == 6;
        let router: IpAddr = ROUTERS[usize::from(v6)].parse().unwrap();
        let message = if let IpAddr::V6(router) = router {
            let own = "fd00::1".parse().unwrap();
            let quote = &packet[..packet.len().min(1232)];
            let repr = Icmpv6Repr::PacketTooBig { mtu, quote };
            let mut bytes = vec![0; repr.len()];
            repr.emit(router, own, &mut bytes);
            forge::ip(router.into(), own.into(), protocol::ICMPV6, &bytes)
        } else {
            let repr = Icmpv4Repr::Unreachable {
                code: 4,
                mtu: mtu as u16,
                quote: &packet[..packet.len().min(548)],
            };
            let mut bytes = vec![0; repr.len()];
            repr.emit(&mut bytes);
            forge::ip(router, [10, 0, 0, 1].into(), protocol::ICMP, &bytes)
        };
        self.host.receive(self.now, IFACE, &mut vec![message]);
    }

    fn mtu(&self, to: SocketAddr) -> u32 {
        self.host.udp_path_mtu(self.now, to.ip()).unwrap()
    }

    fn error(&mut self) -> Option<TcpError> {
        self.host.udp(self.id).take_error().unwrap()
    }

    fn queued_error(&mut self) -> Option<UdpError> {
        self.host.udp(self.id).take_kept_error().unwrap()
    }
}

/// Returns the length of the IP and UDP headers, bytes.
fn headers(to: SocketAddr) -> usize {
    if to.is_ipv4() { 28 } else { 48 }
}

/// Returns the packet that an off-path attacker would quote: 1500 bytes from the host's socket to
/// `to`.
fn never_sent(to: SocketAddr) -> Vec<u8> {
    let mut datagram = vec![0; 1508 - headers(to)];
    datagram[..2].copy_from_slice(&7u16.to_be_bytes());
    datagram[2..4].copy_from_slice(&to.port().to_be_bytes());
    let own = if to.is_ipv4() { "10.0.0.1" } else { "fd00::1" };
    forge::ip_bytes(own.parse().unwrap(), to.ip(), protocol::UDP, &datagram)
}

#[test]
fn datagrams_are_fragmented_or_refused_by_mtu_discover() {
    use MtuDiscover::{Do, Dont, Probe, Want};
    for to in PEERS.map(|to| to.parse::<SocketAddr>().unwrap()) {
        let v4 = to.is_ipv4();
        let whole = |len: usize, df: bool| Ok(vec![(len, v4 && df)]);
        let pieces = |four: [usize; 2], six: [usize; 2]| {
            Ok((if v4 { four } else { six })
                .map(|len| (len, false))
                .to_vec())
        };
        let refused = |len: usize, mtu: usize| {
            let [len, max] = [len, mtu].map(|all| all - headers(to));
            Err(StackError::MessageTooLong { len, max })
        };
        let at_1500 = || pieces([1500, 21], [1496, 61]);
        let at_1400 = || pieces([1396, 25], [1400, 57]);
        for (how, first, then) in [
            (Dont, at_1500(), at_1400()),
            (Want, at_1500(), at_1400()),
            (Do, refused(1501, 1500), refused(1401, 1400)),
            (Probe, refused(1501, 1500), whole(1401, true)),
        ] {
            let mut rig = Rig::new(how);
            let df = how != Dont;
            assert_eq!(rig.sent(to, 1500), whole(1500, df), "{how:?} {to}");
            assert_eq!(rig.sent(to, 1501), first, "{how:?} {to}");
            assert_eq!(rig.mtu(to), 1500);
            let packet = rig.send(to, 1500).unwrap().remove(0);
            rig.too_big(&packet, 1400);
            assert_eq!(rig.mtu(to), 1400);
            assert_eq!(rig.sent(to, 1400), whole(1400, df), "{how:?} {to}");
            assert_eq!(rig.sent(to, 1401), then, "{how:?} {to}");
            // Datagrams to the host itself use the loopback MTU.
            let own = SocketAddr::new("127.0.0.1".parse().unwrap(), 9);
            assert_eq!(rig.sent(own, 1501), Ok(Vec::new()));
        }
    }
}

#[test]
fn each_family_has_its_own_path_mtu_discovery() {
    let [four, six] = PEERS.map(|to| to.parse::<SocketAddr>().unwrap());
    let mut rig = Rig::new(MtuDiscover::Want);
    rig.host
        .udp(rig.id)
        .set_v6_mtu_discover(MtuDiscover::Do)
        .unwrap();
    assert!(rig.sent(four, 1501).is_ok());
    assert!(rig.sent(six, 1501).is_err());
}

/// A connected socket's next call returns EMSGSIZE; a socket that keeps errors gets the message.
#[test]
fn sockets_report_that_a_datagram_was_too_big() {
    for to in PEERS.map(|to| to.parse::<SocketAddr>().unwrap()) {
        for (how, connected, keeps) in [
            (MtuDiscover::Dont, true, false),
            (MtuDiscover::Dont, false, true),
            (MtuDiscover::Want, true, false),
            (MtuDiscover::Want, false, false),
            (MtuDiscover::Want, false, true),
            (MtuDiscover::Do, true, true),
        ] {
            let what = format!("{how:?} {to} connected {connected} keeps {keeps}");
            let mut rig = Rig::new(how);
            if connected {
                rig.host.udp(rig.id).connect(Some(to)).unwrap();
            }
            rig.host.udp(rig.id).keep_errors(keeps).unwrap();
            let packet = rig.send(to, 1500).unwrap().remove(0);
            // A datagram that this host itself refuses does not cause a pending error either.
            let local = rig.send(to, 1501).is_err();
            assert_eq!(rig.error(), None, "{what}");
            rig.too_big(&packet, 1400);
            let reports = match how {
                MtuDiscover::Dont => keeps && to.is_ipv6(),
                _ => connected || keeps,
            };
            let error = reports.then_some(TcpError::MessageTooLong);
            assert_eq!(rig.error(), error, "{what}");
            for (is_local, mtu) in [(true, 1500), (false, 1400)] {
                if !keeps || is_local != local && is_local || !is_local && !reports {
                    continue;
                }
                let queued_error = rig.queued_error().expect("an error was kept");
                assert_eq!(
                    (queued_error.is_local, queued_error.mtu),
                    (is_local, mtu),
                    "{what}"
                );
                assert_eq!(
                    (queued_error.error, queued_error.to),
                    (TcpError::MessageTooLong, to)
                );
                assert_eq!(queued_error.payload.is_empty(), is_local);
            }
            assert_eq!(rig.queued_error(), None, "{what}");
        }
    }
}

/// RFC 5927 4: a "too big" must be about a datagram that was sent. Linux accepts these.
#[test]
fn a_connected_socket_that_sent_no_large_datagram_ignores_too_big() {
    for to in PEERS.map(|to| to.parse::<SocketAddr>().unwrap()) {
        let mut rig = Rig::new(MtuDiscover::Want);
        rig.host.udp(rig.id).connect(Some(to)).unwrap();
        rig.host.udp(rig.id).keep_errors(true).unwrap();
        let unchanged = |rig: &mut Rig| {
            rig.too_big(&never_sent(to), 1300);
            assert_eq!(
                (rig.mtu(to), rig.error(), rig.queued_error()),
                (1500, None, None)
            );
        };
        unchanged(&mut rig);
        // Every path carries a packet that short.
        rig.send(to, if to.is_ipv4() { 552 } else { 1280 }).unwrap();
        unchanged(&mut rig);
        // A datagram to another port, or to another host.
        let mut others = [to, to];
        others[0].set_port(10);
        others[1].set_ip(ROUTERS[usize::from(to.is_ipv6())].parse().unwrap());
        for other in others {
            rig.send(other, 1500).unwrap();
        }
        unchanged(&mut rig);
        rig.send(to, 1500).unwrap();
        rig.too_big(&never_sent(to), 1300);
        assert_eq!(
            (rig.mtu(to), rig.error()),
            (1300, Some(TcpError::MessageTooLong))
        );
    }
}

/// Number of peers of a busy server.
const COUNT: u16 = 4000;

/// A server that sends to many peers within a round trip recognizes nearly all of them.
#[test]
fn a_busy_server_accepts_too_big_of_each_of_its_peers() {
    let mut rig = Rig::new(MtuDiscover::Want);
    let peer = |n: u16| -> SocketAddr {
        let [a, b] = (n + 1).to_be_bytes();
        ([10, 1, a, b], 9).into()
    };
    let packets: Vec<_> = (0..COUNT)
        .map(|n| rig.send(peer(n), 1500).unwrap().remove(0))
        .collect();
    for packet in &packets {
        rig.too_big(packet, 1400);
    }
    let learnt = (0..COUNT).filter(|&n| rig.mtu(peer(n)) == 1400).count();
    assert!(learnt > 3900, "{learnt}");
}

#[test]
fn datagrams_to_groups_leave_on_the_interface_that_the_socket_chose() {
    for (to, own) in [
        ("239.1.2.3:9", "172.16.0.1/8"),
        ("[ff15::7]:9", "fd02::1/48"),
    ] {
        let mut rig = Rig::new(MtuDiscover::Do);
        let config = IfaceConfig::new(Caps::plain(Link::Ip, 1400), Mac([2, 0, 0, 0, 0, 2]));
        let second = rig.host.add_interface(config);
        let own: Cidr = own.parse().unwrap();
        rig.host.add_address(rig.now, second, own).unwrap();
        let to: SocketAddr = to.parse().unwrap();
        assert_eq!(rig.send(to, 1500).unwrap().len(), 1);
        let mut settings = MulticastSettings {
            iface_v4: Some(second),
            iface_v6: Some(second),
            ..MulticastSettings::default()
        };
        rig.host.udp(rig.id).set_multicast(settings).unwrap();
        // The MTU is that of the chosen interface.
        let max = 1400 - headers(to);
        let refused = rig.send(to, 1401).unwrap_err();
        assert_eq!(refused, StackError::MessageTooLong { len: max + 1, max });
        assert_eq!(rig.send(to, 1400).unwrap().len(), 0);
        let mut sent = Vec::new();
        rig.host.transmit(rig.now, second, &mut sent, 64);
        assert_eq!(sent.len(), 1);
        rig.host.udp(rig.id).connect(Some(to)).unwrap();
        assert_eq!(rig.host.udp(rig.id).addr().unwrap().ip(), own.addr);
        rig.host.udp(rig.id).connect(None).unwrap();
        // A source that is not the host's is refused, and so is an unknown interface.
        let foreign = Ipv4Addr::new(192, 0, 2, 1);
        settings.source_v4 = Some(foreign);
        rig.host.udp(rig.id).set_multicast(settings).unwrap();
        let expected = StackError::AddressNotAvailable((foreign, 0).into());
        assert_eq!(rig.send(to, 100).err(), to.is_ipv4().then_some(expected));
        settings.iface_v4 = Some(IfaceId(7));
        let unknown = rig.host.udp(rig.id).set_multicast(settings).unwrap_err();
        assert!(unknown.to_string().contains("no interface 7"), "{unknown}");
    }
}
