//! Interpreter of the commands between back quotes.

/// One effect of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ShellEffect {
    /// Set a tunable.
    Sysctl(String, String),
    /// Write a file of this many zeros.
    WriteFile(String, u64),
    /// Remove a file.
    RemoveFile(String),
    /// Change the link: `mtu`, `tso` or `qdisc`, and its value.
    ChangeLink(&'static str, String),
    /// Clear the TCP metrics of peers.
    FlushTcpMetrics,
    /// No effect: it restores what a run has changed, or flushes a state that a new host does not
    /// have.
    Nothing,
    /// Not recognised.
    Unknown(String),
}

/// Returns the effects of a command's lines, in order.
pub(crate) fn effects(command: &str) -> Vec<ShellEffect> {
    let joined = products(&command.replace("\\\n", " "));
    let parts = joined.split(['\n', ';']).flat_map(|line| line.split("&&"));
    let parts = parts
        .map(str::trim)
        .filter(|part| !part.is_empty() && !part.starts_with('#'));
    parts.flat_map(line).collect()
}

/// Replaces the shell's `$((15*1024*1024))` by its value.
fn products(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("$((") {
        let Some((inside, behind)) = after.split_once("))") else {
            break;
        };
        let factors = inside.split('*').map(|factor| factor.trim().parse::<u64>());
        let product = factors.reduce(|a, b| Ok(a?.saturating_mul(b?)));
        let Some(Ok(product)) = product else {
            break;
        };
        out = format!("{out}{before}{product}");
        rest = behind;
    }
    out + rest
}

fn line(text: &str) -> Vec<ShellEffect> {
    let words = words(text);
    let Some((program, args)) = words.split_first() else {
        return Vec::new();
    };
    let texts: Vec<&str> = args.iter().map(String::as_str).collect();
    let name = program.rsplit('/').next().unwrap_or(program);
    match name {
        "defaults.sh" => DEFAULTS.iter().map(|(k, v)| sysctl(k, v)).collect(),
        "sysctl" => pairs(args.iter().filter(|arg| !arg.starts_with('-')), text),
        "set_sysctls.py" => pairs(args.iter(), text),
        "sleep" | "true" | "echo" | "modprobe" | "nstat" => vec![ShellEffect::Nothing],
        "ethtool" => ethtool(&texts, text),
        "tc" if args.first().is_some_and(|a| a == "qdisc") => qdisc(&texts),
        "ip" if args.first().is_some_and(|a| a == "link") => mtu(&texts, text),
        "ip" if args.first().is_some_and(|a| a == "tcp_metrics") => {
            vec![ShellEffect::FlushTcpMetrics]
        }
        "dd" => vec![zeros(args).unwrap_or_else(|| ShellEffect::Unknown(text.to_owned()))],
        "rm" => {
            let paths = args.iter().filter(|arg| !arg.starts_with('-'));
            paths.cloned().map(ShellEffect::RemoveFile).collect()
        }
        name if name.starts_with("sysctl_restore") => vec![ShellEffect::Nothing],
        _ => vec![ShellEffect::Unknown(text.to_owned())],
    }
}

/// Parses `dd if=/dev/zero of=PATH bs=BYTES count=BLOCKS`.
fn zeros(args: &[String]) -> Option<ShellEffect> {
    let operand = |key: &str| args.iter().find_map(|arg| arg.strip_prefix(key));
    let block: u64 = operand("bs=").map_or(Some(512), |bytes| bytes.parse().ok())?;
    let count: u64 = operand("count=")?.parse().ok()?;
    let zeros = operand("if=") == Some("/dev/zero");
    let path = operand("of=").filter(|_| zeros)?;
    Some(ShellEffect::WriteFile(
        path.to_owned(),
        block.checked_mul(count)?,
    ))
}

fn pairs<'a>(args: impl Iterator<Item = &'a String>, text: &str) -> Vec<ShellEffect> {
    args.map(|arg| match arg.split_once('=') {
        Some((key, value)) => {
            let key = key
                .strip_prefix("/proc/sys/")
                .unwrap_or(key)
                .replace('/', ".");
            sysctl(&key, value)
        }
        None => ShellEffect::Unknown(text.to_owned()),
    })
    .collect()
}

fn sysctl(key: &str, value: &str) -> ShellEffect {
    ShellEffect::Sysctl(key.to_owned(), value.to_owned())
}

/// Parses `ethtool -K DEVICE tso off gso off`.
fn ethtool(args: &[&str], text: &str) -> Vec<ShellEffect> {
    let ["-K" | "--offload" | "--features", _, features @ ..] = args else {
        return vec![ShellEffect::Unknown(text.to_owned())];
    };
    let effect = |pair: &[&str]| match pair {
        ["tso" | "tcp-segmentation-offload", on] => {
            ShellEffect::ChangeLink("tso", (*on).to_owned())
        }
        // No effect that a script can observe; TCP builds super-segments regardless of gso.
        _ => ShellEffect::Nothing,
    };
    features.chunks(2).map(effect).collect()
}

/// Parses `tc qdisc add|replace|change dev DEVICE root KIND...`; `delete` restores noqueue.
fn qdisc(args: &[&str]) -> Vec<ShellEffect> {
    let kind = match args.iter().position(|arg| *arg == "root") {
        Some(at) if args.get(1).is_some_and(|verb| !verb.starts_with("del")) => &args[at + 1..],
        _ => &[],
    };
    // A queue that never fills is the same as none.
    let none = kind.is_empty() || kind[0].starts_with("pfifo") && kind.len() == 1;
    let text = if none {
        "noqueue".to_owned()
    } else {
        kind.join(" ")
    };
    vec![ShellEffect::ChangeLink("qdisc", text)]
}

/// Parses `ip link set dev DEVICE mtu N`.
fn mtu(args: &[&str], text: &str) -> Vec<ShellEffect> {
    let at = args.iter().position(|arg| *arg == "mtu");
    match at.and_then(|at| args.get(at + 1)) {
        Some(mtu) => vec![ShellEffect::ChangeLink("mtu", (*mtu).to_owned())],
        None => vec![ShellEffect::Unknown(text.to_owned())],
    }
}

/// Splits at white space outside quotes; drops quotes and redirections.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_whitespace() => words.push(String::new()),
            (_, c) => {
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty() && !word.contains('>'));
    words
}

/// The initial sysctls of packetdrill's public tests.
const DEFAULTS: [(&str, &str); 21] = [
    ("net.ipv4.tcp_rmem", "4096 540000 15728640"),
    ("net.ipv4.tcp_wmem", "4096 262144 4194304"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_syn_retries", "5"),
    ("net.ipv4.tcp_synack_retries", "5"),
    ("net.ipv4.tcp_frto", "2"),
    ("net.ipv4.tcp_sack", "1"),
    ("net.ipv4.tcp_dsack", "1"),
    ("net.ipv4.tcp_reordering", "3"),
    ("net.ipv4.tcp_congestion_control", "cubic"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_early_retrans", "4"),
    ("net.ipv4.tcp_recovery", "1"),
    ("net.ipv4.tcp_tso_win_divisor", "3"),
    ("net.ipv4.tcp_ecn", "0"),
    ("net.ipv4.tcp_pacing_ss_ratio", "200"),
    ("net.ipv4.tcp_pacing_ca_ratio", "120"),
    ("net.ipv4.tcp_notsent_lowat", "4294967295"),
    ("net.ipv4.tcp_fastopen", "0x3"),
    (
        "net.ipv4.tcp_fastopen_key",
        "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4",
    ),
    ("net.ipv4.tcp_syncookies", "1"),
];

#[cfg(test)]
mod tests {
    use super::{ShellEffect, effects, sysctl};

    #[test]
    fn commands_have_effects() {
        let link = |key, value: &str| ShellEffect::ChangeLink(key, value.to_owned());
        for (command, effect) in [
            (
                "sysctl -q net.ipv4.tcp_rmem=\"4096 $((2*1024)) 9\"",
                sysctl("net.ipv4.tcp_rmem", "4096 2048 9"),
            ),
            ("ip link set dev tun0 mtu 9000", link("mtu", "9000")),
            ("ethtool -K tun0 tso off", link("tso", "off")),
            (
                "tc qdisc replace dev tun0 root fq maxrate 1gbit",
                link("qdisc", "fq maxrate 1gbit"),
            ),
            ("tc qdisc add dev tun0 root pfifo", link("qdisc", "noqueue")),
            (
                "tc qdisc delete dev tun0 root 2>/dev/null",
                link("qdisc", "noqueue"),
            ),
            (
                "ip route flush",
                ShellEffect::Unknown("ip route flush".to_owned()),
            ),
        ] {
            assert_eq!(effects(command), [effect], "{command}");
        }
    }
}
