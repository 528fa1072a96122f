//! Arguments of C calls, over memory owned here.

use std::ffi::c_void;
use std::ptr;

use fullsend_posix::SockAddr;
use libc::{iovec, msghdr, sockaddr, socklen_t};

/// The `struct sockaddr` of an address, and its length.
pub(super) struct SockName {
    bytes: [u8; 28],
    len: socklen_t,
}

impl SockName {
    pub(super) fn new(addr: SockAddr) -> Self {
        let (bytes, len) = addr.to_bytes();
        Self {
            bytes,
            // "No address" is the family 0, with the length of any address.
            len: if len == 0 { 16 } else { len as socklen_t },
        }
    }

    pub(super) fn get(&self) -> (*const sockaddr, socklen_t) {
        (self.bytes.as_ptr().cast(), self.len)
    }
}

/// Returns an address, or a null pointer if there is none.
pub(super) fn sock_name_or_null(name: Option<&SockName>) -> (*const sockaddr, socklen_t) {
    name.map_or((ptr::null(), 0), SockName::get)
}

/// Returns a `struct iovec` for each part.
pub(super) fn iovecs(parts: &mut [Vec<u8>]) -> Vec<iovec> {
    let piece = |part: &mut Vec<u8>| iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    };
    parts.iter_mut().map(piece).collect()
}

/// Returns a `struct msghdr` with these parts.
pub(super) fn message(
    name: (*const sockaddr, socklen_t),
    pieces: &mut [iovec],
    control: &mut [u8],
) -> msghdr {
    // SAFETY: all-zero bytes are valid.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.0.cast_mut().cast::<c_void>();
    message.msg_namelen = name.1;
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    message.msg_control = if control.is_empty() {
        ptr::null_mut()
    } else {
        control.as_mut_ptr().cast()
    };
    message.msg_controllen = control.len();
    message
}
