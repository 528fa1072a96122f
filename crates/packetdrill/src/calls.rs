//! The socket calls of packetdrill's interface.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use fullsend_blocking::c::{self, c_return};
use fullsend_blocking::{Errno, Handle, Stack};
use fullsend_units::Nanos;
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timeval, useconds_t,
};

use crate::files::kernel_close;
use crate::instance::{Instance, current, end_run};

/// Runs one call on the stack of the run, after applying changes made by the script's commands.
fn call_instance<R: c::CReturn>(call: impl FnOnce(&Instance) -> Result<R, Errno>) -> R::C {
    c_return(|| {
        let instance = current()?;
        instance.refresh();
        instance.run_call(call)
    })
}

/// Runs one call on a descriptor of the library.
pub(crate) fn call_handle<R: c::CReturn>(
    fd: c_int,
    call: impl FnOnce(&Stack, Handle) -> Result<R, Errno>,
) -> R::C {
    call_instance(|instance| call(&instance.stack, instance.handle(fd)?))
}

pub(crate) extern "C" fn free(_: *mut c_void) {
    c_return(|| {
        end_run();
        Ok(())
    });
}

pub(crate) extern "C" fn socket(
    _: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    call_instance(|instance| instance.add(instance.stack.socket(domain, kind, protocol)?))
}

pub(crate) unsafe extern "C" fn bind(
    _: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes valid arguments of `bind(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::bind(stack, handle, addr, len)
    })
}

pub(crate) extern "C" fn listen(_: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    call_instance(|instance| instance.stack.listen(instance.handle(fd)?, backlog))
}

pub(crate) unsafe extern "C" fn accept(
    _: *mut c_void,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call_instance(|instance| {
        let handle = instance.handle(fd)?;
        // SAFETY: packetdrill passes valid arguments of `accept(2)`.
        let new = unsafe { c::accept4(&instance.stack, handle, addr, len, 0) }?;
        instance.add(new)
    })
}

pub(crate) unsafe extern "C" fn connect(
    _: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    call_instance(|instance| {
        let handle = instance.handle(fd)?;
        // SAFETY: packetdrill passes valid arguments of `connect(2)`.
        unsafe { c::connect(&instance.stack, handle, addr, len) }
    })
}

pub(crate) unsafe extern "C" fn read(
    _: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `read(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::read(stack, handle, buffer, len)
    })
}

pub(crate) unsafe extern "C" fn readv(
    _: *mut c_void,
    fd: c_int,
    pieces: *const iovec,
    n: c_int,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `readv(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::readv(stack, handle, pieces, n)
    })
}

pub(crate) unsafe extern "C" fn recv(
    _: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let none = std::ptr::null_mut();
    // SAFETY: packetdrill passes valid arguments of `recv(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::recvfrom(
            stack,
            handle,
            buffer,
            len,
            flags,
            none,
            std::ptr::null_mut(),
        )
    })
}

pub(crate) unsafe extern "C" fn recvfrom(
    _: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `recvfrom(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::recvfrom(stack, handle, buffer, len, flags, addr, addr_len)
    })
}

pub(crate) unsafe extern "C" fn recvmsg(
    _: *mut c_void,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `recvmsg(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::recvmsg(stack, handle, message, flags)
    })
}

pub(crate) unsafe extern "C" fn write(
    _: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `write(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::write(stack, handle, buffer, len)
    })
}

pub(crate) unsafe extern "C" fn writev(
    _: *mut c_void,
    fd: c_int,
    pieces: *const iovec,
    n: c_int,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `writev(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::writev(stack, handle, pieces, n)
    })
}

pub(crate) unsafe extern "C" fn send(
    _: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let none = std::ptr::null();
    // SAFETY: packetdrill passes valid arguments of `send(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::sendto(stack, handle, buffer, len, flags, none, 0)
    })
}

pub(crate) unsafe extern "C" fn sendto(
    _: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `sendto(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::sendto(stack, handle, buffer, len, flags, addr, addr_len)
    })
}

pub(crate) unsafe extern "C" fn sendmsg(
    _: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: packetdrill passes valid arguments of `sendmsg(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::sendmsg(stack, handle, message, flags)
    })
}

/// Calls `fcntl`, which is variadic in packetdrill's table: without an argument in the script,
/// `argument` is undefined, and the command does not use it.
pub(crate) extern "C" fn fcntl(
    _: *mut c_void,
    fd: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    call_handle(fd, |stack, handle| {
        c::fcntl(stack, handle, command, argument as c_int)
    })
}

/// Calls `ioctl`, which is variadic in packetdrill's table: the argument is a pointer for known
/// requests. For others it can be anything, or missing.
pub(crate) unsafe extern "C" fn ioctl(
    _: *mut c_void,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    // SAFETY: packetdrill passes a pointer to an int with each request that has an argument.
    call_handle(fd, |stack, handle| unsafe {
        c::ioctl(stack, handle, request, argument)
    })
}

pub(crate) extern "C" fn close(_: *mut c_void, fd: c_int) -> c_int {
    call_instance(|_| close_descriptor(fd))
}

/// Closes a descriptor of the library. Returns EBADF for any other.
pub(crate) fn close_descriptor(fd: c_int) -> Result<(), Errno> {
    let instance = current()?;
    let handle = instance.files.remove(fd)?;
    let closed = instance.stack.close(handle);
    kernel_close(fd);
    closed
}

pub(crate) extern "C" fn shutdown(_: *mut c_void, fd: c_int, how: c_int) -> c_int {
    call_handle(fd, |stack, handle| stack.shutdown(handle, how))
}

pub(crate) unsafe extern "C" fn getsockopt(
    _: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes valid arguments of `getsockopt(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::getsockopt(stack, handle, level, name, value, len)
    })
}

pub(crate) unsafe extern "C" fn setsockopt(
    _: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes valid arguments of `setsockopt(2)`.
    call_handle(fd, |stack, handle| unsafe {
        c::setsockopt(stack, handle, level, name, value, len)
    })
}

pub(crate) unsafe extern "C" fn poll(
    _: *mut c_void,
    files: *mut pollfd,
    n: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    call_instance(|instance| {
        let stack = &instance.stack;
        let lookup_fd = |fd| Some((stack, instance.handle(fd).ok()?));
        // SAFETY: packetdrill passes valid arguments of `poll(2)`.
        unsafe { c::poll(Some(stack), lookup_fd, files, n, timeout_ms) }
    })
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

pub(crate) extern "C" fn epoll_create(_: *mut c_void, size: c_int) -> c_int {
    call_instance(|instance| {
        if size <= 0 {
            return Err(Errno::EINVAL);
        }
        instance.add(instance.stack.epoll_create()?)
    })
}

pub(crate) unsafe extern "C" fn epoll_ctl(
    _: *mut c_void,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    call_instance(|instance| {
        let (set, handle) = (instance.handle(epfd)?, instance.handle(fd)?);
        // SAFETY: packetdrill passes valid arguments of `epoll_ctl(2)`.
        unsafe { c::epoll_ctl(&instance.stack, set, operation, handle, event) }
    })
}

pub(crate) unsafe extern "C" fn epoll_wait(
    _: *mut c_void,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: packetdrill passes valid arguments of `epoll_wait(2)`.
    call_handle(epfd, |stack, set| unsafe {
        c::epoll_wait(stack, set, events, max, timeout_ms)
    })
}

pub(crate) unsafe extern "C" fn pipe(_: *mut c_void, fds: *mut c_int) -> c_int {
    call_instance(|instance| {
        if fds.is_null() {
            return Err(Errno::EFAULT);
        }
        let [reader, writer] = c::pipe2(&instance.stack, 0)?;
        let ends = [instance.add(reader)?, instance.add(writer)?];
        // SAFETY: not null, and packetdrill passes memory for two ints.
        unsafe { fds.cast::<[c_int; 2]>().write_unaligned(ends) };
        Ok(())
    })
}

/// Returns whether an offset is given. packetdrill passes pointers to zero where the script says
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
        let (from, to) = (instance.handle(from)?, instance.handle(to)?);
        instance.stack.splice(from, to, len, flags)
    })
}
