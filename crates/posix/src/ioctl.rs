//! `ioctl(2)`: queue lengths, the urgent mark, and `FIONBIO`.

use fullsend_stack::Host;
use fullsend_tcp::State;

use crate::Posix;
use crate::abi::{FIONBIO, SIOCATMARK, SIOCINQ, SIOCOUTQ, SIOCOUTQNSD};
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::stream::{HostSocket, Stream};

impl Posix {
    /// Returns the value of a request: `ioctl(2)`. `argument` is the argument of `FIONBIO`.
    ///
    /// # Errors
    /// ENOTTY for an unsupported request.
    pub fn ioctl(&mut self, handle: Handle, request: u32, argument: i32) -> Result<i32> {
        self.process_wakes();
        let file = self.files.get_mut(handle)?;
        if request == FIONBIO {
            file.nonblocking = argument != 0;
            return Ok(0);
        }
        match &mut file.kind {
            FileKind::Stream(stream) => stream.ioctl(&mut self.host, request),
            FileKind::Datagram(datagram) => datagram.ioctl(&mut self.host, request),
            FileKind::PipeReader(pipe) if request == SIOCINQ => Ok(pipe.data.len() as i32),
            &mut FileKind::PipeWriter(reader) if request == SIOCINQ => {
                Ok(self.pipe_of(reader).map_or(0, |pipe| pipe.data.len()) as i32)
            }
            FileKind::Epoll(_) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }
}

impl Stream {
    fn ioctl(&self, host: &mut Host, request: u32) -> Result<i32> {
        if !matches!(request, SIOCINQ | SIOCOUTQ | SIOCOUTQNSD | SIOCATMARK) {
            return Err(Errno::ENOTTY);
        }
        let id = match self.host_socket {
            HostSocket::Connection(id) => id,
            // Without a connection there is no urgent mark.
            _ if request == SIOCATMARK => return Ok(0),
            HostSocket::Listener(_) => return Err(Errno::EINVAL),
            HostSocket::None => return Ok(0),
        };
        let queues = host.tcp(id).queues()?;
        // A FIN occupies a sequence number until it is acknowledged.
        let fin = matches!(
            self.state(host),
            State::FinWait1 | State::Closing | State::LastAck
        );
        let handshaking = matches!(self.state(host), State::SynSent | State::SynReceived);
        Ok(match request {
            SIOCINQ => queues.readable as i32,
            // Matches Linux: neither the SYN nor data counts before the handshake has ended.
            SIOCOUTQ | SIOCOUTQNSD if handshaking => 0,
            SIOCOUTQ => (queues.unacked + usize::from(fin)) as i32,
            SIOCOUTQNSD => queues.unsent as i32,
            _ => host.tcp(id).at_mark()?.into(),
        })
    }
}
