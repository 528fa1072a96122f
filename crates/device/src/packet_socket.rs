//! A device on an Ethernet interface of the kernel, through a packet socket (`AF_PACKET`).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use fullsend_offload::{Link, Packet, Pool};

use crate::sys::{self, IfName, Iface};
use crate::tun::TunStats;
use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, Device, DeviceCounters, FrameHeader};

/// Bytes that the kernel queues in each direction: about the usual content of a TUN's queue. The default
/// holds three super-segments.
const QUEUE_BYTES: usize = 16 << 20;

/// The first kernel whose packet sockets accept UDP super-segments.
const USO_SINCE: (u32, u32) = (6, 2);

/// An Ethernet interface of the kernel that this process shares with the kernel's own stack, e.g. one
/// end of a veth pair, a macvlan or a network card.
///
/// Frames have a `virtio_net_hdr` (`PACKET_VNET_HDR`), so that super-segments cross the interface whole
/// if its peer accepts them. The device does not receive frames that the kernel sends through the
/// interface, nor frames of a VLAN, whose tag the kernel removes.
///
/// The interface is in promiscuous mode while the device exists, because the stack has its own Ethernet
/// address, whose frames the kernel ignores. Do not give the interface an IP address of the stack.
///
/// ```no_run
/// use fullsend_device::{Device, PacketSocket};
/// let device = PacketSocket::open("veth0")?;
/// println!("MTU {}", device.caps().mtu);
/// # std::io::Result::Ok(())
/// ```
pub struct PacketSocket {
    socket: File,
    name: String,
    caps: Caps,
    header: FrameHeader,
    reader: FrameReader,
    stats: TunStats,
    link_log: LinkLog,
}

impl PacketSocket {
    /// Opens the interface `name`. Requires `CAP_NET_RAW`.
    ///
    /// # Errors
    /// - `InvalidInput` if `name` is not the name of an Ethernet interface.
    /// - `NotFound` if there is no such interface, `PermissionDenied` without `CAP_NET_RAW`.
    /// - Another error of the operating system.
    pub fn open(name: &str) -> io::Result<Self> {
        Self::open_with_pool(name, Pool::new(QUEUE_BYTES))
    }

    /// Opens the interface `name` like [`open`](Self::open), with received packets in memory of `pool`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with_pool(name: &str, pool: Pool) -> io::Result<Self> {
        let if_name = IfName::new(name).ok_or_else(|| bad_name(name))?;
        let iface = Iface::new(if_name)?;
        let index = iface.index().map_err(|error| explain(name, error))?;
        if !iface.is_ethernet()? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "interface \"{name}\" is not an Ethernet interface; use one end of a veth pair, \
                     a macvlan or a network card"
                ),
            ));
        }
        let mtu = iface.mtu()?;
        if !iface.is_up()? {
            transmit::log(Some(transmit::down_text(name)));
        }
        let socket = sys::packet_socket().map_err(|error| explain(name, error))?;
        let fd = socket.as_fd();
        sys::receive_untagged_frames(fd)?;
        sys::ignore_outgoing(fd)?;
        sys::set_queue_bytes(fd, QUEUE_BYTES)?;
        // The header's fields have the machine's byte order.
        let vnet_hdr = cfg!(target_endian = "little") && sys::packet_vnet_hdr(fd).is_ok();
        sys::promiscuous(fd, index)?;
        sys::bind_packet_socket(fd, index)?;
        let header = if vnet_hdr {
            FrameHeader::Vnet
        } else {
            FrameHeader::None
        };
        let caps = Caps {
            link: Link::Ethernet,
            mtu,
            tso4: vnet_hdr,
            tso6: vnet_hdr,
            uso: vnet_hdr && sys::kernel_version().is_some_and(|version| version >= USO_SINCE),
            tx_checksum: vnet_hdr,
            gso_max_size: Caps::GSO_MAX_SIZE,
        };
        Ok(Self {
            socket: File::from(socket),
            name: name.to_owned(),
            caps,
            header,
            reader: FrameReader::new(pool, header),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        })
    }

    /// Returns the counters. Frames that found the kernel's queue full are counted as dropped.
    pub fn stats(&mut self) -> TunStats {
        // Reading the kernel's counters resets them.
        if let Ok(dropped) = sys::packet_drops(self.socket.as_fd()) {
            self.stats.rx_packets += u64::from(dropped);
            self.stats.rx_dropped += u64::from(dropped);
        }
        self.stats
    }
}

fn bad_name(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("\"{name}\" is not an interface name; use 1 to 15 bytes without spaces, / and :"),
    )
}

/// Adds the remedy to an error of opening.
fn explain(name: &str, error: io::Error) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::ENODEV) => {
            let text = format!("there is no interface \"{name}\"; `ip link` lists them");
            return io::Error::new(io::ErrorKind::NotFound, text);
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!("no permission to open interface \"{name}\"; run with CAP_NET_RAW")
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

impl Device for PacketSocket {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let counters = (&mut self.stats, &mut self.link_log);
        transmit::transmit((&self.socket, &self.name), self.header, batch, counters)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let frames = Frames(&self.socket);
        self.reader.receive(frames, batch, max, &mut self.stats)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.reader.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats().into()
    }
}

/// The frames of a packet socket, without errors that do not concern the socket as a whole.
struct Frames<'a>(&'a File);

impl Read for Frames<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buf);
        match read.as_ref().err().and_then(io::Error::raw_os_error) {
            // The kernel has dropped a super-segment that the header cannot express, e.g. of SCTP. An
            // empty frame counts as dropped.
            Some(libc::EINVAL) => Ok(0),
            // The error is reported once when the interface goes down, and once when it is removed.
            Some(libc::ENETDOWN) if sys::is_bound(self.0.as_fd()) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            Some(libc::ENETDOWN) => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            _ => read,
        }
    }
}
