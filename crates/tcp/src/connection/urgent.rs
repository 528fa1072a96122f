//! Urgent data (RFC 9293 3.8.5, RFC 6093): it stays in the stream, and a mark denotes the urgent
//! byte. Reading stops before the mark, so that the application can find it (`SIOCATMARK`).
//!
//! The pointer has the meaning of RFC 6093 3.2, which all implementations use: it points past the
//! urgent byte.

use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{SeqNum, cold_path};

use super::Connection;

/// The urgent marks of both directions.
#[derive(Debug, Default)]
pub(crate) struct Urgent {
    /// The byte that the peer marked last, if it is not read yet.
    received: Option<SeqNum>,
    /// The sequence number after the byte that we marked last (`snd_up`), until it is acknowledged.
    sent: Option<SeqNum>,
}

impl Connection {
    fn urgent_received(&self) -> Option<SeqNum> {
        self.uncommon.as_ref()?.urgent.received
    }

    /// Returns the sequence number of the next byte to read.
    fn copied_seq(&self) -> SeqNum {
        let fin = u32::from(self.rcv.fin_received());
        self.rcv.nxt() - fin - self.rcv.readable() as u32
    }

    /// Processes a segment with URG: the mark moves only forward, and not to data already received
    /// (RFC 9293 3.10.7.4, sixth).
    #[cold]
    pub(super) fn on_urgent(&mut self, repr: &TcpRepr) {
        let marked = repr.seq + u32::from(repr.urgent) - u32::from(repr.urgent > 0);
        let newer = self.urgent_received().is_none_or(|old| marked.after(old));
        if newer && marked.after_eq(self.rcv.nxt()) {
            self.uncommon_mut().urgent.received = Some(marked);
        }
    }

    /// Returns whether the next byte to read is the one that the peer marked as urgent
    /// (`SIOCATMARK`).
    pub fn at_mark(&self) -> bool {
        self.urgent_received() == Some(self.copied_seq())
    }

    /// Returns whether urgent data has arrived and is not read yet (`POLLPRI`).
    pub fn has_urgent(&self) -> bool {
        let fin = u32::from(self.rcv.fin_received());
        let end = self.rcv.nxt() - fin;
        self.urgent_received().is_some_and(|mark| mark.before(end))
    }

    /// Returns the number of bytes that one read of `most` bytes may return.
    #[cold]
    pub(super) fn readable_before_mark(&self, most: usize) -> usize {
        match self.urgent_received() {
            Some(mark) => match mark.distance(self.copied_seq()) {
                before if before > 0 => most.min(before as usize),
                _ => most,
            },
            None => most,
        }
    }

    /// Forgets a mark that was passed by a read.
    #[cold]
    pub(super) fn drop_passed_mark(&mut self) {
        let copied = self.copied_seq();
        if let Some(uncommon) = &mut self.uncommon {
            let passed = |mark: &SeqNum| mark.before(copied);
            uncommon.urgent.received.take_if(|mark| passed(mark));
        }
    }

    /// Marks the last byte written as urgent (`MSG_OOB`).
    #[cold]
    pub(super) fn mark_written_urgent(&mut self) {
        self.uncommon_mut().urgent.sent = Some(self.snd.write_seq());
        self.snd.pending_mut().retry();
    }

    /// Forgets our mark once it is acknowledged.
    #[cold]
    pub(super) fn on_urgent_acked(&mut self) {
        let una = self.snd.una();
        if let Some(uncommon) = &mut self.uncommon {
            uncommon.urgent.sent.take_if(|up| up.before_eq(una));
        }
    }

    /// Returns whether urgent data of ours is unacknowledged. Each segment then carries the
    /// pointer, so none of them is a super-segment.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        let Some(uncommon) = &self.uncommon else {
            return false;
        };
        cold_path();
        uncommon.urgent.sent.is_some()
    }

    /// Sets the urgent pointer of a segment that begins at `repr.seq` to our mark (RFC 9293 3.1),
    /// as far as 16 bits reach.
    #[cold]
    pub(crate) fn set_urgent_pointer(&self, repr: &mut TcpRepr) {
        let sent = self
            .uncommon
            .as_ref()
            .and_then(|uncommon| uncommon.urgent.sent);
        if let Some(up) = sent
            && up.after(repr.seq)
        {
            repr.urgent = up.since(repr.seq).min(0xffff) as u16;
            repr.flags = repr.flags.union(TcpFlags::URG);
        }
    }
}
