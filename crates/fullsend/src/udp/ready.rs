//! Readiness of UDP sockets.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use fullsend_stack::{Interest as HostInterest, WaitKey};
use tokio::io::{Interest, Ready};

use super::UdpSocket;
use crate::error::{check_interest, io_error, would_block};
use crate::readiness::{call_when_ready, poll_of, poll_within_budget};
use crate::wait_registration::waiter;

impl UdpSocket {
    /// Waits until the socket is ready for any of `interest`, and returns for which. It is always ready
    /// to send unless the task has used up its budget.
    ///
    /// # Errors
    /// `InvalidInput` if `interest` is neither readable nor writable; the stack's error if it has
    /// stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        check_interest(interest)?;
        if !interest.is_writable() {
            self.readable().await?;
            return Ok(self.ready_now(interest)?.unwrap_or(Ready::READABLE));
        }
        poll_fn(|cx| poll_within_budget(cx, |_| Poll::Ready(self.ready_now(interest))))
            .await
            .map(|ready| ready.unwrap_or(Ready::WRITABLE))
    }

    /// Returns for which of `interest` the socket is ready now, or `None` for none.
    fn ready_now(&self, interest: Interest) -> io::Result<Option<Ready>> {
        let (readable, has_error) = self.op(|udp| {
            let has_error = udp.has_error().map_err(io_error)?;
            let readable = has_error || udp.first_len().map_err(io_error)?.is_some();
            Ok((readable, has_error))
        })?;
        let readable = readable || self.sticky.is_set(HostInterest::Read);
        let mut ready = Ready::EMPTY;
        if interest.is_readable() && readable {
            ready |= Ready::READABLE;
        }
        if interest.is_writable() {
            ready |= Ready::WRITABLE;
        }
        if interest.is_error() && has_error {
            ready |= Ready::ERROR;
        }
        Ok((!ready.is_empty()).then_some(ready))
    }

    /// Waits until a call that receives would not wait: a datagram has arrived, or an error is to be
    /// reported. As with tokio's sockets, the socket stays ready until a call returns `WouldBlock`: one
    /// may find nothing.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn readable(&self) -> io::Result<()> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_readable(cx, wait_registration.key())).await
    }

    /// Waits until a datagram can be sent. It returns at once, as sending does not wait, unless the
    /// task has used up its budget: otherwise a task that sends whenever it can would never yield.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_ready(cx)).await
    }

    /// Polls [`readable`](Self::readable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |cx| self.poll_readable(cx, None))
    }

    /// Polls [`writable`](Self::writable).
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |_| Poll::Ready(self.op(|_| Ok(()))))
    }

    fn poll_readable(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        poll_of(self.op(|udp| {
            if self.sticky.is_set(HostInterest::Read) {
                return Ok(true);
            }
            let waiter = waiter(cx, &mut key);
            let ready = udp
                .poll_ready(HostInterest::Read, waiter)
                .map_err(io_error)?;
            if ready {
                self.sticky.set(HostInterest::Read);
            }
            Ok(ready)
        }))
    }

    /// Calls `f` if the socket is ready for `interest`, and returns its result. `f` uses the `try_`
    /// methods of this socket.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is not ready; those of `f`; the stack's error if it has stopped.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.ready_now(interest)?.ok_or_else(would_block)?;
        self.sticky.record_call(interest, f())
    }

    /// Waits until the socket is ready for `interest` and calls `f`, again if it returns
    /// `WouldBlock`. `f` uses the `try_` methods of this socket.
    ///
    /// # Errors
    /// The errors of `f` except for `WouldBlock`, and those of [`ready`](Self::ready).
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut f: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let call = || self.sticky.record_call(interest, f());
        let now = || Ok(self.ready_now(interest)?.unwrap_or(Ready::EMPTY));
        call_when_ready(interest, |interest| self.ready(interest), now, call).await
    }
}
