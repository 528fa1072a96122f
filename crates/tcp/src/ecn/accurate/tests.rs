use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, AccEcnOrder, TcpFlags};

use super::{ACE, Accurate, Feedback, ace, fail, flags, reflection};

/// Returns the feedback of an ACK for `delivered` segments with this counter.
fn told(count: u32, delivered: u32) -> Feedback {
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
fn the_handshake_tells_the_field_of_the_segment_before() {
    let fields = [
        EcnField::NotEct,
        EcnField::Ect1,
        EcnField::Ect0,
        EcnField::Ce,
    ];
    let told = fields.map(|field| ace(reflection(field)));
    assert_eq!(told, [0b010, 0b011, 0b100, 0b110]);
    assert_eq!(flags(7), ACE);
}

#[test]
fn counts_begin_at_five_and_go_round() {
    let mut ecn = Accurate::default();
    assert_eq!(ace(ecn.tell(true)), 5);
    ecn.on_packets(EcnField::Ce, 3, 3000);
    assert_eq!(ace(ecn.tell(false)), 0);
    ecn.on_packets(EcnField::Ce, 9, 9000);
    assert_eq!(ace(ecn.tell(false)), 1);
    ecn.handshake = Some(EcnField::Ce);
    assert_eq!(ace(ecn.tell(true)), 0b110);
    assert_eq!(ace(ecn.tell(true)), 1);
}

#[test]
fn marks_are_told_soon_but_acknowledgements_do_not_breed() {
    let mut ecn = Accurate::default();
    assert!(!ecn.on_packets(EcnField::Ect0, 2, 2000));
    assert!(ecn.on_packets(EcnField::Ce, 1, 1000));
    ecn.tell(true);
    let later = [(); 4].map(|()| {
        let now = ecn.on_packets(EcnField::Ce, 1, 1000);
        if now {
            ecn.tell(true);
        }
        now
    });
    assert_eq!(later, [false, true, false, true]);
    // The end of the marks is a change, too.
    assert!(ecn.on_packets(EcnField::Ect0, 1, 1000));
    let bare = [(); 6].map(|()| ecn.on_packets(EcnField::Ce, 1, 0));
    assert_eq!(bare, [false, false, false, false, false, true]);
}

#[test]
fn a_count_that_may_have_gone_round_is_taken_for_the_most_it_can_be() {
    let mut ecn = Accurate::default();
    assert_eq!(ecn.newly_marked(0, &told(5, 2)), 0);
    assert_eq!(ecn.newly_marked(0, &told(7, 2)), 2);
    assert_eq!(ecn.newly_marked(7, &told(5, 3)), 1);
    // Two or ten were marked; the larger number counts.
    assert_eq!(ecn.newly_marked(0, &told(7, 12)), 10);
    assert_eq!(ecn.newly_marked(0, &told(7, 9)), 2);
    assert_eq!(ecn.newly_marked(0, &told(5, 7)), 0);
    // Not so if acknowledgements usually cover many segments.
    let mut ecn = Accurate::default();
    assert_eq!(ecn.newly_marked(0, &told(5, 20)), 0);
    assert_eq!(ecn.newly_marked(0, &told(7, 12)), 2);
}

/// The marked bytes determine how often the counter wrapped.
#[test]
fn bytes_decide_where_the_count_leaves_it_open() {
    let mut ecn = Accurate::default();
    ecn.newly_marked(0, &told(5, 1));
    let mut marked = |count, delivered, bytes| {
        let told = Feedback {
            ce_bytes: Some(bytes),
            ..told(count, delivered)
        };
        ecn.newly_marked(0, &told)
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
fn a_first_count_of_zero_mutes() {
    let muted = |first: TcpFlags, option: Option<AccEcn>| {
        let mut ecn = Accurate::default();
        ecn.hear_first(first, option.as_ref());
        ecn.hear_first(flags(0), None);
        ecn.is_muted()
    };
    let marked = |ce| Some(AccEcn::new(AccEcnOrder::Ect0First, &[1, ce, 1]));
    assert!(muted(flags(0), None) && muted(flags(0), marked(0)));
    assert!(!muted(flags(0), marked(3000)));
    // A zero in a later counter does not mute.
    assert!(!muted(flags(5), None));
}

#[test]
fn who_is_muted_tells_on() {
    for (fails, muted) in [
        (0, false),
        (fail::ACE_SEND, true),
        (fail::ACE_RECV, true),
        (fail::OPTION_SEND | fail::OPTION_RECV, false),
    ] {
        let mut ecn = Accurate {
            fails,
            ..Accurate::default()
        };
        assert_eq!(ecn.is_muted(), muted);
        ecn.on_packets(EcnField::Ce, 1, 1000);
        assert_eq!(ace(ecn.tell(true)), 6);
    }
}
