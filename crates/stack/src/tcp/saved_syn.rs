//! `TCP_SAVE_SYN`: keeps the headers of the SYN that opened a connection, for servers that classify
//! their clients by them.

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
}
