//! `TCP_SAVE_SYN`: the headers of the SYN that opened a connection, for a server that judges its
//! clients by them.

use alloc::vec::Vec;

use super::TcpId;
use crate::Host;
use crate::demux::{FlowKey, Target};

impl Host {
    /// A listener has answered a SYN with these headers: keeps them, if its user asked for that and
    /// something was kept of the SYN.
    pub(super) fn save_syn(&mut self, listener: u32, key: &FlowKey, headers: &[u8]) {
        let listener = self.tcp.listeners.table.get(listener);
        if !listener.is_some_and(|l| l.settings.save_syn) {
            return;
        }
        if let Some(Target::Socket(index)) = self.tcp.find(key) {
            self.tcp.saved_syns.insert(index, headers.into());
        }
    }

    /// The headers of the SYN that opened a connection, the IP header's first
    /// ([`SocketOption::TcpSaveSyn`](fullsend_tcp::SocketOption::TcpSaveSyn) of its listener).
    pub fn tcp_saved_syn(&mut self, id: TcpId) -> Option<&[u8]> {
        let (index, _) = self.tcp.table.by_id(id.0)?;
        self.tcp.saved_syns.get(&index).map(Vec::as_slice)
    }

    /// The same, to be kept no longer.
    pub fn tcp_take_saved_syn(&mut self, id: TcpId) -> Option<Vec<u8>> {
        let (index, _) = self.tcp.table.by_id(id.0)?;
        self.tcp.saved_syns.remove(&index)
    }
}
