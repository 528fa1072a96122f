//! Files that a script created, all of zeros, and `sendfile`.

use std::collections::BTreeMap;

use fullsend_posix::Errno;

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::super::target::{SendArgs, TimeoutKind};
use super::{Attempt, CallProgress, arg};
use crate::error::Pos;
use crate::script::{Call, ExprKind};
use crate::shell::{self, ShellEffect};

/// A file without end.
const ENDLESS: &str = "/dev/zero";
/// Most bytes that one call moves, which matches Linux.
const MAX_TRANSFER: u64 = 0x7fff_f000;
/// Most bytes that one write passes.
const CHUNK: u64 = 1 << 20;

/// The script's file system: names and lengths, as every file has only zeros.
#[derive(Default, Debug)]
pub(crate) struct Disk {
    files: BTreeMap<String, u64>,
    open: BTreeMap<i64, OpenFile>,
}

#[derive(Clone, Copy, Debug)]
struct OpenFile {
    len: u64,
    pos: u64,
}

impl Disk {
    /// Executes the file operations of a command.
    pub(crate) fn run_command(&mut self, command: &str) {
        for effect in shell::effects(command) {
            match effect {
                ShellEffect::WriteFile(path, len) => {
                    self.files.insert(path, len);
                }
                ShellEffect::RemoveFile(path) => {
                    self.files.remove(&path);
                }
                _ => {}
            }
        }
    }

    /// Closes a file; returns `false` if the descriptor is not one.
    pub(super) fn close(&mut self, fd: i64) -> bool {
        self.open.remove(&fd).is_some()
    }

    fn len_of(&self, path: &str) -> Option<u64> {
        if path == ENDLESS {
            return Some(u64::MAX);
        }
        self.files.get(path).copied()
    }
}

impl ScriptRunner<'_> {
    /// Runs `open("/tmp/file", O_RDONLY)`.
    pub(super) fn open(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let path = arg(pos, call, 0)?;
        let ExprKind::Text(text) = &path.kind else {
            return error_at(path.pos, "expected a path in quotes");
        };
        let Some(len) = self.disk.len_of(&String::from_utf8_lossy(text)) else {
            return Ok(Attempt::Returned(Err(Errno::ENOENT)));
        };
        let fd = self.int(&call.result)?;
        self.disk.open.insert(fd, OpenFile { len, pos: 0 });
        Ok(Attempt::Returned(Ok(fd)))
    }

    /// Runs `sendfile(socket, file, [offset], count)`; `NULL` continues where the last call ended.
    pub(super) fn sendfile(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let (out, handle) = self.fd(pos, call, 0)?;
        let file = arg(pos, call, 1)?;
        let fd = self.int(file)?;
        let Some(&OpenFile { len, pos: at }) = self.disk.open.get(&fd) else {
            return error_at(file.pos, format!("descriptor {fd} is not an open file"));
        };
        let offset = arg(pos, call, 2)?;
        let uses_file_offset = offset.kind == ExprKind::Word("NULL".to_owned());
        let from = if uses_file_offset {
            at - progress.done as u64
        } else {
            self.number(offset)?
        };
        let count: u64 = self.number(arg(pos, call, 3)?)?;
        let total = count.min(MAX_TRANSFER).min(len.saturating_sub(from));
        // Zeros differ from the pattern of the script's other data.
        self.skip_payload_check = true;
        while (progress.done as u64) < total {
            let chunk = (total - progress.done as u64).min(CHUNK);
            let zeros = vec![0; chunk as usize];
            let sending = SendArgs {
                name: "write",
                parts: &[&zeros],
                flags: 0,
                dest: None,
                control: &[],
            };
            match self.target.send_call(handle, sending) {
                Ok(sent) => {
                    progress.done += sent;
                    self.streams.entry(out).or_default().written += sent as u64;
                    if uses_file_offset && let Some(file) = self.disk.open.get_mut(&fd) {
                        file.pos += sent as u64;
                    }
                }
                Err(Errno::EAGAIN) if self.target.is_blocking(handle) => {
                    match self.wait_for(progress, handle, TimeoutKind::Send) {
                        Attempt::Returned(Err(_)) if progress.done > 0 => break,
                        step => return Ok(step),
                    }
                }
                Err(_) if progress.done > 0 => break,
                Err(error) => return Ok(Attempt::Returned(Err(error))),
            }
        }
        Ok(Attempt::Returned(Ok(progress.done as i64)))
    }
}
