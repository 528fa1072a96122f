//! The tables of stacks and descriptors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ffi::c_int;
use std::sync::Arc;

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

/// A socket, an epoll set or an end of a pipe.
#[derive(Clone)]
pub(super) struct File {
    pub(super) stack: Arc<Stack>,
    pub(super) handle: Handle,
}

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
            .is_some_and(|f| Arc::ptr_eq(&f.stack, &removed))
        {
            *slot = None;
            free.push(Reverse(i));
        }
    }
    Ok(removed)
}

/// Adds a handle and returns the lowest free descriptor.
pub(super) fn add_file(stack: &Arc<Stack>, handle: Handle) -> c_int {
    let file = File {
        stack: stack.clone(),
        handle,
    };
    let mut files = FILES.write();
    let index = if let Some(Reverse(index)) = files.free.pop() {
        index
    } else {
        files.all.push(None);
        files.all.len() - 1
    };
    files.all[index] = Some(file);
    FIRST_FD + index as c_int
}

fn fd_index(fd: c_int) -> Result<usize, Errno> {
    let index = fd.checked_sub(FIRST_FD).ok_or(Errno::EBADF)?;
    usize::try_from(index).map_err(|_| Errno::EBADF)
}

pub(super) fn file(fd: c_int) -> Result<File, Errno> {
    let index = fd_index(fd)?;
    let files = FILES.read();
    files.all.get(index).cloned().flatten().ok_or(Errno::EBADF)
}

pub(super) fn remove_file(fd: c_int) -> Result<File, Errno> {
    let index = fd_index(fd)?;
    let mut files = FILES.write();
    let file = files.all.get_mut(index).and_then(Option::take);
    let file = file.ok_or(Errno::EBADF)?;
    files.free.push(Reverse(index));
    Ok(file)
}
