//! Parts of a segment: its SACK blocks, its timestamp and its window scale.

use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use crate::event::{ACK, after};

/// Returns the shift of a window scale option.
pub(crate) fn scale_of(option: &TcpOption) -> Option<u8> {
    match option {
        TcpOption::WindowScale(shift) => Some(*shift),
        _ => None,
    }
}

/// Returns whether a segment is an acknowledgement and nothing else.
pub(crate) fn is_pure_ack(segment: &WireSegment) -> bool {
    segment.flags == ACK && segment.data.is_empty()
}

/// Returns the SACK blocks of a segment.
pub(crate) fn blocks_of(segment: &WireSegment) -> &[(u32, u32)] {
    let blocks = segment.options.iter().find_map(|option| match option {
        TcpOption::Sack(blocks) => Some(blocks.as_slice()),
        _ => None,
    });
    blocks.unwrap_or_default()
}

/// Returns a segment without the DSACK block (RFC 2883), which is the first one, and without other
/// blocks below the acknowledgement.
pub(crate) fn without_dsack(segment: &WireSegment) -> WireSegment {
    let ack = segment.ack;
    with_blocks(segment, |blocks| {
        // A DSACK block is below the acknowledgement or inside the second block.
        let repeats = match blocks.as_slice() {
            [(_, right), ..] if !after(*right, ack) => true,
            [first, second, ..] => !after(second.0, first.0) && !after(first.1, second.1),
            _ => false,
        };
        if repeats {
            blocks.remove(0);
        }
        blocks.retain(|(_, right)| after(*right, ack));
    })
}

/// Returns a segment with changed SACK blocks, without the option if none are left.
pub(crate) fn with_blocks(
    segment: &WireSegment,
    change: impl Fn(&mut Vec<(u32, u32)>),
) -> WireSegment {
    let mut changed = segment.clone();
    let at = changed.options.iter_mut().position(|option| match option {
        TcpOption::Sack(blocks) => {
            change(blocks);
            blocks.is_empty()
        }
        _ => false,
    });
    if let Some(at) = at {
        // Also removes the two NOPs before it.
        changed.options.drain(at.saturating_sub(2)..=at);
    }
    changed
}

/// Returns the timestamp that a segment echoes.
pub(crate) fn echo_of(segment: &WireSegment) -> Option<u32> {
    segment.options.iter().find_map(|option| match option {
        TcpOption::Timestamps { ecr, .. } => Some(*ecr),
        _ => None,
    })
}

/// Returns a segment without the timestamp that it echoes.
pub(crate) fn without_echo(segment: &WireSegment) -> WireSegment {
    let mut segment = segment.clone();
    for option in &mut segment.options {
        if let TcpOption::Timestamps { ecr, .. } = option {
            *ecr = 0;
        }
    }
    segment
}
