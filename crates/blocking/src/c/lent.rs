//! `MSG_ZEROCOPY`: memory that C lends until the error queue tells that it is free again.

use std::slice;

use bytes::Bytes;
use fullsend_buf::Slice;
use fullsend_posix::{Handle, Result};
use libc::{MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET, c_int};

use crate::stack::Stack;

/// C's memory, for as long as the stack has use for it.
struct Lent {
    start: *const u8,
    len: usize,
}

// SAFETY: reading bytes that nobody changes is the same on every thread.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: whoever made it vouches for the memory until it is dropped.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

/// This call lends its one piece of memory: the socket has `SO_ZEROCOPY`.
pub(super) fn lends(stack: &Stack, handle: Handle, pieces: &[&[u8]], flags: c_int) -> bool {
    if stack.copies || flags & MSG_ZEROCOPY == 0 || pieces.len() != 1 || pieces[0].is_empty() {
        return false;
    }
    let mut on = [0; 4];
    let got = stack.getsockopt(handle, SOL_SOCKET, SO_ZEROCOPY, &mut on);
    got.is_ok() && on != [0; 4]
}

/// Sends without a copy.
///
/// # Safety
/// The bytes do not change and are not freed until the error queue has told so, or the stack is
/// gone.
pub(super) unsafe fn send(
    stack: &Stack,
    handle: Handle,
    piece: &[u8],
    flags: c_int,
) -> Result<usize> {
    let lent = Lent {
        start: piece.as_ptr(),
        len: piece.len(),
    };
    stack.send_lent(handle, &Slice::from(Bytes::from_owner(lent)), flags)
}
