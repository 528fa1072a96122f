//! Readiness of connections and listeners, for applications that wait on many sockets.

use core::task::Waker;

use super::ListenerId;
use crate::waiters::WaitList;
use crate::{Host, StackError};

impl Host {
    /// Changes a listener's backlog (`listen` called again).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_backlog(
        &mut self,
        id: ListenerId,
        backlog: usize,
    ) -> Result<(), StackError> {
        let most = self.env.sysctl.somaxconn as usize;
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener.config.backlog = backlog.min(most);
        Ok(())
    }

    /// Sets whether a listener on the unspecified IPv6 address rejects IPv4 connections
    /// (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_v6only(&mut self, id: ListenerId, on: bool) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        listener.ok_or(StackError::NoSuchSocket)?.v6only = on;
        Ok(())
    }

    /// Returns the number of connections that wait to be accepted.
    pub fn listener_accept_queue_len(&self, id: ListenerId) -> usize {
        let listener = self.tcp.listeners.table.peek(id.0);
        listener.map_or(0, |listener| listener.accept_queue.len())
    }

    /// Returns the tasks that wait for a connection to accept.
    pub(crate) fn accept_waiters(&mut self, id: ListenerId) -> Option<&mut WaitList> {
        let listener = self.tcp.listeners.get_mut(id)?;
        Some(&mut listener.accept_waiters)
    }

    /// Wakes `waker` once, when the next connection is added to the accept queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_watch(&mut self, id: ListenerId, waker: &Waker) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener
            .accept_waiters
            .register(waker.into(), &mut self.replaced_wakers);
        Ok(())
    }
}
