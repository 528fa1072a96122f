//! The functions `fs_stack_*`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::Duration;

use fullsend_blocking::c::{c_return, set_errno};
use fullsend_blocking::{Config, Errno, Stack, UserDrivenOptions};
use fullsend_offload::{Packet, Slice};
use fullsend_wire::Instant;

use super::callbacks::FsCallbacks;
use super::last_error::set_last_error;
use super::table::{self, FsStack};

type Result<T> = std::result::Result<T, Errno>;

/// Stores the message of a device or settings error, and returns its errno.
fn io_errno(error: &io::Error) -> Errno {
    set_last_error(Errno(error.raw_os_error().unwrap_or(libc::EINVAL)), error)
}

/// Returns a C string.
///
/// # Safety
/// `text` is null or a string that ends with a NUL and does not change during `'a`.
unsafe fn c_str<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(set_last_error(
            Errno::EFAULT,
            &"a string argument is a null pointer; pass a string that ends with a NUL",
        ));
    }
    // SAFETY: not null; the caller guarantees the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|e| set_last_error(Errno::EINVAL, &e))
}

fn create(config: &Config, callbacks: Option<FsCallbacks>) -> io::Result<Arc<Stack>> {
    let Some(callbacks) = callbacks else {
        return Stack::open(config).map(Arc::new);
    };
    let stack = Stack::user_driven(config, callbacks.clock(), UserDrivenOptions::default())?;
    stack.on_output(callbacks.output());
    Ok(Arc::new(stack))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_stack_create(
    settings: *const c_char,
    callbacks: *const FsCallbacks,
) -> *mut FsStack {
    c_return(|| {
        // SAFETY: the header requires a string, and null or a valid structure.
        let (settings, callbacks) = unsafe { (c_str(settings)?, callbacks.as_ref().copied()) };
        if callbacks.is_some_and(|c| c.output.is_none()) {
            return Err(set_last_error(
                Errno::EFAULT,
                &"the callbacks have no output function; set `output`",
            ));
        }
        let config = Config::parse(settings).map_err(|e| set_last_error(Errno::EINVAL, &e))?;
        let stack = create(&config, callbacks).map_err(|e| io_errno(&e))?;
        Ok(table::add_stack(stack).cast::<c_void>())
    })
    .cast()
}

#[unsafe(no_mangle)]
extern "C" fn fs_stack_destroy(stack: *mut FsStack) -> c_int {
    c_return(|| {
        let stack = table::remove_stack(stack)?;
        stack.end(Errno(libc::ESHUTDOWN));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_stack_shutdown(stack: *mut FsStack, timeout_ms: c_int) -> c_int {
    c_return(|| {
        // A negative timeout is none, as for poll(2).
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        table::stack(stack)?.wait_flushed(timeout)?;
        let stack = table::remove_stack(stack)?;
        stack.end(Errno(libc::ESHUTDOWN));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_stack_set(
    stack: *mut FsStack,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    c_return(|| {
        // SAFETY: the header requires strings.
        let (key, value) = unsafe { (c_str(key)?, c_str(value)?) };
        let set = table::stack(stack)?.set(key, value);
        set.map_err(|e| set_last_error(Errno::EINVAL, &e))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_stack_get(
    stack: *mut FsStack,
    key: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    c_return(|| {
        // SAFETY: the header requires a string.
        let key = unsafe { c_str(key) }?;
        let value = table::stack(stack)?.get(key);
        let value = value.map_err(|e| set_last_error(Errno::EINVAL, &e))?;
        if size > 0 {
            if buffer.is_null() {
                return Err(Errno::EFAULT);
            }
            let n = value.len().min(size - 1);
            // SAFETY: the header requires `size` bytes at `buffer`, and n + 1 is at most that.
            unsafe {
                buffer
                    .cast::<u8>()
                    .copy_from_nonoverlapping(value.as_ptr(), n);
                buffer.add(n).write(0);
            }
        }
        Ok(value.len())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_stack_eventfd(stack: *mut FsStack) -> c_int {
    c_return(|| {
        let file = table::stack(stack)?.event_fd();
        file.map(IntoRawFd::into_raw_fd).map_err(|e| io_errno(&e))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_stack_input(
    stack: *mut FsStack,
    packet: *const c_void,
    len: usize,
) -> c_int {
    c_return(|| {
        let stack = table::stack(stack)?;
        if stack.outbox().is_none() {
            return Err(set_last_error(
                Errno::EINVAL,
                &"the stack has a device; pass packets only to a stack with callbacks",
            ));
        }
        if packet.is_null() {
            return Err(Errno::EFAULT);
        }
        if len > 65_549 {
            return Err(Errno::EMSGSIZE);
        }
        // SAFETY: not null, and the header requires `len` bytes.
        let packet = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), len) };
        stack.input(&mut vec![Packet::from_frame(Slice::copied_from(packet))]);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_stack_poll(stack: *mut FsStack, now_ns: u64) -> c_int {
    c_return(|| {
        let stack = table::stack(stack)?;
        stack.advance_to(Instant::from_nanos(now_ns));
        stack.run_timers();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_stack_deadline(stack: *mut FsStack) -> u64 {
    let deadline = || {
        Ok(table::stack(stack)?
            .deadline()
            .map_or(u64::MAX, Instant::as_nanos))
    };
    deadline().unwrap_or_else(|errno| {
        set_errno(errno);
        u64::MAX
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
