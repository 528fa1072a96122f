//! The AccECN option (RFC 9768 3.2.3): counters of payload bytes by ECN field, sent where there is
//! room, and received from the peer.

use fullsend_units::{Instant, Nanos, SeqNum};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, AccEcnOrder, TcpOptions};

use crate::Sysctl;

/// Bytes that the option takes from the payload of each segment.
pub(super) const LEN: u32 = 12;
/// Number of counters in the option.
const FIELDS: usize = 3;
/// SACK blocks that are kept even if counters are needed.
const LEAST_BLOCKS: usize = 2;
/// Width of a counter in bits. The option is sent before one has grown by a quarter of its range
/// (RFC 9768 3.2.3.3).
const BITS: u32 = 24;
const BEACON_BYTES: u32 = 1 << (BITS - 2);
/// Bytes sent without an option after which its counters would be ambiguous.
const TOO_LATE_BYTES: u64 = 1 << (BITS - 1);

/// Whether the peer's option was received, as `tcpi_accecn_opt_seen` reports it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Seen {
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
pub(super) struct Bytes {
    /// Begin at zero; wrap.
    pub(super) received: Counts,
    pub(super) delivered: Counts,
    pub(super) seen: Seen,
    /// Number of counters that the next option must include.
    needed: u8,
    /// Number of further acknowledgements that must carry the option.
    demand: u8,
    /// Whether each data segment reserves room for the option.
    reserved: bool,
    /// When the option was last sent.
    sent_at: Instant,
    /// The duplicate that the segment with the last option reported.
    told_duplicate: Option<SeqNum>,
    /// The ECN field of our data according to the last options: assumed where an option is missing.
    usual: Option<EcnField>,
}

/// Returns the initial value of a counter (RFC 9768 3.2.1): one for ECT, so that a zeroed option is
/// detected.
const fn first_count(field: EcnField) -> u32 {
    !matches!(field, EcnField::Ce) as u32
}

/// Returns how many counters an option must have to include that of `field`.
const fn place(field: EcnField) -> u8 {
    match field {
        EcnField::NotEct => 0,
        EcnField::Ect1 => 1,
        EcnField::Ce => 2,
        EcnField::Ect0 => 3,
    }
}

impl Bytes {
    /// Counts `len` bytes of data received with this ECN field.
    pub(super) fn on_text(&mut self, field: EcnField, len: u32) {
        let count = &mut self.received[field as usize];
        let before = core::mem::replace(count, count.wrapping_add(len));
        self.needed = self.needed.max(place(field));
        if (before ^ *count) & !(BEACON_BYTES - 1) != 0 && field.is_capable() {
            self.demand = self.demand.max(1);
        }
    }

    /// Requests the option on the next two acknowledgements, as the ECN field changed or is CE.
    pub(super) fn on_change(&mut self) {
        self.demand = 2;
    }

    /// Requests the option on the next acknowledgement.
    pub(super) fn demand_one(&mut self) {
        self.demand = self.demand.max(1);
    }

    /// Returns whether the option may be sent: the peer's was received (RFC 9768 3.2.3.2), and ours
    /// is not lost according to `fails`.
    pub(super) fn is_usable(&self, sysctl: &Sysctl, fails: bool) -> bool {
        let mode = sysctl.tcp_ecn_option;
        mode != 0 && self.seen != Seen::Never && (!fails || mode >= 3)
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
    pub(super) fn tell(&mut self, now: Instant, options: &mut TcpOptions, duplicate: bool) {
        self.told_duplicate = None;
        if !self.fit(options) {
            return;
        }
        self.needed = 0;
        self.demand = self.demand.saturating_sub(1);
        self.sent_at = now;
        let first = options.sack.as_slice().first().filter(|_| duplicate);
        self.told_duplicate = first.map(|block| block.left);
    }

    fn fit(&self, options: &mut TcpOptions) -> bool {
        let (blocks, needed) = (options.sack, usize::from(self.needed));
        let most = blocks.as_slice().len();
        let least = if needed > 0 {
            most.min(LEAST_BLOCKS)
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
    pub(super) fn is_told_again(&self, seq: SeqNum) -> bool {
        self.told_duplicate == Some(seq)
    }

    /// Processes a received option. Returns `false` if the path zeroes it.
    pub(super) fn see(&mut self, option: &AccEcn) -> bool {
        if self.seen < Seen::Counters {
            // RFC 9768 3.2.3.2.4.
            self.seen = match option.counters().next() {
                None => Seen::Empty,
                Some((_, 0)) => Seen::Zeroed,
                Some(_) => Seen::Counters,
            };
        }
        self.seen != Seen::Zeroed
    }

    /// Returns whether `sent` bytes without an option are enough for its counters to wrap, so that
    /// later options are ignored.
    pub(super) fn is_too_late(&self, sent: u64) -> bool {
        self.seen == Seen::Never && sent >= TOO_LATE_BYTES
    }

    /// Processes an acknowledgement for `delivered` bytes of ours, with this option or none.
    /// Returns how many of them were marked, if that is certain.
    pub(super) fn hear(&mut self, option: Option<&AccEcn>, delivered: u32) -> Option<u32> {
        let before = self.delivered[EcnField::Ce as usize];
        let certain = match option {
            Some(option) => self.hear_option(option),
            None => self.assume_usual(delivered),
        };
        let marked = self.delivered[EcnField::Ce as usize].wrapping_sub(before);
        certain.then_some(marked)
    }

    fn assume_usual(&mut self, delivered: u32) -> bool {
        let Some(field) = self.usual else {
            return false;
        };
        let count = &mut self.delivered[field as usize];
        *count = count.wrapping_add(delivered);
        true
    }

    /// Returns `false` if more than one counter changed, or one decreased.
    fn hear_option(&mut self, option: &AccEcn) -> bool {
        let usual = self.usual;
        let (mut others, mut back) = (0, false);
        for (field, counter) in option.counters() {
            let count = &mut self.delivered[field as usize];
            let told = counter.wrapping_sub(first_count(field));
            let grown = sign_extended(told.wrapping_sub(*count));
            *count = count.wrapping_add_signed(grown);
            back |= grown < 0;
            if grown != 0 && usual != Some(field) {
                if others == 0 {
                    self.usual = Some(field);
                }
                others += 1;
            }
        }
        let unclear = back || others > 1;
        if unclear {
            self.usual = None;
        }
        usual.is_some() && !unclear
    }
}

/// Returns the signed difference of two counters.
const fn sign_extended(difference: u32) -> i32 {
    (difference << (u32::BITS - BITS)) as i32 >> (u32::BITS - BITS)
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos, SeqNum};
    use fullsend_wire::EcnField::{Ce, Ect0, Ect1};
    use fullsend_wire::tcp::{AccEcn, AccEcnOrder, SackBlock, TcpOptions, Timestamps};

    use super::{Bytes, Seen};
    use crate::Sysctl;

    fn told(e1b: u32, ceb: u32, e0b: u32) -> AccEcn {
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
    fn counters_begin_at_one_but_for_the_marked() {
        let mut bytes = Bytes::default();
        assert_eq!(bytes.option(), told(1, 0, 1));
        bytes.on_text(Ect0, 100);
        bytes.on_text(Ce, 200);
        bytes.on_text(Ect1, 300);
        assert_eq!(bytes.option(), told(301, 200, 101));
    }

    /// The number of counters and SACK blocks that fit, if there are this many blocks.
    #[test]
    fn blocks_give_way_to_counters_that_are_needed() {
        let fit = |needed: u8, blocks: u32, timestamps: bool| {
            let mut bytes = Bytes {
                needed,
                ..Bytes::default()
            };
            let mut options = options(blocks, timestamps);
            bytes.tell(Instant::ZERO, &mut options, false);
            let fields = options.acc_ecn.map_or(0, |option| option.fields());
            (fields, options.sack.as_slice().len())
        };
        assert_eq!(fit(3, 0, true), (3, 0));
        assert_eq!(fit(3, 1, true), (3, 1));
        assert_eq!(fit(2, 2, true), (2, 2));
        assert_eq!(fit(3, 2, true), (0, 2));
        assert_eq!(fit(0, 3, true), (0, 3));
        assert_eq!(fit(1, 3, true), (2, 2));
        assert_eq!(fit(3, 3, true), (0, 3));
        assert_eq!(fit(3, 3, false), (3, 3));
        assert_eq!(fit(1, 4, false), (1, 4));
        assert_eq!(fit(2, 4, false), (3, 3));
    }

    #[test]
    fn options_tell_how_bytes_arrived() {
        let mut bytes = Bytes::default();
        // The first option includes earlier acknowledgements.
        assert_eq!(bytes.hear(Some(&told(1, 0, 1001)), 1000), None);
        assert_eq!(bytes.hear(Some(&told(1, 0, 2001)), 1000), Some(0));
        // Without an option the usual field is assumed.
        assert_eq!(bytes.hear(None, 500), Some(0));
        assert_eq!(bytes.delivered[Ect0 as usize], 2500);
        assert_eq!(bytes.hear(Some(&told(1, 700, 2501)), 700), Some(700));
        assert_eq!(bytes.hear(None, 300), Some(300));
        // Two other counters change at once, and one decreases.
        assert_eq!(bytes.hear(Some(&told(11, 1000, 2511)), 20), None);
        assert_eq!(bytes.hear(None, 300), None);
        assert_eq!(bytes.hear(Some(&told(11, 900, 2511)), 20), None);
        assert_eq!(bytes.delivered[Ce as usize], 900);
    }

    #[test]
    fn counters_go_round() {
        let mut bytes = Bytes::default();
        for total in [0x60_0000, 0xc0_0000, 0x120_0000_u32] {
            bytes.hear(Some(&told(1, total, 1)), 0x60_0000);
        }
        assert_eq!(bytes.delivered[Ce as usize], 0x120_0000);
    }

    #[test]
    fn a_zeroed_option_shows_when_it_is_first_seen() {
        let mut bytes = Bytes::default();
        assert!(bytes.see(&told(1, 0, 1).shortened(0)));
        assert_eq!(bytes.seen, Seen::Empty);
        assert!(!bytes.see(&told(0, 0, 0)));
        let mut bytes = Bytes::default();
        assert!(bytes.see(&told(1, 0, 1)) && bytes.see(&told(0, 0, 0)));
    }

    #[test]
    fn sparing_it_sends_it_when_something_changed_and_so_often_a_round_trip() {
        let mut sysctl = Sysctl {
            tcp_ecn_option: 1,
            ..Sysctl::default()
        };
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let srtt = Nanos::from_millis(30);
        let mut bytes = Bytes::default();
        bytes.tell(at(100), &mut options(0, true), false);
        assert!(!bytes.is_due(&sysctl, at(109), srtt));
        assert!(bytes.is_due(&sysctl, at(110), srtt));
        bytes.on_change();
        for due in [true, true, false] {
            assert_eq!(bytes.is_due(&sysctl, at(105), srtt), due);
            bytes.tell(at(105), &mut options(0, true), false);
        }
        // A quarter of a counter's range.
        bytes.on_text(Ect0, 0x3f_ffff);
        assert!(!bytes.is_due(&sysctl, at(106), srtt));
        bytes.on_text(Ect0, 1);
        assert!(bytes.is_due(&sysctl, at(106), srtt));
        sysctl.tcp_ecn_option = 2;
        bytes.tell(at(105), &mut options(0, true), false);
        assert!(bytes.is_due(&sysctl, at(105), srtt));
    }

    #[test]
    fn it_is_sent_to_who_sends_it_and_while_it_arrives() {
        let mut sysctl = Sysctl::default();
        let mut bytes = Bytes::default();
        assert!(!bytes.is_usable(&sysctl, false));
        bytes.see(&told(1, 0, 1));
        assert!(bytes.is_usable(&sysctl, false) && !bytes.is_usable(&sysctl, true));
        sysctl.tcp_ecn_option = 3;
        assert!(bytes.is_usable(&sysctl, true));
        sysctl.tcp_ecn_option = 0;
        assert!(!bytes.is_usable(&sysctl, false));
        // A duplicate that arrives again although it was reported.
        bytes.tell(Instant::ZERO, &mut options(1, false), true);
        assert!(bytes.is_told_again(SeqNum::new(0)) && !bytes.is_told_again(SeqNum::new(10)));
        bytes.tell(Instant::ZERO, &mut options(1, false), false);
        assert!(!bytes.is_told_again(SeqNum::new(0)));
    }
}
