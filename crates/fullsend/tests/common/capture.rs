//! Captures the packets between the kernel and a TUN with an `AF_PACKET` socket, as `tcpdump` does.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use fullsend_wire::SeqNum;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};

/// All packets of a network namespace since the capture was opened, in order.
pub(crate) struct Capture(OwnedFd);

/// A captured TCP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapturedPacket {
    pub(crate) from: IpAddr,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: TcpFlags,
    /// Bytes of payload.
    pub(crate) len: usize,
}

impl CapturedPacket {
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.len as u32
    }
}

impl Capture {
    pub(crate) fn open() -> Self {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::empty(),
            SockProtocol::EthAll,
        )
        .unwrap();
        setsockopt(&fd, sockopt::RcvBufForce, &(64 << 20)).unwrap();
        Self(fd)
    }

    /// Returns the packets captured since the last call.
    pub(crate) fn take(&self) -> Vec<CapturedPacket> {
        let mut buf = vec![0; 1 << 17];
        let mut captured = Vec::new();
        loop {
            match recv(self.0.as_raw_fd(), &mut buf, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => captured.extend(parse(&buf[..len])),
                Err(Errno::EAGAIN) => return captured,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the packets from `from` with new data captured since the last call. Retransmissions
    /// are left out, as a busy machine may cause them on either side.
    pub(crate) fn take_data(&self, from: IpAddr) -> Vec<CapturedPacket> {
        let mut captured = self.take();
        captured.retain(|p| p.from == from);
        drop_retransmissions(&mut captured, from);
        captured.retain(|p| p.len > 0);
        captured
    }

    /// Returns the payload lengths of the packets from `from` with new data since the last call.
    pub(crate) fn take_lengths(&self, from: IpAddr) -> Vec<usize> {
        self.take_data(from).iter().map(|p| p.len).collect()
    }
}

/// Removes the retransmissions of `from`.
pub(crate) fn drop_retransmissions(captured: &mut Vec<CapturedPacket>, from: IpAddr) {
    let mut next: Option<SeqNum> = None;
    captured.retain(|p| {
        if p.from != from || p.len == 0 {
            return true;
        }
        let new = next.is_none_or(|next| p.seq.after_eq(next));
        next = Some(next.map_or(p.end(), |next| next.latest(p.end())));
        new
    });
}

fn parse(bytes: &[u8]) -> Option<CapturedPacket> {
    let (from, is_tcp, transport) = if bytes.first()? >> 4 == 4 {
        let ip = Ipv4View::new(bytes).ok()?;
        let is_tcp = ip.protocol() == protocol::TCP;
        (ip.src().into(), is_tcp, ip.payload())
    } else {
        let ip = Ipv6View::new(bytes).ok()?;
        let is_tcp = ip.next_header() == protocol::TCP;
        (ip.src().into(), is_tcp, ip.payload())
    };
    let (tcp, header) = TcpRepr::parse(transport).ok().filter(|_| is_tcp)?;
    Some(CapturedPacket {
        from,
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        len: transport.len() - header,
    })
}
