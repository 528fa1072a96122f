//! System calls that have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::{ForkResult, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `NS_GET_USERNS` of `linux/nsfs.h`: `_IO(0xb7, 1)`.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// The exit status after a refused system call: that of a program ended by SIGSYS.
#[cfg(debug_assertions)]
const REFUSED_CALL_STATUS: i32 = 128 + libc::SIGSYS;

/// First number that is not closed if /proc does not list the descriptors.
const UNLISTED_MAX: RawFd = 4096;

/// Forks. Returns the child's process ID in the parent, and `None` in the child.
///
/// In a process with several threads, locks of other threads stay locked in the child. The child may
/// allocate (the C library resets the allocator's locks) and make system calls, but not print through
/// `std`, change the environment, or use a runtime of the parent.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the callers in this module's parent observe the restrictions above.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Forks a child into new namespaces, like [`fork`]. Must be called in a process with a single thread:
/// the C library does not prepare its allocator for others.
pub(super) fn fork_into(namespaces: CloneFlags) -> io::Result<Option<Pid>> {
    let flags = namespaces.bits() | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has a copy of the memory and returns here on a copy of the
    // stack, as after fork(2). No other thread has locks that the child could need.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid as i32))),
    }
}

/// Gives this process a new session keyring in place of that of the caller, which has no keys. A kernel without
/// keyrings, or a filter of a container that forbids them, has none for the command either.
pub(super) fn join_new_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let no_name = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the call has no other argument.
    let serial = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, no_name) };
    if serial >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
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

/// Takes ownership of a descriptor that `recvmsg` has returned.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has made this descriptor for the message, and nothing else refers to it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Closes all descriptors above the standard ones except `kept`. Has no effect before Linux 5.9.
///
/// Call it only in a forked child that does not return: values of the parent refer to the descriptors.
pub(super) fn close_others(kept: &[RawFd]) {
    let close = |first: libc::c_uint, last: libc::c_uint| {
        if first <= last {
            // SAFETY: the child does not use the descriptors any more, and runs no destructors.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    let mut kept: Vec<_> = kept
        .iter()
        .filter_map(|fd| libc::c_uint::try_from(*fd).ok())
        .collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept.into_iter().filter(|fd| *fd >= 3) {
        close(first, fd - 1);
        first = fd + 1;
    }
    close(first, libc::c_uint::MAX);
}

/// Closes a forked child's copy of a descriptor, which the child must not use or drop any more.
pub(super) fn close_copy(fd: RawFd) {
    // SAFETY: the child does not use the descriptor any more, and runs no destructors.
    unsafe { libc::close(fd) };
}

/// Prints the number of a system call that a filter traps, and ends the process.
#[cfg(debug_assertions)]
pub(super) fn report_refused_calls() {
    use nix::sys::signal::{SaFlags, SigAction, SigSet, sigaction};

    extern "C" fn on_trap(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // The index of `si_syscall` in `siginfo_t` of 64-bit systems, in units of `int`.
        const SYSCALL: usize = 6;
        // SAFETY: the kernel passes a pointer to a whole siginfo_t, of which this is an aligned `int`.
        let call = unsafe { *info.cast::<libc::c_int>().add(SYSCALL) };
        let mut text = *b"seccomp refused the system call     \n";
        let (mut rest, mut at) = (call.unsigned_abs(), text.len() - 2);
        while rest > 0 && at > 32 {
            text[at] = b'0' + (rest % 10) as u8;
            (rest, at) = (rest / 10, at - 1);
        }
        // SAFETY: `write` and `_exit` may be called in a signal handler.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(REFUSED_CALL_STATUS);
        }
    }
    let handler = SigHandler::SigAction(on_trap);
    let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler calls only functions that signal handlers may call.
    let _ = unsafe { sigaction(Signal::SIGSYS, &action) };
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

/// Takes ownership of a descriptor that this process inherited, and sets `FD_CLOEXEC`.
///
/// # Errors
/// `InvalidInput` if the descriptor is not open, or if this process has opened it itself.
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

/// Closes the inherited descriptors, except the standard ones and those of [`inherited_fd`]. Call it when
/// all files that arguments name are open, which may be `/dev/fd/N`.
pub fn close_inherited() {
    let numbers = descriptors().unwrap_or_else(|_| (3..UNLISTED_MAX).collect());
    for number in numbers.into_iter().filter(|number| *number > 2) {
        if outlives_exec(number) {
            // SAFETY: as in `inherited_fd`, nothing in this process refers to a descriptor without
            // `FD_CLOEXEC`.
            unsafe { libc::close(number) };
        }
    }
}

/// Returns the descriptors that a program executed by this process inherits.
pub(super) fn passed_on() -> io::Result<Vec<RawFd>> {
    let mut numbers = descriptors()?;
    numbers.retain(|number| outlives_exec(*number));
    Ok(numbers)
}

fn descriptors() -> io::Result<Vec<RawFd>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}

fn outlives_exec(number: RawFd) -> bool {
    // SAFETY: reads the flags of a number, which need not be a descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Registers a descriptor with the runtime.
pub(super) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, so no other code can close it, and `OwnedFd`
    // returns the same number each time.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// Makes a system call by its name in a test of the filter.
#[cfg(test)]
pub(super) fn call_for_test(name: &str, file: RawFd, parent: libc::pid_t) {
    use std::ptr::null_mut;
    let page = 4096;
    // SAFETY: no call changes memory or files of this process, except new memory that nothing uses.
    let _ = unsafe {
        match name {
            "own limit" => libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, 0, 0),
            "other limit" => libc::syscall(libc::SYS_prlimit64, parent, libc::RLIMIT_CORE, 0, 0),
            "own signal" => libc::syscall(libc::SYS_kill, libc::getpid(), 0),
            "other signal" => libc::syscall(libc::SYS_kill, parent, 0),
            "other thread" => libc::syscall(libc::SYS_tgkill, parent, parent, 0),
            "process" => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
            "executable memory" => {
                let (executable, private) = (libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANON);
                libc::mmap(null_mut(), page, executable, private, -1, 0) as libc::c_long
            }
            "terminal input" => libc::ioctl(file, libc::TIOCSTI, b"x").into(),
            "queue" => {
                let mut len = 0;
                libc::ioctl(file, libc::FIONREAD, &raw mut len).into()
            }
            "owner of a file" => libc::fcntl(file, libc::F_SETOWN, parent).into(),
            "file system" => {
                let mut found: libc::statfs = std::mem::zeroed();
                libc::fstatfs(file, &raw mut found).into()
            }
            "namespace" => libc::unshare(libc::CLONE_NEWNET).into(),
            other => panic!("unknown call {other}"),
        }
    };
}
