//! Random C calls on two stacks that are connected to each other: any call, on any descriptor, with
//! pointers that are null or unaligned, and with any length that the memory has. Used by the test of that
//! name and by the fuzz target.
//!
//! Each piece of memory is an allocation of its own, so that AddressSanitizer reports an access outside of
//! it. No call waits, as one thread makes all of them.

#[path = "memory.rs"]
mod memory;
#[path = "world.rs"]
mod world;

use std::mem::offset_of;
use std::ptr::null_mut;

use fullsend_blocking::c::c_calls;
use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr,
    socklen_t,
};

use memory::Memory;
use world::{FsStack, World};

/// Declares the functions of a table of signatures. [`c_calls`] explains the kinds.
macro_rules! declare {
    () => {};
    (own $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => { declare! { $($rest)* } };
    (old $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => { declare! { $($rest)* } };
    (new $name:ident($($arg:ident: $type:ty),*) -> $return:ty; $($rest:tt)*) => {
        unsafe extern "C" {
            #[link_name = concat!("fs_", stringify!($name))]
            fn $name(stack: *mut FsStack, $($arg: $type),*) -> $return;
        }
        declare! { $($rest)* }
    };
    (variadic $($rest:tt)*) => { declare! { call $($rest)* } };
    (adapted $($rest:tt)*) => { declare! { call $($rest)* } };
    (call $name:ident($($arg:ident: $type:ty),*) -> $return:ty; $($rest:tt)*) => {
        unsafe extern "C" {
            #[link_name = concat!("fs_", stringify!($name))]
            fn $name($($arg: $type),*) -> $return;
        }
        declare! { $($rest)* }
    };
}

c_calls!(declare);
declare! {
    new epoll_create1(flags: c_int) -> c_int;
    new pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    call accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    call getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    call getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
}

/// The source of choices; `None` ends the run.
pub(crate) trait Source {
    fn byte(&mut self) -> Option<u8>;

    fn word(&mut self) -> Option<u32> {
        let mut bytes = [0; 4];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Some(u32::from_le_bytes(bytes))
    }

    /// Returns a number that is usually small.
    fn number(&mut self) -> Option<c_int> {
        let byte = self.byte()?;
        Some(match byte {
            0..=199 => (byte % 70).into(),
            200..=239 => c_int::from(byte) * 37,
            240..=247 => -c_int::from(byte % 8),
            _ => self.word()? as c_int,
        })
    }

    fn bytes(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = usize::from(self.byte()?) % (most + 1);
        (0..len).map(|_| self.byte()).collect()
    }
}

/// Makes calls until the source is empty.
pub(crate) fn run(source: &mut dyn Source) {
    let mut world = World::new(source);
    while step(&mut world).is_some() {}
    world.end();
}

fn step(world: &mut World<'_>) -> Option<()> {
    let op = world.byte()?;
    match op % 32 {
        0 | 1 => open(world),
        2..=8 => name_calls(world, op % 32),
        9..=13 => send_calls(world, op % 32),
        14..=18 => receive_calls(world, op % 32),
        19..=21 => option_calls(world, op % 32),
        22..=25 => event_calls(world, op % 32),
        26 => {
            let fd = world.fd()?;
            // SAFETY: the call has no pointers.
            let closed = unsafe { close(fd) };
            world.on_closed(fd, closed);
            Some(())
        }
        27 => world.setting(),
        28 => world.packet(),
        29 => {
            let (from, to) = (world.fd()?, world.fd()?);
            let (mut offset, len) = (0, world.length()?);
            let is_null = !world.byte()?.is_multiple_of(16);
            let at: *mut loff_t = if is_null { null_mut() } else { &raw mut offset };
            // SAFETY: the offset lives until the call returns.
            let moved = unsafe { splice(from, at, to, null_mut(), len, 0) };
            World::check(moved);
            assert!(moved <= len as isize);
            Some(())
        }
        _ => {
            let millis = u64::from(world.byte()?);
            world.advance(millis * millis);
            Some(())
        }
    }
}

fn open(world: &mut World<'_>) -> Option<()> {
    let stack = world.stack()?;
    let domain = [libc::AF_INET, libc::AF_INET6][usize::from(world.byte()? % 2)];
    let kind = world.byte()?;
    // SAFETY: the calls have no pointers but the array, which is null or has two numbers.
    let fd = unsafe {
        match kind % 16 {
            0..=7 => socket(stack, domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0),
            8..=10 => socket(stack, domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0),
            11 => epoll_create1(stack, world.number()? & libc::EPOLL_CLOEXEC),
            12 => epoll_create1(stack, world.number()?),
            13 => {
                let numbers = [world.number()?, world.number()?, world.number()?];
                socket(
                    stack,
                    numbers[0],
                    numbers[1] | libc::SOCK_NONBLOCK,
                    numbers[2],
                )
            }
            _ => {
                let mut ends = Memory::filled(world.source, size_of::<[c_int; 2]>())?;
                let made = pipe2(stack, ends.start().cast(), libc::O_NONBLOCK);
                if made == 0 {
                    let [reader, writer] = ends.read::<[c_int; 2]>();
                    world.keep(reader);
                    writer
                } else {
                    made
                }
            }
        }
    };
    World::check(fd as isize);
    world.keep(fd);
    Some(())
}

fn name_calls(world: &mut World<'_>, op: u8) -> Option<()> {
    let fd = world.fd()?;
    // SAFETY: each pointer is null or has the given length.
    let result = unsafe {
        match op {
            2 | 3 => {
                let mut addr = world.address()?;
                let len = addr.len() as socklen_t;
                let call = if op == 2 { bind } else { connect };
                call(
                    fd,
                    addr.start().cast(),
                    Memory::wrong_length(world.source, len)?,
                )
            }
            4 => {
                let mut addr = world.address()?;
                connect(fd, addr.start().cast(), addr.len() as socklen_t)
            }
            5 => listen(fd, world.number()?),
            6 => {
                let (mut addr, mut len) = world.address_room()?;
                let flags = libc::SOCK_NONBLOCK | (world.number()? & !0xff);
                let (at, len) = (addr.start().cast(), len.start().cast());
                // The connection has the flags of its listener's call.
                let new = match world.byte()? {
                    0 => accept(-1, at, len),
                    _ => accept4(fd, at, len, flags),
                };
                world.keep(new);
                new
            }
            7 => {
                let (mut addr, mut len) = world.address_room()?;
                let of_peer = world.byte()? % 2 == 0;
                let call = if of_peer { getpeername } else { getsockname };
                call(fd, addr.start().cast(), len.start().cast())
            }
            _ => shutdown(fd, world.number()? % 5),
        }
    };
    World::check(result as isize);
    Some(())
}

fn send_calls(world: &mut World<'_>, op: u8) -> Option<()> {
    let fd = world.fd()?;
    let flags = world.flags()?;
    let mut pieces = world.pieces()?;
    let first = pieces.first_length();
    // SAFETY: each pointer is null or has the given length; memory that may be lent is kept.
    let sent = unsafe {
        match op {
            9 => write(fd, pieces.first().cast(), first),
            10 => writev(fd, pieces.array(), pieces.count(world.source)?),
            11 => send(fd, pieces.first().cast(), first, flags),
            12 => {
                let mut addr = world.address()?;
                let len = addr.len() as socklen_t;
                let (data, at) = (pieces.first().cast(), addr.start().cast());
                sendto(fd, data, first, flags, at, len)
            }
            _ => {
                let mut addr = world.address()?;
                let mut control = world.control()?;
                let mut message = pieces.message(&mut addr, &mut control, world.source)?;
                sendmsg(fd, message.start().cast(), flags)
            }
        }
    };
    World::check(sent);
    assert!(sent <= pieces.total() as isize);
    world.lend(fd, pieces);
    Some(())
}

fn receive_calls(world: &mut World<'_>, op: u8) -> Option<()> {
    let fd = world.fd()?;
    let flags = world.flags()?;
    let mut pieces = world.pieces()?;
    let first = pieces.first_length();
    let (mut addr, mut len) = world.address_room()?;
    let (mut control, mut room) = (world.control()?, first);
    // SAFETY: each pointer is null or has the given length, and no two are of one piece of memory.
    let got = unsafe {
        match op {
            14 => read(fd, pieces.first().cast(), first),
            15 => {
                room = pieces.total();
                readv(fd, pieces.array(), pieces.count(world.source)?)
            }
            16 => recv(fd, pieces.first().cast(), first, flags),
            17 => {
                let (data, at) = (pieces.first().cast(), addr.start().cast());
                recvfrom(fd, data, first, flags, at, len.start().cast())
            }
            _ => {
                room = pieces.total();
                let mut message = pieces.message(&mut addr, &mut control, world.source)?;
                let got = recvmsg(fd, message.start().cast(), flags);
                if got >= 0 {
                    let used = message.field::<usize>(offset_of!(msghdr, msg_controllen));
                    assert!(used <= control.len());
                }
                got
            }
        }
    };
    World::check(got);
    assert!(got <= room as isize || flags & libc::MSG_TRUNC != 0);
    pieces.assert_unchanged_from(usize::try_from(got).unwrap_or(0).min(room));
    Some(())
}

fn option_calls(world: &mut World<'_>, op: u8) -> Option<()> {
    const LEVELS: [c_int; 4] = [
        libc::SOL_SOCKET,
        libc::IPPROTO_TCP,
        libc::IPPROTO_IP,
        libc::IPPROTO_IPV6,
    ];
    const REQUESTS: [c_ulong; 5] = [0x5421, 0x541b, 0x5411, 0x894b, 0x8905];
    let fd = world.fd()?;
    let level = LEVELS[usize::from(world.byte()? % 4)];
    let (name, len) = (world.number()?, world.byte()?);
    let mut value = Memory::filled(world.source, usize::from(len % 72))?;
    if level == libc::SOL_SOCKET && name == libc::SO_LINGER {
        value.set(&[0; 8]); // A close that lingers would wait.
    }
    // SAFETY: each pointer is null or has the given length.
    let result = unsafe {
        match op {
            19 => {
                let len = Memory::wrong_length(world.source, value.len() as socklen_t)?;
                setsockopt(fd, level, name, value.start().cast(), len)
            }
            20 => {
                let given = Memory::wrong_length(world.source, value.len() as socklen_t)?;
                let mut len = Memory::of(world.source, &given.to_ne_bytes())?;
                let at = (value.start().cast(), len.start().cast());
                let got = getsockopt(fd, level, name, at.0, at.1);
                assert!(got < 0 || len.read::<socklen_t>() <= given);
                got
            }
            _ if name % 4 == 0 => {
                let argument = world.number()? | libc::O_NONBLOCK;
                fcntl(fd, name / 4, argument)
            }
            _ => {
                let mut argument = Memory::of(world.source, &1i32.to_ne_bytes())?;
                let request = REQUESTS.get(usize::from(len) % 6).copied();
                ioctl(
                    fd,
                    request.unwrap_or(name as c_ulong),
                    argument.start().cast(),
                )
            }
        }
    };
    World::check(result as isize);
    Some(())
}

fn event_calls(world: &mut World<'_>, op: u8) -> Option<()> {
    let fd = world.fd()?;
    // SAFETY: each pointer is null or has the given length.
    let result = unsafe {
        match op {
            22 | 23 => {
                let (member, operation) = (world.fd()?, c_int::from(world.byte()? % 5));
                let mut event = Memory::filled(world.source, size_of::<epoll_event>())?;
                epoll_ctl(fd, operation, member, event.start().cast())
            }
            24 => {
                let max = world.number()?.min(80);
                let room = usize::try_from(max).unwrap_or(0) * size_of::<epoll_event>();
                let mut events = Memory::filled(world.source, room)?;
                let found = epoll_wait(fd, events.start().cast(), max, 0);
                assert!(found <= max.max(0));
                found
            }
            _ => {
                let n = usize::from(world.byte()? % 20);
                let mut files = Memory::filled(world.source, n * size_of::<pollfd>())?;
                for at in 0..files.len() / size_of::<pollfd>() {
                    let fd = world.fd()?;
                    files.write_at(at * size_of::<pollfd>(), &fd.to_ne_bytes());
                }
                let ready = poll(files.start().cast(), n as nfds_t, 0);
                let is_ready = |at: usize| {
                    let revents = at * size_of::<pollfd>() + offset_of!(pollfd, revents);
                    files.field::<i16>(revents) != 0
                };
                let count = (0..files.len() / size_of::<pollfd>()).filter(|&at| is_ready(at));
                assert!(ready < 0 || ready as usize == count.count());
                ready
            }
        }
    };
    World::check(result as isize);
    Some(())
}
