//! The kernel's report about a socket of the host.

use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use fullsend::control::HostSocketView;
use rustix::io::ioctl_fionread;
use socket2::Socket;

/// Number of the values of `SO_MEMINFO` (`linux/sock_diag.h`).
const SK_MEMINFO_VARS: usize = 9;

/// Returns the description of a TCP socket whose peer is `peer`.
pub(super) fn tcp(socket: &Socket, peer: SocketAddr) -> HostSocketView {
    let info = tcp_info(socket);
    HostSocketView {
        state: info.map(|info| state_name(info.tcpi_state).to_owned()),
        rtt_us: info.map(|info| info.tcpi_rtt.into()),
        retrans: info.map(|info| info.tcpi_total_retrans.into()),
        recv_q: ioctl_fionread(socket).ok(),
        send_q: send_queue(socket),
        ..addresses(socket, peer)
    }
}

/// Returns the description of a UDP or ping socket whose peer is `peer`. The lengths of its queues are
/// bytes of memory, as in `ss`.
pub(super) fn datagram(socket: &Socket, peer: SocketAddr) -> HostSocketView {
    let memory = memory(socket);
    HostSocketView {
        recv_q: memory.map(|memory| memory[libc::SK_MEMINFO_RMEM_ALLOC as usize].into()),
        send_q: memory.map(|memory| memory[libc::SK_MEMINFO_WMEM_ALLOC as usize].into()),
        ..addresses(socket, peer)
    }
}

fn addresses(socket: &Socket, peer: SocketAddr) -> HostSocketView {
    let local = socket.local_addr().ok().and_then(|addr| addr.as_socket());
    HostSocketView {
        fd: Some(socket.as_raw_fd()),
        local: local.map(|addr| addr.to_string()),
        peer: peer.to_string(),
        ..HostSocketView::default()
    }
}

/// Returns the bytes that the peer has not acknowledged (`SIOCOUTQ`).
#[allow(unsafe_code, reason = "no safe wrapper of the call exists")]
fn send_queue(socket: &Socket) -> Option<u64> {
    let mut len: libc::c_int = 0;
    // SAFETY: the request writes one `c_int` to the address, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) };
    (result == 0).then_some(u64::try_from(len).unwrap_or(0))
}

/// Returns the memory of a socket, in bytes, by the indices of `linux/sock_diag.h`.
#[allow(unsafe_code, reason = "no safe wrapper of the call exists")]
fn memory(socket: &Socket) -> Option<[u32; SK_MEMINFO_VARS]> {
    let mut memory = [0; SK_MEMINFO_VARS];
    let mut len = size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `memory`, and an older one fewer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(memory)
}

#[allow(unsafe_code, reason = "no safe wrapper of the call exists")]
fn tcp_info(socket: &Socket) -> Option<libc::tcp_info> {
    // SAFETY: all members are integers, for which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and an older one fewer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(info)
}

/// Returns the name of a state of the kernel as `ss` prints it.
fn state_name(state: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "UNCONN",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(usize::from(state)).unwrap_or(&NAMES[0])
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_socket_is_described_by_its_state_and_its_queues() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let (server, peer) = listener.accept().unwrap();
        client.write_all(&[0; 100]).unwrap();
        server.peek(&mut [0; 100]).unwrap();
        let view = tcp(&server.into(), peer);
        assert_eq!(view.recv_q, Some(100));
        assert_eq!(view.send_q, Some(0));
        assert_eq!(view.state.as_deref(), Some("ESTAB"));
        assert_eq!(view.local, Some(address.to_string()));
        assert_eq!(view.peer, peer.to_string());
        // The server's socket was closed with unread data, which is a RST.
        assert_eq!(
            tcp(&client.into(), address).state.as_deref(),
            Some("UNCONN")
        );
    }
}
