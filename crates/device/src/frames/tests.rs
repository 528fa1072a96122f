//! Tests of each framing against a peer on a socket pair.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullsend_offload::{Checksum, GsoKind, HeaderBuf, Link, Packet};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{SeqNum, WireWindow};
use parking_lot::Mutex;

use super::*;
use crate::sys::testing::{seqpacket_pair, wait_readable};
use crate::{Device, FrameSocket, test_packet};

const GUEST_MAC: [u8; 6] = [0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xee];
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Returns a frame of the guest: an Ethernet header and `len` bytes behind it.
fn frame(len: usize, fill: u8) -> Vec<u8> {
    let mut frame = vec![fill; 14 + len];
    frame[6..12].copy_from_slice(&GUEST_MAC);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame
}

fn be32(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

fn le16(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u16).to_le_bytes()[..], frame].concat()
}

/// Returns a TCP super-segment on Ethernet in the form in which a host sends it.
fn super_segment(len: usize, gso_size: u16) -> Packet {
    let repr = TcpRepr {
        src_port: 1,
        dst_port: 2,
        seq: SeqNum::new(7),
        ack: SeqNum::new(9),
        flags: TcpFlags::ACK,
        window: WireWindow(100),
        ..TcpRepr::default()
    };
    let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let mut packet = test_packet::tcp((OWN, GUEST), &repr, &payload, gso_size);
    let ethernet = [&GUEST_MAC[..], &[2, 0, 0, 0, 0, 1], &[8, 0]].concat();
    let header = [&ethernet, packet.header.as_slice()].concat();
    packet.header = HeaderBuf::from_slice(&header);
    packet.layers.network = [14, 14];
    packet.layers.transport += 14;
    packet
}

fn link(framing: Framing) -> (FrameLink, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    let link = FrameLink::connected(here.into(), framing, 1500).unwrap();
    (link, there)
}

/// Receives everything that the device has.
fn received(device: &mut impl Device) -> io::Result<Vec<Packet>> {
    let mut all = Vec::new();
    loop {
        if device.receive(&mut all, 8)? < 8 {
            return Ok(all);
        }
    }
}

fn bytes_of(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::to_bytes).collect()
}

/// Splits a stream of frames with 4-byte lengths.
fn split_be32(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = stream.split_first_chunk() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        frames.push(frame.to_vec());
        stream = rest;
    }
    frames
}

/// Returns the sum over a frame's TCP segment, which is 0xffff if its checksum is right.
fn tcp_sum(frame: &[u8]) -> u16 {
    let segment = &frame[14 + 20..];
    (Sum::pseudo(OWN, GUEST, protocol::TCP, segment.len() as u32) + sum(segment)).fold()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("fullsend-frames-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn frames_of_one_read_and_of_many_are_the_same() {
    for (framing, emit) in [
        (Framing::Qemu, be32 as fn(&[u8]) -> Vec<u8>),
        (Framing::Plain, le16),
    ] {
        let frames: Vec<_> = (0..30).map(|n| frame(usize::from(n) * 50, n)).collect();
        let stream = frames.iter().flat_map(|frame| emit(frame));
        let stream: Vec<u8> = stream.collect();
        let (mut link, mut peer) = link(framing);
        peer.write_all(&stream).unwrap();
        assert_eq!(bytes_of(&received(&mut link).unwrap()), frames);
        // One read, and one that finds nothing.
        assert_eq!(link.stats().rx_calls, 2);
        let mut all = Vec::new();
        for part in stream.chunks(333) {
            peer.write_all(part).unwrap();
            all.extend(received(&mut link).unwrap());
        }
        assert_eq!(bytes_of(&all), frames, "{framing:?}");
        assert_eq!(link.stats().rx_frames, 60);
    }
}

#[test]
fn received_checksums_count_as_valid_and_super_segments_have_a_size() {
    let (mut link, mut peer) = link(Framing::Qemu);
    let frames = [frame(100, 0), frame(65_535, 0), frame(1514, 0)];
    for frame in &frames {
        peer.write_all(&be32(frame)).unwrap();
    }
    let packets = received(&mut link).unwrap();
    let offloads: Vec<_> = packets.iter().map(|p| p.offload).collect();
    assert!(offloads.iter().all(|o| o.checksum == Checksum::Valid));
    let sizes = offloads.iter().map(|o| (o.kind, o.gso_size));
    let expected = [
        (GsoKind::None, 0),
        (GsoKind::TcpV4, 1448),
        (GsoKind::TcpV4, 1448),
    ];
    assert_eq!(sizes.collect::<Vec<_>>(), expected);
}

#[test]
fn a_super_segment_is_segmented_in_one_call_unless_the_peer_sends_such() {
    let (mut link, mut peer) = link(Framing::Qemu);
    let mut batch = VecDeque::from([super_segment(10_000, 1460), super_segment(100, 0)]);
    link.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!((link.stats().tx_calls, link.stats().tx_frames), (1, 8));
    peer.set_nonblocking(true).unwrap();
    let mut stream = Vec::new();
    let _ = peer.read_to_end(&mut stream);
    let frames = split_be32(&stream);
    let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
    assert_eq!(lengths, [&[1514; 6][..], &[54 + 1240, 154]].concat());
    assert!(frames.iter().all(|frame| tcp_sum(frame) == 0xffff));

    peer.write_all(&be32(&frame(20_000, 0))).unwrap();
    received(&mut link).unwrap();
    let mut batch = VecDeque::from([super_segment(10_000, 1460)]);
    link.transmit(&mut batch).unwrap();
    let mut stream = Vec::new();
    let _ = peer.read_to_end(&mut stream);
    let frames = split_be32(&stream);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].len(), 54 + 10_000);
    assert_eq!(tcp_sum(&frames[0]), 0xffff);
}

#[test]
fn a_full_socket_keeps_packets_and_a_part_of_a_frame_is_continued() {
    let (mut link, mut peer) = link(Framing::Qemu);
    let mut batch: VecDeque<_> = (0..40).map(|_| super_segment(60_000, 1460)).collect();
    let mut stream = Vec::new();
    link.transmit(&mut batch).unwrap();
    assert!(!batch.is_empty(), "the socket's buffer is smaller");
    while !batch.is_empty() {
        let mut part = vec![0; 100_000];
        let len = peer.read(&mut part).unwrap();
        stream.extend(&part[..len]);
        link.transmit(&mut batch).unwrap();
    }
    peer.set_nonblocking(true).unwrap();
    let _ = peer.read_to_end(&mut stream);
    let frames = split_be32(&stream);
    assert_eq!(frames.len(), 40 * 42);
    assert!(frames.iter().all(|frame| tcp_sum(frame) == 0xffff));
    let payload: usize = frames.iter().map(|frame| frame.len() - 54).sum();
    assert_eq!(payload, 40 * 60_000);
}

#[test]
fn a_packet_that_the_length_cannot_express_is_dropped() {
    let (mut link, mut peer) = link(Framing::Plain);
    let mut batch = VecDeque::from([super_segment(65_530, 0), super_segment(10, 0)]);
    link.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!((link.stats().tx_dropped, link.stats().tx_frames), (1, 1));
    let mut length = [0; 2];
    peer.read_exact(&mut length).unwrap();
    assert_eq!(u16::from_le_bytes(length), 64);
}

#[test]
fn the_end_of_the_only_connection_ends_the_device_after_its_frames() {
    let (mut link, mut peer) = link(Framing::Qemu);
    peer.write_all(&be32(&frame(10, 1))).unwrap();
    drop(peer);
    let mut batch = Vec::new();
    assert_eq!(link.receive(&mut batch, 8).unwrap(), 1);
    assert_eq!((batch.len(), link.stats().rx_calls), (1, 1));
    assert!(wait_readable(link.fd().unwrap(), 0), "its end");
    let error = link.receive(&mut batch, 8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    assert!(packets.is_empty());
}

#[test]
fn an_impossible_length_is_counted_and_the_next_connection_takes_over() {
    let folder = Folder::new("reconnect");
    let path = folder.0.join("socket");
    let events = Arc::new(Mutex::new(Vec::new()));
    let reported = events.clone();
    let link = FrameLink::new(1500).unwrap();
    let mut link = link.on_peer(move |event| reported.lock().push(event));
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    assert!(received(&mut link).unwrap().is_empty());
    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    assert_eq!((packets.len(), link.stats().tx_dropped), (0, 1));
    assert!(!wait_readable(link.fd().unwrap(), 0));

    let mut first = UnixStream::connect(&path).unwrap();
    assert!(wait_readable(link.fd().unwrap(), 5000));
    let mut second = UnixStream::connect(&path).unwrap();
    second.write_all(&be32(&frame(20, 2))).unwrap();
    first.write_all(&be32(&frame(10, 1))).unwrap();
    assert_eq!(received(&mut link).unwrap().len(), 1);
    assert!(!wait_readable(link.fd().unwrap(), 0));
    first.write_all(&[0xff; 4]).unwrap();
    assert!(wait_readable(link.fd().unwrap(), 5000));
    let packets = received(&mut link).unwrap();
    assert_eq!(bytes_of(&packets), [frame(20, 2)]);
    assert_eq!((link.stats().malformed, link.stats().connections), (1, 2));
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "closed");

    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    let mut length = [0; 4];
    second.read_exact(&mut length).unwrap();
    assert_eq!(length, [0, 0, 0, 64]);
    drop(second);
    assert!(wait_readable(link.fd().unwrap(), 5000));
    assert!(received(&mut link).unwrap().is_empty());
    let (connected, disconnected) = (
        PeerEvent::Connected { mac: GUEST_MAC },
        PeerEvent::Disconnected {
            mac: Some(GUEST_MAC),
        },
    );
    let expected = [connected, disconnected, connected, disconnected];
    assert_eq!(*events.lock(), expected);
}

/// Counts the events that reach the log of a thread.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn connections_that_end_within_a_frame_have_few_lines_in_the_log() {
    let folder = Folder::new("flood");
    let path = folder.0.join("socket");
    let mut link = FrameLink::new(1500).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        for n in 0..200_u32 {
            let mut client = UnixStream::connect(&path).unwrap();
            // Lengths differ, and so do the texts.
            let length = u32::MAX - n;
            client.write_all(&length.to_be_bytes()).unwrap();
            assert!(received(&mut link).unwrap().is_empty());
        }
        tracing::info!("the log works");
    });
    assert_eq!(link.stats().malformed, 200);
    let lines = lines.0.load(Ordering::Relaxed);
    assert!((1..=21).contains(&lines), "{lines} lines");
}

#[test]
fn a_link_that_ends_with_its_peer_waits_for_the_first_one() {
    let folder = Folder::new("one-off");
    let path = folder.0.join("socket");
    let mut link = FrameLink::new(1500).unwrap().end_with_peer();
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    assert!(received(&mut link).unwrap().is_empty());
    drop(UnixStream::connect(&path).unwrap());
    let error = received(&mut link).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn room_in_a_full_socket_is_an_event_of_a_listening_link() {
    let mut link = FrameLink::new(1500).unwrap();
    let attachment = link.attachment().unwrap();
    let (here, mut peer) = UnixStream::pair().unwrap();
    attachment.attach(here.into(), Framing::Qemu).unwrap();
    assert!(wait_readable(link.fd().unwrap(), 5000));
    received(&mut link).unwrap();
    let mut batch: VecDeque<_> = (0..40).map(|_| super_segment(60_000, 1460)).collect();
    while !batch.is_empty() {
        link.transmit(&mut batch).unwrap();
        received(&mut link).unwrap();
        if batch.is_empty() {
            break;
        }
        while !wait_readable(link.fd().unwrap(), 0) {
            assert!(peer.read(&mut [0; 10_000]).unwrap() > 0);
        }
    }
}

#[test]
fn attached_connections_wait_for_their_turn_and_are_bounded() {
    let mut link = FrameLink::new(1500).unwrap();
    let attachment = link.attachment().unwrap();
    let mut peers = Vec::new();
    for _ in 0..16 {
        let (here, there) = UnixStream::pair().unwrap();
        attachment.attach(here.into(), Framing::Plain).unwrap();
        peers.push(there);
    }
    let (here, _there) = UnixStream::pair().unwrap();
    let error = attachment.attach(here.into(), Framing::Plain).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    for (n, mut peer) in (0..).zip(peers) {
        peer.write_all(&le16(&frame(10, n))).unwrap();
        assert_eq!(bytes_of(&received(&mut link).unwrap()), [frame(10, n)]);
    }
}

#[test]
fn hyperkit_shakes_hands_before_its_frames() {
    let guest_mac = GUEST_MAC;
    let (mut link, mut peer) = link(Framing::Hyperkit { guest_mac });
    let hello = [&b"VMN3T"[..], &[1; 44]].concat();
    peer.write_all(&hello).unwrap();
    assert!(received(&mut link).unwrap().is_empty());
    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    assert_eq!((packets.len(), link.stats().tx_dropped), (0, 1), "not yet");
    let mut echo = [0; 49];
    peer.read_exact(&mut echo).unwrap();
    assert_eq!(echo[..], hello);
    // The frame behind the command must not be lost.
    let command = [&[1; 41][..], &le16(&frame(30, 3))].concat();
    peer.write_all(&command).unwrap();
    assert_eq!(bytes_of(&received(&mut link).unwrap()), [frame(30, 3)]);
    let mut reply = [0; 258];
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..5], [1, 0xdc, 5, 0xea, 5]);
    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    let mut framed = [0; 2 + 64];
    peer.read_exact(&mut framed).unwrap();
    assert_eq!(framed[..2], [64, 0]);
}

#[test]
fn pipes_carry_frames_in_both_directions() {
    let (from_guest, mut guest_out) = io::pipe().unwrap();
    let (mut guest_in, to_guest) = io::pipe().unwrap();
    let (input, output) = (OwnedFd::from(from_guest), OwnedFd::from(to_guest));
    let mut link = FrameLink::pipes(input, output, Framing::Plain, 1500).unwrap();
    received(&mut link).unwrap();
    guest_out.write_all(&le16(&frame(30, 3))).unwrap();
    assert!(wait_readable(link.fd().unwrap(), 5000));
    assert_eq!(bytes_of(&received(&mut link).unwrap()), [frame(30, 3)]);
    let mut packets = VecDeque::from([super_segment(10, 0)]);
    link.transmit(&mut packets).unwrap();
    let mut framed = [0; 2 + 64];
    guest_in.read_exact(&mut framed).unwrap();
    drop(guest_out);
    assert!(wait_readable(link.fd().unwrap(), 5000));
    assert!(received(&mut link).is_err());
}

#[test]
fn messages_of_an_attached_socket_are_frames() {
    let mut link = FrameLink::new(1500).unwrap();
    let (here, there) = seqpacket_pair().unwrap();
    let attachment = link.attachment().unwrap();
    attachment.attach(here, Framing::Messages).unwrap();
    let mut peer = FrameSocket::new(there, 1500).unwrap();
    let mut packets = VecDeque::from([super_segment(10, 0), super_segment(20, 0)]);
    peer.transmit(&mut packets).unwrap();
    assert_eq!(received(&mut link).unwrap().len(), 2);
    link.transmit(&mut VecDeque::from([super_segment(30, 0)]))
        .unwrap();
    assert_eq!(received(&mut peer).unwrap()[0].len(), 84);
    drop(peer);
    assert!(received(&mut link).unwrap().is_empty());
    assert_eq!(link.stats().tx_dropped, 0);
    link.transmit(&mut VecDeque::from([super_segment(30, 0)]))
        .unwrap();
    assert_eq!(link.stats().tx_dropped, 1);
}

#[test]
fn the_first_sender_of_datagrams_is_the_peer_until_it_is_gone() {
    let folder = Folder::new("vfkit");
    let at = |name: &str| folder.0.join(name);
    let socket = UnixDatagram::bind(at("gateway")).unwrap();
    let mut device = FrameDatagrams::new(socket.into(), 1500).unwrap();
    assert_eq!(device.caps().link, Link::Ethernet);
    let unnamed = UnixDatagram::unbound().unwrap();
    unnamed.send_to(&frame(10, 9), at("gateway")).unwrap();
    assert!(received(&mut device).unwrap().is_empty());
    assert_eq!(device.unnamed_senders(), 1);

    let packet = || VecDeque::from([super_segment(30, 0)]);
    for (name, greets) in [("first", true), ("second", false), ("second", true)] {
        // A peer that has been killed leaves the file of its socket.
        let _ = std::fs::remove_file(at(name));
        let guest = UnixDatagram::bind(at(name)).unwrap();
        guest.connect(at("gateway")).unwrap();
        if greets {
            guest.send(b"VFKT").unwrap();
        }
        guest.send(&frame(20, 1)).unwrap();
        guest.send(&frame(20, 2)).unwrap();
        let packets = received(&mut device).unwrap();
        assert_eq!(bytes_of(&packets), [frame(20, 1), frame(20, 2)]);
        device.transmit(&mut packet()).unwrap();
        assert_eq!(guest.recv(&mut [0; 100]).unwrap(), 84);
        // Others are ignored while it lives.
        let other = UnixDatagram::bind(at("other")).unwrap();
        other.send_to(&frame(20, 3), at("gateway")).unwrap();
        assert!(received(&mut device).unwrap().is_empty());
        std::fs::remove_file(at("other")).unwrap();
        // The next one takes over at once: nothing is sent before.
    }
    let dropped = device.stats().tx_dropped;
    device.transmit(&mut packet()).unwrap();
    assert_eq!(device.stats().tx_dropped, dropped + 1);
    assert!(received(&mut device).unwrap().is_empty());
    device.transmit(&mut packet()).unwrap();
    assert_eq!(device.stats().tx_dropped, dropped + 2);
}

#[test]
fn a_flood_of_unnamed_senders_does_not_keep_the_device_busy() {
    let folder = Folder::new("unnamed");
    let path = folder.0.join("gateway");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut listener = DatagramListener::new(socket.into(), 1500).unwrap();
    let flood = UnixDatagram::unbound().unwrap();
    flood.set_nonblocking(true).unwrap();
    let mut calls = 0;
    while calls < 100 {
        while flood.send_to(&frame(20, 9), &path).is_ok() {}
        match listener.accept() {
            Ok(None) => calls += 1,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            Ok(Some(_)) => panic!("a peer without an address"),
        }
        // Linux may queue fewer datagrams than one call reads.
        calls += usize::from(listener.unnamed_senders() > 1000);
    }
}

#[test]
fn peers_of_one_socket_have_devices_of_their_own() {
    let folder = Folder::new("peers");
    let at = |name: &str| folder.0.join(name);
    let socket = UnixDatagram::bind(at("gateway")).unwrap();
    let mut listener = DatagramListener::new(socket.into(), 1500).unwrap();
    let guest = |name: &str| {
        let guest = UnixDatagram::bind(at(name)).unwrap();
        guest.connect(at("gateway")).unwrap();
        guest.send(b"VFKT").unwrap();
        guest
    };
    let (first, second) = (guest("first"), guest("second"));
    let mut devices = [
        listener.accept().unwrap().unwrap(),
        listener.accept().unwrap().unwrap(),
    ];
    first.send(&frame(20, 1)).unwrap();
    second.send(&frame(20, 2)).unwrap();
    first.send(&frame(20, 3)).unwrap();
    let error = listener.accept().err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let packets = received(&mut devices[0]).unwrap();
    assert_eq!(bytes_of(&packets), [frame(20, 1), frame(20, 3)]);
    assert_eq!(
        bytes_of(&received(&mut devices[1]).unwrap()),
        [frame(20, 2)]
    );
    for (guest, device) in [&first, &second].into_iter().zip(&mut devices) {
        let mut batch = VecDeque::from([super_segment(30, 0)]);
        device.transmit(&mut batch).unwrap();
        assert_eq!(guest.recv(&mut [0; 100]).unwrap(), 84);
    }
    // Packets that do not fit wait, and are tried again after a time.
    let mut batch = VecDeque::new();
    for _ in 0..1000 {
        batch.extend(vec![super_segment(1400, 0); 16]);
        first.send(&frame(20, 1)).unwrap();
        assert!(listener.accept().is_err());
        devices[0].transmit(&mut batch).unwrap();
        if !batch.is_empty() {
            break;
        }
    }
    assert!(!batch.is_empty());
    received(&mut devices[0]).unwrap();
    assert!(is_readable_within(&devices[0], 10_000));
    while first.recv(&mut [0; 2000]).is_ok_and(|n| n > 0) && !batch.is_empty() {
        devices[0].transmit(&mut batch).unwrap();
    }
    first.set_nonblocking(true).unwrap();
    while first.recv(&mut [0; 2000]).is_ok() {}
    // A peer that neither reads nor sends does not stop the others.
    for _ in 0..1000 {
        let mut batch = vec![super_segment(1400, 0); 16].into();
        devices[1].transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
    }
    let mut batch: VecDeque<_> = vec![super_segment(1400, 0); 100].into();
    devices[0].transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(first.recv(&mut [0; 2000]).unwrap(), 1454);
    // A restarted peer: the device of its predecessor ends when the new one appears.
    drop(first);
    let _restarted = guest("third");
    assert!(listener.accept().unwrap().is_some());
    assert!(is_readable_within(&devices[0], 0));
    assert!(received(&mut devices[0]).is_err());
    assert!(received(&mut devices[1]).unwrap().is_empty());
}

#[test]
fn a_connection_that_cannot_be_accepted_is_accepted_later() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Limits are those of a process, and other tests open files.
    let name = "frames::tests::a_connection_that_cannot_be_accepted_is_accepted_later";
    if std::env::var_os("FULLSEND_TEST_CHILD").is_none() {
        let test = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("FULLSEND_TEST_CHILD", "1")
            .status();
        assert!(test.unwrap().success());
        return;
    }
    let folder = Folder::new("retry");
    let path = folder.0.join("socket");
    let mut link = FrameLink::new(1500).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    let mut guest = UnixStream::connect(&path).unwrap();
    guest.write_all(&be32(&frame(20, 1))).unwrap();
    let limit = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..limit
    };
    setrlimit(Resource::Nofile, none).unwrap();
    assert!(received(&mut link).unwrap().is_empty());
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(is_readable_within(&link, 10_000));
    assert_eq!(bytes_of(&received(&mut link).unwrap()), [frame(20, 1)]);
}

/// Returns whether the file of a device becomes readable.
fn is_readable_within(device: &impl Device, ms: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let file = device.fd().unwrap();
    let mut polled = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
    let time = Timespec {
        tv_sec: ms / 1000,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&time)).unwrap() == 1
}

/// Each of the ways in which a link is polled finds the end behind the last frames, though one read has
/// emptied the stream.
#[test]
fn the_end_behind_the_last_frame_is_found_after_one_event() {
    let folder = Folder::new("end");
    let path = folder.0.join("socket");
    let mut link = FrameLink::new(1500).unwrap().end_with_peer();
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    peer.write_all(&be32(&frame(10, 1))).unwrap();
    assert_eq!(received(&mut link).unwrap().len(), 1);
    // Both arrive before the link is polled.
    peer.write_all(&be32(&frame(10, 2))).unwrap();
    drop(peer);
    let mut batch = Vec::new();
    assert_eq!(link.receive(&mut batch, 8).unwrap(), 8, "more to come");
    assert_eq!(batch.len(), 1);
    assert!(link.receive(&mut batch, 8).is_err());
}

/// A read by the peer is no event of the link, unless packets wait for room.
#[test]
fn room_is_an_event_only_while_packets_wait() {
    let folder = Folder::new("room");
    let path = folder.0.join("socket");
    let mut link = FrameLink::new(1500).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    peer.set_nonblocking(true).unwrap();
    assert!(received(&mut link).unwrap().is_empty());
    let mut read_all = || {
        let mut len = 0;
        while let Ok(n) = peer.read(&mut [0; 8192]) {
            len += n;
        }
        len
    };
    for _ in 0..3 {
        link.transmit(&mut VecDeque::from([super_segment(1000, 0)]))
            .unwrap();
        assert!(read_all() > 1000);
        assert!(!wait_readable(link.fd().unwrap(), 0));
    }
    let mut batch: VecDeque<_> = (0..200).map(|_| super_segment(60_000, 0)).collect();
    while !batch.is_empty() {
        link.transmit(&mut batch).unwrap();
        assert!(read_all() > 0);
        assert!(batch.is_empty() || wait_readable(link.fd().unwrap(), 1000));
        assert!(received(&mut link).unwrap().is_empty());
    }
}
