#![allow(unused_variables, clippy::unused_self, clippy::needless_pass_by_value)]
//! What users do with UDP sockets.

use core::net::SocketAddr;
use core::task::Waker;

use fullsend_buf::{Chain, Slice};
use fullsend_units::Instant;

use crate::{Host, Interest, StackError};

/// A UDP socket's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

impl Host {
    /// Binds; port 0 means "choose".
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, StackError> {
        todo!()
    }

    /// The bound address.
    pub fn udp_addr(&self, id: UdpId) -> Result<SocketAddr, StackError> {
        todo!()
    }

    /// Sends one datagram; `source` overrides the source address (gateways).
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: UdpId,
        data: Slice,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// The next datagram with where it came from and the address it was sent to.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        todo!()
    }

    /// True if ready now; else wakes `waker` once when it becomes so.
    pub fn udp_ready(
        &mut self,
        id: UdpId,
        interest: Interest,
        waker: &Waker,
    ) -> Result<bool, StackError> {
        todo!()
    }

    /// Closes.
    pub fn udp_close(&mut self, id: UdpId) {
        todo!()
    }
}
