//! The host with its open files, and the list of handles whose readiness may have changed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_stack::Host;
use fullsend_wire::Nanos;

use crate::bindings::Bindings;
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Files, Handle};
use crate::wake::{WakeKey, WakeQueue, Wakers};

/// Limit of closed handles in `Posix::ready`, beyond which they are removed.
const MAX_CLOSED: usize = 4096;

/// A host with the BSD socket calls. See the [crate documentation](crate).
#[derive(Debug)]
pub struct Posix {
    pub(crate) host: Host,
    pub(crate) files: Files,
    pub(crate) bindings: Bindings,
    /// The time since the Unix epoch at which the host's clock was zero.
    pub(crate) epoch: Nanos,
    pub(crate) wakes: Arc<WakeQueue>,
    /// Handles whose readiness may have changed since the last [`take_ready`](Self::take_ready).
    ready: Vec<Handle>,
    /// Buffers that are kept to avoid allocations.
    wakers: Vec<Waker>,
    woken: Vec<(Handle, WakeKey)>,
}

impl Posix {
    /// Returns the calls over `host`. Interfaces and addresses can be added later through
    /// [`host_mut`](Self::host_mut).
    pub fn new(host: Host) -> Self {
        Self {
            host,
            files: Files::default(),
            bindings: Bindings::default(),
            epoch: Nanos::ZERO,
            wakes: Arc::default(),
            ready: Vec::new(),
            wakers: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// Returns the host.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the host, for its driver (`receive`, `poll`, `transmit`, `complete`).
    pub const fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// Appends to `out` the handles whose calls returned EAGAIN or EINPROGRESS, or whose events were
    /// polled, and whose readiness may have changed since the last call of this method. Must follow each
    /// call of the host or of this type.
    pub fn take_ready(&mut self, out: &mut Vec<Handle>) {
        self.process_wakes();
        for &handle in &self.ready {
            if let Ok(file) = self.files.get_mut(handle) {
                file.is_in_ready_list = false;
            }
        }
        out.append(&mut self.ready);
    }

    /// Processes the wakes of the host.
    pub(crate) fn process_wakes(&mut self) {
        if self.host.has_wakers() {
            self.host.take_wakers(&mut self.wakers);
            self.wakers.drain(..).for_each(Waker::wake);
        }
        let mut woken = core::mem::take(&mut self.woken);
        self.wakes.drain(&mut woken);
        for (handle, key) in woken.drain(..) {
            self.process_wake(handle, key);
        }
        self.woken = woken;
    }

    fn process_wake(&mut self, handle: Handle, key: WakeKey) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let state_changed = match &mut file.kind {
            FileKind::Stream(stream) => stream.state_changed(&mut self.host),
            _ => false,
        };
        let watched = !file.watchers.is_empty();
        self.notify(handle, if state_changed { WakeKey::Any } else { key });
        if watched {
            self.arm(handle);
        }
    }

    /// Reports that the readiness of a handle may have changed.
    pub(crate) fn notify(&mut self, handle: Handle, key: WakeKey) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let watched = !file.watchers.is_empty();
        if !core::mem::replace(&mut file.is_in_ready_list, true) {
            self.push_ready(handle);
        }
        if watched {
            self.notify_watchers(handle, key);
        }
    }

    /// Appends a handle to the list. If there are many closed handles, removes them, as they may stay for
    /// long.
    fn push_ready(&mut self, handle: Handle) {
        self.ready.push(handle);
        if self.ready.len() > MAX_CLOSED + 2 * self.files.len() {
            let files = &self.files;
            self.ready.retain(|&handle| files.get(handle).is_ok());
        }
    }

    /// Registers for the next change of a handle's readiness.
    pub(crate) fn arm(&mut self, handle: Handle) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let wakes = &self.wakes;
        let new_wakers = || Wakers::new(wakes, handle);
        match &file.kind {
            FileKind::Stream(stream) => {
                stream.watch(&mut self.host, file.wakers.get_or_insert_with(new_wakers));
            }
            FileKind::Datagram(datagram) => {
                datagram.watch(&mut self.host, file.wakers.get_or_insert_with(new_wakers));
            }
            // The readiness of these changes only in calls of this type, which call `notify`.
            FileKind::Epoll(_) | FileKind::PipeReader(_) | FileKind::PipeWriter(_) => {}
        }
    }

    /// Registers for the next change of a handle in an epoll set: members must always be registered.
    pub(crate) fn arm_if_watched(&mut self, handle: Handle) {
        let file = self.files.get(handle);
        if file.is_ok_and(|file| !file.watchers.is_empty()) {
            self.arm(handle);
        }
    }

    pub(crate) fn arm_if_blocked<T>(&mut self, handle: Handle, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Errno::EAGAIN)) {
            self.arm(handle);
        }
        result
    }

    /// Returns a handle's readiness in `EPOLL*` bits.
    pub(crate) fn events(&mut self, handle: Handle) -> Result<u32> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => Ok(stream.events(&mut self.host)),
            FileKind::Datagram(datagram) => Ok(datagram.events(&mut self.host)),
            FileKind::Epoll(_) => Ok(self.epoll_events(handle)),
            FileKind::PipeReader(pipe) => Ok(pipe.reader_events()),
            FileKind::PipeWriter(reader) => Ok(self.pipe_writer_events(*reader)),
        }
    }
}
