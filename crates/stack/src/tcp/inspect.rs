//! Descriptions of TCP's table entries by slot, for [`Host::sockets`].

use alloc::boxed::Box;

use fullsend_tcp::{TimerInfo, TimerKind};
use fullsend_units::Instant;

use super::socket::{Entry, Owner, Socket};
use crate::Host;
use crate::inspect::{SocketInfo, SocketKind, SocketOwner};

impl Owner {
    const fn shown(self) -> SocketOwner {
        match self {
            Self::User => SocketOwner::User,
            Self::Queued(_) => SocketOwner::Listener,
            Self::Nobody => SocketOwner::Orphan,
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
            recv_q: listener.accept.len() as u64,
            send_q: listener.config.backlog as u64,
            timer: None,
            tcp: None,
        })
    }

    pub(crate) fn connection_info(&mut self, now: Instant, slot: u32) -> Option<SocketInfo> {
        let id = self.tcp.table.id(slot)?;
        match self.tcp.table.get(slot)? {
            Entry::Conn(socket) => {
                let cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                Some(socket.info(id, socket.conn.inspect(&cx)))
            }
            Entry::Held(held) => Some(SocketInfo {
                id,
                kind: SocketKind::Held,
                state: "SYN-RECV",
                owner: if held.taken {
                    SocketOwner::User
                } else {
                    SocketOwner::Listener
                },
                local: held.key.local_addr(),
                remote: Some(held.key.remote_addr()),
                recv_q: 0,
                send_q: 0,
                timer: Some(TimerInfo {
                    kind: TimerKind::On,
                    left: held.expires.since(now),
                    retransmits: 0,
                }),
                tcp: None,
            }),
            Entry::Request(request) => Some(SocketInfo {
                id,
                kind: SocketKind::Tcp,
                state: "SYN-RECV",
                owner: SocketOwner::Listener,
                local: request.key.local_addr(),
                remote: Some(request.key.remote_addr()),
                recv_q: 0,
                send_q: 0,
                timer: Some(TimerInfo {
                    kind: TimerKind::On,
                    left: request.due.since(now),
                    retransmits: request.timeouts,
                }),
                tcp: None,
            }),
        }
    }

    pub(crate) fn time_wait_info(&self, now: Instant, slot: u32) -> Option<SocketInfo> {
        let (key, expires) = self.tcp.time_wait.shown(slot)?;
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
                left: expires.since(now),
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
            owner: self.owner.shown(),
            local: self.key.local_addr(),
            remote: Some(self.key.remote_addr()),
            recv_q: tcp.recv_q,
            send_q: tcp.send_q,
            timer: tcp.timer,
            tcp: Some(Box::new(tcp)),
        }
    }
}
