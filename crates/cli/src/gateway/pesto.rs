//! `pesto`: shows and changes the port forwards of a running pasta through its `--conf-path` socket.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use fullsend_gateway::PortSpec;
use serde_json::{Value, json};

use super::getopt::{self, Opt, Order, Takes, option};
use super::pasta::{INTERFACES, parse_guest_ports};

/// Longest time for pasta's answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const USAGE: &str = "usage: pesto [OPTION]... PATH";
const HELP: &str = "
Shows and changes the port forwards of the pasta that was started with `--conf-path PATH`. All
changes of a call apply, or none. Without options, the forwards are shown.

  -t, --tcp-ports SPEC  forward TCP ports of the host, with the syntax of pasta
  -u, --udp-ports SPEC  forward UDP ports of the host
  -T, --tcp-ns SPEC     forward TCP ports of the guest's loopback to the host's
  -U, --udp-ns SPEC     forward UDP ports of the guest's loopback to the host's
  -A, --add             add the forwards of the options that follow
  -D, --delete          delete the forwards of the options that follow
  -C, --clear PIF       delete all forwards of -t and -u (PIF is HOST), or of -T and -U
                        (SPLICE)
  -s, --show            print the forwards before and after the changes
  -h, --help            print this text
      --version         print the version

Forwards of -t and -u in front of --add and --delete replace those of -t and -u, and forwards of -T
and -U those of -T and -U.";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Add,
    Clear,
    Delete,
    Help,
    /// An accepted option without an effect.
    Nothing,
    Show,
    TcpNs,
    TcpPorts,
    UdpNs,
    UdpPorts,
    Version,
}

const TABLE: &[Opt<Key>] = &[
    option(Key::Add, 'A', &["add"], Takes::Nothing),
    option(Key::Clear, 'C', &["clear"], Takes::Value),
    option(Key::Delete, 'D', &["delete"], Takes::Nothing),
    option(Key::Help, 'h', &["help"], Takes::Nothing),
    option(Key::Nothing, 'd', &["debug"], Takes::Nothing),
    option(Key::Show, 's', &["show"], Takes::Nothing),
    option(Key::TcpNs, 'T', &["tcp-ns"], Takes::Value),
    option(Key::TcpPorts, 't', &["tcp-ports"], Takes::Value),
    option(Key::UdpNs, 'U', &["udp-ns"], Takes::Value),
    option(Key::UdpPorts, 'u', &["udp-ports"], Takes::Value),
    option(Key::Version, '\0', &["version"], Takes::Nothing),
];

/// The request of a command line.
#[derive(Debug)]
enum Command {
    Help,
    Version,
    Change(Request),
}

#[derive(Clone, PartialEq, Debug)]
struct Request {
    path: PathBuf,
    show: bool,
    /// The changes in the format of `pasta::control`.
    changes: Vec<Value>,
}

/// Runs the program with the arguments after its name.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let request = match parse(arguments) {
        Ok(Command::Help) => {
            outln!("{USAGE}\n{HELP}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            outln!("pesto (fullsend {})", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Command::Change(request)) => request,
        Err(error) => {
            errln!("pesto: {error:#}");
            errln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match change(&request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("pesto: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let parsed = getopt::parse(TABLE, Order::Mixed, arguments)?;
    for (key, _) in &parsed.options {
        match key {
            Key::Help => return Ok(Command::Help),
            Key::Version => return Ok(Command::Version),
            _ => {}
        }
    }
    let [path] = &parsed.positionals[..] else {
        bail!(
            "{} paths are given; write that of the socket of one pasta, from its --conf-path",
            parsed.positionals.len()
        );
    };
    let mut request = Request {
        path: path.into(),
        show: false,
        changes: Vec::new(),
    };
    // Without --add or --delete, the first forward of an interface replaces all of it.
    let mut mode = None;
    let mut replaced = BTreeSet::new();
    for (key, value) in &parsed.options {
        let shown = value.display();
        let word = value
            .to_str()
            .ok_or_else(|| anyhow!("{shown} is not UTF-8"))?;
        match key {
            Key::Add => mode = Some("add"),
            Key::Delete => mode = Some("delete"),
            Key::Show => request.show = true,
            Key::Clear if INTERFACES.iter().any(|(name, _)| *name == word) => {
                request.changes.push(json!({"clear": word}));
            }
            Key::Clear => bail!("--clear {word}: there is no such interface; write HOST or SPLICE"),
            Key::TcpPorts | Key::UdpPorts | Key::TcpNs | Key::UdpNs => {
                let option = check_ports(*key, word)?;
                let interface = interface_of(*key);
                if mode.is_none() && replaced.insert(interface) {
                    request.changes.push(json!({"clear": interface}));
                }
                let mode = mode.unwrap_or("add");
                request.changes.push(json!({mode: [option, word]}));
            }
            Key::Nothing | Key::Help | Key::Version => {}
        }
    }
    Ok(Command::Change(request))
}

/// Returns the interface at which the clients of an option's forwards are.
const fn interface_of(key: Key) -> &'static str {
    match key {
        Key::TcpNs | Key::UdpNs => "SPLICE",
        _ => "HOST",
    }
}

/// Checks a port specification, and returns the option's letter as requests have it.
fn check_ports(key: Key, text: &str) -> Result<&'static str> {
    match key {
        Key::TcpNs => parse_guest_ports("--tcp-ns", text).map(|_| "-T"),
        Key::UdpNs => parse_guest_ports("--udp-ns", text).map(|_| "-U"),
        key => {
            let _: PortSpec = text.parse()?;
            Ok(if key == Key::TcpPorts { "-t" } else { "-u" })
        }
    }
}

/// Sends the request, and prints the forwards if requested.
fn change(request: &Request) -> Result<()> {
    let answer = exchange(request)
        .with_context(|| format!("cannot use the socket {}", request.path.display()))?;
    if let Some(error) = answer["error"]["desc"].as_str() {
        bail!("{error}");
    }
    let print = |name: &str| {
        for line in answer["return"][name].as_array().into_iter().flatten() {
            outln!("{}", line.as_str().unwrap_or_default());
        }
    };
    if request.changes.is_empty() {
        print("after");
    } else if request.show {
        outln!("before:");
        print("before");
        outln!("after:");
        print("after");
    }
    Ok(())
}

fn exchange(request: &Request) -> Result<Value> {
    let mut stream = UnixStream::connect(&request.path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let message = json!({"execute": "change", "changes": request.changes});
    stream.write_all(message.to_string().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    serde_json::from_str(&answer).context("the answer is not that of a pasta")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Request {
        match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Command::Change(request)) => request,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn forwards_replace_the_table_unless_they_are_added_or_deleted() {
        let clear = [json!({"clear": "HOST"}), json!({"clear": "SPLICE"})];
        let replaced = |forwards: &[Value]| [&clear[..1], forwards].concat();
        let tcp = |kind: &str| json!({kind: ["-t", "80"]});
        let udp = |kind: &str| json!({kind: ["-u", "53"]});
        for (line, changes) in [
            ("sock", vec![]),
            ("-t 80 -u 53 sock", replaced(&[tcp("add"), udp("add")])),
            ("-A -t 80 sock", vec![tcp("add")]),
            ("-D -t 80 -A -u 53 sock", vec![tcp("delete"), udp("add")]),
            ("--delete -t80 sock", vec![tcp("delete")]),
            ("-C HOST sock", vec![clear[0].clone()]),
            ("-A -T auto sock", vec![json!({"add": ["-T", "auto"]})]),
            (
                "-U 80 -T 81 sock",
                vec![
                    clear[1].clone(),
                    json!({"add": ["-U", "80"]}),
                    json!({"add": ["-T", "81"]}),
                ],
            ),
            (
                "-U auto -t 80 sock",
                vec![
                    clear[1].clone(),
                    json!({"add": ["-U", "auto"]}),
                    clear[0].clone(),
                    tcp("add"),
                ],
            ),
        ] {
            let request = request(line);
            assert_eq!(request.changes, changes, "{line}");
            assert_eq!(request.path, PathBuf::from("sock"), "{line}");
        }
        assert!(request("--show sock").show);
    }

    #[test]
    fn errors_name_the_option_and_the_value() {
        for (line, text) in [
            ("", "0 paths are given"),
            ("a b", "2 paths are given"),
            ("-t 0 sock", "invalid port specification `0`"),
            ("-U %lo/80 sock", "--udp-ns %lo/80 names an interface"),
            ("-T %lo/80 sock", "--tcp-ns %lo/80 names an interface"),
            ("-C TAP sock", "--clear TAP"),
            ("--x sock", "unrecognized option '--x'"),
        ] {
            let parsed = parse(line.split_whitespace().map(OsString::from));
            let error = format!("{:#}", parsed.unwrap_err());
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
