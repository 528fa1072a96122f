//! A TUN whose packets have a `virtio_net_hdr`: super-segments cross it whole in both directions, and
//! the kernel neither computes nor verifies a TCP checksum.
//!
//! Buffers are used again, so that smoltcp does not pay for an allocation per packet, as it does with
//! its own `TunTapInterface`.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use smoltcp::phy::{self, Checksum, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

/// Bytes of the header.
const HEADER: usize = 10;
const MTU: usize = 1500;
/// The longest packet.
const PACKET_MAX: usize = 65_535;
const NEEDS_CSUM: u8 = 1;
const GSO_TCP_V4: u8 = 1;
const TCP: u8 = 6;

pub struct VnetTun {
    file: File,
    received: Vec<u8>,
    sent: RefCell<Vec<u8>>,
}

impl VnetTun {
    /// Attaches to the TUN `name`, which exists.
    pub fn new(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: plain data, for which all-zero bytes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays NUL.
        for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1]
            .iter_mut()
            .zip(name.bytes())
        {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the request reads and writes the `ifreq`, which lives.
        checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
        // SAFETY: the request has its argument by value.
        checked(unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offloads),
            )
        })?;
        Ok(Self {
            file,
            received: vec![0; HEADER + PACKET_MAX],
            sent: RefCell::default(),
        })
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl AsRawFd for VnetTun {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

pub struct Rx<'a>(&'a [u8]);

pub struct Tx<'a> {
    file: &'a File,
    buffer: &'a RefCell<Vec<u8>>,
    meta: PacketMeta,
}

impl phy::RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(HEADER + len, 0);
        let (header, packet) = buffer.split_at_mut(HEADER);
        let result = f(packet);
        header.fill(0);
        if packet[9] == TCP {
            describe(header, packet, self.meta);
        }
        // A full queue drops the packet, as with smoltcp's own interface.
        let written = (&mut &*self.file).write(&buffer);
        match written {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
            _ => result,
        }
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

/// Requests the checksum of a TCP packet, and its segmentation if smoltcp does.
fn describe(header: &mut [u8], packet: &mut [u8], meta: PacketMeta) {
    let transport = usize::from(packet[0] & 15) * 4;
    let len = packet.len() - transport;
    // The kernel adds the segment to the sum of the pseudo-header.
    let words = packet[12..20].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let mut sum = sum + u32::from(TCP) + len as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[transport + 16..transport + 18].copy_from_slice(&(sum as u16).to_be_bytes());
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&(transport as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&16u16.to_ne_bytes());
    if let Some(size) = meta.segmentation_offload_size {
        let headers = transport + usize::from(packet[transport + 12] >> 4) * 4;
        header[1] = GSO_TCP_V4;
        header[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&size.get().to_ne_bytes());
    }
}

impl Device for VnetTun {
    type RxToken<'a> = Rx<'a>;
    type TxToken<'a> = Tx<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = MTU;
        // The kernel is on this machine, so that packets arrive whole.
        caps.checksum.ipv4 = Checksum::Tx;
        caps.checksum.tcp = Checksum::None;
        caps.segmentation.tcpv4 = NonZeroUsize::new(PACKET_MAX);
        caps
    }

    fn receive(&mut self, _: Instant) -> Option<(Rx<'_>, Tx<'_>)> {
        let len = match (&self.file).read(&mut self.received) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        };
        let packet = self.received.get(HEADER..len)?;
        Some((Rx(packet), tx(&self.file, &self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(tx(&self.file, &self.sent))
    }
}

fn tx<'a>(file: &'a File, buffer: &'a RefCell<Vec<u8>>) -> Tx<'a> {
    Tx {
        file,
        buffer,
        meta: PacketMeta::default(),
    }
}
