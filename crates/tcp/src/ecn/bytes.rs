//! The AccECN option (RFC 9768 3.2.3): counters of payload bytes by ECN field, sent where there is
//! room, and received from the peer.

use fullsend_wire::tcp::{AccEcn, AccEcnOrder, TcpOptions};
use fullsend_wire::{EcnField, Instant, Nanos, SeqNum};

use crate::Sysctl;

/// Bytes that the option takes from the payload of each segment.
pub(super) const OPTION_LEN: u32 = 12;
/// Number of counters in the option.
const FIELDS: usize = 3;
/// SACK blocks that are kept even if counters are needed.
const MIN_SACK_BLOCKS: usize = 2;
/// Width of a counter in bits. The option is sent before one has grown by a quarter of its range
/// (RFC 9768 3.2.3.3).
const BITS: u32 = 24;
const BEACON_BYTES: u32 = 1 << (BITS - 2);
/// Bytes sent without an option after which its counters would be ambiguous.
const TOO_LATE_BYTES: u64 = 1 << (BITS - 1);

/// Whether the peer's option was received, as `tcpi_accecn_opt_seen` reports it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum OptionSeen {
    #[default]
    Never,
    /// Received without counters.
    Empty,
    Counters,
    /// Received with zero in a counter that begins at one.
    Zeroed,
}

/// Counters by ECN field; those of Not-ECT are not reported.
type Counts = [u32; 4];

/// The byte counters of both directions.
#[derive(Clone, Debug, Default)]
pub(super) struct ByteCounters {
    /// Begin at zero; wrap.
    pub(super) received: Counts,
    pub(super) delivered: Counts,
    pub(super) option_seen: OptionSeen,
    /// Number of counters that the next option must include.
    needed: u8,
    /// Number of further acknowledgements that must carry the option.
    demand: u8,
    /// Whether each data segment reserves room for the option.
    reserved: bool,
    /// The time at which the option was last sent.
    sent_at: Instant,
    /// The duplicate that the segment with the last option reported.
    reported_duplicate: Option<SeqNum>,
    /// The ECN field of our data according to the last options: assumed where an option is missing.
    usual_field: Option<EcnField>,
}

/// Returns the initial value of a counter (RFC 9768 3.2.1): one for ECT, so that a zeroed option is
/// detected.
const fn first_count(field: EcnField) -> u32 {
    !matches!(field, EcnField::Ce) as u32
}

/// Returns how many counters an option must have to include that of `field`.
const fn min_counters(field: EcnField) -> u8 {
    match field {
        EcnField::NotEct => 0,
        EcnField::Ect1 => 1,
        EcnField::Ce => 2,
        EcnField::Ect0 => 3,
    }
}

impl ByteCounters {
    /// Counts `len` bytes of data received with this ECN field.
    pub(super) fn on_data(&mut self, field: EcnField, len: u32) {
        let count = &mut self.received[field as usize];
        let before = core::mem::replace(count, count.wrapping_add(len));
        self.needed = self.needed.max(min_counters(field));
        if (before ^ *count) & !(BEACON_BYTES - 1) != 0 && field.is_capable() {
            self.demand = self.demand.max(1);
        }
    }

    /// Requests the option on the next two acknowledgements, as the ECN field changed or is CE.
    pub(super) fn on_change(&mut self) {
        self.demand = 2;
    }

    /// Requests the option on the next acknowledgement.
    pub(super) fn demand_once(&mut self) {
        self.demand = self.demand.max(1);
    }

    /// Returns whether the option may be sent: the peer's was received (RFC 9768 3.2.3.2), and ours
    /// is not lost according to `fail_mode`.
    pub(super) fn is_usable(&self, sysctl: &Sysctl, is_lost: bool) -> bool {
        let mode = sysctl.tcp_ecn_option;
        mode != 0 && self.option_seen != OptionSeen::Never && (!is_lost || mode >= 3)
    }

    /// Sets whether data reserves room for the option. Returns whether that changed.
    pub(super) fn reserve(&mut self, usable: bool) -> bool {
        core::mem::replace(&mut self.reserved, usable) != usable
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.reserved
    }

    /// Returns whether the option is due (RFC 9768 3.2.3.3).
    pub(super) fn is_due(&self, sysctl: &Sysctl, now: Instant, srtt: Nanos) -> bool {
        let beacons = sysctl.tcp_ecn_option_beacon;
        let since = now.since(self.sent_at);
        let beacon =
            beacons != 0 && since.as_nanos().saturating_mul(beacons.into()) >= srtt.as_nanos();
        sysctl.tcp_ecn_option >= 2 || self.demand > 0 || beacon
    }

    /// Returns the option with the present counters.
    pub(super) fn option(&self) -> AccEcn {
        let order = [EcnField::Ect1, EcnField::Ce, EcnField::Ect0];
        let counters =
            order.map(|field| self.received[field as usize].wrapping_add(first_count(field)));
        AccEcn::new(AccEcnOrder::Ect1First, &counters)
    }

    /// Adds the option with as many counters as fit, if these include all that are needed. The last
    /// SACK blocks may be removed for them. `duplicate`: the first block is a DSACK.
    pub(super) fn add_option(&mut self, now: Instant, options: &mut TcpOptions, duplicate: bool) {
        self.reported_duplicate = None;
        if !self.fit_option(options) {
            return;
        }
        self.needed = 0;
        self.demand = self.demand.saturating_sub(1);
        self.sent_at = now;
        let first = options.sack.as_slice().first().filter(|_| duplicate);
        self.reported_duplicate = first.map(|block| block.left);
    }

    fn fit_option(&self, options: &mut TcpOptions) -> bool {
        let (blocks, needed) = (options.sack, usize::from(self.needed));
        let most = blocks.as_slice().len();
        let least = if needed > 0 {
            most.min(MIN_SACK_BLOCKS)
        } else {
            most
        };
        let option = self.option();
        for count in (least..=most).rev() {
            options.sack.truncate(count);
            for fields in (needed.max(1)..=FIELDS).rev() {
                options.acc_ecn = Some(option.shortened(fields));
                if options.fits() {
                    return true;
                }
            }
        }
        (options.acc_ecn, options.sack) = (None, blocks);
        false
    }

    /// Returns whether data from `seq` on was reported as a duplicate together with our option, and
    /// was retransmitted nevertheless because that report was lost.
    pub(super) fn is_duplicate_report_lost(&self, seq: SeqNum) -> bool {
        self.reported_duplicate == Some(seq)
    }

    /// Processes a received option. Returns `false` if the path zeroes it.
    pub(super) fn on_option(&mut self, option: &AccEcn) -> bool {
        if self.option_seen < OptionSeen::Counters {
            // RFC 9768 3.2.3.2.4.
            self.option_seen = match option.counters().next() {
                None => OptionSeen::Empty,
                Some((_, 0)) => OptionSeen::Zeroed,
                Some(_) => OptionSeen::Counters,
            };
        }
        self.option_seen != OptionSeen::Zeroed
    }

    /// Returns whether `sent` bytes without an option are enough for its counters to wrap, so that
    /// later options are ignored.
    pub(super) fn is_too_late(&self, sent: u64) -> bool {
        self.option_seen == OptionSeen::Never && sent >= TOO_LATE_BYTES
    }

    /// Processes an acknowledgement for `delivered` bytes of ours, with this option or none.
    /// Returns how many of them were marked, if that is certain.
    pub(super) fn on_ack(&mut self, option: Option<&AccEcn>, delivered: u32) -> Option<u32> {
        let before = self.delivered[EcnField::Ce as usize];
        let certain = match option {
            Some(option) => self.update_delivered(option),
            None => self.assume_usual_field(delivered),
        };
        let marked = self.delivered[EcnField::Ce as usize].wrapping_sub(before);
        certain.then_some(marked)
    }

    fn assume_usual_field(&mut self, delivered: u32) -> bool {
        let Some(field) = self.usual_field else {
            return false;
        };
        let count = &mut self.delivered[field as usize];
        *count = count.wrapping_add(delivered);
        true
    }

    /// Returns `false` if more than one counter changed, or one decreased.
    fn update_delivered(&mut self, option: &AccEcn) -> bool {
        let usual_field = self.usual_field;
        let (mut other_fields, mut decreased) = (0, false);
        for (field, counter) in option.counters() {
            let count = &mut self.delivered[field as usize];
            let reported = counter.wrapping_sub(first_count(field));
            let grown = sign_extended(reported.wrapping_sub(*count));
            *count = count.wrapping_add_signed(grown);
            decreased |= grown < 0;
            if grown != 0 && usual_field != Some(field) {
                if other_fields == 0 {
                    self.usual_field = Some(field);
                }
                other_fields += 1;
            }
        }
        let unclear = decreased || other_fields > 1;
        if unclear {
            self.usual_field = None;
        }
        usual_field.is_some() && !unclear
    }
}

/// Returns the signed difference of two counters.
const fn sign_extended(difference: u32) -> i32 {
    (difference << (u32::BITS - BITS)) as i32 >> (u32::BITS - BITS)
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField::{Ce, Ect0, Ect1};
    use fullsend_wire::tcp::{AccEcn, AccEcnOrder, SackBlock, TcpOptions, Timestamps};
    use fullsend_wire::{Instant, Nanos, SeqNum};

    use super::{ByteCounters, OptionSeen};
    use crate::Sysctl;

    fn acc_ecn(e1b: u32, ceb: u32, e0b: u32) -> AccEcn {
        AccEcn::new(AccEcnOrder::Ect1First, &[e1b, ceb, e0b])
    }

    fn options(blocks: u32, timestamps: bool) -> TcpOptions {
        let mut options = TcpOptions {
            timestamps: timestamps.then(Timestamps::default),
            ..TcpOptions::default()
        };
        for n in 0..blocks {
            let left = SeqNum::new(n * 10);
            options.sack.push(SackBlock {
                left,
                right: left + 5,
            });
        }
        options
    }

    #[test]
    fn counters_start_at_one_except_ce() {
        let mut bytes = ByteCounters::default();
        assert_eq!(bytes.option(), acc_ecn(1, 0, 1));
        bytes.on_data(Ect0, 100);
        bytes.on_data(Ce, 200);
        bytes.on_data(Ect1, 300);
        assert_eq!(bytes.option(), acc_ecn(301, 200, 101));
    }

    /// The number of counters and SACK blocks that fit, if there are this many blocks.
    #[test]
    fn needed_counters_displace_sack_blocks() {
        let fit_option = |needed: u8, blocks: u32, timestamps: bool| {
            let mut bytes = ByteCounters {
                needed,
                ..ByteCounters::default()
            };
            let mut options = options(blocks, timestamps);
            bytes.add_option(Instant::ZERO, &mut options, false);
            let fields = options.acc_ecn.map_or(0, |option| option.fields());
            (fields, options.sack.as_slice().len())
        };
        assert_eq!(fit_option(3, 0, true), (3, 0));
        assert_eq!(fit_option(3, 1, true), (3, 1));
        assert_eq!(fit_option(2, 2, true), (2, 2));
        assert_eq!(fit_option(3, 2, true), (0, 2));
        assert_eq!(fit_option(0, 3, true), (0, 3));
        assert_eq!(fit_option(1, 3, true), (2, 2));
        assert_eq!(fit_option(3, 3, true), (0, 3));
        assert_eq!(fit_option(3, 3, false), (3, 3));
        assert_eq!(fit_option(1, 4, false), (1, 4));
        assert_eq!(fit_option(2, 4, false), (3, 3));
    }

    #[test]
    fn options_report_received_fields() {
        let mut bytes = ByteCounters::default();
        // The first option includes earlier acknowledgements.
        assert_eq!(bytes.on_ack(Some(&acc_ecn(1, 0, 1001)), 1000), None);
        assert_eq!(bytes.on_ack(Some(&acc_ecn(1, 0, 2001)), 1000), Some(0));
        // Without an option the usual field is assumed.
        assert_eq!(bytes.on_ack(None, 500), Some(0));
        assert_eq!(bytes.delivered[Ect0 as usize], 2500);
        assert_eq!(bytes.on_ack(Some(&acc_ecn(1, 700, 2501)), 700), Some(700));
        assert_eq!(bytes.on_ack(None, 300), Some(300));
        // Two other counters change at once, and one decreases.
        assert_eq!(bytes.on_ack(Some(&acc_ecn(11, 1000, 2511)), 20), None);
        assert_eq!(bytes.on_ack(None, 300), None);
        assert_eq!(bytes.on_ack(Some(&acc_ecn(11, 900, 2511)), 20), None);
        assert_eq!(bytes.delivered[Ce as usize], 900);
    }

    #[test]
    fn counters_wrap() {
        let mut bytes = ByteCounters::default();
        for total in [0x60_0000, 0xc0_0000, 0x120_0000_u32] {
            bytes.on_ack(Some(&acc_ecn(1, total, 1)), 0x60_0000);
        }
        assert_eq!(bytes.delivered[Ce as usize], 0x120_0000);
    }

    #[test]
    fn zeroed_option_is_detected_at_first_reception() {
        let mut bytes = ByteCounters::default();
        assert!(bytes.on_option(&acc_ecn(1, 0, 1).shortened(0)));
        assert_eq!(bytes.option_seen, OptionSeen::Empty);
        assert!(!bytes.on_option(&acc_ecn(0, 0, 0)));
        let mut bytes = ByteCounters::default();
        assert!(bytes.on_option(&acc_ecn(1, 0, 1)) && bytes.on_option(&acc_ecn(0, 0, 0)));
    }

    #[test]
    fn option_is_sent_on_changes_and_beacons() {
        let mut sysctl = Sysctl {
            tcp_ecn_option: 1,
            ..Sysctl::default()
        };
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let srtt = Nanos::from_millis(30);
        let mut bytes = ByteCounters::default();
        bytes.add_option(at(100), &mut options(0, true), false);
        assert!(!bytes.is_due(&sysctl, at(109), srtt));
        assert!(bytes.is_due(&sysctl, at(110), srtt));
        bytes.on_change();
        for due in [true, true, false] {
            assert_eq!(bytes.is_due(&sysctl, at(105), srtt), due);
            bytes.add_option(at(105), &mut options(0, true), false);
        }
        // A quarter of a counter's range.
        bytes.on_data(Ect0, 0x3f_ffff);
        assert!(!bytes.is_due(&sysctl, at(106), srtt));
        bytes.on_data(Ect0, 1);
        assert!(bytes.is_due(&sysctl, at(106), srtt));
        sysctl.tcp_ecn_option = 2;
        bytes.add_option(at(105), &mut options(0, true), false);
        assert!(bytes.is_due(&sysctl, at(105), srtt));
    }

    #[test]
    fn option_is_sent_only_if_received_and_not_lost() {
        let mut sysctl = Sysctl::default();
        let mut bytes = ByteCounters::default();
        assert!(!bytes.is_usable(&sysctl, false));
        bytes.on_option(&acc_ecn(1, 0, 1));
        assert!(bytes.is_usable(&sysctl, false) && !bytes.is_usable(&sysctl, true));
        sysctl.tcp_ecn_option = 3;
        assert!(bytes.is_usable(&sysctl, true));
        sysctl.tcp_ecn_option = 0;
        assert!(!bytes.is_usable(&sysctl, false));
        // A duplicate that arrives again although it was reported.
        bytes.add_option(Instant::ZERO, &mut options(1, false), true);
        assert!(
            bytes.is_duplicate_report_lost(SeqNum::new(0))
                && !bytes.is_duplicate_report_lost(SeqNum::new(10))
        );
        bytes.add_option(Instant::ZERO, &mut options(1, false), false);
        assert!(!bytes.is_duplicate_report_lost(SeqNum::new(0)));
    }
}
