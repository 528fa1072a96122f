//! Options of a connection.

use alloc::boxed::Box;

use fullsend_tcp::congestion::CongestionControl;
use fullsend_tcp::{SocketOption, SocketOptions};
use fullsend_wire::Instant;

use super::TcpHandle;
use crate::StackError;

impl TcpHandle<'_> {
    /// Sets an option.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection, and the connection's
    /// error if the value is not.
    pub fn set_option(&mut self, now: Instant, option: SocketOption) -> Result<(), StackError> {
        let (index, socket, mut cx) = self.socket(now)?;
        socket.conn.set_option(&mut cx, option)?;
        socket.apply_ip_settings();
        self.host.post_process(now, index);
        Ok(())
    }

    /// Returns all options (`getsockopt`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn options(&mut self) -> Result<SocketOptions, StackError> {
        let (_, socket, cx) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.options(&cx))
    }

    /// Sets the congestion control by name (`TCP_CONGESTION`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection, and the connection's
    /// error if it cannot use that congestion control.
    pub fn set_congestion(&mut self, now: Instant, name: &str) -> Result<(), StackError> {
        Ok(self.with_conn(now, |conn, cx| conn.set_congestion(cx, name))??)
    }

    /// Sets the congestion control to one that the program brings along. It begins with its own window,
    /// whatever the connection has learned about the path.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn set_congestion_with(
        &mut self,
        now: Instant,
        control: Box<dyn CongestionControl>,
    ) -> Result<(), StackError> {
        self.with_conn(now, |conn, cx| conn.set_congestion_with(cx, control))
    }

    /// Makes data that arrives once both directions are shut down reset the connection, as on Linux
    /// after `SHUT_RD`. Earlier data can still be read.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn reset_on_data(&mut self, now: Instant) -> Result<(), StackError> {
        self.with_conn(now, |conn, _| conn.reset_on_data())
    }
}
