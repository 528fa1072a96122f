//! A process that removes sockets whose directories the sandbox hides.

use std::io;
use std::os::fd::OwnedFd;

use fullsend::control::SocketFile;
use nix::unistd::Pid;

use super::child::{end_server, receive, start_server};

/// A process outside of the sandbox that removes the files of sockets when this value is dropped, or when
/// its owner ends for any reason.
#[derive(Debug)]
pub struct SocketRemover {
    /// The process removes the files when it receives a message, or when this end is closed.
    channel: OwnedFd,
    pid: Pid,
}

impl SocketRemover {
    /// Starts the process. Must be called before [`Sandbox::apply`](super::Sandbox::apply), and
    /// before this process has threads.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start(files: &[&SocketFile]) -> io::Result<Self> {
        let (channel, pid) = start_server(|channel| {
            let _ = receive(channel);
            for file in files {
                file.remove();
            }
        })?;
        Ok(Self { channel, pid })
    }
}

impl Drop for SocketRemover {
    fn drop(&mut self) {
        end_server(&self.channel, self.pid, b"end");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use fullsend::control::BoundSocket;

    use super::*;
    use crate::namespace::child::END_SIGNALS;
    use crate::namespace::command_parent::mask_has;

    #[test]
    fn sockets_are_removed_by_a_process_that_signals_do_not_end() {
        let dir = std::env::temp_dir().join(format!("fullsend-remover-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let sockets = ["a", "b"].map(|name| BoundSocket::bind(&dir.join(name)).unwrap());
        // Another process has replaced this one.
        fs::remove_file(dir.join("b")).unwrap();
        fs::write(dir.join("b"), "").unwrap();
        let remover = SocketRemover::start(&sockets.each_ref().map(BoundSocket::file)).unwrap();
        let process = format!("/proc/{}", remover.pid);
        let status = |of: &str| fs::read_to_string(format!("{of}/status")).unwrap();
        for signal in END_SIGNALS {
            let is_blocked = |of: &str| mask_has(&status(of), "SigBlk:", signal);
            assert!(is_blocked(&process), "{signal}");
            assert!(!is_blocked("/proc/thread-self"), "{signal}");
        }
        let copy = remover.channel.try_clone().unwrap();
        assert!(dir.join("a").exists());
        drop(remover);
        assert!(!dir.join("a").exists() && dir.join("b").exists());
        assert!(!Path::new(&process).exists(), "no zombie is left");
        drop(copy);
        fs::remove_dir_all(&dir).unwrap();
    }
}
