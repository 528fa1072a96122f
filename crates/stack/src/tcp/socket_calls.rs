//! Calls for BSD-style sockets besides reading and writing: options, queue lengths, the urgent
//! mark, and the progress of written bytes.

use fullsend_tcp::{Connection, SocketOption, SocketOptions, TxEvent, TxStages, WriteFlags};
use fullsend_units::Instant;

use super::TcpId;
use crate::{Host, StackError};

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

impl Host {
    /// Sets an option.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid, and the connection's
    /// error if the value is not.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: TcpId,
        option: SocketOption,
    ) -> Result<(), StackError> {
        let (index, socket, mut cx) = self.user_socket(now, id)?;
        socket.conn.set_option(&mut cx, option)?;
        socket.apply_ip_settings();
        self.post_process(now, index);
        Ok(())
    }

    /// Returns all options (`getsockopt`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_options(&mut self, id: TcpId) -> Result<SocketOptions, StackError> {
        let (_, socket, cx) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.options(&cx))
    }

    /// Writes with `MSG_EOR` or `MSG_OOB`; see [`tcp_write`](Self::tcp_write).
    ///
    /// # Errors
    /// Those of [`tcp_write`](Self::tcp_write).
    pub fn tcp_write_with(
        &mut self,
        now: Instant,
        id: TcpId,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, StackError> {
        self.transfer(now, id, |conn, cx| conn.write_with(cx, data, flags))
    }

    /// Returns the numbers of bytes in the connection's queues.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_queues(&mut self, id: TcpId) -> Result<TcpQueues, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        let (unacked, unsent) = socket.conn.unacked();
        Ok(TcpQueues {
            readable: socket.conn.readable(),
            unacked,
            unsent,
        })
    }

    /// Returns the number of bytes written since the connection was opened.
    /// [`tcp_watch_tx`](Self::tcp_watch_tx) counts in the same way.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_written(&mut self, id: TcpId) -> Result<u64, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.written())
    }

    /// Requests events when the bytes up to `end` reach `stages`. Call it right after the write of
    /// these bytes, before anything is transmitted. Readers are woken when there is an event.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_watch_tx(
        &mut self,
        id: TcpId,
        end: u64,
        stages: TxStages,
    ) -> Result<(), StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        socket.conn.watch_tx(end, stages);
        Ok(())
    }

    /// Takes the next event of watched bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_take_tx_event(&mut self, id: TcpId) -> Result<Option<TxEvent>, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.take_tx_event())
    }

    /// Returns whether [`tcp_take_tx_event`](Self::tcp_take_tx_event) would return an event
    /// (`EPOLLERR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_has_tx_event(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.has_tx_event())
    }

    /// Returns when the last byte that was read arrived, if the application has enabled that
    /// (`SocketOption::SoTimestampRx`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_rx_time(&mut self, id: TcpId) -> Result<Option<Instant>, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.rx_time())
    }

    /// Returns whether the next byte to read is the one that the peer marked as urgent
    /// (`SIOCATMARK`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_at_mark(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.at_mark())
    }

    /// Returns whether urgent data is announced and not read yet (`EPOLLPRI`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_has_urgent(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.has_urgent())
    }

    /// Opens a connection whose SYN is deferred until the first write, whose data it carries (TCP
    /// Fast Open, `TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`), or until
    /// [`tcp_send_syn`](Self::tcp_send_syn).
    ///
    /// # Errors
    /// Those of [`tcp_connect`](Self::tcp_connect).
    pub fn tcp_connect_deferred(
        &mut self,
        now: Instant,
        local: Option<core::net::SocketAddr>,
        remote: core::net::SocketAddr,
    ) -> Result<TcpId, StackError> {
        let id = self.tcp_connect(now, local, remote)?;
        let client = self.fastopen_client(now, remote.ip());
        let (_, socket, _) = self.user_socket(now, id)?;
        socket.conn.defer_syn(client);
        Ok(id)
    }

    /// Sends a deferred SYN without data. It requests a cookie if `tcp_fastopen` allows it.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_send_syn(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, |conn, _| Connection::send_syn(conn))
    }

    /// Makes data that arrives once both directions are shut down reset the connection, as on Linux
    /// after `SHUT_RD`. Earlier data can still be read.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_reset_on_data(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, |conn, _| conn.reset_on_data())
    }

    /// Announces that the application writes as soon as the connection is established, so that the
    /// ACK of the SYN-ACK need not be sent by itself.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_expect_write(&mut self, id: TcpId) -> Result<(), StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        socket.conn.expect_write();
        Ok(())
    }

    /// Returns whether a deferred SYN can carry data: a cookie for the destination is known, or
    /// none is needed. If not, connect with [`tcp_send_syn`](Self::tcp_send_syn).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_is_fastopen_ready(&mut self, now: Instant, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(now, id)?;
        Ok(socket.conn.is_fastopen_ready())
    }
}
