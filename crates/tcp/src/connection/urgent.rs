//! Urgent text (RFC 9293 3.8.5, RFC 6093): it stays in the stream; only a mark tells where it
//! ends.

use super::Connection;

impl Connection {
    /// The next byte to read is the one that the peer marked as urgent (`SIOCATMARK`).
    pub fn at_mark(&self) -> bool {
        false
    }

    /// Urgent text is announced and not read yet (`POLLPRI`).
    pub fn has_urgent(&self) -> bool {
        false
    }
}
