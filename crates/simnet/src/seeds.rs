//! The seeds with which a test runs.

use std::env;
use std::ops::Range;

/// Returns the seeds with which a test should run: the range in the environment variable
/// `FULLSEND_SEEDS`, e.g. `FULLSEND_SEEDS=1234..1235`, or else `default`.
///
/// ```
/// use fullsend_simnet::{Simulation, seeds};
///
/// for seed in seeds(0..20) {
///     let mut sim = Simulation::new(seed);
///     sim.client("client", async |_| Ok(()))?;
///     sim.run()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If the variable is not a range of two numbers.
pub fn seeds(default: Range<u64>) -> Range<u64> {
    match env::var("FULLSEND_SEEDS") {
        Ok(text) => parse(&text).unwrap_or_else(|| {
            panic!("FULLSEND_SEEDS={text} is not a range of seeds; write e.g. 0..1000")
        }),
        Err(_) => default,
    }
}

fn parse(text: &str) -> Option<Range<u64>> {
    let (first, last) = text.trim().split_once("..")?;
    Some(first.parse().ok()?..last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_range_is_two_numbers() {
        assert_eq!(parse("7..9"), Some(7..9));
        assert_eq!(parse("7"), None);
        assert_eq!(parse("7..=9"), None);
    }
}
