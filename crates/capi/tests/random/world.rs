//! Two stacks, their descriptors, and arguments for calls on them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use libc::{iovec, socklen_t};

use super::Source;
use super::memory::{Memory, Pieces};

/// Limit of descriptors, open or closed, that calls are made on.
const MAX_FDS: usize = 24;

#[repr(C)]
pub(super) struct FsStack {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Callbacks {
    context: *mut c_void,
    output: unsafe extern "C" fn(*mut c_void, *const iovec, c_int),
    now: unsafe extern "C" fn(*mut c_void) -> u64,
}

unsafe extern "C" {
    fn fs_stack_create(settings: *const c_char, callbacks: *const Callbacks) -> *mut FsStack;
    fn fs_stack_destroy(stack: *mut FsStack) -> c_int;
    fn fs_stack_shutdown(stack: *mut FsStack, timeout_ms: c_int) -> c_int;
    fn fs_stack_set(stack: *mut FsStack, key: *const c_char, value: *const c_char) -> c_int;
    fn fs_stack_get(
        stack: *mut FsStack,
        key: *const c_char,
        buffer: *mut c_char,
        size: usize,
    ) -> isize;
    fn fs_stack_input(stack: *mut FsStack, packet: *const c_void, len: usize) -> c_int;
    fn fs_stack_poll(stack: *mut FsStack, now_ns: u64) -> c_int;
    fn fs_stack_deadline(stack: *mut FsStack) -> u64;
    fn fs_last_error() -> *const c_char;
}

thread_local! {
    /// Packets on their way, with the number of the stack that has sent them.
    static WIRE: RefCell<VecDeque<(usize, Vec<u8>)>> = const { RefCell::new(VecDeque::new()) };

    /// The time of both stacks, in nanoseconds.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" fn output(context: *mut c_void, pieces: *const iovec, count: c_int) {
    // SAFETY: the stack guarantees the pieces.
    let packet = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
    let packet = packet.iter().flat_map(|piece| {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
    });
    let packet = packet.copied().collect();
    WIRE.with_borrow_mut(|wire| wire.push_back((context.addr(), packet)));
}

unsafe extern "C" fn now(_: *mut c_void) -> u64 {
    NOW.get()
}

pub(super) struct World<'a> {
    pub(super) source: &'a mut dyn Source,
    stacks: [*mut FsStack; 2],
    fds: Vec<c_int>,
    /// Memory that a descriptor may have on loan.
    lent: Vec<(c_int, Pieces)>,
}

impl<'a> World<'a> {
    pub(super) fn new(source: &'a mut dyn Source) -> Self {
        NOW.set(0);
        let stacks = [1, 2].map(|number: usize| {
            let settings =
                format!("address=10.0.0.{number}/24,address=fd00::{number}/64,seed=1,mtu=1500");
            let settings = CString::new(settings).expect("no NUL");
            let callbacks = Callbacks {
                context: std::ptr::without_provenance_mut(number - 1),
                output,
                now,
            };
            // SAFETY: both live until the call returns; the functions need no context.
            let stack = unsafe { fs_stack_create(settings.as_ptr(), &raw const callbacks) };
            assert!(!stack.is_null());
            stack
        });
        Self {
            source,
            stacks,
            fds: Vec::new(),
            lent: Vec::new(),
        }
    }

    /// Destroys the stacks, after which no descriptor is open.
    pub(super) fn end(self) {
        for (at, stack) in self.stacks.into_iter().enumerate() {
            // SAFETY: the stack is a number.
            unsafe {
                if at == 0 || fs_stack_shutdown(stack, 0) != 0 {
                    assert_eq!(fs_stack_destroy(stack), 0);
                }
                assert_eq!(fs_stack_destroy(stack), -1);
            }
        }
        for fd in self.fds {
            // SAFETY: the call has no pointers.
            assert_eq!(unsafe { super::close(fd) }, -1);
        }
        WIRE.with_borrow_mut(VecDeque::clear);
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.source.byte()
    }

    pub(super) fn number(&mut self) -> Option<c_int> {
        self.source.number()
    }

    /// Returns a length of up to 32 KiB.
    pub(super) fn length(&mut self) -> Option<usize> {
        let byte = usize::from(self.byte()?);
        Some(match byte {
            0..=99 => byte,
            _ => (byte - 99) * 211,
        })
    }

    pub(super) fn stack(&mut self) -> Option<*mut FsStack> {
        Some(match self.byte()? {
            0 => null_mut(),
            1 => std::ptr::without_provenance_mut(usize::MAX),
            byte => self.stacks[usize::from(byte % 2)],
        })
    }

    /// Returns a descriptor: mostly an open one.
    pub(super) fn fd(&mut self) -> Option<c_int> {
        let n = usize::from(self.byte()?);
        Some(match n {
            0 => -1,
            1 => 1,
            2 => c_int::MAX,
            _ if self.fds.is_empty() => 0x4000_0000,
            _ => self.fds[n % self.fds.len()],
        })
    }

    /// Adds a descriptor, if it is one, and closes the oldest of too many.
    pub(super) fn keep(&mut self, fd: c_int) {
        if fd < 0 || self.fds.contains(&fd) {
            return;
        }
        if self.fds.len() == MAX_FDS {
            let oldest = self.fds.remove(0);
            // SAFETY: the call has no pointers.
            let closed = unsafe { super::close(oldest) };
            self.on_closed(oldest, closed);
        }
        self.fds.push(fd);
    }

    /// Frees the memory that a closed descriptor had on loan.
    pub(super) fn on_closed(&mut self, fd: c_int, closed: c_int) {
        Self::check(closed as isize);
        self.lent.retain(|(of, _)| *of != fd);
    }

    /// Keeps memory until the descriptor is closed.
    pub(super) fn lend(&mut self, fd: c_int, pieces: Pieces) {
        if pieces.total() > 0 && self.fds.contains(&fd) {
            self.lent.push((fd, pieces));
        }
    }

    /// Requires that a call which failed has set an errno that does not report a bug.
    pub(super) fn check(result: isize) {
        if result < 0 {
            assert_eq!(result, -1);
            let errno = std::io::Error::last_os_error().raw_os_error();
            assert!(errno.is_some_and(|errno| errno > 0 && errno != libc::EIO));
        }
    }

    /// Lets time pass, and carries the packets that wait.
    pub(super) fn advance(&mut self, millis: u64) {
        NOW.set(NOW.get() + millis * 1_000_000);
        for stack in self.stacks {
            // SAFETY: the stack is a number.
            unsafe {
                assert_eq!(fs_stack_poll(stack, 0), 0);
                fs_stack_deadline(stack);
            }
        }
        // A few rounds: two stacks may answer each other for ever.
        for _ in 0..64 {
            let Some((from, packet)) = WIRE.with_borrow_mut(VecDeque::pop_front) else {
                return;
            };
            // SAFETY: the packet lives until the call returns.
            unsafe { fs_stack_input(self.stacks[1 - from], packet.as_ptr().cast(), packet.len()) };
        }
    }

    /// Passes an arbitrary packet to a stack.
    pub(super) fn packet(&mut self) -> Option<()> {
        let stack = self.stack()?;
        let content = self.source.bytes(80)?;
        let mut packet = Memory::of(self.source, &content)?;
        let len = packet.len();
        // SAFETY: the memory is null or has this length; a longer packet is refused.
        let result = unsafe {
            if self.byte()? == 0 {
                fs_stack_input(stack, packet.start(), 1 << 20)
            } else {
                fs_stack_input(stack, packet.start(), len)
            }
        };
        Self::check(result as isize);
        Some(())
    }

    /// Reads or changes a setting.
    pub(super) fn setting(&mut self) -> Option<()> {
        const KEYS: [&str; 8] = [
            "mtu",
            "address",
            "tcp_rmem",
            "tcp_wmem",
            "tcp_mem",
            "tcp_congestion_control",
            "qdisc",
            "tcp_sack",
        ];
        let stack = self.stack()?;
        let choice = self.byte()?;
        let key = match KEYS.get(usize::from(choice) % 9) {
            Some(&key) => key.into(),
            None => self.source.bytes(12)?,
        };
        let value = self.source.bytes(24)?;
        let text =
            |bytes: Vec<u8>| CString::new(bytes.split(|b| *b == 0).next().unwrap_or(&[]).to_vec());
        let (key, value) = (text(key).ok()?, text(value).ok()?);
        let mut room = Memory::untouched(self.source, usize::from(choice % 16))?;
        let size = room.len();
        // SAFETY: the strings live until the calls return; the buffer is null or has this size.
        let (set, got) = unsafe {
            let set = fs_stack_set(stack, key.as_ptr(), value.as_ptr());
            assert!(!fs_last_error().is_null());
            (
                set,
                fs_stack_get(stack, key.as_ptr(), room.start().cast(), size),
            )
        };
        assert!(set <= 0 && got >= -1);
        Some(())
    }

    /// Returns flags without those with which a call would wait.
    pub(super) fn flags(&mut self) -> Option<c_int> {
        const FLAGS: [c_int; 8] = [
            libc::MSG_PEEK,
            libc::MSG_TRUNC,
            libc::MSG_WAITALL,
            libc::MSG_ERRQUEUE,
            libc::MSG_ZEROCOPY,
            libc::MSG_OOB,
            libc::MSG_MORE,
            libc::MSG_FASTOPEN,
        ];
        let byte = self.byte()?;
        Some(match byte {
            0..=127 => 0,
            128..=240 => {
                let chosen = FLAGS.iter().enumerate();
                let chosen = chosen.filter(|(at, _)| byte.wrapping_mul(29) >> at & 1 == 1);
                chosen.fold(0, |all, (_, flag)| all | flag)
            }
            _ => self.source.word()? as c_int,
        })
    }

    /// Returns an address, of few that often match each other, or any bytes.
    pub(super) fn address(&mut self) -> Option<Memory> {
        let (port, host) = (self.byte()? % 4, self.byte()?);
        let mut bytes = Vec::new();
        match host % 8 {
            0..=4 => {
                bytes.extend((libc::AF_INET as u16).to_ne_bytes());
                bytes.extend([0, port]);
                bytes.extend(match host % 8 {
                    0 => [0, 0, 0, 0],
                    1 | 2 => [127, 0, 0, 1],
                    _ => [10, 0, 0, host % 8 - 2],
                });
                bytes.extend([0; 8]);
            }
            5 | 6 => {
                let mut ip = [0; 16];
                ip[0] = if host % 8 == 6 { 0xfd } else { 0 };
                ip[15] = 1 + host / 8 % 2;
                bytes.extend((libc::AF_INET6 as u16).to_ne_bytes());
                bytes.extend([0, port, 0, 0, 0, 0]);
                bytes.extend(ip);
                bytes.extend([0; 4]);
            }
            _ => bytes = self.source.bytes(130)?,
        }
        Memory::of(self.source, &bytes)
    }

    /// Returns memory for an address, and its length.
    pub(super) fn address_room(&mut self) -> Option<(Memory, Memory)> {
        let room = usize::from(self.byte()? % 33);
        let addr = Memory::untouched(self.source, room)?;
        let len = Memory::wrong_length(self.source, room as socklen_t)?;
        Some((addr, Memory::of(self.source, &len.to_ne_bytes())?))
    }

    /// Returns up to four buffers.
    pub(super) fn pieces(&mut self) -> Option<Pieces> {
        let mut buffers = Vec::new();
        for _ in 0..self.byte()? % 5 {
            let len = self.length()?;
            buffers.push(Memory::untouched(self.source, len)?);
        }
        Pieces::new(self.source, buffers)
    }

    /// Returns ancillary data, or room for it.
    pub(super) fn control(&mut self) -> Option<Memory> {
        let choice = self.byte()?;
        if choice % 2 == 0 {
            return Memory::untouched(self.source, usize::from(choice));
        }
        let mut bytes = Vec::new();
        let (level, kind) = (self.number()?, self.number()?);
        let data = self.source.bytes(24)?;
        let len = match choice {
            1..=9 => usize::from(choice),
            _ => 16 + data.len(),
        };
        bytes.extend(len.to_ne_bytes());
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        Memory::of(self.source, &bytes)
    }
}
