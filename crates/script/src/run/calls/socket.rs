//! Calls that create, connect and close sockets.

use fullsend_posix::abi::{SHUT_WR, SOCK_DGRAM};
use fullsend_posix::{Errno, SockAddr};

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::super::flow::Flow;
use super::super::target::{Fd, TimeoutKind};
use super::{Attempt, CallProgress, arg};
use crate::constants::constant;
use crate::error::Pos;
use crate::script::Call;

const O_RDWR: i64 = 2;
/// The bits of a socket type without its flags.
const KIND: i32 = 0xf;
const O_NONBLOCK: i64 = 0o4000;

impl ScriptRunner<'_> {
    pub(super) fn socket(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let domain = arg(pos, call, 0)?;
        let domain = if domain.is_any() {
            self.domain()
        } else {
            self.number(domain)?
        };
        let kind = self.flags(arg(pos, call, 1)?)?;
        let protocol = self.number(arg(pos, call, 2)?)?;
        self.skip_payload_check |= kind & KIND == SOCK_DGRAM;
        match self.target.socket(domain, kind, protocol) {
            Ok(handle) => Ok(Attempt::Returned(Ok(self.register_fd(call, handle, true)?))),
            Err(error) => Ok(Attempt::Returned(Err(error))),
        }
    }

    pub(super) fn bind(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let addr = self.address(arg(pos, call, 1)?, self.local_addr())?;
        let done = self.target.bind(handle, addr);
        if done.is_ok() && self.listening.is_none() {
            // Datagrams need no listener.
            self.listening = self.target.port(handle);
        }
        Ok(done.into())
    }

    pub(super) fn listen(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let backlog = self.flags(arg(pos, call, 1)?)?;
        let done = self.target.listen(handle, backlog);
        if done.is_ok() {
            self.listening = self.target.port(handle);
            // The next SYN is for this listener.
            if let Some(index) = self.under_test {
                if self.flows[index].remote_isn.is_none() {
                    self.under_test = None;
                } else {
                    self.flows[index].is_closed = true;
                }
            }
        }
        Ok(done.into())
    }

    pub(super) fn accept(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let (_, listener) = self.fd(pos, call, 0)?;
        let flags = match call.args.get(3) {
            Some(flags) => self.flags(flags)?,
            None => 0,
        };
        match self.target.accept4(listener, flags) {
            Ok((handle, peer)) => {
                let fd = self.register_fd(call, handle, true)?;
                let port = peer.canonical().map(|addr| addr.port());
                let flow = self
                    .flows
                    .iter_mut()
                    .find(|f| Some(f.remote_port) == port && f.fd.is_none());
                if let Some(flow) = flow {
                    flow.fd = Some(fd);
                }
                self.streams.remove(&fd);
                Ok(Attempt::Returned(Ok(fd)))
            }
            Err(Errno::EAGAIN) if self.target.is_blocking(listener) => {
                Ok(self.wait_for(progress, listener, TimeoutKind::Receive))
            }
            Err(error) => Ok(Attempt::Returned(Err(error))),
        }
    }

    pub(super) fn connect(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let (fd, handle) = self.fd(pos, call, 0)?;
        let addr = self.address(arg(pos, call, 1)?, self.remote_addr())?;
        self.start_flow(fd, addr);
        match self.target.connect(handle, addr) {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if self.target.is_blocking(handle) => {
                Ok(self.wait_for(progress, handle, TimeoutKind::Send))
            }
            result => Ok(result.into()),
        }
    }

    /// Makes the connection that `fd` opens the flow under test.
    pub(super) fn start_flow(&mut self, fd: i64, addr: SockAddr) {
        let Some(addr) = addr.canonical() else {
            // AF_UNSPEC dissolves the association; the next connection is a new flow.
            self.flows
                .iter_mut()
                .filter(|f| f.fd == Some(fd))
                .for_each(|f| f.fd = None);
            self.streams.remove(&fd);
            return;
        };
        if self.flows.iter().any(|flow| flow.fd == Some(fd)) {
            return;
        }
        self.streams.remove(&fd);
        self.set_flow_under_test(Flow {
            remote_port: addr.port(),
            fd: Some(fd),
            ..Flow::default()
        });
    }

    pub(super) fn close(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        if self.disk.close(self.int(arg(pos, call, 0)?)?) {
            return Ok(Attempt::Returned(Ok(0)));
        }
        let (fd, handle) = self.fd(pos, call, 0)?;
        if self.must_linger(handle, progress) {
            return Ok(Attempt::Blocked);
        }
        let done = self.target.close(handle);
        if done == Err(Errno::EAGAIN) && self.target.is_blocking(handle) {
            return Ok(Attempt::Blocked);
        }
        self.files.open.remove(&fd);
        self.streams.remove(&fd);
        for flow in self.flows.iter_mut().filter(|flow| flow.fd == Some(fd)) {
            flow.is_closed = true;
            flow.fd = None;
        }
        Ok(done.into())
    }

    /// Returns whether `close` waits, within the time of `SO_LINGER`, until all data is
    /// acknowledged.
    fn must_linger(&mut self, handle: Fd, progress: &mut CallProgress) -> bool {
        let Some(span) = self.target.linger(handle) else {
            return false;
        };
        let deadline = *progress.deadline.get_or_insert(progress.start + span);
        if span == 0 || self.target.now() >= deadline {
            return false;
        }
        if !progress.attempted {
            // A socket that is not connected has no data to send.
            let _ = self.target.shutdown(handle, SHUT_WR);
        }
        self.target.watch(handle);
        !self.target.is_flushed(handle)
    }

    pub(super) fn shutdown(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let how = self.flags(arg(pos, call, 1)?)?;
        Ok(self.target.shutdown(handle, how).into())
    }

    pub(super) fn fcntl(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let command = arg(pos, call, 1)?;
        let number = self.int(command)?;
        if Some(number) == constant("F_GETFL") {
            let nonblocking = self.target.is_nonblocking(handle);
            let flags = nonblocking.map(|on| O_RDWR | if on { O_NONBLOCK } else { 0 });
            return Ok(Attempt::Returned(flags));
        }
        if Some(number) == constant("F_SETFL") {
            let on = self.int(arg(pos, call, 2)?)? & O_NONBLOCK != 0;
            return Ok(self.target.set_nonblocking(handle, on).into());
        }
        error_at(command.pos, "fcntl supports only F_GETFL and F_SETFL")
    }

    /// Makes a call on `handle` wait, up to its timeout.
    pub(super) fn wait_for(
        &mut self,
        progress: &mut CallProgress,
        handle: Fd,
        wait: TimeoutKind,
    ) -> Attempt {
        if progress.deadline.is_none() {
            let span = self.target.timeout(handle, wait);
            progress.deadline = span.map(|span| progress.start + span);
        }
        self.target.watch(handle);
        let now = self.target.now();
        if progress.deadline.is_some_and(|deadline| now >= deadline) {
            return Attempt::Returned(Err(Errno::EAGAIN));
        }
        Attempt::Blocked
    }
}
