//! Entry points for fuzz targets.

use super::filter::Filter;

/// Applies a capture filter to a frame, with and without an Ethernet header.
///
/// # Panics
/// If a filter selects the same packets as its negation, or an error has no text.
pub fn filter_frame(filter: &str, frame: &[u8]) {
    let negated = Filter::parse(&format!("not ({filter})"));
    match Filter::parse(filter) {
        Ok(filter) => {
            for ethernet in [false, true] {
                let passes = filter.passes(frame, ethernet);
                if let Ok(negated) = &negated {
                    assert_ne!(negated.passes(frame, ethernet), passes);
                }
            }
        }
        Err(text) => assert!(!text.is_empty()),
    }
}
