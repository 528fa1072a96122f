//! Descriptions of TCP's table entries by slot, for [`Host::sockets`].

use alloc::boxed::Box;

use fullsend_tcp::{TimerInfo, TimerKind};
use fullsend_wire::Instant;

use super::socket::{ConnectionOwner, Socket, SocketEntry};
use crate::Host;
use crate::inspect::{SocketInfo, SocketKind, SocketOwner};

impl ConnectionOwner {
    const fn to_socket_owner(self) -> SocketOwner {
        match self {
            Self::User => SocketOwner::User,
            Self::Listener(_) => SocketOwner::Listener,
            Self::Orphan => SocketOwner::Orphan,
        }
    }
}

impl Host {
    pub(crate) fn listener_slots(&self) -> usize {
        self.tcp.listeners.table.slots()
    }

    pub(crate) fn listener_info(&self, slot: u32) -> Option<SocketInfo> {
        let table = &self.tcp.listeners.table;
        let listener = table.get(slot)?;
        Some(SocketInfo {
            id: table.id(slot)?,
            kind: SocketKind::Listener,
            state: "LISTEN",
            owner: SocketOwner::User,
            local: listener.local,
            remote: None,
            recv_q: listener.accept_queue.len() as u64,
            send_q: listener.config.backlog as u64,
            timer: None,
            tcp: None,
        })
    }

    pub(crate) fn connection_info(&mut self, now: Instant, slot: u32) -> Option<SocketInfo> {
        let id = self.tcp.table.id(slot)?;
        match self.tcp.table.get(slot)? {
            SocketEntry::Conn(socket) => {
                let cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                Some(socket.info(id, socket.conn.inspect(&cx)))
            }
            SocketEntry::DeferredSyn(deferred) => Some(SocketInfo {
                id,
                kind: SocketKind::DeferredSyn,
                state: "SYN-RECV",
                owner: if deferred.user_owned {
                    SocketOwner::User
                } else {
                    SocketOwner::Listener
                },
                local: deferred.key.local_addr(),
                remote: Some(deferred.key.remote_addr()),
                recv_q: 0,
                send_q: 0,
                timer: Some(TimerInfo {
                    kind: TimerKind::On,
                    remaining: deferred.expires.since(now),
                    retransmits: 0,
                }),
                tcp: None,
            }),
            SocketEntry::HalfOpen(half_open) => Some(SocketInfo {
                id,
                kind: SocketKind::Tcp,
                state: "SYN-RECV",
                owner: SocketOwner::Listener,
                local: half_open.key.local_addr(),
                remote: Some(half_open.key.remote_addr()),
                recv_q: 0,
                send_q: 0,
                timer: Some(TimerInfo {
                    kind: TimerKind::On,
                    remaining: half_open.due.since(now),
                    retransmits: half_open.timeouts,
                }),
                tcp: None,
            }),
        }
    }

    pub(crate) fn time_wait_info(&self, now: Instant, slot: u32) -> Option<SocketInfo> {
        let (key, expires) = self.tcp.time_wait.key_and_expiry(slot)?;
        Some(SocketInfo {
            id: 0,
            kind: SocketKind::TimeWait,
            state: "TIME-WAIT",
            owner: SocketOwner::Host,
            local: key.local_addr(),
            remote: Some(key.remote_addr()),
            recv_q: 0,
            send_q: 0,
            timer: Some(TimerInfo {
                kind: TimerKind::TimeWait,
                remaining: expires.since(now),
                retransmits: 0,
            }),
            tcp: None,
        })
    }
}

impl Socket {
    fn info(&self, id: u64, tcp: fullsend_tcp::Inspection) -> SocketInfo {
        SocketInfo {
            id,
            kind: SocketKind::Tcp,
            state: tcp.state.name(),
            owner: self.owner.to_socket_owner(),
            local: self.key.local_addr(),
            remote: Some(self.key.remote_addr()),
            recv_q: tcp.recv_q,
            send_q: tcp.send_q,
            timer: tcp.timer,
            tcp: Some(Box::new(tcp)),
        }
    }
}
