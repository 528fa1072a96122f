//! The tables of stacks and descriptors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ffi::c_int;
use std::sync::Arc;

use fullsend_blocking::c::Descriptors;
use fullsend_blocking::{Errno, Handle, Stack};
use parking_lot::RwLock;

/// The first descriptor. The kernel does not assign such numbers, so its calls fail with EBADF on
/// ours.
const FIRST_FD: c_int = 0x4000_0000;

/// The type that C's stack pointers point to. Their values are numbers, none of which is used
/// twice.
#[repr(C)]
pub(super) struct FsStack {
    _opaque: [u8; 0],
}

struct Stacks {
    all: BTreeMap<usize, Arc<Stack>>,
    last_id: usize,
}

struct Files {
    all: Vec<Option<File>>,
    free: BinaryHeap<Reverse<usize>>,
}

/// A socket, an epoll set or an end of a pipe, with its stack.
type File = (Arc<Stack>, Handle);

static STACKS: RwLock<Stacks> = RwLock::new(Stacks {
    all: BTreeMap::new(),
    last_id: 0,
});

static FILES: RwLock<Files> = RwLock::new(Files {
    all: Vec::new(),
    free: BinaryHeap::new(),
});

pub(super) fn add_stack(stack: Arc<Stack>) -> *mut FsStack {
    let mut stacks = STACKS.write();
    stacks.last_id += 1;
    let id = stacks.last_id;
    stacks.all.insert(id, stack);
    std::ptr::without_provenance_mut(id)
}

/// Returns the stack of a pointer, or EINVAL if there is none.
pub(super) fn stack(stack: *mut FsStack) -> Result<Arc<Stack>, Errno> {
    if stack.is_null() {
        return Err(Errno::EFAULT);
    }
    let stacks = STACKS.read();
    stacks.all.get(&stack.addr()).cloned().ok_or(Errno::EINVAL)
}

/// Removes a stack with all its descriptors, and returns it.
pub(super) fn remove_stack(stack: *mut FsStack) -> Result<Arc<Stack>, Errno> {
    let removed = STACKS.write().all.remove(&stack.addr());
    let removed = removed.ok_or(Errno::EINVAL)?;
    let mut files = FILES.write();
    let Files { all, free } = &mut *files;
    for (i, slot) in all.iter_mut().enumerate() {
        if slot
            .as_ref()
            .is_some_and(|(stack, _)| Arc::ptr_eq(stack, &removed))
        {
            *slot = None;
            free.push(Reverse(i));
        }
    }
    Ok(removed)
}

fn fd_index(fd: c_int) -> Result<usize, Errno> {
    let index = fd.checked_sub(FIRST_FD).ok_or(Errno::EBADF)?;
    usize::try_from(index).map_err(|_| Errno::EBADF)
}

/// The descriptors, and the stack on which a call creates one.
pub(super) struct Fds(*mut FsStack);

impl Fds {
    /// The value for calls that create no descriptor, or one on the stack of another descriptor.
    pub(super) const OF_ALL_STACKS: Self = Self(std::ptr::null_mut());

    /// Returns the value for calls that create a descriptor on `stack`.
    pub(super) const fn on(stack: *mut FsStack) -> Self {
        Self(stack)
    }
}

impl Descriptors for Fds {
    type Stack = Arc<Stack>;

    fn stack(&self) -> Result<Arc<Stack>, Errno> {
        stack(self.0)
    }

    fn get(&self, fd: c_int) -> Result<(Arc<Stack>, Handle), Errno> {
        let index = fd_index(fd)?;
        let files = FILES.read();
        files.all.get(index).cloned().flatten().ok_or(Errno::EBADF)
    }

    /// Returns the lowest free descriptor.
    fn add(&self, stack: &Arc<Stack>, handle: Handle) -> Result<c_int, Errno> {
        let mut files = FILES.write();
        let index = if let Some(Reverse(index)) = files.free.pop() {
            index
        } else {
            files.all.push(None);
            files.all.len() - 1
        };
        files.all[index] = Some((stack.clone(), handle));
        Ok(FIRST_FD + index as c_int)
    }

    fn close(&self, fd: c_int) -> Result<(), Errno> {
        let index = fd_index(fd)?;
        let mut files = FILES.write();
        let file = files.all.get_mut(index).and_then(Option::take);
        let (stack, handle) = file.ok_or(Errno::EBADF)?;
        files.free.push(Reverse(index));
        drop(files);
        stack.close(handle)
    }
}
