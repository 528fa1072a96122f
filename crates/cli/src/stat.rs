//! `fullsend stat`: inspects a running stack through its control socket.

pub(crate) mod args;
mod capture;
pub(crate) mod connection;
mod gateway;
mod link;
mod nstat;
mod ss;

use std::path::PathBuf;

use anyhow::{Result, bail};
use fullsend::control::{self, AddressView, QdiscView, Request, SockStatView};
use serde_json::Value;

use args::{StatArgs, StatCommand};
use connection::Connection;
pub(crate) use link::short;

/// Runs the subcommand.
pub(crate) fn run(args: StatArgs) -> Result<()> {
    let path = socket_path(args.socket)?;
    if let StatCommand::Capture(capture) = &args.command {
        return capture::run(&path, capture, args.json);
    }
    let mut stack = Connection::to(&path)?;
    match args.command {
        StatCommand::Nstat(nstat) => nstat::run(&mut stack, nstat, args.json),
        StatCommand::Ss(ss) => ss::run(&mut stack, &ss, args.json),
        StatCommand::Gateway(gateway) => gateway::run(&mut stack, &gateway, args.json),
        StatCommand::Sockstat => sockstat(&mut stack, args.json),
        StatCommand::Addr => addresses(&mut stack, args.json),
        StatCommand::Link(link) => link::run(&mut stack, link, args.json),
        StatCommand::Sysctl { all: _, setting } => {
            sysctl(&mut stack, setting.as_deref(), args.json)
        }
        StatCommand::Set { flow, setting } => set(&mut stack, flow, &setting),
        StatCommand::Qdisc => qdisc(&mut stack, args.json),
        StatCommand::Capture(_) => Ok(()),
    }
}

/// Returns the control socket to use: the given one, or the one of the only running stack.
pub(crate) fn socket_path(given: Option<PathBuf>) -> Result<PathBuf> {
    match given {
        Some(path) => Ok(path),
        None => only_running_stack(&control::running()),
    }
}

/// Returns the control socket of the only running stack.
fn only_running_stack(running: &[control::RunningSocket]) -> Result<PathBuf> {
    let main: Vec<_> = running.iter().filter(|socket| socket.main).collect();
    if let [one] = main[..] {
        return Ok(one.path.clone());
    }
    let dir = control::default_dir();
    if running.is_empty() {
        bail!(
            "there is no control socket in {}; start a stack with `gateway run --control`, \
             `perf ... --control`, Builder::control_socket or (in a C program) control=on, or name \
             its socket with --socket PATH",
            dir.display()
        );
    }
    let list: Vec<_> = running
        .iter()
        .map(|socket| format!("  --socket {}", socket.path.display()))
        .collect();
    bail!(
        "there are several control sockets; choose one:\n{}",
        list.join("\n")
    );
}

fn sockstat(stack: &mut Connection, json: bool) -> Result<()> {
    let value = stack.request(&Request::Sockstat)?;
    if json {
        outln!("{value}");
        return Ok(());
    }
    let SockStatView {
        inuse,
        orphan,
        tw,
        alloc,
        mem,
    } = serde_json::from_value(value)?;
    outln!("TCP: inuse {inuse} orphan {orphan} tw {tw} alloc {alloc} mem {mem}");
    Ok(())
}

fn addresses(stack: &mut Connection, json: bool) -> Result<()> {
    let value = stack.request(&Request::Addresses)?;
    if json {
        outln!("{value}");
        return Ok(());
    }
    let list: Vec<AddressView> = serde_json::from_value(value)?;
    for AddressView {
        link,
        address,
        state,
    } in list
    {
        outln!("{link:<15} {state:<9} {address}");
    }
    Ok(())
}

fn sysctl(stack: &mut Connection, setting: Option<&str>, json: bool) -> Result<()> {
    let (key, value) = match setting.map(|text| text.split_once('=').ok_or(text)) {
        None => (None, None),
        Some(Ok((key, value))) => (Some(key), Some(value)),
        Some(Err(key)) => (Some(key), None),
    };
    let value = stack.request(&Request::Sysctl {
        key: key.map(|key| key.trim().to_owned()),
        value: value.map(|value| value.trim().to_owned()),
    })?;
    let list: Vec<(String, String)> = serde_json::from_value(value)?;
    if json {
        let object = list.into_iter().map(|(key, value)| (key, value.into()));
        outln!("{}", Value::Object(object.collect()));
        return Ok(());
    }
    for (key, value) in list {
        outln!("{key} = {value}");
    }
    Ok(())
}

fn set(stack: &mut Connection, flow: String, setting: &str) -> Result<()> {
    let Some((option, value)) = setting.split_once('=') else {
        bail!("`{setting}` is not OPTION=VALUE; write e.g. TCP_NODELAY=1");
    };
    stack.request(&Request::Set {
        flow,
        option: option.trim().to_owned(),
        value: value.trim().to_owned(),
    })?;
    Ok(())
}

fn qdisc(stack: &mut Connection, json: bool) -> Result<()> {
    let value = stack.request(&Request::Qdisc)?;
    if json {
        outln!("{value}");
        return Ok(());
    }
    let queues: Vec<QdiscView> = serde_json::from_value(value)?;
    for queue in queues {
        let (first, rest) = queue.text.split_once('\n').unwrap_or((&queue.text, ""));
        outln!("{first} dev {}\n{rest}", queue.link);
    }
    Ok(())
}
