use super::{count_sacked, runs_of};

const SENT: [(u32, u32); 4] = [(1, 101), (101, 201), (201, 301), (301, 401)];

#[test]
fn a_block_covers_whole_segments() {
    assert_eq!(count_sacked(&SENT, &[(101, 301)], 1), 2);
    assert_eq!(count_sacked(&SENT, &[(150, 301)], 1), 1);
}

#[test]
fn a_retransmitted_segment_counts_once() {
    let sent = [&SENT[..], &[(101, 201)]].concat();
    assert_eq!(count_sacked(&sent, &[(101, 201)], 1), 1);
}

#[test]
fn overlapping_blocks_count_a_segment_once() {
    assert_eq!(count_sacked(&SENT, &[(101, 301), (201, 401)], 1), 3);
}

#[test]
fn segments_below_the_ack_do_not_count() {
    assert_eq!(count_sacked(&SENT, &[(101, 401)], 201), 2);
}

#[test]
fn a_block_beyond_the_data_sent_does_not_count() {
    assert_eq!(count_sacked(&SENT, &[(101, 500)], 1), 0);
}

#[test]
fn ranges_that_follow_one_another_are_one_run() {
    assert_eq!(
        runs_of(&[(1, 101), (101, 201), (301, 401)]),
        [(1, 201), (301, 401)]
    );
}
