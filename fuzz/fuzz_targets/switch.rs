//! Sends arbitrary frames of a guest to a switch: no panic, the parser of a frame's claims depends on its
//! first bytes alone, and no frame takes the addresses of the stack or of another guest.
#![no_main]

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use arbitrary::Arbitrary;
use fullsend_device::{
    Device, PacketPort, Switch, SwitchConfig, UserDevice, UserDeviceConfig, fuzz_claims,
    user_device,
};
use fullsend_offload::{Caps, Link};
use libfuzzer_sys::fuzz_target;

const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 3];
const VICTIM_IP: [u8; 4] = [10, 0, 2, 15];

#[derive(Arbitrary, Debug)]
struct Frame {
    /// Selects addresses and the EtherType.
    kind: u8,
    payload: Vec<u8>,
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let dst = [GATEWAY, VICTIM, [0xff; 6], [2, 9, 9, 9, 9, 9]][usize::from(frame.kind & 3)];
    let src = [GUEST, VICTIM, GATEWAY, GUEST][usize::from(frame.kind >> 2 & 3)];
    let kinds: [[u8; 2]; 4] = [[8, 0], [8, 6], [0x86, 0xdd], [0x81, 0]];
    let kind = kinds[usize::from(frame.kind >> 4 & 3)];
    [&dst[..], &src, &kind, &frame.payload].concat()
}

fuzz_target!(|frames: Vec<Frame>| {
    let gateway_ip = IpAddr::from([10, 0, 2, 2]);
    let switch = Switch::new(SwitchConfig {
        mtu: 1500,
        is_joined: true,
        mac: GATEWAY,
        addresses: BTreeSet::from([gateway_ip]),
    });
    let mut switch = switch.expect("a switch");
    let handle = switch.handle();
    let (victim_device, mut victim) = link();
    let (guest_device, mut guest) = link();
    let victim_port = handle.attach(Box::new(victim_device)).expect("a port");
    handle.attach(Box::new(guest_device)).expect("a port");
    let mut arp = [
        &[0xff; 6][..],
        &VICTIM,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &VICTIM,
    ]
    .concat();
    arp.extend(VICTIM_IP);
    arp.extend([0; 10]);
    send(&mut victim, &arp);
    receive(&mut switch);
    assert_eq!(handle.port_of_mac(VICTIM), Some(victim_port));
    for frame in &frames {
        let frame = bytes(frame);
        fuzz_claims(&frame);
        if frame.len() <= 1514 {
            send(&mut guest, &frame);
        }
    }
    receive(&mut switch);
    assert_eq!(handle.port_of_mac(VICTIM), Some(victim_port));
    assert_eq!(handle.port_of_address(VICTIM_IP.into()), Some(victim_port));
    assert_eq!(handle.port_of_mac(GATEWAY), None);
    assert_eq!(handle.port_of_address(gateway_ip), None);
});

fn link() -> (UserDevice, PacketPort) {
    let caps = Caps::plain(Link::Ethernet, 1500);
    user_device(UserDeviceConfig::new(caps))
}

fn send(port: &mut PacketPort, frame: &[u8]) {
    // Refused if it is empty, or if many wait.
    let _ = port.sender.try_send(frame);
}

fn receive(switch: &mut Switch) {
    let mut all = Vec::new();
    while switch.receive(&mut all, 64).expect("a switch") >= 64 {}
    let mut batch = VecDeque::new();
    switch.transmit(&mut batch).expect("a switch");
}
