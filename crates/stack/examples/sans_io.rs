//! A whole host without I/O: two of them, each with an event loop of its own, exchange packets
//! through UDP sockets on loopback. The client sends a mebibyte, and the server echoes it.
//!
//! `cargo run -p fullsend-stack --example sans_io`
//!
//! The calls of an event loop, in quinn-proto's terms:
//!
//! | quinn-proto | here |
//! |---|---|
//! | `Endpoint::handle`, `Connection::handle_event` | `Host::receive`, for a batch of packets |
//! | `handle_timeout` | `Host::poll` |
//! | `poll_timeout` | `Host::poll_deadline` |
//! | `poll_transmit` | `Host::transmit`, and `Host::complete` when the packet has left |
//! | `poll` (events) | `Host::take_wakers`, of `poll_ready` on handles; or try each socket, as here |

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time;

use fullsend_offload::{Caps, Link, Packet, Slice};
use fullsend_stack::{Host, HostConfig, IfaceId, ListenConfig, NetConfig, StackError};
use fullsend_tcp::{Sysctl, TcpError};
use fullsend_wire::{Instant, Seed};

const MTU: u32 = 1400;
const TOTAL: usize = 1 << 20;

/// A host, its link and its clock.
struct Endpoint {
    host: Host,
    iface: IfaceId,
    /// The link: each datagram is an IP packet. Any other way to carry packets would do.
    link: UdpSocket,
    start: time::Instant,
    packets: Vec<Packet>,
}

impl Endpoint {
    #[expect(clippy::disallowed_methods, reason = "this program has the clock")]
    fn new(link: UdpSocket, address: &str, seed: u64) -> Result<Self, Box<dyn Error>> {
        let mut host = Host::new(HostConfig {
            // A program takes the seed from the operating system's random number generator.
            seed: Seed::from_u64(seed),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        let net = NetConfig {
            addresses: vec![address.parse()?],
            ..NetConfig::default()
        };
        // A link that segments super-segments itself would be `Caps::offloading`.
        let iface = net.set_up(&mut host, Instant::ZERO, Caps::plain(Link::Ip, MTU), seed)?;
        Ok(Self {
            host,
            iface,
            link,
            start: time::Instant::now(),
            packets: Vec::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Sends what the host has to send now.
    fn transmit(&mut self) {
        while self.host.needs_transmit(self.iface) {
            let now = self.now();
            self.host.transmit(now, self.iface, &mut self.packets, 8);
            for packet in self.packets.drain(..) {
                // A link that is full drops the packet: TCP sends it again.
                let _ = self.link.send(&packet.to_bytes());
                self.host.complete(now, packet.tx);
            }
        }
    }

    /// Waits for packets until the next deadline, and processes them and the timers.
    fn wait(&mut self) -> std::io::Result<()> {
        let deadline = self.host.poll_deadline();
        let wait = deadline.map_or(1_000_000_000, |at| {
            at.as_nanos().saturating_sub(self.now().as_nanos())
        });
        let mut buf = [0; MTU as usize];
        // A timeout of zero would mean none.
        let wait = time::Duration::from_nanos(wait.max(1000));
        self.link.set_read_timeout(Some(wait))?;
        match self.link.recv(&mut buf) {
            // A batch of several packets is coalesced to super-segments.
            Ok(len) => self
                .packets
                .push(Packet::from_frame(Slice::copied_from(&buf[..len]))),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        let now = self.now();
        if !self.packets.is_empty() {
            self.host.receive(now, self.iface, &mut self.packets);
        }
        self.host.poll(now);
        Ok(())
    }
}

/// Returns `None` for a call that must be repeated later.
fn ready<R>(result: Result<R, StackError>) -> Result<Option<R>, StackError> {
    match result {
        Err(StackError::Tcp(TcpError::WouldBlock)) => Ok(None),
        other => other.map(Some),
    }
}

/// Echoes one connection until its end.
fn serve(mut end: Endpoint) -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = ListenConfig {
        backlog: 16,
        defer_syn_ack: false,
        any_destination: false,
    };
    let listener = end.host.tcp_listen(([0, 0, 0, 0], 7).into(), config)?;
    let id = loop {
        if let Some(incoming) = end.host.listener(listener).accept()? {
            println!("server: {} connected", incoming.remote);
            break incoming.id;
        }
        end.transmit();
        end.wait()?;
    };
    let (mut echoed, mut buf) = (Vec::new(), vec![0; 64 << 10]);
    let mut ended = false;
    while !ended || !echoed.is_empty() {
        let now = end.now();
        let mut progress = false;
        if !ended
            && echoed.is_empty()
            && let Some(len) = ready(end.host.tcp(id).read(now, &mut buf))?
        {
            progress = true;
            ended = len == 0;
            echoed.extend_from_slice(&buf[..len]);
        }
        if !echoed.is_empty()
            && let Some(len) = ready(end.host.tcp(id).write(now, &echoed, false))?
        {
            progress = true;
            echoed.drain(..len);
        }
        end.transmit();
        // There may be more to read, and then perhaps no more packets.
        if !progress {
            end.wait()?;
        }
    }
    let now = end.now();
    end.host.tcp(id).close(now);
    // The last data and the FIN may have to be sent again.
    while end.host.tcp_socket_count() > 0 {
        end.transmit();
        end.wait()?;
    }
    Ok(())
}

/// Sends `TOTAL` bytes and receives them again.
fn exchange(mut end: Endpoint) -> Result<(), Box<dyn Error>> {
    let now = end.now();
    let id = end.host.tcp_connect(now, None, ([10, 0, 0, 2], 7).into())?;
    let data: Vec<u8> = (0..TOTAL).map(|n| (n % 251) as u8).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut buf = vec![0; 64 << 10];
    loop {
        let now = end.now();
        let mut tcp = end.host.tcp(id);
        if sent < TOTAL
            && let Some(len) = ready(tcp.write(now, &data[sent..], false))?
        {
            sent += len;
            if sent == TOTAL {
                tcp.shutdown_write(now)?;
            }
        }
        match ready(tcp.read(now, &mut buf))? {
            Some(0) => break,
            Some(len) => {
                received.extend_from_slice(&buf[..len]);
                end.transmit();
            }
            None => {
                end.transmit();
                end.wait()?;
            }
        }
    }
    end.transmit();
    println!("client: {} bytes came back", received.len());
    if received != data {
        return Err("other bytes came back than were sent".into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (here, there) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    here.connect(there.local_addr()?)?;
    there.connect(here.local_addr()?)?;
    let client = Endpoint::new(here, "10.0.0.1/24", 1)?;
    let server = Endpoint::new(there, "10.0.0.2/24", 2)?;
    let server = thread::spawn(move || serve(server));
    exchange(client)?;
    // The client is gone, and does not answer any more.
    drop(server);
    Ok(())
}
