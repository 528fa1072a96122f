//! Substitution of names (`-D NAME=VALUE`).

/// Returns the script's text with each of `names` replaced by its value.
///
/// Names are whole words; quoted text, commands and comments are not changed.
pub fn define(text: &str, names: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len = match quoted(rest) {
            0 if is_word(c) => word(rest),
            0 => c.len_utf8(),
            len => len,
        };
        let (piece, behind) = rest.split_at(len);
        let known = names.iter().find(|(name, _)| name == piece);
        out.push_str(known.map_or(piece, |(_, value)| value));
        rest = behind;
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn word(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// Returns the length of the quoted text, command or comment at the start of `text`; 0: none.
fn quoted(text: &str) -> usize {
    const PAIRS: [(&str, &str); 6] = [
        ("//", "\n"),
        ("#", "\n"),
        ("/*", "*/"),
        ("`", "`"),
        ("\"", "\""),
        ("%{", "}%"),
    ];
    let pair = PAIRS.iter().find(|(open, _)| text.starts_with(open));
    pair.map_or(0, |(open, close)| {
        let inner = &text[open.len()..];
        let end = inner.find(close).map(|at| open.len() + at + close.len());
        end.unwrap_or(text.len())
    })
}
