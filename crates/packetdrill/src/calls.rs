//! The socket calls of packetdrill's interface, generated from the table of signatures.

use std::ptr::null_mut;

use fullsend_blocking::Errno;
use fullsend_blocking::c::{self, c_calls, c_return};
use fullsend_wire::Nanos;
use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr,
    socklen_t, timeval, useconds_t,
};

use crate::instance::{Instance, current, end_run};
pub(crate) use crate::netdev::{netdev_receive, netdev_send};

/// Runs one call on the stack of the run, after applying changes made by the script's commands.
pub(crate) fn call_instance<R: c::CReturn>(
    call: impl FnOnce(&Instance) -> Result<R, Errno>,
) -> R::C {
    c_return(|| {
        let instance = current()?;
        instance.refresh();
        instance.run_call(call)
    })
}

/// Defines the functions of a table of signatures, except for those of the kinds `own` and `adapted`.
/// [`c_calls`] explains the kinds. Without an argument in the script, the last argument of a `variadic`
/// function is undefined, and the call does not use it.
macro_rules! define {
    () => {};
    (own $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => {
        define! { $($rest)* }
    };
    (adapted $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => {
        define! { $($rest)* }
    };
    (variadic $($rest:tt)*) => {
        define! { call $($rest)* }
    };
    (new $($rest:tt)*) => {
        define! { call $($rest)* }
    };
    (old $($rest:tt)*) => {
        define! { call $($rest)* }
    };
    (call $name:ident($($arg:ident: $type:ty),*) -> $return:ty; $($rest:tt)*) => {
        #[allow(unused_unsafe, reason = "some of the calls have no pointers")]
        pub(crate) unsafe extern "C" fn $name(_: *mut c_void, $($arg: $type),*) -> $return {
            // SAFETY: packetdrill passes valid arguments of the system call of this name, for `ioctl`
            // a pointer to an int. The stack copies what `MSG_ZEROCOPY` lends.
            call_instance(|instance| unsafe { c::$name(&instance, $($arg),*) })
        }
        define! { $($rest)* }
    };
}

c_calls!(define);

pub(crate) extern "C" fn free(_: *mut c_void) {
    c_return(|| {
        end_run();
        Ok(())
    });
}

pub(crate) extern "C" fn usleep(_: *mut c_void, micros: useconds_t) -> c_int {
    c_return(|| {
        current()?.sleep(Nanos::from_micros(u64::from(micros)));
        Ok(())
    })
}

/// Reads the clock and advances it by a microsecond, as packetdrill waits for a time by polling it.
pub(crate) unsafe extern "C" fn gettimeofday(
    _: *mut c_void,
    time: *mut timeval,
    _: *mut c_void,
) -> c_int {
    c_return(|| {
        let instance = current()?;
        instance.on_clock_read();
        instance.sleep(Nanos::from_micros(1));
        let micros = Instance::micros(instance.now());
        let value = timeval {
            tv_sec: micros / 1_000_000,
            tv_usec: micros % 1_000_000,
        };
        // SAFETY: packetdrill passes null or a `timeval`.
        let time = unsafe { time.as_mut() }.ok_or(Errno::EFAULT)?;
        *time = value;
        Ok(())
    })
}

/// Returns whether an offset is given. packetdrill passes pointers to zero where the script has
/// NULL.
///
/// # Safety
/// `offset` is null or points to an offset.
unsafe fn has_offset(offset: *const loff_t) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { offset.as_ref() }.is_some_and(|&offset| offset != 0)
}

pub(crate) unsafe extern "C" fn splice(
    _: *mut c_void,
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: usize,
    flags: c_uint,
) -> isize {
    call_instance(|instance| {
        // SAFETY: packetdrill passes null or an offset.
        if unsafe { has_offset(from_offset) || has_offset(to_offset) } {
            return Err(Errno::ESPIPE);
        }
        c::splice(&instance, from, null_mut(), to, null_mut(), len, flags)
    })
}
