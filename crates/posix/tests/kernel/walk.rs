//! Random walks: over three UDP sockets, and over a connection.

use fullsend_wire::{Rng, Seed};
use libc::{
    AF_INET, FIONREAD, IP_RECVERR, IPPROTO_IP, IPPROTO_TCP, MSG_ERRQUEUE, MSG_PEEK, MSG_TRUNC,
    MSG_WAITALL, SO_ERROR, SO_LINGER, SOCK_DGRAM, SOCK_NONBLOCK, SOL_SOCKET, TCP_NODELAY,
};

use crate::backend::{Backend, Log, Ret};

const STEPS: usize = 25;
/// A port without a socket: that of the obsolete discard service.
const CLOSED_PORT: u16 = 9;

fn bound(b: &mut dyn Backend) -> (Ret, u16) {
    let fd = b.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_eq!(b.bind(fd, "127.0.0.1", 0), 0);
    (fd, b.port(fd) as u16)
}

/// Datagrams are sent to one of the three sockets, or to a port without one.
pub(crate) fn datagrams(seed: u64, b: &mut dyn Backend, log: &mut Log) {
    let mut rng = Rng::new(Seed::from_u64(seed));
    let sockets = [(); 3].map(|()| bound(b));
    for step in 0..STEPS {
        let mut below = |n| rng.below(n) as usize;
        let (i, to, len) = (below(3), below(4), below(20));
        let (fd, _) = sockets[i];
        let port = sockets.get(to).map_or(CLOSED_PORT, |(_, port)| *port);
        let data = [7; 20];
        let mut note = |what: &str, got: &dyn std::fmt::Debug| {
            log.note(&format!("{step}: {what} {i} {to} {len}"), got);
        };
        match below(15) {
            0 | 1 => note("connect", &b.connect(fd, "127.0.0.1", port)),
            2..5 => note(
                "send_to",
                &b.send_to(fd, &data[..len], 0, "127.0.0.1", port),
            ),
            5 | 6 => note("send", &b.send(fd, &data[..len], 0)),
            7..9 => note("recv", &b.recv(fd, len, 0)),
            9 => note("peek", &b.recv(fd, len, MSG_PEEK)),
            10 => note("cut", &b.recv(fd, len, MSG_TRUNC)),
            11 => {
                let error = b.get_int(fd, SOL_SOCKET, SO_ERROR);
                note("error, next", &(error, b.ioctl(fd, FIONREAD as u32)));
            }
            12 => {
                let on = i32::from(len > 9);
                note("recverr", &b.set_int(fd, IPPROTO_IP, IP_RECVERR, on));
            }
            13 => note("error queue", &b.recv(fd, len, MSG_ERRQUEUE)),
            _ => note("shutdown", &b.shutdown(fd, len as i32 % 3)),
        }
        b.wait_until_idle();
        note("polls", &sockets.map(|(fd, _)| b.poll(fd)));
        note("peers", &sockets.map(|(fd, _)| b.peer_port(fd) > 0));
    }
}

/// Runs a walk in which each end sends, reads, shuts down, and may close or reset.
pub(crate) fn stream(seed: u64, b: &mut dyn Backend, log: &mut Log) {
    let mut rng = Rng::new(Seed::from_u64(seed));
    let (client, server) = b.pair();
    let mut sockets = [Some(client), Some(server)];
    for fd in [client, server] {
        // The time of acknowledgements cannot be compared.
        b.set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    }
    for step in 0..STEPS {
        let mut below = |n| rng.below(n) as usize;
        let (i, len, call) = (below(2), below(30), below(16));
        let Some(fd) = sockets[i] else {
            continue;
        };
        let data = [7; 30];
        let mut note = |what: &str, got: &dyn std::fmt::Debug| {
            log.note(&format!("{step}: {what} {i} {len}"), got);
        };
        match call {
            0..4 => note("send", &b.send(fd, &data[..len], 0)),
            4 => note("write", &b.write(fd, &data[..len])),
            5..8 => note("recv", &b.recv(fd, len, 0)),
            8 => note("peek", &b.recv(fd, len, MSG_PEEK)),
            9 => note("cut", &b.recv(fd, len, MSG_TRUNC)),
            10 => note("all", &b.recv(fd, len, MSG_WAITALL)),
            11 => {
                let error = b.get_int(fd, SOL_SOCKET, SO_ERROR);
                note("error, next", &(error, b.ioctl(fd, FIONREAD as u32)));
            }
            12 => note("shutdown", &b.shutdown(fd, len as i32 % 3)),
            13 if len < 8 => {
                if len % 2 == 0 {
                    b.set(fd, SOL_SOCKET, SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]);
                }
                note("close", &b.close(fd));
                sockets[i] = None;
            }
            14 if len < 3 => note("disconnect", &b.disconnect(fd)),
            _ => note("read", &b.read(fd, len)),
        }
        b.wait_until_idle();
        for fd in sockets.into_iter().flatten() {
            note("poll, peer", &(b.poll(fd), b.peer_port(fd) > 0));
        }
    }
}
