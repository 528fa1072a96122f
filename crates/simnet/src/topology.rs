//! The nodes of a network, their links, and the path of a packet.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::Packet;

/// The number of a host or switch, in the order of definition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NodeId(pub(crate) usize);

/// Most nodes of a network: the number of addresses of 10.1.0.0/16.
const MAX_NODES: usize = 65_534;

struct Node {
    name: String,
    is_host: bool,
    /// The number of the link to each neighbour.
    links: BTreeMap<NodeId, usize>,
}

/// The hosts and switches with their links. Packets take the path with the fewest links, and of several
/// such paths the one over the nodes defined first.
#[derive(Default)]
pub(crate) struct Topology {
    nodes: Vec<Node>,
    names: BTreeMap<String, NodeId>,
    /// The first link of the path from each node, for each destination; filled when a destination is
    /// first used.
    paths: BTreeMap<NodeId, Vec<Option<usize>>>,
}

/// Returns the addresses of a host.
pub(crate) fn addresses(node: NodeId) -> (Ipv4Addr, Ipv6Addr) {
    let number = node.0 as u16 + 1;
    let [high, low] = number.to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, number);
    (Ipv4Addr::new(10, 1, high, low), v6)
}

impl Topology {
    /// Adds a host or switch.
    ///
    /// # Errors
    /// `InvalidInput` if the name exists or is empty, or there are too many nodes.
    pub(crate) fn add(&mut self, name: &str, is_host: bool) -> io::Result<NodeId> {
        if name.is_empty() || name.contains(':') {
            return Err(invalid(format!(
                "{name:?} is not a name; write a word without a colon, e.g. \"server\""
            )));
        }
        if self.names.contains_key(name) {
            return Err(invalid(format!(
                "the network has a `{name}` already; choose another name"
            )));
        }
        if self.nodes.len() == MAX_NODES {
            return Err(invalid(format!(
                "a network has at most {MAX_NODES} hosts and switches; remove `{name}`"
            )));
        }
        let node = NodeId(self.nodes.len());
        self.nodes.push(Node {
            name: name.to_owned(),
            is_host,
            links: BTreeMap::new(),
        });
        self.names.insert(name.to_owned(), node);
        Ok(node)
    }

    /// Adds link number `link` between two nodes.
    ///
    /// # Errors
    /// `InvalidInput` if the nodes are the same or already have a link.
    pub(crate) fn connect(&mut self, ends: [NodeId; 2], link: usize) -> io::Result<()> {
        let [a, b] = ends.map(|end| self.name(end));
        if ends[0] == ends[1] {
            return Err(invalid(format!(
                "a link joins two nodes, and both ends are `{a}`; write the name of another one"
            )));
        }
        if self.nodes[ends[0].0].links.contains_key(&ends[1]) {
            return Err(invalid(format!(
                "`{a}` and `{b}` have a link already; change it with Link::set"
            )));
        }
        for (end, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            self.nodes[end.0].links.insert(other, link);
        }
        self.paths.clear();
        Ok(())
    }

    /// Returns the node with a name.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub(crate) fn find(&self, name: &str) -> io::Result<NodeId> {
        self.names.get(name).copied().ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let text = match names.len() {
                0..=20 => format!("choose one of: {}", names.join(", ")),
                len => format!("it has {len} others"),
            };
            let text = format!("the network has no host `{name}`; {text}");
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Returns the host with a name.
    ///
    /// # Errors
    /// `NotFound` if there is none, and `InvalidInput` if it is a switch.
    pub(crate) fn find_host(&self, name: &str) -> io::Result<NodeId> {
        let node = self.find(name)?;
        if !self.is_host(node) {
            let text = format!("`{name}` is a switch, which has no address; choose a host");
            return Err(invalid(text));
        }
        Ok(node)
    }

    /// Returns the number of the link between two nodes.
    ///
    /// # Errors
    /// `NotFound` if a name is unknown or there is no link.
    pub(crate) fn find_link(&self, a: &str, b: &str) -> io::Result<usize> {
        let (from, to) = (self.find(a)?, self.find(b)?);
        self.nodes[from.0].links.get(&to).copied().ok_or_else(|| {
            let text = format!("`{a}` and `{b}` have no link; add one with Simulation::connect");
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Returns the name of a node.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0].name
    }

    pub(crate) fn is_host(&self, node: NodeId) -> bool {
        self.nodes[node.0].is_host
    }

    /// Appends the links on which a packet leaves `at`: one towards its destination, or several for a
    /// multicast or broadcast packet; none if its destination is `at` or not a host.
    pub(crate) fn next_links(&mut self, at: NodeId, packet: &Packet, out: &mut Vec<usize>) {
        let Some((src, dst)) = endpoints(packet) else {
            return;
        };
        if is_for_all(dst) {
            return self.flood(at, src, out);
        }
        if let Some(to) = self.host_of(dst) {
            out.extend(self.next_link(at, to));
        }
    }

    /// Appends the links of `at` that lead away from the sender on the paths from it.
    fn flood(&mut self, at: NodeId, src: IpAddr, out: &mut Vec<usize>) {
        let Some(source) = self.host_of(src) else {
            return;
        };
        let links: Vec<_> = self.nodes[at.0].links.clone().into_iter().collect();
        for (neighbour, link) in links {
            if neighbour != source && self.next_link(neighbour, source) == Some(link) {
                out.push(link);
            }
        }
    }

    /// Returns the host with an address.
    fn host_of(&self, addr: IpAddr) -> Option<NodeId> {
        let number = match addr {
            IpAddr::V4(v4) => {
                let [.., high, low] = v4.octets();
                u16::from_be_bytes([high, low])
            }
            IpAddr::V6(v6) => v6.segments()[7],
        };
        let node = NodeId(usize::from(number.checked_sub(1)?));
        let (v4, v6) = addresses(node);
        let is_own = addr == IpAddr::V4(v4) || addr == IpAddr::V6(v6);
        let known = self.nodes.get(node.0).is_some_and(|node| node.is_host);
        (is_own && known).then_some(node)
    }

    /// Returns the first link on the path between two nodes, or `None` if there is no path.
    fn next_link(&mut self, at: NodeId, to: NodeId) -> Option<usize> {
        let links = &self.nodes[at.0].links;
        // Most hosts have one link, and most destinations of a switch are its neighbours: neither needs a
        // table. A link in the wrong direction ends at a node without a path.
        if let Some(link) = links.get(&to) {
            return Some(*link);
        }
        if at == to {
            return None;
        }
        if links.len() == 1 && self.is_host(at) {
            return links.values().next().copied();
        }
        let nodes = &self.nodes;
        let paths = self.paths.entry(to);
        paths.or_insert_with(|| paths_to(nodes, to))[at.0]
    }
}

/// Returns the first link from each node towards `to`, found by a breadth-first search. Hosts do not
/// forward packets.
fn paths_to(nodes: &[Node], to: NodeId) -> Vec<Option<usize>> {
    let mut first = vec![None; nodes.len()];
    let mut queue = VecDeque::from([to]);
    while let Some(node) = queue.pop_front() {
        if nodes[node.0].is_host && node != to {
            continue;
        }
        for (&neighbour, &link) in &nodes[node.0].links {
            if neighbour != to && first[neighbour.0].is_none() {
                first[neighbour.0] = Some(link);
                queue.push_back(neighbour);
            }
        }
    }
    first
}

/// Returns the source and destination address of a packet.
fn endpoints(packet: &Packet) -> Option<(IpAddr, IpAddr)> {
    let ip = packet.slices().next()?;
    match ip.first()? >> 4 {
        4 => {
            let at = |at: usize| ip.get(at..at + 4)?.try_into().ok().map(<[u8; 4]>::into);
            Some((at(12)?, at(16)?))
        }
        6 => {
            let at = |at: usize| ip.get(at..at + 16)?.try_into().ok().map(<[u8; 16]>::into);
            Some((at(8)?, at(24)?))
        }
        _ => None,
    }
}

/// Returns whether an address is multicast or broadcast.
fn is_for_all(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => {
            v4.is_multicast() || v4.is_broadcast() || v4 == Ipv4Addr::new(10, 1, 255, 255)
        }
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

pub(crate) fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests;
