//! Sizes in text form: `4096`, `4K`, `1M`, `2G`, with prefixes of 1024.

/// Parses a size of at least one byte and at most 1 GiB.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    const MAX: u64 = 1 << 30;
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| {
        format!(
            "`{text}` is not a size; write digits and at most one of K, M, G (1024-based), e.g. 4K"
        )
    })?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err(format!("`{text}` is a size of 0 bytes; write 1 or more")),
        Some(bytes) if bytes <= MAX => Ok(bytes as usize),
        _ => Err(format!("`{text}` is more than 1G; write 1G or less")),
    }
}

/// Parses `REQUEST,RESPONSE`. A single size applies to both.
pub(crate) fn parse_pair(text: &str) -> Result<(usize, usize), String> {
    match text.split_once(',') {
        Some((request, response)) => Ok((parse(request)?, parse(response)?)),
        None => parse(text).map(|size| (size, size)),
    }
}

/// Formats `bytes` with the largest unit that divides it.
pub(crate) fn show(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{}G", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_pair, show};

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("128"), Ok(128));
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("3m"), Ok(3 << 20));
        assert_eq!(parse("1G"), Ok(1 << 30));
        assert_eq!(parse_pair("1,4K"), Ok((1, 4096)));
        assert_eq!(parse_pair("2K"), Ok((2048, 2048)));
        assert_eq!(show(4096), "4K");
        assert_eq!(show(1000), "1000");
    }

    #[test]
    fn errors_name_the_value() {
        for bad in [
            "4X",
            "",
            "K",
            "-1",
            "1.5K",
            "0",
            "0K",
            "2G",
            "99999999999999999999",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
        assert!(parse_pair("4K,").is_err());
        assert!(parse_pair("4K,4K,4K").is_err());
    }
}
