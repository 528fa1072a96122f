//! Calls that send and receive.

use fullsend_posix::abi::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_OOB, MSG_PEEK, MSG_TRUNC};
use fullsend_posix::{Errno, SockAddr};

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::super::inject::pattern_bytes;
use super::super::target::{Fd, SendArgs, TimeoutKind};
use super::{Attempt, CallProgress, arg};
use crate::error::Pos;
use crate::script::{Call, Expr, ExprKind};

/// Most bytes of a call; more is a typing error.
const MAX_LEN: usize = 1 << 28;

/// The arguments of a call that sends or receives.
struct Io<'c> {
    fd: i64,
    handle: Fd,
    /// The lengths of the buffers.
    lens: Vec<usize>,
    /// The string to send or to expect, if the script has one.
    text: Option<&'c [u8]>,
    flags: i32,
    dest: Option<SockAddr>,
    /// The buffer is NULL.
    null: bool,
    /// The `struct msghdr` of calls that have one.
    header: Option<&'c Expr>,
}

impl ScriptRunner<'_> {
    fn io<'c>(&self, pos: Pos, call: &'c Call) -> Result<Io<'c>> {
        let (fd, handle) = self.fd(pos, call, 0)?;
        let mut io = Io {
            fd,
            handle,
            lens: Vec::new(),
            text: None,
            flags: 0,
            dest: None,
            null: false,
            header: None,
        };
        match call.name.as_str() {
            "readv" | "writev" => io.lens = self.iovec(arg(pos, call, 1)?)?,
            "sendmsg" | "recvmsg" => {
                let header = arg(pos, call, 1)?;
                io.flags = self.flags(arg(pos, call, 2)?)?;
                io.lens = match header.field("msg_iov")? {
                    Some(field) => self.iovec(&field.value)?,
                    None => Vec::new(),
                };
                io.header = Some(header);
            }
            name => {
                let buffer = arg(pos, call, 1)?;
                match &buffer.kind {
                    ExprKind::Text(text) => io.text = Some(text),
                    ExprKind::Word(name) => io.null = name == "NULL",
                    _ => {}
                }
                io.lens = vec![self.len(arg(pos, call, 2)?)?];
                if name != "read" && name != "write" {
                    io.flags = self.flags(arg(pos, call, 3)?)?;
                }
            }
        }
        if call.name == "sendto" || (call.name == "sendmsg" && io.flags & MSG_FASTOPEN != 0) {
            io.dest = Some(match call.args.get(4) {
                Some(dest) if call.name == "sendto" => self.address(dest, self.remote_addr())?,
                _ => self.shown(self.remote_addr()),
            });
        }
        Ok(io)
    }

    fn len(&self, expr: &Expr) -> Result<usize> {
        let len: usize = self.number(expr)?;
        if len > MAX_LEN {
            return error_at(
                expr.pos,
                format!("{len} bytes are too many for one call; write at most {MAX_LEN}"),
            );
        }
        Ok(len)
    }

    /// Returns the lengths in `[{..., 1000}, {..., 10}]`.
    fn iovec(&self, expr: &Expr) -> Result<Vec<usize>> {
        let items = expr.items()?.iter().map(|item| {
            let fields = item.fields()?;
            match fields.last() {
                Some(field) => self.len(&field.value),
                None => error_at(item.pos, "expected {..., length}"),
            }
        });
        items.collect()
    }

    pub(super) fn send_call(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let io = self.io(pos, call)?;
        if io.null {
            return Ok(Attempt::Returned(Err(Errno::EFAULT)));
        }
        if io.flags & MSG_FASTOPEN != 0
            && let Some(dest) = io.dest
        {
            self.start_flow(io.fd, dest);
        }
        let total: usize = io.lens.iter().sum();
        if progress.opening
            && let Some(step) = self.opened(&io, total, progress)
        {
            return Ok(step);
        }
        let control = match io.header {
            Some(header) => self.control_to_send(header)?,
            None => Vec::new(),
        };
        let written = self.streams.entry(io.fd).or_default().written;
        let data = match io.text {
            Some(text) => {
                self.skip_payload_check = true;
                let mut data = text.to_vec();
                data.resize(total, 0);
                data
            }
            None => pattern_bytes(1_u32.wrapping_add(written as u32), total - progress.done),
        };
        self.skip_payload_check |= io.flags & MSG_OOB != 0;
        let parts = split(&data, &io.lens, progress.done);
        let sending = SendArgs {
            name: &call.name,
            parts: &parts,
            // The first attempt opens the connection, later ones continue on it.
            flags: if progress.done > 0 {
                io.flags & !MSG_FASTOPEN
            } else {
                io.flags
            },
            dest: io.dest,
            control: &control,
        };
        let result = self.target.send_call(io.handle, sending);
        Ok(self.sent(&io, total, result, progress))
    }

    fn sent(
        &mut self,
        io: &Io<'_>,
        total: usize,
        result: core::result::Result<usize, Errno>,
        progress: &mut CallProgress,
    ) -> Attempt {
        let is_blocking = self.target.is_blocking(io.handle) && io.flags & MSG_DONTWAIT == 0;
        match result {
            Ok(len) => {
                progress.done += len;
                self.streams.entry(io.fd).or_default().written += len as u64;
                progress.opening = is_blocking && self.target.is_opening(io.handle);
                if progress.opening || (progress.done < total && is_blocking && len > 0) {
                    return self.wait_for_rest(io, progress);
                }
                Attempt::Returned(Ok(progress.done as i64))
            }
            Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY) if is_blocking => {
                self.wait_for_rest(io, progress)
            }
            Err(_) if progress.done > 0 => Attempt::Returned(Ok(progress.done as i64)),
            Err(error) => Attempt::Returned(Err(error)),
        }
    }

    /// As on Linux, a blocking call returns the error of the connection that its data opened.
    fn opened(
        &mut self,
        io: &Io<'_>,
        total: usize,
        progress: &mut CallProgress,
    ) -> Option<Attempt> {
        match self.target.connect(io.handle, self.remote_addr().into()) {
            Err(Errno::EALREADY) => Some(self.wait_for_rest(io, progress)),
            Ok(()) | Err(Errno::EISCONN) => {
                progress.opening = false;
                (progress.done >= total).then_some(Attempt::Returned(Ok(progress.done as i64)))
            }
            Err(error) => Some(Attempt::Returned(Err(error))),
        }
    }

    fn wait_for_rest(&mut self, io: &Io<'_>, progress: &mut CallProgress) -> Attempt {
        match self.wait_for(progress, io.handle, TimeoutKind::Send) {
            Attempt::Returned(Err(_)) if progress.done > 0 => {
                Attempt::Returned(Ok(progress.done as i64))
            }
            step => step,
        }
    }

    pub(super) fn receive_call(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let io = self.io(pos, call)?;
        if io.null {
            return Ok(Attempt::Returned(Err(Errno::EFAULT)));
        }
        let total: usize = io.lens.iter().sum();
        // A call that continues fills the rest of its buffers.
        let lens = match progress.done {
            0 => io.lens.clone(),
            done => vec![total - done],
        };
        let mut buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        let mut parts: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let mut control = vec![0; if io.header.is_some() { 1024 } else { 0 }];
        let (flags, handle) = (io.flags, io.handle);
        let result = self
            .target
            .receive_call(&call.name, handle, &mut parts, flags, &mut control);
        let is_blocking =
            self.target.is_blocking(io.handle) && io.flags & (MSG_DONTWAIT | MSG_ERRQUEUE) == 0;
        let received = match result {
            Ok(received) => received,
            Err(Errno::EAGAIN) if is_blocking => return Ok(self.wait_for_more(&io, progress)),
            Err(_) if progress.done > 0 => return Ok(Attempt::Returned(Ok(progress.done as i64))),
            Err(error) => return Ok(Attempt::Returned(Err(error))),
        };
        if let Some(header) = io.header {
            control.truncate(received.control_len);
            self.check_header(header, received.flags, &control)?;
        }
        if io.flags & MSG_ERRQUEUE == 0 {
            self.check_data(pos, &io, (&buffers.concat(), received.len), progress.done)?;
        }
        progress.done += received.len;
        if is_blocking && received.len > 0 && io.flags & MSG_PEEK == 0 {
            let target = self.target.receive_target(io.handle, total, io.flags);
            if progress.done < target {
                // There may be more data, or the end of the stream.
                return self.receive_call(pos, call, progress);
            }
        }
        Ok(Attempt::Returned(Ok(progress.done as i64)))
    }

    fn wait_for_more(&mut self, io: &Io<'_>, progress: &mut CallProgress) -> Attempt {
        match self.wait_for(progress, io.handle, TimeoutKind::Receive) {
            Attempt::Returned(Err(_)) if progress.done > 0 => {
                Attempt::Returned(Ok(progress.done as i64))
            }
            step => step,
        }
    }

    /// Checks that the data read is what the remote end sent at this offset.
    fn check_data(
        &mut self,
        pos: Pos,
        io: &Io<'_>,
        (data, len): (&[u8], usize),
        done: usize,
    ) -> Result<()> {
        let stream = self.streams.entry(io.fd).or_default();
        let from = 1_u32.wrapping_add(stream.read as u32);
        if io.flags & MSG_PEEK == 0 {
            stream.read += len as u64;
        }
        if let Some(text) = io.text {
            let there = &data[..len.min(data.len())];
            let text = text.get(done..).unwrap_or(&[]);
            if !there.starts_with(text) && !text.starts_with(there) {
                return error_at(pos, "the bytes read differ from the string in the script");
            }
            return Ok(());
        }
        if self.skip_payload_check || io.flags & (MSG_OOB | MSG_TRUNC) != 0 || len > data.len() {
            return Ok(());
        }
        if data[..len] != pattern_bytes(from, len) {
            return error_at(
                pos,
                "the bytes read differ from those that the remote end sent at this offset",
            );
        }
        Ok(())
    }
}

/// Splits `data` into parts of the given lengths, of which `done` bytes were sent already.
fn split<'d>(mut data: &'d [u8], lens: &[usize], mut done: usize) -> Vec<&'d [u8]> {
    let mut parts = Vec::new();
    for &len in lens {
        let over = len.min(done);
        done -= over;
        let (part, rest) = data.split_at((len - over).min(data.len()));
        parts.push(part);
        data = rest;
    }
    parts
}
