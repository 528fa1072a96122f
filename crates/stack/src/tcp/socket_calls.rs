//! What sockets of the C kind ask of a connection beside reading and writing: options, counts,
//! marks, and what became of bytes.

use fullsend_tcp::{Connection, SocketOption, SocketOptions, TxEvent, TxStages, WriteFlags};
use fullsend_units::Instant;

use super::TcpId;
use crate::{Host, StackError};

/// Bytes in a connection's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpQueues {
    /// Received and not read (`SIOCINQ`, `TCP_INQ`).
    pub readable: usize,
    /// Written and not acknowledged (`SIOCOUTQ`).
    pub unacked: usize,
    /// Of these, not sent (`SIOCOUTQNSD`).
    pub unsent: usize,
}

impl Host {
    /// Sets an option.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: TcpId,
        option: SocketOption,
    ) -> Result<(), StackError> {
        let (index, socket, mut cx) = self.user_socket(now, id)?;
        socket.conn.set_option(&mut cx, option)?;
        socket.apply_ip_settings();
        self.settle(now, index);
        Ok(())
    }

    /// All options (`getsockopt`).
    pub fn tcp_options(&mut self, id: TcpId) -> Result<SocketOptions, StackError> {
        let (_, socket, cx) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.options(&cx))
    }

    /// [`tcp_write`](Self::tcp_write) with `MSG_EOR` or `MSG_OOB`.
    pub fn tcp_write_with(
        &mut self,
        now: Instant,
        id: TcpId,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, StackError> {
        self.transfer(now, id, |conn, cx| conn.write_with(cx, data, flags))
    }

    /// Bytes in the connection's queues.
    pub fn tcp_queues(&mut self, id: TcpId) -> Result<TcpQueues, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        let (unacked, unsent) = socket.conn.unacked();
        Ok(TcpQueues {
            readable: socket.conn.readable(),
            unacked,
            unsent,
        })
    }

    /// Bytes written since the connection began: what [`tcp_watch_tx`](Self::tcp_watch_tx)
    /// counts in.
    pub fn tcp_written(&mut self, id: TcpId) -> Result<u64, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.written())
    }

    /// Asks to be told when the bytes up to `end` reach `stages`; right after the write that they
    /// are of, before anything is transmitted. Readers are woken when there is something to tell.
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

    /// The next thing to tell of watched bytes.
    pub fn tcp_take_tx_event(&mut self, id: TcpId) -> Result<Option<TxEvent>, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.take_tx_event())
    }

    /// [`tcp_take_tx_event`](Self::tcp_take_tx_event) would give something (`EPOLLERR`).
    pub fn tcp_has_tx_event(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.has_tx_event())
    }

    /// When the last byte that was read arrived, if the user asked for that to be kept
    /// (`SocketOption::SoTimestampRx`).
    pub fn tcp_rx_time(&mut self, id: TcpId) -> Result<Option<Instant>, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.rx_time())
    }

    /// The next byte to read is the one that the peer marked as urgent (`SIOCATMARK`).
    pub fn tcp_at_mark(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.at_mark())
    }

    /// Urgent text is announced and not read yet (`EPOLLPRI`).
    pub fn tcp_has_urgent(&mut self, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.has_urgent())
    }

    /// Opens a connection whose SYN waits, for the first write to ride on it (TCP Fast Open,
    /// `TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`), or for [`tcp_connect_now`](Self::tcp_connect_now).
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

    /// A deferred SYN goes, without text; it asks for a cookie if `tcp_fastopen` allows it.
    pub fn tcp_connect_now(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, |conn, _| Connection::send_syn(conn))
    }

    /// As on Linux after `SHUT_RD`: text can still be read, but what arrives once both ways are shut
    /// resets the connection.
    pub fn tcp_expect_no_text(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, |conn, _| conn.expect_no_text())
    }

    /// The user waits for the connection, to write at once.
    pub fn tcp_expect_write(&mut self, id: TcpId) -> Result<(), StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        socket.conn.expect_write();
        Ok(())
    }

    /// A deferred SYN can carry text: a cookie is known for the destination, or none is needed.
    /// If not, connect by [`tcp_connect_now`](Self::tcp_connect_now).
    pub fn tcp_fastopen_ready(&mut self, now: Instant, id: TcpId) -> Result<bool, StackError> {
        let (_, socket, _) = self.user_socket(now, id)?;
        Ok(socket.conn.fastopen_ready())
    }
}
