//! Queries on a connection.

use core::net::SocketAddr;

use fullsend_tcp::congestion::CcInfo;
use fullsend_tcp::{FlowReport, SkMem, State, TcpError, TcpInfo};
use fullsend_wire::Instant;

use super::TcpHandle;
use crate::StackError;

/// The numbers of bytes in a connection's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpQueues {
    /// Bytes received and not read (`SIOCINQ`, `TCP_INQ`).
    pub readable: usize,
    /// Bytes written and not acknowledged (`SIOCOUTQ`).
    pub unacked: usize,
    /// Bytes written and not sent, included in `unacked` (`SIOCOUTQNSD`).
    pub unsent: usize,
}

impl TcpHandle<'_> {
    /// Returns the state of the connection.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn state(&self) -> Result<State, StackError> {
        self.host.tcp_ref(self.id).state()
    }

    /// Returns the local and the remote address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn addrs(&self) -> Result<(SocketAddr, SocketAddr), StackError> {
        self.host.tcp_ref(self.id).addrs()
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn take_error(&mut self) -> Result<Option<TcpError>, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.take_error())
    }

    /// Returns the connection's `TCP_INFO`.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn info(&mut self, now: Instant) -> Result<TcpInfo, StackError> {
        let (_, socket, cx) = self.socket(now)?;
        Ok(socket.conn.info(&cx))
    }

    /// Returns what a connection has sent and what limited it: histograms of send size and
    /// head-room, and sends and time by limiting rule.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn flow_report(&mut self, now: Instant) -> Result<FlowReport, StackError> {
        let (_, socket, _) = self.socket(now)?;
        Ok(socket.conn.flow_report(now))
    }

    /// Returns the name and the internal state of the congestion control (`TCP_CC_INFO`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn cc_info(&mut self) -> Result<(&'static str, CcInfo), StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok((socket.conn.congestion(), socket.conn.cc_info()))
    }

    /// Returns the numbers of bytes in the connection's queues.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn queues(&mut self) -> Result<TcpQueues, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        let (unacked, unsent) = socket.conn.unacked();
        Ok(TcpQueues {
            readable: socket.conn.readable(),
            unacked,
            unsent,
        })
    }

    /// Returns the connection's memory use (`SO_MEMINFO`), or `None` if there is no such connection.
    pub fn memory(&mut self) -> Option<SkMem> {
        let (_, socket, _) = self.socket(Instant::ZERO).ok()?;
        Some(socket.conn.memory())
    }

    /// Returns when the last byte that was read arrived, if the application has enabled that
    /// (`SocketOption::SoTimestampRx`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn rx_time(&mut self) -> Result<Option<Instant>, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.rx_time())
    }

    /// Returns whether the next byte to read is the one that the peer marked as urgent
    /// (`SIOCATMARK`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn at_mark(&mut self) -> Result<bool, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.at_mark())
    }

    /// Returns whether urgent data is announced and not read yet (`EPOLLPRI`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn has_urgent(&mut self) -> Result<bool, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.has_urgent())
    }
}
