//! `fullsend script`: runs packet scripts.

mod overrides;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use fullsend_script::{
    Family, Library, ScriptError, define, families, parse, run, run_through, script::Script,
};
use overrides::ScriptOverrides;

/// The arguments of `fullsend script`.
#[derive(Args)]
pub(crate) struct ScriptArgs {
    /// Scripts, or folders of them (`*.pkt`).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show every event, also of runs that succeeded.
    #[arg(short, long)]
    verbose: bool,
    /// Print only the first line of each failure.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Run with one address family only (ipv4, ipv6 or ipv4-mapped-ipv6) instead of all that a
    /// script allows.
    #[arg(long, alias = "ip_version", value_name = "FAMILY", value_parser = family)]
    ip_version: Option<Family>,
    /// Run through this library with packetdrill's interface, not in this process
    /// (docs/packetdrill.md).
    #[arg(long, value_name = "LIBRARY", alias = "so_filename")]
    so: Option<PathBuf>,
    /// Flags for that library.
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        alias = "so_flags",
        requires = "so"
    )]
    so_flags: Option<String>,
    #[command(flatten)]
    overrides: ScriptOverrides,
}

fn family(text: &str) -> Result<Family, String> {
    let found = Family::ALL.iter().find(|family| family.name() == text);
    found
        .copied()
        .ok_or_else(|| "not an address family; write ipv4, ipv6 or ipv4-mapped-ipv6".to_owned())
}

/// Runs the scripts. Returns an error if one of them fails.
pub(crate) fn run_scripts(args: &ScriptArgs) -> Result<()> {
    let mut files = Vec::new();
    for path in &args.files {
        collect(path, &mut files)?;
    }
    let flags = args.so_flags.as_deref();
    let library = args.so.as_deref().map(|path| Library::open(path, flags));
    let library = library.transpose().map_err(anyhow::Error::msg)?;
    let mut failed = 0;
    for file in &files {
        failed += usize::from(!run_file(file, args, library.as_ref())?);
    }
    if files.len() > 1 {
        outln!("{} of {} scripts passed", files.len() - failed, files.len());
    }
    if failed > 0 {
        bail!("{failed} of {} scripts failed", files.len());
    }
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() || path.extension().is_some_and(|ext| ext == "pkt") {
            collect(&path, files)?;
        }
    }
    Ok(())
}

fn run_file(path: &Path, args: &ScriptArgs, library: Option<&Library>) -> Result<bool> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| name.to_string())?;
    let runs = match runs(&text, args) {
        Ok(runs) => runs,
        Err(error) => {
            outln!("{name}:{error}");
            return Ok(false);
        }
    };
    let mut passed = true;
    for (script, family) in &runs {
        let result = match library {
            Some(library) => run_through(library, script, *family),
            None => run(script, *family),
        };
        match result {
            Ok(report) => {
                outln!("{name}: {} passed", family.name());
                let skipped = report.skipped.iter();
                skipped.for_each(|command| outln!("  not supported, skipped: {command}"));
                if args.verbose {
                    report.trace.iter().for_each(|line| outln!("  {line}"));
                }
            }
            Err(failure) => {
                passed = false;
                let text = failure.to_string();
                let shown = if args.quiet { 1 } else { usize::MAX };
                let lines: Vec<&str> = text.lines().take(shown).collect();
                outln!("{name}:{}", lines.join("\n"));
            }
        }
    }
    Ok(passed)
}

/// Returns a script for each address family that it must run with.
fn runs(text: &str, args: &ScriptArgs) -> Result<Vec<(Script, Family)>, ScriptError> {
    let mut runs = Vec::new();
    for family in Family::ALL {
        let mut script = parse(&define(text, &args.overrides.names(family)))?;
        let selected = args
            .ip_version
            .is_none_or(|only_family| only_family == family);
        if selected && families(&script)?.contains(&family) {
            script.settings.extend(args.overrides.settings(family));
            runs.push((script, family));
        }
    }
    Ok(runs)
}
