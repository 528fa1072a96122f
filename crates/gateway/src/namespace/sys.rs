//! System calls that have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::{ForkResult, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `NS_GET_USERNS` of `linux/nsfs.h`: `_IO(0xb7, 1)`.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// Forks, and returns the child's process ID in the parent, and `None` in the child.
///
/// In a process with several threads, locks that other threads held stay locked in the child. It may
/// allocate (the C library resets the allocator's locks) and call the kernel, but not print through
/// `std`, change the environment, or use a runtime of the parent.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the callers in this module's parent restrict themselves to what is listed above.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Ends the process without destructors and without the parent's exit handlers.
pub(super) fn exit_now(status: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Returns the user namespace that owns a namespace.
pub(super) fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request has no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is not negative is new and owned here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes over a descriptor that `recvmsg` has returned.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has made this descriptor for the message, and nothing else refers to it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Closes all descriptors above the standard ones except `kept`. Linux before 5.9 leaves them open.
///
/// For a forked child that does not return: values of the parent refer to the descriptors.
pub(super) fn close_others(kept: RawFd) {
    let kept = libc::c_uint::try_from(kept).unwrap_or(0);
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: the child does not use the descriptors any more, and runs no destructors.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }
    };
    if kept > 3 {
        close(3, kept - 1);
    }
    close(kept.max(2) + 1, libc::c_uint::MAX);
}

/// Ignores a signal or restores its default.
pub(super) fn set_signal_handler(signal: Signal, handler: SigHandler) {
    debug_assert!(matches!(handler, SigHandler::SigIgn | SigHandler::SigDfl));
    // SAFETY: neither disposition runs code of this process.
    let _ = unsafe { nix::sys::signal::signal(signal, handler) };
}

/// Returns whether this process ignores a signal.
pub fn is_signal_ignored(number: i32) -> bool {
    // SAFETY: all bytes zero is a value of this type of the C library.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the disposition of a signal into `action`, and changes nothing.
    let result = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Takes over a descriptor that the process was started with, and sets `FD_CLOEXEC`.
///
/// # Errors
/// `InvalidInput` if there is no such descriptor, or this process has opened it itself.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    // SAFETY: reads the flags of a number, which need not be a descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(invalid(format!("descriptor {number} is not open")));
    }
    if flags & libc::FD_CLOEXEC != 0 {
        let text = format!("descriptor {number} was not passed to this process");
        return Err(invalid(text));
    }
    // SAFETY: the standard library and this workspace open all files with `FD_CLOEXEC`, so that a
    // descriptor without it was inherited; with it set here, the next call fails.
    unsafe {
        libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// Registers a descriptor with the runtime.
pub(super) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, so no other code can close it, and `OwnedFd`
    // returns the same number each time.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
