//! The message of the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;

use fullsend_blocking::Errno;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Stores the message for [`fs_last_error`], and returns `errno`.
pub(super) fn set_last_error(errno: Errno, text: &impl Display) -> Errno {
    let text: Vec<u8> = text.to_string().into_bytes();
    let text = text.into_iter().filter(|&b| b != 0).collect::<Vec<_>>();
    LAST_ERROR.set(CString::new(text).unwrap_or_default());
    errno
}

#[unsafe(no_mangle)]
extern "C" fn fs_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}
