extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    AccEcn, AccEcnOrder, FastopenCookie, SackBlock, SackBlocks, TcpFlags, TcpOptions, TcpRepr,
    Timestamps,
};
use crate::{SeqNum, WireError, WireWindow};

/// Any header that fits; options that belong on a SYN only with SYN.
fn repr() -> impl Strategy<Value = TcpRepr> {
    let options = (
        any::<Option<u16>>(),
        any::<Option<u8>>(),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        prop::collection::vec(any::<(u32, u32)>(), 0..5),
        prop::option::of((prop::collection::vec(any::<u8>(), 0..17), any::<bool>())),
        prop::option::of((any::<bool>(), prop::collection::vec(0u32..1 << 24, 0..4))),
    );
    (any::<[u32; 3]>(), any::<[u16; 3]>(), 0u16..0x200, options).prop_map(
        |(
            [seq, ack, ports],
            [window, urgent, _],
            flags,
            (mss, shift, sack_ok, ts, blocks, cookie, acc_ecn),
        )| {
            let syn = flags & 2 != 0;
            let mut options = TcpOptions {
                mss: mss.filter(|_| syn),
                window_scale: shift.filter(|_| syn),
                sack_permitted: sack_ok && syn,
                timestamps: ts.map(|(val, ecr)| Timestamps { val, ecr }),
                sack: SackBlocks::default(),
                fastopen: cookie.filter(|_| syn).and_then(|(cookie, old)| {
                    Some(FastopenCookie::new(&cookie)?.with_experimental(old))
                }),
                acc_ecn: None,
            };
            if let Some((ect1, counters)) = acc_ecn {
                let order = if ect1 {
                    AccEcnOrder::Ect1First
                } else {
                    AccEcnOrder::Ect0First
                };
                options.acc_ecn = Some(AccEcn::new(order, &counters));
                options.acc_ecn = options.acc_ecn.filter(|_| options.fits());
            }
            for (left, right) in blocks {
                let before = options.sack;
                options.sack.push(SackBlock {
                    left: SeqNum::new(left),
                    right: SeqNum::new(right),
                });
                if !options.fits() {
                    options.sack = before;
                    break;
                }
            }
            TcpRepr {
                src_port: ports as u16,
                dst_port: (ports >> 16) as u16,
                seq: SeqNum::new(seq),
                ack: SeqNum::new(ack),
                flags: TcpFlags(flags),
                window: WireWindow(window),
                urgent,
                options,
            }
        },
    )
}

fn emitted(repr: &TcpRepr) -> Vec<u8> {
    let mut bytes = std::vec![0xee; repr.header_len()];
    assert_eq!(repr.emit(&mut bytes), bytes.len());
    bytes
}

proptest! {
    #[test]
    fn emit_then_parse_is_identity(repr in repr(), payload: Vec<u8>) {
        let mut bytes = emitted(&repr);
        let len = bytes.len();
        bytes.extend(payload);
        prop_assert_eq!(TcpRepr::parse(&bytes), Ok((repr, len)));
        for short in 0..len {
            prop_assert_eq!(TcpRepr::parse(&bytes[..short]), Err(WireError::Truncated));
        }
    }

    #[test]
    fn read_replaces_the_whole_header_or_nothing(
        old in repr(),
        mut new in repr(),
        options in 0..3,
        cut in any::<prop::sample::Index>(),
    ) {
        let timestamps = new.options.timestamps;
        match options {
            0 => new.options = TcpOptions::default(),
            1 => new.options = TcpOptions { timestamps, ..TcpOptions::default() },
            _ => {}
        }
        let bytes = emitted(&new);
        let mut header = old;
        prop_assert_eq!(header.read(&bytes), Ok(bytes.len()));
        prop_assert_eq!(header, new);
        let mut header = old;
        prop_assert_eq!(header.read(&bytes[..cut.index(bytes.len())]), Err(WireError::Truncated));
        prop_assert_eq!(header, old);
    }

    #[test]
    fn etherparse_agrees(mut repr in repr()) {
        // etherparse does not implement Fast Open and Accurate ECN.
        repr.options.fastopen = None;
        repr.options.acc_ecn = None;
        let bytes = emitted(&repr);
        let (theirs, rest) = etherparse::TcpHeader::from_slice(&bytes).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(theirs.source_port, repr.src_port);
        prop_assert_eq!(theirs.destination_port, repr.dst_port);
        prop_assert_eq!(theirs.sequence_number, repr.seq.raw());
        prop_assert_eq!(theirs.acknowledgment_number, repr.ack.raw());
        prop_assert_eq!(theirs.window_size, repr.window.0);
        prop_assert_eq!(theirs.urgent_pointer, repr.urgent);
        prop_assert_eq!(theirs.checksum, 0);
        let mut options = TcpOptions::default();
        for option in theirs.options_iterator() {
            use etherparse::TcpOptionElement as E;
            match option.unwrap() {
                E::Noop => {}
                E::MaximumSegmentSize(mss) => options.mss = Some(mss),
                E::WindowScale(shift) => options.window_scale = Some(shift),
                E::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
                E::Timestamp(val, ecr) => options.timestamps = Some(Timestamps { val, ecr }),
                E::SelectiveAcknowledgement(first, more) => {
                    for (left, right) in core::iter::once(first).chain(more.into_iter().flatten()) {
                        options.sack.push(SackBlock {
                            left: SeqNum::new(left),
                            right: SeqNum::new(right),
                        });
                    }
                }
            }
        }
        prop_assert_eq!(options, repr.options);
    }

    #[test]
    fn parse_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((repr, len)) = TcpRepr::parse(&bytes) {
            prop_assert!(len <= bytes.len());
            let again = emitted(&repr);
            prop_assert!(again.len() <= 60);
        }
    }
}

fn with_options(flags: TcpFlags, options: &[u8]) -> TcpOptions {
    let mut bytes = emitted(&TcpRepr {
        flags,
        ..TcpRepr::default()
    });
    bytes.extend(options);
    bytes.resize(20 + options.len().next_multiple_of(4), 0);
    bytes[12] = (bytes[12] & 0x0f) | ((bytes.len() as u8 / 4) << 4);
    TcpRepr::parse(&bytes).unwrap().0.options
}

#[test]
fn malformed_options() {
    let ts = |o: TcpOptions| o.timestamps.map(|t| (t.val, t.ecr));
    // An unknown kind is skipped, and the timestamps after it are read.
    let found = with_options(TcpFlags::ACK, &[99, 4, 0, 0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(ts(found), Some((1, 2)));
    // Lengths of 0, 1 and past the end stop the list; the options before them stay.
    for bad in [0, 1, 30] {
        let found = with_options(TcpFlags::SYN, &[3, 3, 7, 99, bad, 2, 4, 5, 0xb4]);
        assert_eq!((found.window_scale, found.mss), (Some(7), None), "{bad}");
    }
    // A kind without a length at the very end.
    assert_eq!(
        with_options(TcpFlags::SYN, &[1, 1, 1, 8]),
        TcpOptions::default()
    );
    // Known kinds of a wrong length are skipped.
    let found = with_options(
        TcpFlags::SYN,
        &[2, 3, 0, 3, 4, 0, 0, 8, 3, 0, 5, 5, 0, 0, 0, 2, 4, 0, 9],
    );
    assert_eq!(
        found,
        TcpOptions {
            mss: Some(9),
            ..TcpOptions::default()
        }
    );
    // Options that only a SYN may carry.
    let handshake = [2, 4, 0, 9, 4, 2, 3, 3, 1];
    assert_eq!(
        with_options(TcpFlags::ACK, &handshake),
        TcpOptions::default()
    );
    assert_eq!(with_options(TcpFlags::SYN, &handshake).mss, Some(9));
    // The end-of-list option hides the rest.
    assert_eq!(
        with_options(TcpFlags::SYN, &[0, 2, 4, 0, 9]),
        TcpOptions::default()
    );
}

#[test]
fn data_offset_must_cover_the_header_and_fit() {
    let mut bytes = emitted(&TcpRepr::default());
    bytes[12] = 0x40;
    assert_eq!(TcpRepr::parse(&bytes), Err(WireError::BadLength));
    bytes[12] = 0x60;
    assert_eq!(TcpRepr::parse(&bytes), Err(WireError::Truncated));
}

#[test]
fn sack_blocks_that_do_not_fit_are_omitted() {
    let mut repr = TcpRepr::default();
    repr.options.timestamps = Some(Timestamps { val: 1, ecr: 2 });
    for at in 0..4 {
        repr.options.sack.push(SackBlock {
            left: SeqNum::new(at * 10),
            right: SeqNum::new(at * 10 + 5),
        });
    }
    let bytes = emitted(&repr);
    assert_eq!(bytes.len(), 60);
    let read = TcpRepr::parse(&bytes).unwrap().0;
    assert_eq!(
        read.options.sack.as_slice(),
        &repr.options.sack.as_slice()[..3]
    );
}

/// RFC 7413 4.1.1: a cookie has 4 to 16 bytes, an even number; any other length is ignored.
#[test]
fn cookie_options_are_padded_to_four_bytes() {
    let syn = |cookie: &[u8]| TcpRepr {
        flags: TcpFlags::SYN,
        options: TcpOptions {
            fastopen: FastopenCookie::new(cookie),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    };
    assert_eq!(emitted(&syn(&[]))[20..], [34, 2, 1, 1]);
    let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(
        emitted(&syn(&cookie))[20..],
        [34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]
    );
    for len in [1, 2, 3, 5, 7, 17, 18] {
        assert_eq!(FastopenCookie::new(&std::vec![0; len]), None, "{len}");
        let mut bytes = emitted(&TcpRepr {
            flags: TcpFlags::SYN,
            ..TcpRepr::default()
        });
        bytes[12] = 0xa0;
        bytes.resize(40, 1);
        bytes[20..22].copy_from_slice(&[34, 2 + len as u8]);
        let (repr, _) = TcpRepr::parse(&bytes).unwrap();
        assert_eq!(repr.options.fastopen, None, "{len}");
    }
}

/// RFC 9768 3.2.3: the layout of an ACK's options with counters and SACK blocks.
#[test]
fn acc_ecn_counters_fit_beside_sack_blocks() {
    let mut options = TcpOptions {
        acc_ecn: Some(AccEcn::new(AccEcnOrder::Ect1First, &[1, 2, 3])),
        ..TcpOptions::default()
    };
    let bytes = |options: TcpOptions| {
        let repr = TcpRepr {
            options,
            ..TcpRepr::default()
        };
        emitted(&repr)[20..].to_vec()
    };
    let counters = [174, 11, 0, 0, 1, 0, 0, 2, 0, 0, 3, 1];
    assert_eq!(bytes(options), counters);
    options.sack.push(SackBlock {
        left: SeqNum::new(1),
        right: SeqNum::new(2),
    });
    let sack = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let [three, two, one, none] = [3, 2, 1, 0].map(|fields| {
        bytes(TcpOptions {
            acc_ecn: options.acc_ecn.map(|option| option.shortened(fields)),
            ..options
        })
    });
    assert_eq!(three, [&counters[..], &[1, 1], &sack].concat());
    assert_eq!(
        two,
        [&[174, 8][..], &counters[2..8], &[1, 1], &sack].concat()
    );
    assert_eq!(one, [&[174, 5][..], &counters[2..5], &[1], &sack].concat());
    assert_eq!(none, [&[174, 2][..], &sack].concat());
}

/// Counters are left out where a long cookie leaves no room for them.
#[test]
fn accecn_counters_that_do_not_fit_are_omitted() {
    let full = |cookie: usize| TcpOptions {
        mss: Some(1),
        window_scale: Some(1),
        timestamps: Some(Timestamps::default()),
        fastopen: FastopenCookie::new(&std::vec![7; cookie]),
        acc_ecn: Some(AccEcn::new(AccEcnOrder::Ect0First, &[1, 2, 3])),
        ..TcpOptions::default()
    };
    for (cookie, fields) in [(0, Some(3)), (8, Some(2)), (12, Some(0)), (16, None)] {
        let repr = TcpRepr {
            flags: TcpFlags::SYN,
            options: full(cookie),
            ..TcpRepr::default()
        };
        let (read, _) = TcpRepr::parse(&emitted(&repr)).unwrap();
        let read = read.options;
        assert_eq!(
            read.acc_ecn.map(|option| option.fields()),
            fields,
            "{cookie}"
        );
        assert_eq!(read.fastopen, full(cookie).fastopen);
    }
}
