//! Ancillary data: `struct cmsghdr` in Linux's 64-bit layout (length, level, type; everything is
//! aligned to eight bytes).

use core::ops::Range;

use crate::abi::MSG_CTRUNC;
use crate::errno::{Errno, Result};

/// Length of the header, in bytes.
const HEADER_LEN: usize = 16;

const fn align_up(len: usize) -> usize {
    (len + 7) & !7
}

/// A writer of control messages to a buffer.
#[derive(Debug)]
pub(crate) struct CmsgWriter<'a> {
    out: &'a mut [u8],
    used: usize,
    /// `MSG_CTRUNC` if a message did not fit.
    pub(crate) flags: i32,
}

impl<'a> CmsgWriter<'a> {
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            used: 0,
            flags: 0,
        }
    }

    /// Returns the number of bytes written, including padding.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Appends a message. One that does not fit is truncated or left out.
    pub(crate) fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let room = &mut self.out[self.used..];
        if room.len() < HEADER_LEN {
            self.flags |= MSG_CTRUNC;
            return;
        }
        let len = data.len().min(room.len() - HEADER_LEN);
        if len < data.len() {
            self.flags |= MSG_CTRUNC;
        }
        room[..8].copy_from_slice(&((HEADER_LEN + len) as u64).to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER_LEN..HEADER_LEN + len].copy_from_slice(&data[..len]);
        let end = align_up(HEADER_LEN + len).min(room.len());
        room[HEADER_LEN + len..end].fill(0);
        self.used += end;
    }
}

/// A message in a control buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cmsg<'a> {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) data: &'a [u8],
}

/// Iterates over the messages. Returns EINVAL, and ends, at a message with an invalid length.
pub(crate) fn messages(control: &[u8]) -> impl Iterator<Item = Result<Cmsg<'_>>> {
    let mut rest = control;
    core::iter::from_fn(move || {
        let header = rest.first_chunk::<HEADER_LEN>()?;
        let part = |range: Range<usize>| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&header[range]);
            i32::from_ne_bytes(bytes)
        };
        let mut len = [0; 8];
        len.copy_from_slice(&header[..8]);
        let len = usize::try_from(u64::from_ne_bytes(len)).unwrap_or(usize::MAX);
        let (level, kind) = (part(8..12), part(12..16));
        let Some(data) = rest.get(HEADER_LEN..len) else {
            rest = &[];
            return Some(Err(Errno::EINVAL));
        };
        rest = rest.get(align_up(len)..).unwrap_or(&[]);
        Some(Ok(Cmsg { level, kind, data }))
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Cmsg, CmsgWriter, messages};
    use crate::abi::MSG_CTRUNC;
    use crate::errno::Errno;

    #[test]
    fn messages_round_trip() {
        let mut buffer = [0xff; 64];
        let mut writer = CmsgWriter::new(&mut buffer);
        writer.put(1, 37, &[1, 2, 3]);
        writer.put(6, 36, &[4; 8]);
        assert_eq!((writer.used(), writer.flags), (48, 0));
        writer.put(0, 11, &[5; 4]);
        assert_eq!((writer.used(), writer.flags), (64, MSG_CTRUNC));
        let read: Vec<_> = messages(&buffer[..48]).collect();
        let message = |level, kind, data| Ok(Cmsg { level, kind, data });
        assert_eq!(
            read,
            [message(1, 37, &[1, 2, 3][..]), message(6, 36, &[4; 8])]
        );
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        for len in [0_u64, 15, 17, u64::MAX] {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            let read: Vec<_> = messages(&bytes).collect();
            assert_eq!(read, [Err(Errno::EINVAL)], "{len}");
        }
        assert_eq!(messages(&[0; 15]).count(), 0);
    }
}
