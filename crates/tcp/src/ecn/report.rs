//! The fields of `TCP_INFO` about ECN.

use fullsend_wire::EcnField;

use super::{Ecn, Mode};
use crate::TcpInfo;

/// `tcpi_ecn_mode`.
const RFC_3168: u8 = 1;
const ACCURATE: u8 = 2;
/// Requested, and not answered yet.
const PENDING: u8 = 3;

impl Ecn {
    /// Sets the ECN fields of `info`; `is_pending` if the SYN is not answered yet.
    pub(crate) fn report(&self, info: &mut TcpInfo, is_pending: bool) {
        info.tcpi_delivered_ce = self.delivered_ce;
        info.tcpi_ecn_mode = match self.mode {
            _ if is_pending => PENDING,
            Mode::Classic => RFC_3168,
            Mode::Accurate => ACCURATE,
        };
        if self.mode == Mode::Classic {
            return;
        }
        let (accurate, bytes) = (&self.accurate, &self.accurate.bytes);
        info.tcpi_received_ce = accurate.received_ce;
        info.tcpi_accecn_fail_mode = accurate.fail_mode;
        info.tcpi_accecn_opt_seen = bytes.option_seen as u8;
        let [e1, e0, ce] =
            [EcnField::Ect1, EcnField::Ect0, EcnField::Ce].map(|field| field as usize);
        info.tcpi_delivered_e1_bytes = bytes.delivered[e1];
        info.tcpi_delivered_e0_bytes = bytes.delivered[e0];
        info.tcpi_delivered_ce_bytes = bytes.delivered[ce];
        info.tcpi_received_e1_bytes = bytes.received[e1];
        info.tcpi_received_e0_bytes = bytes.received[e0];
        info.tcpi_received_ce_bytes = bytes.received[ce];
    }
}
