//! `TCP_SAVE_SYN`: keeps the headers of the SYN that opened a connection, for servers that classify
//! their clients by them.

use alloc::vec::Vec;

use super::TcpId;
use crate::Host;
use crate::demux::{FlowKey, FlowOwner};

impl Host {
    /// Keeps the headers of a SYN that a listener has answered, if the application has enabled that
    /// and the SYN has an entry in the socket table.
    pub(super) fn save_syn(&mut self, listener: u32, key: &FlowKey, headers: &[u8]) {
        let listener = self.tcp.listeners.table.get(listener);
        if !listener.is_some_and(|l| l.settings.save_syn) {
            return;
        }
        if let Some(FlowOwner::Socket(index)) = self.tcp.find(key) {
            self.tcp.saved_syns.insert(index, headers.into());
        }
    }

    /// Returns the headers of the SYN that opened a connection, beginning with the IP header (see
    /// [`SocketOption::TcpSaveSyn`](fullsend_tcp::SocketOption::TcpSaveSyn), set on its listener).
    pub fn tcp_saved_syn(&mut self, id: TcpId) -> Option<&[u8]> {
        let (index, _) = self.tcp.table.by_id(id.0)?;
        self.tcp.saved_syns.get(&index).map(Vec::as_slice)
    }

    /// Takes the headers of the SYN that opened a connection; they are no longer kept.
    pub fn tcp_take_saved_syn(&mut self, id: TcpId) -> Option<Vec<u8>> {
        let (index, _) = self.tcp.table.by_id(id.0)?;
        self.tcp.saved_syns.remove(&index)
    }
}
