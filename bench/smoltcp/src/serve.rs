//! The server of `fullsend perf --connect`, behind a TUN that exists.

use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, Medium, TunTapInterface, wait};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::{Duration as Delay, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};

use crate::vnet::VnetTun;
use crate::{READ_MAX, step};

pub const USAGE: &str = "bench-smoltcp serve|serve-vnet TUN ADDRESS BUFFER FLOWS, as in \
                         `bench-smoltcp serve tun0 10.0.0.2 65536 200`; `serve-vnet` uses a \
                         virtio_net_hdr";
const PORT: u16 = 5211;
/// Bytes of the preamble of each connection (crates/cli/src/preamble.rs).
const PREAMBLE: usize = 36;
/// The longest wait, after which the time of a source is examined.
const WAIT_MAX: Delay = Delay::from_millis(10);

/// The server's part on a connection.
enum Role {
    /// Reads the preamble.
    Unknown(Vec<u8>),
    /// Reads to the end, then answers with the number of bytes.
    Sink {
        received: u64,
    },
    /// Sends until then.
    Source {
        until: Clock,
        message: usize,
    },
    /// Answers requests; with the bytes that it has still to send and to read.
    Rr {
        due: (usize, usize),
        request: usize,
        response: usize,
    },
    /// Answers each byte with no counters.
    Counters,
    Done,
}

struct Connection {
    handle: SocketHandle,
    role: Role,
}

/// Serves until the process ends, over a plain TUN or one with a `virtio_net_hdr`.
pub fn run(args: &[String], vnet: bool) -> Result<(), Box<dyn Error>> {
    let [tun, address, buffer, flows] = args else {
        return Err(USAGE.into());
    };
    let (address, buffer, flows) = (address.parse()?, buffer.parse()?, flows.parse()?);
    if vnet {
        serve(VnetTun::new(tun)?, address, buffer, flows)
    } else {
        serve(
            TunTapInterface::new(tun, Medium::Ip)?,
            address,
            buffer,
            flows,
        )
    }
}

fn serve(
    mut device: impl Device + AsRawFd,
    address: Ipv4Address,
    buffer: usize,
    flows: usize,
) -> Result<(), Box<dyn Error>> {
    let fd = device.as_raw_fd();
    let epoch = Clock::now();
    let now = || Instant::from_micros(epoch.elapsed().as_micros() as i64);
    let mut iface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, now());
    iface.update_ip_addrs(|all| {
        all.push(IpCidr::new(address.into(), 24))
            .expect("room for one address");
    });
    let mut sockets = SocketSet::new(Vec::new());
    // One more for the client's control connection.
    let mut connections = Vec::new();
    for _ in 0..flows + 1 {
        let memory = || SocketBuffer::new(vec![0; buffer]);
        let mut socket = Socket::new(memory(), memory());
        socket.set_nagle_enabled(false);
        socket.listen(PORT)?;
        connections.push(Connection {
            handle: sockets.add(socket),
            role: Role::Unknown(Vec::new()),
        });
    }
    let (data, mut scratch) = (vec![0; READ_MAX], vec![0; READ_MAX]);
    println!("listening");
    loop {
        iface.poll(now(), &mut device, &mut sockets);
        let mut progress = false;
        for connection in &mut connections {
            let socket = sockets.get_mut(connection.handle);
            progress |= connection.serve(socket, &data, &mut scratch);
        }
        if !progress {
            let delay = iface.poll_delay(now(), &sockets).unwrap_or(WAIT_MAX);
            wait(fd, Some(delay.min(WAIT_MAX)))?;
        }
    }
}

impl Connection {
    /// Sends and reads what is possible; returns whether anything was.
    fn serve(&mut self, socket: &mut Socket, data: &[u8], scratch: &mut [u8]) -> bool {
        // Set once the peer's FIN has arrived and all data before it is read.
        let ended = !socket.may_recv() && socket.may_send();
        match &mut self.role {
            Role::Unknown(preamble) => {
                let left = PREAMBLE - preamble.len();
                let Some(n) = receive(socket, &mut scratch[..left]) else {
                    return false;
                };
                preamble.extend(&scratch[..n]);
                if n == left {
                    self.role = role(preamble);
                }
                true
            }
            Role::Sink { received } => {
                if let Some(n) = receive(socket, scratch) {
                    *received += n as u64;
                    return true;
                }
                if ended {
                    let mut receipt = received.to_be_bytes().to_vec();
                    // No offset of wrong data.
                    receipt.extend(u64::MAX.to_be_bytes());
                    self.end(socket, &receipt);
                }
                ended
            }
            Role::Source { until, message } => {
                if Clock::now() >= *until {
                    self.end(socket, &[]);
                    return true;
                }
                let mut sent = false;
                while socket.can_send() {
                    socket.send_slice(&data[..*message]).expect("open");
                    sent = true;
                }
                sent
            }
            Role::Rr {
                due,
                request,
                response,
            } => {
                let before = *due;
                let answered = step(socket, due, data, scratch);
                let progress = answered || *due != before;
                if answered {
                    *due = (*response, *request);
                    step(socket, due, data, scratch);
                }
                if ended {
                    self.end(socket, &[]);
                }
                progress || ended
            }
            Role::Counters => {
                if receive(socket, &mut scratch[..1]).is_some() {
                    socket.send_slice(&[0, 0, 0, 2, b'{', b'}']).expect("open");
                    return true;
                }
                if ended {
                    self.end(socket, &[]);
                }
                ended
            }
            Role::Done => receive(socket, scratch).is_some(),
        }
    }

    fn end(&mut self, socket: &mut Socket, last: &[u8]) {
        socket.send_slice(last).expect("open");
        socket.close();
        self.role = Role::Done;
    }
}

/// Reads what is there; `None` if nothing is.
fn receive(socket: &mut Socket, into: &mut [u8]) -> Option<usize> {
    let readable = socket.can_recv();
    readable.then(|| socket.recv_slice(into).expect("readable"))
}

/// Returns the role that a preamble requests.
fn role(preamble: &[u8]) -> Role {
    let word = |at: usize| {
        let bytes = preamble[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(bytes)
    };
    let (first, second) = (word(8), word(12) as usize);
    match preamble[4] {
        1 => Role::Sink { received: 0 },
        2 => Role::Source {
            until: Clock::now() + Duration::from_millis(first.into()),
            message: second.min(READ_MAX),
        },
        3 => Role::Rr {
            due: (0, first as usize),
            request: first as usize,
            response: second,
        },
        _ => Role::Counters,
    }
}
