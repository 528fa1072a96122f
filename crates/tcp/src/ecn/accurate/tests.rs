use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, AccEcnOrder, TcpFlags};

use super::{ACE, Accurate, Feedback, ace, fail, flags, reflection};

/// Returns the feedback of an ACK for `delivered` segments with this counter.
fn feedback(count: u32, delivered: u32) -> Feedback {
    Feedback {
        flags: TcpFlags::ACK.union(flags(count)),
        delivered,
        delivered_bytes: delivered * 1000,
        mss: 1000,
        exact: true,
        ..Feedback::default()
    }
}

/// RFC 9768 table 2: AE, CWR and ECE in this order.
#[test]
fn handshake_reflects_the_previous_segments_field() {
    let fields = [
        EcnField::NotEct,
        EcnField::Ect1,
        EcnField::Ect0,
        EcnField::Ce,
    ];
    let reflections = fields.map(|field| ace(reflection(field)));
    assert_eq!(reflections, [0b010, 0b011, 0b100, 0b110]);
    assert_eq!(flags(7), ACE);
}

#[test]
fn ace_counter_starts_at_five_and_wraps() {
    let mut ecn = Accurate::default();
    assert_eq!(ace(ecn.next_ace(true)), 5);
    ecn.on_packets(EcnField::Ce, 3, 3000);
    assert_eq!(ace(ecn.next_ace(false)), 0);
    ecn.on_packets(EcnField::Ce, 9, 9000);
    assert_eq!(ace(ecn.next_ace(false)), 1);
    ecn.handshake = Some(EcnField::Ce);
    assert_eq!(ace(ecn.next_ace(true)), 0b110);
    assert_eq!(ace(ecn.next_ace(true)), 1);
}

#[test]
fn marks_are_reported_soon_without_ack_loops() {
    let mut ecn = Accurate::default();
    assert!(!ecn.on_packets(EcnField::Ect0, 2, 2000));
    assert!(ecn.on_packets(EcnField::Ce, 1, 1000));
    ecn.next_ace(true);
    let immediate = [(); 4].map(|()| {
        let now = ecn.on_packets(EcnField::Ce, 1, 1000);
        if now {
            ecn.next_ace(true);
        }
        now
    });
    assert_eq!(immediate, [false, true, false, true]);
    // The end of the marks is a change, too.
    assert!(ecn.on_packets(EcnField::Ect0, 1, 1000));
    let bare = [(); 6].map(|()| ecn.on_packets(EcnField::Ce, 1, 0));
    assert_eq!(bare, [false, false, false, false, false, true]);
}

#[test]
fn possibly_wrapped_counter_counts_as_the_maximum() {
    let mut ecn = Accurate::default();
    assert_eq!(ecn.newly_marked(0, &feedback(5, 2)), 0);
    assert_eq!(ecn.newly_marked(0, &feedback(7, 2)), 2);
    assert_eq!(ecn.newly_marked(7, &feedback(5, 3)), 1);
    // Two or ten were marked; the larger number counts.
    assert_eq!(ecn.newly_marked(0, &feedback(7, 12)), 10);
    assert_eq!(ecn.newly_marked(0, &feedback(7, 9)), 2);
    assert_eq!(ecn.newly_marked(0, &feedback(5, 7)), 0);
    // Not so if acknowledgements usually cover many segments.
    let mut ecn = Accurate::default();
    assert_eq!(ecn.newly_marked(0, &feedback(5, 20)), 0);
    assert_eq!(ecn.newly_marked(0, &feedback(7, 12)), 2);
}

/// The marked bytes determine how often the counter wrapped.
#[test]
fn bytes_decide_an_ambiguous_counter() {
    let mut ecn = Accurate::default();
    ecn.newly_marked(0, &feedback(5, 1));
    let mut marked = |count, delivered, bytes| {
        let feedback = Feedback {
            ce_bytes: Some(bytes),
            ..feedback(count, delivered)
        };
        ecn.newly_marked(0, &feedback)
    };
    assert_eq!(marked(5, 12, 0), 0);
    assert_eq!(marked(7, 12, 2000), 2);
    assert_eq!(marked(7, 12, 2001), 10);
    assert_eq!(marked(7, 12, 9000), 10);
    // With many segments, in proportion.
    assert_eq!(marked(7, 40, 2000), 2);
    assert_eq!(marked(7, 40, 18_000), 18);
    assert_eq!(marked(7, 40, 40_000), 34);
}

/// RFC 9768 3.2.2.4.
#[test]
fn first_counter_of_zero_mutes() {
    let muted = |first: TcpFlags, option: Option<AccEcn>| {
        let mut ecn = Accurate::default();
        ecn.check_first_counter(first, option.as_ref());
        ecn.check_first_counter(flags(0), None);
        ecn.is_muted()
    };
    let marked = |ce| Some(AccEcn::new(AccEcnOrder::Ect0First, &[1, ce, 1]));
    assert!(muted(flags(0), None) && muted(flags(0), marked(0)));
    assert!(!muted(flags(0), marked(3000)));
    // A zero in a later counter does not mute.
    assert!(!muted(flags(5), None));
}

#[test]
fn muted_sender_keeps_reporting() {
    for (fail_mode, muted) in [
        (0, false),
        (fail::ACE_SEND, true),
        (fail::ACE_RECV, true),
        (fail::OPTION_SEND | fail::OPTION_RECV, false),
    ] {
        let mut ecn = Accurate {
            fail_mode,
            ..Accurate::default()
        };
        assert_eq!(ecn.is_muted(), muted);
        ecn.on_packets(EcnField::Ce, 1, 1000);
        assert_eq!(ace(ecn.next_ace(true)), 6);
    }
}
