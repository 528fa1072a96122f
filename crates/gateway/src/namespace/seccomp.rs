//! The system calls that a running gateway needs, and their arguments.
//!
//! The filters forbid opening Unix sockets, through which services of the host could be reached, and
//! affecting other processes.
//!
//! Two filters apply. The first refuses calls for which libraries have a fallback. The second allows the
//! calls that a gateway needs; a call that it does not allow is a fault of this list. A release build
//! refuses it with `ENOSYS`, as older kernels do, so that libraries may use a fallback; a debug build
//! prints its number and ends, so that each test of the gateway tests this list.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// The bits of a socket's type without flags such as `SOCK_CLOEXEC`.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// System calls that all architectures have.
const ALLOWED: &[i64] = &[
    // Sockets and pipes.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
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
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files: the host's resolvers, captures, and the removal of sockets and PID files.
    libc::SYS_faccessat,
    libc::SYS_fchmod,
    libc::SYS_fstat,
    // The page size of a guest's memory.
    libc::SYS_fstatfs,
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
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Older system calls that C libraries still use on this architecture.
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

/// Calls that the first filter refuses in some cases, so that the second one allows them.
const REFUSED_BEFORE: &[i64] = &[libc::SYS_clone3, libc::SYS_socket, libc::SYS_socketpair];

/// The requests of `ioctl`: for queues and names of sockets, for a TAP, and for detecting a terminal.
const IOCTLS: &[libc::Ioctl] = &[
    libc::FIONBIO,
    libc::FIONREAD,
    libc::TCGETS,
    libc::TIOCOUTQ,
    libc::TUNGETIFF,
    libc::TUNSETOFFLOAD,
    libc::TUNSETVNETHDRSZ,
    libc::TUNSETVNETLE,
];

/// The commands of `fcntl`. Other commands could make a file send signals.
const FCNTLS: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
    // The guest's memory, which the guest's monitor must not shorten, is sealed.
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Allows only these system calls from now on, for this process only: its process ID is part of the
/// filter.
pub(super) fn apply() -> io::Result<()> {
    #[cfg(debug_assertions)]
    super::sys::report_refused_calls();
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let filters = [refusals(), allowances()];
    for filter in filters {
        let program = filter
            .and_then(BpfProgram::try_from)
            .map_err(|e| other(&e))?;
        apply_filter(&program).map_err(|e| other(&e))?;
    }
    Ok(())
}

/// Returns the filter of calls that fail with `ENOSYS`: those with a fallback, and sockets of other
/// families.
fn refusals() -> Result<SeccompFilter, BackendError> {
    let is_other_family = vec![
        not_equals(0, libc::AF_INET)?,
        not_equals(0, libc::AF_INET6)?,
    ];
    // The runtime receives signals on a socket pair. An end of a stream pair cannot be connected again.
    let is_other_pair = |condition| SeccompRule::new(vec![condition]);
    let kinds = [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET, libc::SOCK_RAW];
    let pairs = kinds.map(|kind| is_other_pair(has_bits(1, SOCKET_TYPE_MASK, kind as u64)?));
    let mut pairs = pairs.into_iter().collect::<Result<Vec<_>, _>>()?;
    pairs.push(is_other_pair(not_equals(0, libc::AF_UNIX)?)?);
    let rules = [
        // C libraries then use `clone`.
        (libc::SYS_clone3, Vec::new()),
        (libc::SYS_socket, vec![SeccompRule::new(is_other_family)?]),
        (libc::SYS_socketpair, pairs),
    ];
    SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        std::env::consts::ARCH.try_into()?,
    )
}

/// Returns the filter of calls that are allowed.
fn allowances() -> Result<SeccompFilter, BackendError> {
    let refused = if cfg!(debug_assertions) {
        SeccompAction::Trap
    } else {
        SeccompAction::Errno(libc::ENOSYS as u32)
    };
    let one = |condition| Ok(vec![SeccompRule::new(vec![condition])?]);
    let each = |argument: u8, values: &[i32]| {
        let rules = values
            .iter()
            .map(|value| SeccompRule::new(vec![equals(argument, *value)?]));
        rules.collect::<Result<Vec<_>, BackendError>>()
    };
    let own = std::process::id().cast_signed();
    let ioctls: Vec<_> = IOCTLS.iter().map(|request| *request as i32).collect();
    let not_executable = || has_bits(2, libc::PROT_EXEC as u64, 0);
    let conditional: [(i64, Vec<SeccompRule>); 8] = [
        // Creating threads is allowed, but not processes.
        (
            libc::SYS_clone,
            one(has_bits(
                0,
                libc::CLONE_THREAD as u64,
                libc::CLONE_THREAD as u64,
            )?)?,
        ),
        (libc::SYS_fcntl, each(1, FCNTLS)?),
        (libc::SYS_ioctl, each(1, &ioctls)?),
        (libc::SYS_mmap, one(not_executable()?)?),
        (libc::SYS_mprotect, one(not_executable()?)?),
        // The process ID 0 stands for the process itself.
        (libc::SYS_prlimit64, each(0, &[0, own])?),
        // A panic may end the process with a signal.
        (libc::SYS_kill, one(equals(0, own)?)?),
        (libc::SYS_tgkill, one(equals(0, own)?)?),
    ];
    let all = ALLOWED.iter().chain(ALLOWED_HERE).chain(REFUSED_BEFORE);
    let rules = all.map(|&call| (call, Vec::new())).chain(conditional);
    SeccompFilter::new(
        rules.collect::<BTreeMap<_, _>>(),
        refused,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )
}

/// Returns the condition that an argument of the type `int` is `value`.
fn equals(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.cast_unsigned());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Returns the condition that an argument of the type `int` is not `value`.
fn not_equals(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.cast_unsigned());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

/// Returns the condition that an argument masked with `mask` equals `value`.
fn has_bits(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Command;
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

    /// Runs a call under the filter in a process of its own: this test program, with the call's name in the
    /// environment. Returns the exit status.
    fn status_of(call: &str) -> Option<i32> {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "namespace::seccomp::tests::a_refused_call_ends_a_debug_build",
            ])
            .env("FULLSEND_TEST_CALL", call)
            .output();
        status.unwrap().status.code()
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_refused_call_ends_a_debug_build() {
        let Ok(call) = std::env::var("FULLSEND_TEST_CALL") else {
            for call in ["own limit", "own signal", "file system", "queue"] {
                assert_eq!(status_of(call), Some(0), "{call}");
            }
            for call in [
                "other limit",
                "other signal",
                "other thread",
                "process",
                "executable memory",
                "terminal input",
                "owner of a file",
                "namespace",
            ] {
                assert_eq!(status_of(call), Some(128 + libc::SIGSYS), "{call}");
            }
            return;
        };
        set_no_new_privs().unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let parent = nix::unistd::getppid();
        apply().unwrap();
        super::super::sys::call_for_test(&call, pipe.as_raw_fd(), parent.as_raw());
    }
}
