//! TCP Fast Open (RFC 7413), the connection's part.

use super::{Connection, State};

impl Connection {
    /// The SYN waits for the first write, or for [`send_syn`](Self::send_syn).
    pub fn defer_syn(&mut self) {
        if self.state == State::SynSent && self.snd.rtx.is_empty() {
            self.out.syn = false;
        }
    }

    /// A deferred SYN goes.
    pub fn send_syn(&mut self) {
        if self.state == State::SynSent && self.snd.rtx.is_empty() {
            self.out.syn = true;
            self.out.any = true;
        }
    }
}
