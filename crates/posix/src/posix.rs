//! The host with its open files, and the feed of handles whose readiness may have changed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_stack::Host;
use fullsend_units::Nanos;

use crate::bound::Bindings;
use crate::errno::{Errno, Result};
use crate::files::{Files, Handle, Kind};
use crate::wake::{Key, WakeQueue, Wakers};

/// Names of closed handles that wait to be taken, beyond which they are forgotten.
const MOST_CLOSED: usize = 4096;

/// A host with BSD's calls. See the [crate's page](crate).
#[derive(Debug)]
pub struct Posix {
    pub(crate) host: Host,
    pub(crate) files: Files,
    pub(crate) bindings: Bindings,
    /// The world's time at the host's zero.
    pub(crate) epoch: Nanos,
    pub(crate) wakes: Arc<WakeQueue>,
    /// Handles whose readiness may have changed since somebody asked.
    ready: Vec<Handle>,
    /// Scratch.
    wakers: Vec<Waker>,
    woken: Vec<(Handle, Key)>,
}

impl Posix {
    /// Calls over `host`, which already has its interfaces and addresses, or gets them through
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

    /// The host.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The host: its driver's calls (`receive`, `poll`, `transmit`, `complete`) go here.
    pub const fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// Appends the handles whose readiness may have changed since the last call: those that gave
    /// EAGAIN or EINPROGRESS, or were asked for their events. Ask after whatever was done to the
    /// host or here.
    pub fn take_ready(&mut self, out: &mut Vec<Handle>) {
        self.collect();
        for &handle in &self.ready {
            if let Ok(file) = self.files.get_mut(handle) {
                file.listed = false;
            }
        }
        out.append(&mut self.ready);
    }

    /// Looks at what the host has woken.
    pub(crate) fn collect(&mut self) {
        if self.host.has_wakers() {
            self.host.take_wakers(&mut self.wakers);
            self.wakers.drain(..).for_each(Waker::wake);
        }
        let mut woken = core::mem::take(&mut self.woken);
        self.wakes.drain(&mut woken);
        for (handle, key) in woken.drain(..) {
            self.woke(handle, key);
        }
        self.woken = woken;
    }

    fn woke(&mut self, handle: Handle, key: Key) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let turned = match &mut file.kind {
            Kind::Stream(stream) => stream.turned(&mut self.host),
            _ => false,
        };
        let watched = !file.watchers.is_empty();
        self.notify(handle, if turned { Key::Any } else { key });
        if watched {
            self.arm(handle);
        }
    }

    /// The readiness of a handle may have changed.
    pub(crate) fn notify(&mut self, handle: Handle, key: Key) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let watched = !file.watchers.is_empty();
        if !core::mem::replace(&mut file.listed, true) {
            self.list(handle);
        }
        if watched {
            self.notify_watchers(handle, key);
        }
    }

    /// Names of closed handles go when there are many: nobody takes them.
    fn list(&mut self, handle: Handle) {
        self.ready.push(handle);
        if self.ready.len() > MOST_CLOSED + 2 * self.files.len() {
            let files = &self.files;
            self.ready.retain(|&handle| files.get(handle).is_ok());
        }
    }

    /// The next change of a handle is to be told.
    pub(crate) fn arm(&mut self, handle: Handle) {
        let Ok(file) = self.files.get_mut(handle) else {
            return;
        };
        let wakes = &self.wakes;
        let made = || Wakers::new(wakes, handle);
        match &file.kind {
            Kind::Stream(stream) => {
                stream.watch(&mut self.host, file.wakers.get_or_insert_with(made));
            }
            Kind::Datagram(datagram) => {
                datagram.watch(&mut self.host, file.wakers.get_or_insert_with(made));
            }
            // Those change by calls here alone, which tell.
            Kind::Epoll(_) | Kind::PipeReader(_) | Kind::PipeWriter(_) => {}
        }
    }

    /// Members of sets are armed always.
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

    /// Readiness in `EPOLL*` bits.
    pub(crate) fn events(&mut self, handle: Handle) -> Result<u32> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => Ok(stream.events(&mut self.host)),
            Kind::Datagram(datagram) => Ok(datagram.events(&mut self.host)),
            Kind::Epoll(_) => Ok(self.epoll_events(handle)),
            Kind::PipeReader(pipe) => Ok(pipe.reader_events()),
            Kind::PipeWriter(reader) => Ok(self.pipe_writer_events(*reader)),
        }
    }
}
