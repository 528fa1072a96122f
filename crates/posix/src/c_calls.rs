//! The C signatures of the socket calls, for the crates that define or call C functions.

/// Passes the C signatures of the socket calls to the macro `$with`, in the order of packetdrill's
/// interface.
///
/// A line is `KIND NAME(ARGUMENT: TYPE, ...) -> TYPE;`, with the types of the `libc` crate, which the
/// caller imports. In packetdrill's interface each function has one more argument, the userdata,
/// before these. The kinds are:
///
/// - `call`: a call with the arguments of the system call of its name. `fullsend.h` declares it with
///   the prefix `fs_`.
/// - `variadic`: a `call` whose last argument is optional in packetdrill's interface.
/// - `new`: a call that creates a descriptor. `fullsend.h` declares it with the stack as the first
///   argument.
/// - `old`: a call of which `fullsend.h` has only the newer variant.
/// - `adapted`: a call to which packetdrill passes other arguments than the system call requires.
/// - `own`: a function of packetdrill's interface only.
#[macro_export]
macro_rules! c_calls {
    ($with:ident) => {
        $with! {
            own free() -> ();
            new socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
            call bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
            call listen(fd: c_int, backlog: c_int) -> c_int;
            call accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
            call connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
            call read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
            call readv(fd: c_int, pieces: *const iovec, n: c_int) -> isize;
            call recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
            call recvfrom(
                fd: c_int,
                buffer: *mut c_void,
                len: usize,
                flags: c_int,
                addr: *mut sockaddr,
                addr_len: *mut socklen_t
            ) -> isize;
            call recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
            call write(fd: c_int, buffer: *const c_void, len: usize) -> isize;
            call writev(fd: c_int, pieces: *const iovec, n: c_int) -> isize;
            call send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize;
            call sendto(
                fd: c_int,
                buffer: *const c_void,
                len: usize,
                flags: c_int,
                addr: *const sockaddr,
                addr_len: socklen_t
            ) -> isize;
            call sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
            variadic fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int;
            variadic ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int;
            call close(fd: c_int) -> c_int;
            call shutdown(fd: c_int, how: c_int) -> c_int;
            call getsockopt(
                fd: c_int,
                level: c_int,
                name: c_int,
                value: *mut c_void,
                len: *mut socklen_t
            ) -> c_int;
            call setsockopt(
                fd: c_int,
                level: c_int,
                name: c_int,
                value: *const c_void,
                len: socklen_t
            ) -> c_int;
            call poll(files: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int;
            own netdev_send(packet: *const c_void, len: usize) -> c_int;
            own netdev_receive(
                buffer: *mut c_void,
                count: *mut usize,
                time_us: *mut c_longlong
            ) -> c_int;
            own usleep(micros: useconds_t) -> c_int;
            own gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int;
            old epoll_create(size: c_int) -> c_int;
            call epoll_ctl(
                epfd: c_int,
                operation: c_int,
                fd: c_int,
                event: *mut epoll_event
            ) -> c_int;
            call epoll_wait(
                epfd: c_int,
                events: *mut epoll_event,
                max: c_int,
                timeout_ms: c_int
            ) -> c_int;
            old pipe(ends: *mut c_int) -> c_int;
            adapted splice(
                from: c_int,
                from_offset: *mut loff_t,
                to: c_int,
                to_offset: *mut loff_t,
                len: usize,
                flags: c_uint
            ) -> isize;
        }
    };
}
