//! The system calls that a running gateway needs.
//!
//! It opens no Unix sockets, through which services of the host could be reached.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// The bits of a socket's type without flags such as `SOCK_CLOEXEC`.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// System calls of all architectures.
const ALLOWED: &[i64] = &[
    // Sockets and pipes.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_listen,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_splice,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting, and time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files: the host's resolvers, captures, and the removal of sockets and PID files.
    libc::SYS_faccessat,
    libc::SYS_fchmod,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // The process, its signals and its children.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_prlimit64,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Older forms that C libraries still use here.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[i64] = &[];

/// Allows only these system calls from now on. Others fail with `ENOSYS`, so that libraries use
/// their fallbacks for older kernels.
pub(super) fn apply() -> io::Result<()> {
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let program = program().map_err(|e| other(&e))?;
    apply_filter(&program).map_err(|e| other(&e))
}

fn program() -> Result<BpfProgram, BackendError> {
    let all = ALLOWED.iter().chain(ALLOWED_HERE);
    let mut rules: BTreeMap<_, _> = all.map(|&call| (call, Vec::new())).collect();
    // Threads, and no processes. `clone3` fails, and C libraries use `clone` instead.
    let is_thread = has_bits(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    let of_family = |family: i32| SeccompRule::new(vec![equals(0, family)?]);
    let families = vec![of_family(libc::AF_INET)?, of_family(libc::AF_INET6)?];
    rules.insert(libc::SYS_socket, families);
    // The runtime's signals arrive on one. An end of a stream cannot be connected again.
    let is_stream = has_bits(1, SOCKET_TYPE_MASK, libc::SOCK_STREAM as u64)?;
    let pair = SeccompRule::new(vec![equals(0, libc::AF_UNIX)?, is_stream])?;
    rules.insert(libc::SYS_socketpair, vec![pair]);
    SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

/// Returns the condition that an argument of the type `int` is `value`.
fn equals(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.cast_unsigned());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Returns the condition that the bits `mask` of an argument are `value`.
fn has_bits(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::errno::Errno;
    use nix::sys::prctl::set_no_new_privs;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket, socketpair};

    use super::apply;

    #[test]
    fn only_internet_sockets_and_pairs_of_streams_can_be_opened() {
        // The filter is that of the thread.
        let thread = thread::spawn(|| {
            set_no_new_privs().unwrap();
            apply().unwrap();
            let open = |family, kind| socket(family, kind, SockFlag::SOCK_CLOEXEC, None).map(drop);
            let pair = |kind| {
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                socketpair(AddressFamily::Unix, kind, None, flags).map(drop)
            };
            for family in [AddressFamily::Inet, AddressFamily::Inet6] {
                assert_eq!(open(family, SockType::Stream), Ok(()), "{family:?}");
                assert_eq!(open(family, SockType::Datagram), Ok(()), "{family:?}");
            }
            for family in [
                AddressFamily::Unix,
                AddressFamily::Netlink,
                AddressFamily::Vsock,
            ] {
                assert_eq!(
                    open(family, SockType::Datagram),
                    Err(Errno::ENOSYS),
                    "{family:?}"
                );
            }
            assert_eq!(pair(SockType::Stream), Ok(()));
            assert_eq!(pair(SockType::Datagram), Err(Errno::ENOSYS));
            assert_eq!(pair(SockType::SeqPacket), Err(Errno::ENOSYS));
        });
        thread.join().unwrap();
    }
}
