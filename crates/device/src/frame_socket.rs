//! A device whose peer is a process behind a socket that preserves message boundaries.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fullsend_offload::{Link, Packet, Pool};

use crate::tun::TunStats;
use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, Device, DeviceCounters, FrameHeader, sys};

/// Bytes of free memory that the device's pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// A connected socket on which each message is an Ethernet frame: `SOCK_SEQPACKET`, as used by User Mode
/// Linux and bess.
pub struct FrameSocket {
    file: File,
    mtu: u32,
    reader: FrameReader,
    stats: TunStats,
    link_log: LinkLog,
}

impl FrameSocket {
    /// Connects to the `SOCK_SEQPACKET` socket at `path`. `mtu` is the size of the largest IP packet
    /// in bytes.
    ///
    /// # Errors
    /// `NotFound` if there is no such socket; `ConnectionRefused` if no process listens.
    pub fn connect(path: &Path, mtu: u32) -> io::Result<Self> {
        Self::new(sys::connect_seqpacket(path)?, mtu)
    }

    /// Uses a connected socket, which becomes non-blocking.
    ///
    /// # Errors
    /// The error of making it non-blocking.
    pub fn new(socket: OwnedFd, mtu: u32) -> io::Result<Self> {
        sys::set_nonblocking(socket.as_fd())?;
        Ok(Self {
            file: File::from(socket),
            mtu,
            reader: FrameReader::new(Pool::new(POOL_BYTES), FrameHeader::None)
                .ends_with_empty_frame(),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        })
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Device for FrameSocket {
    fn caps(&self) -> Caps {
        Caps {
            link: Link::Ethernet,
            mtu: self.mtu,
            tso4: false,
            tso6: false,
            uso: false,
            tx_checksum: false,
            gso_max_size: Caps::GSO_MAX_SIZE,
        }
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let counters = (&mut self.stats, &mut self.link_log);
        transmit::transmit((&self.file, "socket"), FrameHeader::None, batch, counters)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.reader.receive(&self.file, batch, max, &mut self.stats)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.reader.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats.into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::net::Ipv4Addr;

    use fullsend_offload::Packet;

    use super::FrameSocket;
    use crate::{Device, sys, test_packet};

    fn pair() -> (FrameSocket, FrameSocket) {
        let (a, b) = sys::testing::seqpacket_pair().unwrap();
        (
            FrameSocket::new(a, 1500).unwrap(),
            FrameSocket::new(b, 1500).unwrap(),
        )
    }

    fn ping() -> Packet {
        let ours = Ipv4Addr::new(10, 0, 0, 1).into();
        test_packet::ping((ours, ours), b"one frame")
    }

    #[test]
    fn each_message_is_a_frame() {
        let (mut a, mut b) = pair();
        let mut batch = VecDeque::from([ping(), ping()]);
        let sent = batch[0].to_bytes();
        a.transmit(&mut batch).unwrap();
        let mut received = Vec::new();
        assert_eq!(b.receive(&mut received, 10).unwrap(), 2);
        assert!(received.iter().all(|packet| packet.to_bytes() == sent));
        assert_eq!(b.receive(&mut received, 10).unwrap(), 0);
    }

    #[test]
    fn a_closed_peer_ends_the_device_after_its_last_frame() {
        let (mut a, mut b) = pair();
        a.transmit(&mut VecDeque::from([ping()])).unwrap();
        drop(a);
        let mut received = Vec::new();
        assert_eq!(b.receive(&mut received, 10).unwrap(), 1);
        let error = b.receive(&mut received, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
