//! Conversion of results to C return values and `errno`.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fullsend_posix::{Errno, Result};

/// A success value that a C function can return.
pub trait CReturn {
    /// The return value for an error.
    const ERROR: Self::C;
    /// The C type of the return value.
    type C;
    /// Returns the return value for this success.
    fn value(self) -> Self::C;
}

impl CReturn for () {
    const ERROR: c_int = -1;
    type C = c_int;
    fn value(self) -> c_int {
        0
    }
}

impl CReturn for c_int {
    const ERROR: Self = -1;
    type C = Self;
    fn value(self) -> Self {
        self
    }
}

impl CReturn for usize {
    const ERROR: isize = -1;
    type C = isize;
    fn value(self) -> isize {
        self as isize
    }
}

impl CReturn for *mut c_void {
    const ERROR: Self = std::ptr::null_mut();
    type C = Self;
    fn value(self) -> Self {
        self
    }
}

/// Sets the `errno` of the calling thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location belongs to this thread and is always valid.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Runs a call for C: an error becomes -1 (or null) and `errno`. A panic, which is a bug in the
/// stack, does not reach C: it is written to standard error, and the call fails with EIO.
pub fn c_return<R: CReturn>(call: impl FnOnce() -> Result<R>) -> R::C {
    // A stack that panicked may be inconsistent and fail again, but it cannot access invalid
    // memory.
    let result = catch_unwind(AssertUnwindSafe(call));
    match result.unwrap_or_else(|panic| Err(report_panic(&*panic))) {
        Ok(value) => value.value(),
        Err(errno) => {
            set_errno(errno);
            R::ERROR
        }
    }
}

fn report_panic(panic: &(dyn Any + Send)) -> Errno {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    // There is no place to report that this fails.
    let _ = writeln!(
        std::io::stderr(),
        "fullsend: the stack panicked: {text}; please report this"
    );
    Errno(libc::EIO)
}

#[cfg(test)]
mod tests {
    use fullsend_posix::Errno;

    use super::c_return;

    #[test]
    fn errors_and_panics_return_minus_one_and_set_errno() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!(c_return(|| Ok(7usize)), 7);
        assert_eq!(c_return(|| Err::<i32, _>(Errno::EPIPE)), -1);
        assert_eq!(errno(), Some(libc::EPIPE));
        assert_eq!(c_return::<()>(|| panic!("on purpose")), -1);
        assert_eq!(errno(), Some(libc::EIO));
    }
}
