//! Measures how much one core moves through a TUN device when nothing but the device costs
//! anything: one TCP connection with the kernel, whose other end only counts bytes and sends ACKs.
//!
//! `sudo unshare -n cargo run --release -p fullsend-device --example tun_raw -- in|out|sink
//! [OFFLOAD] [napi] [mtu=N]`. `in` is kernel to this program, `out` this program to the kernel, and
//! `sink` this program to an address that the kernel drops at once.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fullsend_device::{Device, OffloadSet, Tun};
use fullsend_offload::{
    Checksum, GsoKind, HeaderBuf, Layers, Link, Offload, Packet, Slice, segment,
};
use fullsend_wire::checksum::Sum;
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{SeqNum, WireWindow};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// An address without a route: the kernel's input drops packets to it.
const UNROUTED: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 5000;
const RUN: Duration = Duration::from_secs(4);
const SCALE: u8 = 10;
/// The advertised window, before scaling: small enough that the data queued in the device is still
/// in the cache.
const WINDOW: u16 = 600;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// This program's end of the connection.
struct Endpoint {
    tun: Tun,
    mss: usize,
    super_segments: bool,
    repr: TcpRepr,
    dst: Ipv4Addr,
    out: VecDeque<Packet>,
    segmented: Vec<Packet>,
    frames: Vec<Packet>,
}

impl Endpoint {
    fn packet(&self, payload: Slice) -> Packet {
        let mut header = [0; 100];
        let len = 20 + self.repr.emit(&mut header[20..]);
        let partial = (len - 20 + payload.len()) as u32;
        let partial = Sum::pseudo_v4(OURS, self.dst, 6, partial).fold();
        header[36..38].copy_from_slice(&partial.to_be_bytes());
        let below = (len - 20 + payload.len()) as u16;
        Ipv4Repr::new(OURS, self.dst, 6, below).emit(&mut header);
        let segments = payload.len().div_ceil(self.mss);
        Packet {
            header: HeaderBuf::from_slice(&header[..len]),
            layers: Layers {
                transport: 20,
                ethertype: 0x800,
                protocol: 6,
                ..Layers::default()
            },
            offload: Offload {
                gso_size: if segments > 1 { self.mss as u16 } else { 0 },
                gso_segs: segments as u16,
                kind: if segments > 1 {
                    GsoKind::TcpV4
                } else {
                    GsoKind::None
                },
                checksum: Checksum::Partial,
                ..Offload::default()
            },
            payload: payload.into(),
            ..Packet::default()
        }
    }

    fn queue(&mut self, payload: Slice) {
        let len = payload.len() as u32;
        let packet = self.packet(payload);
        if self.super_segments {
            self.out.push_back(packet);
        } else {
            segment(packet, &mut self.segmented);
            self.out.extend(self.segmented.drain(..));
        }
        self.repr.seq = SeqNum::new(self.repr.seq.raw().wrapping_add(len));
    }

    fn send(&mut self, flags: TcpFlags) -> Outcome<()> {
        self.repr.flags = flags;
        self.queue(Slice::default());
        Ok(self.tun.transmit(&mut self.out)?)
    }

    /// Receives the frames available, and passes each TCP header with its payload length to
    /// `on_segment`.
    fn receive(&mut self, mut on_segment: impl FnMut(&TcpRepr, u32)) -> Outcome<usize> {
        let got = self.tun.receive(&mut self.frames, 64)?;
        for mut packet in self.frames.drain(..) {
            if packet.parse(Link::Ip).is_ok() && packet.layers.protocol == 6 {
                let (repr, _) =
                    TcpRepr::parse(packet.transport_header()).map_err(|e| e.to_string())?;
                on_segment(&repr, packet.payload.len() as u32);
            }
        }
        Ok(got)
    }

    /// Waits until the device is readable.
    fn wait(&self) {
        let Some(fd) = self.tun.fd() else { return };
        let mut poll = libc::pollfd {
            fd: std::os::fd::AsRawFd::as_raw_fd(&fd),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live `pollfd`.
        unsafe { libc::poll(&raw mut poll, 1, 100) };
    }

    /// Waits for the kernel's SYN, with or without ACK, and acknowledges it.
    fn wait_syn(&mut self) -> Outcome<TcpRepr> {
        let mut syn = None;
        while syn.is_none() {
            self.receive(|repr, _| {
                if repr.flags.contains(TcpFlags::SYN) {
                    syn = Some(*repr);
                }
            })?;
        }
        let syn = syn.ok_or("no SYN")?;
        self.repr.ack = SeqNum::new(syn.seq.raw().wrapping_add(1));
        self.repr.src_port = syn.dst_port;
        self.repr.dst_port = syn.src_port;
        Ok(syn)
    }
}

/// Returns the seconds of CPU time that a thread has used.
fn cpu_s(schedstat: &str) -> f64 {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    let ns: f64 = text
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    ns / 1e9
}

fn report(what: &str, bytes: u64, elapsed: Duration, end: &Endpoint) {
    let gbit = bytes as f64 * 8.0 / 1e9;
    let ours = cpu_s("/proc/thread-self/schedstat");
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let all: f64 = tasks
        .map(|t| cpu_s(&format!("{}/schedstat", t.path().display())))
        .sum();
    let (rate, own) = (gbit / elapsed.as_secs_f64(), gbit / ours);
    let stats = end.tun.stats();
    println!(
        "{what}: {rate:.1} Gbit/s, {own:.1} per second of our processor, {:.1} of all; \
         {} bytes/packet in, {} out; {stats:?}",
        gbit / all,
        bytes / stats.rx_packets.max(1),
        bytes / stats.tx_packets.max(1),
    );
}

fn run_receive(mut end: Endpoint) -> Outcome<()> {
    std::thread::spawn(|| -> Outcome<()> {
        let mut stream = TcpStream::connect((OURS, PORT))?;
        let data = vec![7; 256 << 10];
        loop {
            stream.write_all(&data)?;
        }
    });
    end.wait_syn()?;
    end.send(TcpFlags::SYN.union(TcpFlags::ACK))?;
    end.repr.options.mss = None;
    end.repr.options.window_scale = None;
    end.repr.seq = SeqNum::new(1);
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        let mut ack = end.repr.ack.raw();
        let before = ack;
        end.receive(|_, len| ack = ack.wrapping_add(len))?;
        if ack == before {
            end.wait();
        } else {
            bytes += u64::from(ack.wrapping_sub(before));
            end.repr.ack = SeqNum::new(ack);
            end.send(TcpFlags::ACK)?;
        }
    }
    report("kernel to us", bytes, start.elapsed(), &end);
    Ok(())
}

fn run_send(mut end: Endpoint) -> Outcome<()> {
    let listener = TcpListener::bind((KERNEL, PORT))?;
    std::thread::spawn(move || -> Outcome<()> {
        let (mut stream, _) = listener.accept()?;
        let mut data = vec![0; 256 << 10];
        while stream.read(&mut data)? > 0 {}
        Ok(())
    });
    end.repr.dst_port = PORT;
    end.send(TcpFlags::SYN)?;
    let syn = end.wait_syn()?;
    let shift = syn.options.window_scale.unwrap_or(0);
    end.repr.options.mss = None;
    end.repr.options.window_scale = None;
    end.repr.seq = SeqNum::new(1);
    end.send(TcpFlags::ACK)?;
    let payload = Slice::copied_from(&vec![9; 65_495 / end.mss * end.mss]);
    let (start, mut una, mut window) = (Instant::now(), 1u32, u32::from(syn.window.0));
    let mut bytes = 0;
    while start.elapsed() < RUN {
        let flight = end.repr.seq.raw().wrapping_sub(una);
        if flight + payload.len() as u32 <= window.max(payload.len() as u32) {
            end.queue(payload.clone());
            end.tun.transmit(&mut end.out)?;
        } else {
            end.wait();
        }
        let before = una;
        end.receive(|repr, _| {
            una = repr.ack.raw();
            window = u32::from(repr.window.0) << shift;
        })?;
        bytes += u64::from(una.wrapping_sub(before));
    }
    report("us to kernel", bytes, start.elapsed(), &end);
    Ok(())
}

fn run_discard(mut end: Endpoint) -> Outcome<()> {
    end.dst = UNROUTED;
    end.repr.flags = TcpFlags::ACK;
    let payload = Slice::copied_from(&vec![9; 65_495 / end.mss * end.mss]);
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        end.queue(payload.clone());
        end.tun.transmit(&mut end.out)?;
        bytes += payload.len() as u64;
    }
    report("us to kernel, discarded", bytes, start.elapsed(), &end);
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut builder = Tun::tun("raw").kernel_address(IpAddr::V4(KERNEL), 24);
    for arg in args.iter().skip(1) {
        builder = match (arg.as_str(), arg.strip_prefix("mtu=")) {
            ("napi", _) => builder.napi(true),
            (_, Some(mtu)) => builder.mtu(mtu.parse()?),
            _ => builder.offload(arg.parse::<OffloadSet>()?),
        };
    }
    let tun = builder.open()?;
    let caps = tun.caps();
    let mut repr = TcpRepr {
        src_port: 4000,
        window: WireWindow(WINDOW),
        ..TcpRepr::default()
    };
    repr.options.mss = Some((caps.mtu - 40) as u16);
    repr.options.window_scale = Some(SCALE);
    let end = Endpoint {
        tun,
        mss: caps.mtu as usize - 40,
        super_segments: caps.tso4,
        repr,
        dst: KERNEL,
        out: VecDeque::new(),
        segmented: Vec::new(),
        frames: Vec::new(),
    };
    match args.first().map(String::as_str) {
        Some("in") => run_receive(end),
        Some("out") => run_send(end),
        Some("sink") => run_discard(end),
        _ => Err("the direction is missing or unknown; write in, out or sink".into()),
    }
}
