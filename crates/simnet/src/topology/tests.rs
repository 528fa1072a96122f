use fullsend_offload::Slice;

use super::*;

fn packet(from: NodeId, to: IpAddr) -> Packet {
    let mut bytes = vec![0; 40];
    match to {
        IpAddr::V4(to) => {
            bytes[0] = 0x45;
            bytes[12..16].copy_from_slice(&addresses(from).0.octets());
            bytes[16..20].copy_from_slice(&to.octets());
        }
        IpAddr::V6(to) => {
            bytes[0] = 0x60;
            bytes[8..24].copy_from_slice(&addresses(from).1.octets());
            bytes[24..40].copy_from_slice(&to.octets());
        }
    }
    Packet::from_frame(Slice::copied_from(&bytes))
}

/// a - left - right - b, with c at left and d at a: a has two links.
fn network() -> Topology {
    let mut net = Topology::default();
    let hosts = ["a", "b", "c", "d"].map(|name| net.add(name, true).unwrap());
    let [a, b, c, d] = hosts;
    let [left, right] = ["left", "right"].map(|name| net.add(name, false).unwrap());
    let links = [[a, left], [left, right], [right, b], [c, left], [a, d]];
    for (number, ends) in links.into_iter().enumerate() {
        net.connect(ends, number).unwrap();
    }
    net
}

fn links(net: &mut Topology, at: usize, from: usize, to: IpAddr) -> Vec<usize> {
    let mut out = Vec::new();
    net.next_links(NodeId(at), &packet(NodeId(from), to), &mut out);
    out
}

fn v4(node: usize) -> IpAddr {
    addresses(NodeId(node)).0.into()
}

fn v6(node: usize) -> IpAddr {
    addresses(NodeId(node)).1.into()
}

#[test]
fn packets_follow_the_links_to_their_destination() {
    let net = &mut network();
    for addr in [v4, v6] {
        assert_eq!(links(net, 0, 0, addr(1)), [0]);
        assert_eq!(links(net, 4, 0, addr(1)), [1]);
        assert_eq!(links(net, 5, 0, addr(1)), [2]);
        assert_eq!(links(net, 0, 0, addr(3)), [4], "the other link");
        assert_eq!(links(net, 4, 1, addr(2)), [3]);
    }
    assert_eq!(links(net, 4, 1, v4(3)), [0; 0], "a does not forward");
    assert_eq!(links(net, 0, 0, v4(4)), [0; 0], "a switch has no address");
    assert_eq!(links(net, 0, 0, "192.0.2.1".parse().unwrap()), [0; 0]);
}

#[test]
fn multicast_reaches_each_host_once() {
    let net = &mut network();
    for group in ["224.0.0.1", "255.255.255.255", "10.1.255.255", "ff02::1"] {
        let group: IpAddr = group.parse().unwrap();
        assert_eq!(links(net, 0, 0, group), [4, 0]);
        assert_eq!(links(net, 4, 0, group), [3, 1], "not back to a");
        assert_eq!(links(net, 5, 0, group), [2]);
    }
}

#[test]
fn mistakes_are_named() {
    let net = &mut network();
    let error = |result: io::Result<NodeId>| result.unwrap_err().to_string();
    assert!(error(net.add("a", true)).contains("has a `a` already"));
    assert!(error(net.add("a:80", true)).contains("is not a name"));
    assert!(error(net.find("x")).contains("choose one of: a, b, c, d, left, right"));
    assert!(error(net.find_host("left")).contains("is a switch"));
    let twice = net.connect([NodeId(0), NodeId(3)], 9).unwrap_err();
    assert!(twice.to_string().contains("have a link already"), "{twice}");
    let same = net.connect([NodeId(0), NodeId(0)], 9).unwrap_err();
    assert!(same.to_string().contains("both ends are `a`"), "{same}");
    let none = net.find_link("a", "b").unwrap_err();
    assert!(none.to_string().contains("have no link"), "{none}");
}
