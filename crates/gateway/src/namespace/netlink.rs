//! Requests to rtnetlink in the calling thread's network namespace.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// A netlink socket for one request at a time.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Opens a socket whose requests fail if the answer is not there at once. The kernel's answers are.
    pub(super) fn open_nonblocking() -> io::Result<Self> {
        let netlink = Self::open()?;
        netlink.socket.set_non_blocking(true)?;
        Ok(netlink)
    }

    /// Changes an object.
    pub(super) fn change(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.request(message, NLM_F_ACK).map(drop)
    }

    /// Adds an object. Succeeds if it already exists.
    pub(super) fn add(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        match self.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Returns all objects of a kind.
    pub(super) fn dump(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.request(message, NLM_F_DUMP)
    }

    /// Sends a request and returns the objects of its answer. `flags` must contain [`NLM_F_ACK`] or
    /// [`NLM_F_DUMP`], so that the kernel marks the end of the answer.
    pub(super) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut objects = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while rest.len() >= 16 {
                let invalid = |e: netlink_packet_core::DecodeError| {
                    io::Error::new(io::ErrorKind::InvalidData, e.to_string())
                };
                let answer =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(invalid)?;
                let aligned = (answer.header.length as usize).next_multiple_of(4);
                rest = rest.get(aligned..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(objects),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(objects),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(object) => objects.push(object),
                    _ => {}
                }
            }
        }
    }
}
