//! Accesses to missing pages of a guest's memory.
//!
//! The file behind the memory can become shorter after it was mapped, its file system can be full, and a
//! page can be damaged. The kernel reports an access to such a page with SIGBUS, which by default ends
//! the process with all its other guests. The handler here replaces the whole mapping with other memory,
//! so that the access continues, and records that the memory is lost. The device checks this record after
//! each use of the memory, and ends only its guest.
//!
//! The handler replaces the whole mapping because the guest chooses which pages the device accesses
//! before the record is checked: a mapping for each of them could exceed the process's limit
//! (`vm.max_map_count`).
//!
//! The other memory is the same small block for all guests, again and again, which the system has promised when
//! the handler was installed: as much new memory as a guest has is refused where `vm.overcommit_memory` is 2.
//!
//! SIGBUS at other addresses, and SIGBUS sent by a process, goes to the previous handler, as if the kernel had
//! called that: with its mask, and on its stack. A program must permit the handler, as another one that it
//! installs later replaces this one.
#![allow(
    unsafe_code,
    reason = "a signal handler, and mmap in the place of a mapping"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, fence};

use vhost::vhost_user::message::MAX_ATTACHED_FD_ENTRIES;

/// Most ranges of a memory: the most files of a vhost-user message.
const MAX_RANGES: usize = MAX_ATTACHED_FD_ENTRIES;

/// The size of the smallest page of all processors that Linux supports.
const SMALLEST_PAGE: usize = 4096;

/// The first entry of the list of all memories. Entries are never freed, because the handler may read
/// them at any time; unused ones are reused.
static FIRST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// The previous handler of SIGBUS.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether the previous handler has been called that was installed for one call only (`SA_RESETHAND`).
static IS_PREVIOUS_RESET: AtomicBool = AtomicBool::new(false);

/// The block that replaces the memory of guests, [`REPLACEMENT`] bytes; null before the handler is installed.
static BLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The size of [`BLOCK`]: at 64 guests with 1 GiB each, a sixteenth of the mappings that a process may have.
const REPLACEMENT: usize = 16 << 20;

/// Most blocks in the place of one mapping. Other threads need mappings, too.
const MAX_BLOCKS: usize = 1024;

/// The size of a page of this machine.
static PAGE: AtomicUsize = AtomicUsize::new(SMALLEST_PAGE);

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRange {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

#[derive(Default)]
struct Range {
    start: AtomicUsize,
    len: AtomicUsize,
}

/// A consistent copy of a range, read by the handler.
struct Mapping {
    start: usize,
    len: usize,
}

/// The mappings of one memory.
struct Entry {
    in_use: AtomicBool,
    is_lost: AtomicBool,
    /// A counter that is odd while `ranges` change.
    sequence: AtomicU32,
    ranges: [Range; MAX_RANGES],
    next: *const Entry,
}

// SAFETY: `next` is written before the entry is shared, and points to an entry that is never freed.
unsafe impl Sync for Entry {}

/// A guard of mappings, which are replaced if one of their pages is missing while the guard exists.
pub(crate) struct Guarded(&'static Entry);

impl Guarded {
    /// Guards at most [`MAX_RANGES`] mappings, if the handler is [installed](install).
    ///
    /// # Safety
    /// The ranges must be whole mappings of files. Until the returned value is dropped they must stay
    /// mapped, belong to the caller alone, and contain no value whose bytes must not change: they must be
    /// accessed as memory that another process changes concurrently.
    pub(crate) unsafe fn new(ranges: &[MappedRange]) -> io::Result<Self> {
        if ranges.len() > MAX_RANGES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let entry = unused_entry();
        entry.is_lost.store(false, Relaxed);
        entry.change(ranges);
        Ok(Self(entry))
    }

    /// Returns whether a page was missing. Since then the memory is empty, so the data read from it may
    /// not be the guest's.
    pub(crate) fn is_lost(&self) -> bool {
        // Orders the accesses before this call before the check: the handler has run in this thread, or
        // in another thread whose empty memory this one has read.
        fence(SeqCst);
        self.0.is_lost.load(Relaxed)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.change(&[]);
        self.0.in_use.store(false, Release);
    }
}

impl Entry {
    /// Sets the ranges, which the handler may be reading in another thread. Only the user of the entry
    /// calls it.
    fn change(&self, ranges: &[MappedRange]) {
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Relaxed);
        fence(Release);
        for (index, range) in self.ranges.iter().enumerate() {
            let new = ranges.get(index);
            range
                .start
                .store(new.map_or(0, |new| new.start as usize), Relaxed);
            range.len.store(new.map_or(0, |new| new.len), Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Release);
    }

    /// Returns the range that contains `address`. The entry of memory that a thread accesses does not
    /// change meanwhile, so an entry that changes is another one.
    fn find(&self, address: usize) -> Option<Mapping> {
        let sequence = self.sequence.load(Acquire);
        let contains = |range: &&Range| {
            address.wrapping_sub(range.start.load(Relaxed)) < range.len.load(Relaxed)
        };
        let range = self.ranges.iter().find(contains)?;
        let found = Mapping {
            start: range.start.load(Relaxed),
            len: range.len.load(Relaxed),
        };
        fence(Acquire);
        let is_stable = sequence.is_multiple_of(2) && self.sequence.load(Relaxed) == sequence;
        is_stable.then_some(found)
    }
}

/// Returns an unused entry, which then belongs to the caller.
fn unused_entry() -> &'static Entry {
    let mut next = FIRST.load(Acquire);
    // SAFETY: pointers in the list are null or to entries that are never freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        if !entry.in_use.swap(true, AcqRel) {
            return entry;
        }
        next = entry.next.cast_mut();
    }
    let entry = Box::leak(Box::new(Entry {
        in_use: AtomicBool::new(true),
        is_lost: AtomicBool::new(false),
        sequence: AtomicU32::new(0),
        ranges: Default::default(),
        next: null(),
    }));
    let mut first = FIRST.load(Acquire);
    loop {
        entry.next = first;
        let entry = &raw mut *entry;
        match FIRST.compare_exchange_weak(first, entry, AcqRel, Acquire) {
            // SAFETY: the entry is leaked; from now on only its atomic fields change.
            Ok(_) => return unsafe { &*entry },
            Err(changed) => first = changed,
        }
    }
}

/// Installs the handler for the whole process, unless it is installed.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: parking_lot::Mutex<bool> = parking_lot::Mutex::new(false);
    let mut installed = INSTALLED.lock();
    if *installed {
        return Ok(());
    }
    PAGE.store(rustix::param::page_size(), Relaxed);
    if BLOCK.load(Relaxed).is_null() {
        BLOCK.store(promised_block()?, Relaxed);
    }
    // SAFETY: all fields of the structure may be 0.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are null or valid for a structure.
    if unsafe { libc::sigaction(libc::SIGBUS, null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    PREVIOUS.get_or_init(|| previous);
    // The kernel calls this handler as it would call the previous one. Threads of programs in some languages
    // have no other stack than the alternate one for a handler.
    let mut action = previous;
    let kept = libc::SA_NODEFER | libc::SA_RESTART;
    let is_default = matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let stack = if is_default {
        libc::SA_ONSTACK
    } else {
        previous.sa_flags & libc::SA_ONSTACK
    };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | stack | previous.sa_flags & kept;
    // SAFETY: the pointers are valid for structures or null. The handler uses only operations that a
    // signal handler may use: atomic operations on lock-free types, `mmap`, `mremap`, `sigaction` and `raise`,
    // which are system calls.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

/// Returns shared memory of [`REPLACEMENT`] bytes, which has no page yet and can have all of them.
fn promised_block() -> io::Result<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses a free place.
    let at = unsafe { libc::mmap(null_mut(), REPLACEMENT, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at)
}

/// Handles SIGBUS.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with `SA_SIGINFO` the kernel passes a valid structure.
    let code = unsafe { (*info).si_code };
    let is_missing_page = matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
    // SAFETY: only the kernel sends these codes, with the address of the access.
    if is_missing_page && replace_mapping(unsafe { (*info).si_addr() } as usize, code) {
        return;
    }
    // SAFETY: the arguments are those of the handler.
    unsafe { call_previous(signal, info, context, code) };
}

/// Replaces the mapping that contains `address` with other memory, if it belongs to a guest's memory.
/// Returns whether it did.
fn replace_mapping(address: usize, code: c_int) -> bool {
    let mut next = FIRST.load(Acquire);
    // SAFETY: pointers in the list are null or to entries that are never freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        if let Some(mapping) = entry.find(address) {
            entry.is_lost.store(true, Relaxed);
            // The damaged page can be one of the block.
            return mapping.replace(code == libc::BUS_MCEERR_AR);
        }
        next = entry.next.cast_mut();
    }
    false
}

impl Mapping {
    /// Replaces the mapping with the block, as often as it fits; or with empty memory, if a page is damaged, or
    /// these are too many mappings.
    fn replace(&self, is_damaged: bool) -> bool {
        // The kernel has mapped whole pages.
        let page = PAGE.load(Relaxed);
        let len = self.len.next_multiple_of(page);
        // SAFETY: `__errno_location` returns a pointer to the thread's own variable.
        let errno = unsafe { *libc::__errno_location() };
        let has_block = !is_damaged && map_block(self.start, len);
        let replaced = has_block || map_empty(self.start, len);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        replaced
    }
}

/// Replaces pages of a mapping with the block, as often as it fits.
fn map_block(first: usize, len: usize) -> bool {
    let block = BLOCK.load(Relaxed);
    if block.is_null() || len > MAX_BLOCKS * REPLACEMENT {
        return false;
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let map = |offset: usize, len: usize| {
        let at = std::ptr::with_exposed_provenance_mut::<c_void>(first.wrapping_add(offset));
        // SAFETY: the pages belong to a mapping that the caller of `Guarded::new` gave, as its entry has verified.
        // The accessing thread keeps it mapped. Its bytes may change at any time. The block is a shared
        // mapping, of which a length of 0 makes a second one.
        unsafe { libc::mremap(block, 0, len, flags, at) != libc::MAP_FAILED }
    };
    // First all pages at once, as huge ones cannot be replaced in part. Those after the block's end are missing
    // again, until they are replaced, too.
    map(0, len)
        && (REPLACEMENT..len)
            .step_by(REPLACEMENT)
            .all(|offset| map(offset, REPLACEMENT.min(len - offset)))
}

/// Replaces pages of a mapping with empty memory.
fn map_empty(first: usize, len: usize) -> bool {
    let at = std::ptr::with_exposed_provenance_mut(first);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // The memory is shared, because a written page of private memory may become a huge page.
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: as in `map_block`.
    let mapped = unsafe { libc::mmap(at, len, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Handles the signal as without this module.
///
/// # Safety
/// The arguments must be those of a signal handler, and `code` that of `info`.
unsafe fn call_previous(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    code: c_int,
) {
    let previous = PREVIOUS.get();
    let is_once = previous.is_some_and(|previous| previous.sa_flags & libc::SA_RESETHAND != 0);
    let action = if is_once && IS_PREVIOUS_RESET.swap(true, Relaxed) {
        libc::SIG_DFL
    } else {
        previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction)
    };
    // `BUS_MCEERR_AO` reports a damaged page that was not accessed.
    let is_fault = code > 0 && code != libc::BUS_MCEERR_AO;
    match (action, previous) {
        (libc::SIG_IGN, _) if !is_fault => {}
        (libc::SIG_IGN | libc::SIG_DFL, _) | (_, None) => {
            // SAFETY: all fields of the structure may be 0, which means the default action. Afterwards
            // the access is repeated and ends the process; a sent signal is sent again.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, null_mut());
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        (handler, Some(previous)) if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler of this type was registered with this flag.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        (handler, Some(_)) => {
            // SAFETY: a handler of this type was registered without the flag.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// The variable with the case that a child process of a test runs.
    const CASE: &str = "FULLSEND_SIGBUS_CASE";
    const STATUS: i32 = 42;

    /// Maps `len` bytes of an empty file, of which no page can be accessed.
    fn map_nothing(len: usize) -> *mut u8 {
        let file = memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: the kernel chooses a free place.
        let at = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    fn guard(ranges: &[(*mut u8, usize)]) -> Guarded {
        install().unwrap();
        let ranges = ranges
            .iter()
            .map(|&(start, len)| MappedRange { start, len });
        // SAFETY: the ranges are whole mappings, which stay until the process ends, without any value.
        unsafe { Guarded::new(&ranges.collect::<Vec<_>>()) }.unwrap()
    }

    fn read(at: *mut u8) -> u8 {
        // SAFETY: the address is mapped.
        unsafe { at.read_volatile() }
    }

    #[test]
    fn a_missing_page_is_replaced_and_marks_its_memory_alone() {
        let page = rustix::param::page_size();
        let ranges = [(map_nothing(3 * page), 3 * page), (map_nothing(100), 100)];
        let (memory, other) = (guard(&ranges), guard(&[(map_nothing(page), page)]));
        assert!(!memory.is_lost() && !other.is_lost());
        read(ranges[0].0.wrapping_add(2 * page + 5));
        assert!(memory.is_lost() && !other.is_lost());
        drop(memory);
        // The entry is used again.
        let memory = guard(&ranges);
        assert!(!memory.is_lost());
        // SAFETY: the address is mapped.
        unsafe { ranges[1].0.write_volatile(7) };
        assert!(memory.is_lost() && !other.is_lost());
    }

    /// Returns the number of the process's mappings in `len` bytes from `start`.
    fn mappings_in(start: *mut u8, len: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let range = start as usize..start as usize + len;
        let first = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
        maps.lines()
            .filter_map(first)
            .filter(|first| range.contains(first))
            .count()
    }

    /// The number of a process's mappings is limited, and the guest chooses the pages. The memory of the process
    /// is limited, too: the pages of all guests that lose their memory are those of one block.
    #[test]
    fn many_missing_pages_cause_few_mappings_and_no_new_memory() {
        let page = rustix::param::page_size();
        let len = 2 * REPLACEMENT + 200 * page;
        let (at, other) = (map_nothing(len), map_nothing(page));
        let (memory, _other) = (guard(&[(at, len)]), guard(&[(other, page)]));
        for offset in (page..len).step_by(2 * page) {
            read(at.wrapping_add(offset));
        }
        assert!(memory.is_lost());
        assert_eq!(mappings_in(at, len), 3);
        let last = at.wrapping_add(2 * REPLACEMENT + 5);
        read(other);
        // SAFETY: the address is mapped.
        unsafe { last.write_volatile(9) };
        assert_eq!(read(other.wrapping_add(5)), 9);
    }

    #[test]
    fn a_damaged_page_is_replaced_by_empty_memory() {
        let at = map_nothing(100);
        let memory = guard(&[(at, 100)]);
        assert!(replace_mapping(at as usize, libc::BUS_MCEERR_AR));
        assert_eq!(read(at), 0);
        assert!(memory.is_lost());
    }

    #[test]
    fn memories_come_and_go_while_pages_are_missing() {
        let page = rustix::param::page_size();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let at = map_nothing(2 * page);
                        let memory = guard(&[(at, 2 * page)]);
                        assert!(!memory.is_lost());
                        read(at.wrapping_add(page));
                        assert!(memory.is_lost());
                        drop(memory);
                        // SAFETY: nothing uses the mapping any more.
                        assert_eq!(unsafe { libc::munmap(at.cast(), 2 * page) }, 0);
                    }
                });
            }
        });
    }

    extern "C" fn exit_with_status(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: `_exit` may be called in a handler.
        unsafe { libc::_exit(STATUS) }
    }

    /// Ends the process unless it is called as the kernel would have called it: with its mask, on the thread's own
    /// stack, and once.
    extern "C" fn exit_unless_alike(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        // SAFETY: the structures may be 0, and the pointers are valid. These functions may be called in a handler.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask);
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(null(), &raw mut stack);
            let is_masked = libc::sigismember(&raw const mask, libc::SIGUSR2) == 1;
            let is_alike = is_masked && stack.ss_flags & libc::SS_ONSTACK == 0;
            if !is_alike || CALLS.fetch_add(1, Relaxed) != 0 {
                libc::_exit(1);
            }
        }
        // It returns, the access is repeated, and the default action ends the process.
    }

    /// Runs the case of a child process, which ends it.
    fn run_case(case: &str) {
        // SAFETY: all fields may be 0, for the default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        if case == "alike" {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                exit_unless_alike;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            // SAFETY: the pointer is valid.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR2) };
        }
        if case == "previous" {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = exit_with_status;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
        }
        // Otherwise the standard library has a handler, which ignores a signal that was sent.
        if case != "elsewhere" {
            // SAFETY: the structure is valid.
            unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) };
        }
        let memory = guard(&[(map_nothing(100), 100)]);
        if case == "sent" {
            // SAFETY: it has no precondition.
            unsafe { libc::raise(libc::SIGBUS) };
        } else {
            read(map_nothing(100));
        }
        assert!(memory.is_lost(), "it has not ended");
    }

    fn status_of(case: &str) -> ExitStatus {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "fault::tests::other_faults_have_their_effect"]);
        let output = child.env(CASE, case).output().unwrap();
        output.status
    }

    #[test]
    fn other_faults_have_their_effect() {
        if let Ok(case) = std::env::var(CASE) {
            return run_case(&case);
        }
        assert_eq!(status_of("elsewhere").signal(), Some(libc::SIGBUS));
        assert_eq!(status_of("sent").signal(), Some(libc::SIGBUS));
        assert_eq!(status_of("previous").code(), Some(STATUS));
        assert_eq!(status_of("alike").signal(), Some(libc::SIGBUS));
    }
}
