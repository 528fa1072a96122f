//! The error queue of a host's socket (`IP_RECVERR`).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use socket2::Socket;

use super::local_addr::socket_addr;

/// Most bytes of the datagram that an ICMP message to the guest quotes.
const QUOTED_BYTES: usize = 512;
/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6`.
const ORIGIN_ICMP: [u8; 2] = [2, 3];

/// An ICMP error about a datagram that a host's socket has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReportedError {
    /// The type and code of the ICMP message.
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// The MTU, if the message reports that a datagram was too big.
    pub(crate) mtu: u32,
    /// The sender of the message.
    pub(crate) offender: Option<IpAddr>,
    /// The destination of the datagram, if the kernel has reported it.
    pub(crate) to: Option<SocketAddr>,
    /// The beginning of the datagram's payload.
    pub(crate) payload: Vec<u8>,
}

/// Makes the kernel queue all ICMP errors about the datagrams of a socket, also soft errors.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn report_errors(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    }
    Ok(())
}

/// Removes and returns the next ICMP error of the error queue. Skips errors of other origins.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn read_error(socket: &Socket) -> io::Result<Option<ReportedError>> {
    let mut payload = [0; QUOTED_BYTES];
    // Holds the larger sender address, and the host's address for sockets of forwards.
    let mut control = cmsg_space!(
        libc::sock_extended_err,
        libc::sockaddr_in6,
        libc::in6_pktinfo
    );
    loop {
        let mut vectors = [IoSliceMut::new(&mut payload)];
        let received = recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut vectors,
            Some(&mut control),
            MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT,
        );
        let received = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = received.bytes;
        let found = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4RecvErr(error, from) => {
                let from = from.map(|a| IpAddr::from(a.sin_addr.s_addr.to_ne_bytes()));
                Some((error, from))
            }
            ControlMessageOwned::Ipv6RecvErr(error, from) => {
                Some((error, from.map(|a| IpAddr::from(a.sin6_addr.s6_addr))))
            }
            _ => None,
        });
        if let Some((error, offender)) = found
            && ORIGIN_ICMP.contains(&error.ee_origin)
        {
            return Ok(Some(ReportedError {
                kind: error.ee_type,
                code: error.ee_code,
                mtu: error.ee_info,
                offender,
                to: received.address.as_ref().and_then(socket_addr),
                payload: payload[..len].to_vec(),
            }));
        }
    }
}
