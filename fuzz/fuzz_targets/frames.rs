//! Sends arbitrary bytes, in arbitrary pieces, to a link to a virtual machine in each framing: no
//! panic, the number of frames is counted, each frame has a possible length, and a link that has not
//! ended sends.
#![no_main]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

use arbitrary::Arbitrary;
use fullsend_device::{Device, FrameDatagrams, FrameLink, Framing};
use fullsend_offload::{Packet, Slice};
use libfuzzer_sys::fuzz_target;

/// Which framing, and what the peer sends.
#[derive(Arbitrary, Debug)]
struct Input {
    framing: u8,
    /// Begins with the magic bytes of a handshake.
    greets: bool,
    pieces: Vec<Vec<u8>>,
    /// The frames that one call may return.
    max: u8,
}

fuzz_target!(|input: Input| {
    match input.framing % 4 {
        0 => stream(Framing::Qemu, &input),
        1 => stream(Framing::Plain, &input),
        2 => stream(Framing::Hyperkit { guest_mac: [2; 6] }, &input),
        _ => datagrams(&input),
    }
});

fn stream(framing: Framing, input: &Input) {
    let (here, mut peer) = UnixStream::pair().expect("two sockets");
    peer.set_nonblocking(true).expect("the socket is open");
    let mut link = FrameLink::connected(here.into(), framing, 1500).expect("a link");
    if input.greets {
        let greeting = [&b"VMN3T"[..], &[1; 44 + 41]].concat();
        let _ = peer.write_all(&greeting);
    }
    let mut received = 0;
    for piece in &input.pieces {
        // Fails if the link has closed the connection.
        let _ = peer.write_all(piece);
        let Some(frames) = receive(&mut link, input.max) else {
            assert!(link.receive(&mut Vec::new(), 8).is_err(), "it has ended");
            return;
        };
        received += frames;
        assert_eq!(link.stats().rx_frames, received);
    }
    let frame = Packet::from_frame(Slice::copied_from(&[7; 60]));
    let mut batch = VecDeque::from([frame]);
    link.transmit(&mut batch)
        .expect("a link that has not ended");
    assert!(batch.is_empty());
    let _ = peer.read(&mut [0; 1 << 10]);
}

/// Receives everything; `None` if the link has ended.
fn receive(device: &mut impl Device, max: u8) -> Option<u64> {
    let max = usize::from(max).max(1);
    let (mut frames, mut all) = (Vec::new(), 0);
    loop {
        let count = device.receive(&mut frames, max).ok()?;
        for frame in frames.drain(..) {
            assert!((14..=65_593).contains(&frame.len()));
            all += 1;
        }
        if count < max {
            return Some(all);
        }
    }
}

fn datagrams(input: &Input) {
    let bind = |name: &str| {
        let name = format!("fullsend-fuzz-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        (
            UnixDatagram::bind_addr(&address).expect("the name is free"),
            address,
        )
    };
    let ((here, at), (peer, _)) = (bind("gateway"), bind("guest"));
    peer.set_nonblocking(true).expect("the socket is open");
    peer.connect_addr(&at).expect("the other one is bound");
    let mut device = FrameDatagrams::new(here.into(), 1500).expect("a device");
    if input.greets {
        let _ = peer.send(b"VFKT");
    }
    for piece in &input.pieces {
        let _ = peer.send(piece);
        let mut frames = Vec::new();
        let max = usize::from(input.max).max(1);
        while device.receive(&mut frames, max).expect("it does not end") >= max {}
    }
}
