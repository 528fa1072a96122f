//! Sends arbitrary frames of a guest, with arbitrary offloads and in pieces, to a switch: no panic, the
//! parser of a frame's claims depends on its first bytes alone, no frame takes the addresses of the stack
//! or of another guest, and other guests receive no frame that their link does not allow.
#![no_main]

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;

use arbitrary::Arbitrary;
use fullsend_device::{Device, Switch, SwitchConfig, fuzz_claims};
use fullsend_offload::{Caps, Checksum, GsoKind, Link, Offload, Packet, Slice};
use libfuzzer_sys::fuzz_target;

const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 3];
const VICTIM_IP: [u8; 4] = [10, 0, 2, 15];
const MTU: usize = 1500;

#[derive(Arbitrary, Debug)]
struct Frame {
    /// Selects addresses and the EtherType.
    kind: u8,
    /// Selects the segmentation and the state of the checksum.
    offload: u8,
    gso_size: u16,
    /// Where the frame is split in two.
    split: u8,
    payload: Vec<u8>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let dst = [GATEWAY, VICTIM, [0xff; 6], [2, 9, 9, 9, 9, 9]][usize::from(self.kind & 3)];
        let src = [GUEST, VICTIM, GATEWAY, GUEST][usize::from(self.kind >> 2 & 3)];
        let kinds: [[u8; 2]; 4] = [[8, 0], [8, 6], [0x86, 0xdd], [0x81, 0]];
        let kind = kinds[usize::from(self.kind >> 4 & 3)];
        [&dst[..], &src, &kind, &self.payload].concat()
    }

    fn packet(&self) -> Packet {
        let bytes = self.bytes();
        let (one, two) = bytes.split_at(bytes.len().min(self.split.into()));
        let mut packet = Packet::from_frame(Slice::copied_from(one));
        if !two.is_empty() {
            let pieces = [one, two].into_iter();
            packet.payload = pieces.map(Slice::copied_from).collect();
        }
        let kinds = [GsoKind::None, GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp];
        let checksums = [Checksum::Valid, Checksum::Partial, Checksum::Unverified];
        // Devices declare no segmentation into pieces of no bytes.
        let kind = kinds[usize::from(self.offload & 3)];
        packet.offload = Offload {
            kind,
            gso_size: if kind == GsoKind::None {
                0
            } else {
                self.gso_size.max(1)
            },
            checksum: checksums[usize::from(self.offload >> 2) % 3],
            ..Offload::default()
        };
        packet
    }
}

/// A guest that sends `frames`, and inspects what it receives.
struct Guest {
    caps: Caps,
    frames: Vec<Packet>,
}

impl Device for Guest {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        for packet in batch.drain(..) {
            let len = packet.to_bytes().len();
            assert_eq!(len, packet.len());
            let is_whole = packet.offload.kind == GsoKind::None;
            assert!(is_whole || self.caps.tso4);
            assert!(!is_whole || self.caps.tso4 || len <= 14 + MTU);
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let count = self.frames.len().min(max);
        batch.extend(self.frames.drain(..count));
        Ok(count)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    // All frames are there from the beginning.
    fn set_waker(&mut self, _: &Waker) -> bool {
        true
    }
}

fuzz_target!(|frames: Vec<Frame>| {
    let gateway_ip = IpAddr::from([10, 0, 2, 2]);
    let switch = Switch::new(SwitchConfig {
        mtu: MTU as u32,
        is_joined: true,
        mac: GATEWAY,
        addresses: BTreeSet::from([gateway_ip]),
    });
    let mut switch = switch.expect("a switch");
    let handle = switch.handle();
    let mut arp = [
        &[0xff; 6][..],
        &VICTIM,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &VICTIM,
    ]
    .concat();
    arp.extend(VICTIM_IP);
    arp.extend([0; 10]);
    let plain = Caps::plain(Link::Ethernet, MTU as u32);
    let offloading = Caps::offloading(Link::Ethernet, MTU as u32);
    let attach = |caps, frames| {
        let attached = handle.attach(Box::new(Guest { caps, frames }));
        attached.expect("a port")
    };
    let victim = attach(plain, vec![Packet::from_frame(Slice::copied_from(&arp))]);
    receive(&mut switch);
    assert_eq!(handle.port_of_mac(VICTIM), Some(victim));
    attach(offloading, Vec::new());
    for frame in &frames {
        fuzz_claims(&frame.bytes());
    }
    attach(offloading, frames.iter().map(Frame::packet).collect());
    receive(&mut switch);
    assert_eq!(handle.port_of_mac(VICTIM), Some(victim));
    assert_eq!(handle.port_of_address(VICTIM_IP.into()), Some(victim));
    assert_eq!(handle.port_of_mac(GATEWAY), None);
    assert_eq!(handle.port_of_address(gateway_ip), None);
});

fn receive(switch: &mut Switch) {
    let mut all = Vec::new();
    while switch.receive(&mut all, 64).expect("a switch") >= 64 {}
    let mut batch = VecDeque::new();
    switch.transmit(&mut batch).expect("a switch");
}
