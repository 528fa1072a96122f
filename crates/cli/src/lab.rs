//! `fullsend lab`: experiments beside their references.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use fullsend_lab::{
    EXPERIMENTS, Experiment, ExperimentResult, Plan, Scale, TraceConfig, by_name, quantized, table,
    tally, trace,
};
use fullsend_wire::Nanos;

use crate::output::{self, Stdout};

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// List the experiments: what each shows, and the source of its reference figures.
    List,
    /// Run experiments, each before and after, and print the figures beside the reference's.
    ///
    /// Experiments run in virtual time: the same seed gives the same figures on any machine. Only
    /// gro-parse measures real time too, and reports so.
    Run(RunArgs),
    /// Print the packets of a small run of an experiment, as tcpdump does.
    Trace(TraceArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Experiments by name, or all.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Print the results as one JSON object.
    #[arg(short = 'J', long)]
    json: bool,
    /// Write a self-contained report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Cases to run concurrently [default: the number of processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

#[derive(Args)]
pub(crate) struct TraceArgs {
    /// The experiment.
    name: String,
    /// Also write the packets to this file, as pcapng.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Run the case with the old behaviour.
    #[arg(long, visible_alias = "legacy")]
    before: bool,
    /// Print packets as on the wire, instead of super-segments as TCP passes them to the card.
    #[arg(long)]
    wire: bool,
    /// Seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(lab: Lab) -> Result<()> {
    match lab {
        Lab::List => list(&mut Stdout),
        Lab::Run(args) => run_experiments(&args),
        Lab::Trace(args) => trace_experiment(&args),
    }
}

fn list(out: &mut impl Write) -> Result<()> {
    for experiment in EXPERIMENTS {
        writeln!(out, "{}", experiment.name)?;
        writeln!(out, "    {}", experiment.purpose)?;
        writeln!(out, "    {}", experiment.source)?;
    }
    Ok(())
}

/// Returns the real time since the first call, for measurements in real time.
fn since_start() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    Nanos::from_nanos(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
}

/// Returns the experiments with these names, in the order given, without duplicates.
fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let mut out: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let experiment = by_name(name).map_err(|error| anyhow!("{error}, all"))?;
        if !out.iter().any(|other| other.name == experiment.name) {
            out.push(experiment);
        }
    }
    Ok(out)
}

fn run_experiments(args: &RunArgs) -> Result<()> {
    let plan = Plan::new(chosen(&args.names)?, args.seed, Scale::Full).with_clock(since_start);
    // The report's file is created first, so that a path that cannot be written costs no time.
    let html = args
        .html
        .as_ref()
        .map(|path| create(path).map(|file| (file, path)));
    let html = html.transpose()?;
    let threads = args.threads.map_or_else(
        || thread::available_parallelism().map_or(2, usize::from),
        usize::from,
    );
    let outcomes = with_bar(&plan, || plan.run(threads));
    if args.json {
        let document = serde_json::json!({ "seed": args.seed, "experiments": outcomes });
        outln!("{document}");
    } else {
        out!("{}", table(&outcomes));
        let (held, all) = tally(&outcomes);
        outln!(
            "\n{held} of {all} figures are as expected (in virtual time, except those marked \
             measured; seed {})",
            args.seed
        );
        if let [one] = &outcomes[..] {
            out!("{}", histograms(one));
        }
    }
    if let Some((mut file, path)) = html {
        let page = fullsend_lab::html(&outcomes, args.seed);
        let written = file.write_all(page.as_bytes()).and_then(|()| file.flush());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    match tally(&outcomes) {
        (held, all) if held == all => Ok(()),
        (held, all) => bail!(
            "{} of {all} figures are not as expected; see the verdicts marked NOT",
            all - held
        ),
    }
}

/// Formats the histograms of an experiment's cases, like DTrace.
fn histograms(outcome: &ExperimentResult) -> String {
    let mut out = String::new();
    for case in &outcome.cases {
        for histogram in &case.measures.histograms {
            let title = format!("\n{} ({})\n", histogram.name, case.name);
            out.push_str(&title);
            out.push_str(&quantized(histogram));
        }
    }
    out
}

fn create(path: &PathBuf) -> Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// Shows a progress bar on standard error during `work`, if that is a terminal.
fn with_bar<R>(plan: &Plan, work: impl FnOnce() -> R) -> R {
    if !io::stderr().is_terminal() {
        return work();
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let shown = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                err!("\r\x1b[K{}", bar(plan.progress(), &plan.running_cases()));
                thread::park_timeout(Duration::from_millis(200));
            }
            err!("\r\x1b[K");
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        shown.thread().unpark();
        result
    })
}

fn bar(part: f64, running_cases: &str) -> String {
    const WIDTH: usize = 30;
    let full = ((part * WIDTH as f64) as usize).min(WIDTH);
    let mut line = format!(
        "[{}{}] {:3.0} %  {running_cases}",
        "#".repeat(full),
        ".".repeat(WIDTH - full),
        part * 100.0
    );
    line.truncate(100);
    line
}

fn trace_experiment(args: &TraceArgs) -> Result<()> {
    let experiment = by_name(&args.name).map_err(|error| anyhow!(error))?;
    let pcap = args.pcap.as_ref().map(create).transpose()?;
    let config = TraceConfig {
        case: usize::from(!args.before),
        seed: args.seed,
        wire: args.wire,
    };
    let text = Box::new(BufWriter::new(io::stdout()));
    let pcap = pcap.map(|file| Box::new(file) as Box<dyn Write + Send>);
    match trace(experiment, config, text, pcap) {
        // The reader, e.g. `head`, has closed the pipe. The capture is complete up to here.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => output::exit_broken_pipe(),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::{bar, chosen, list};

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar(0.0, ""), format!("[{}]   0 %  ", ".".repeat(30)));
        assert_eq!(bar(1.0, "x"), format!("[{}] 100 %  x", "#".repeat(30)));
    }

    #[test]
    fn an_unknown_name_lists_the_experiments() {
        let error = chosen(&["tso".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("`tso`") && error.contains("tso-split"),
            "{error}"
        );
    }

    #[test]
    fn names_are_deduplicated_and_all_selects_all() {
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            chosen(&names(&["tso-split", "tso-split"])).unwrap().len(),
            1
        );
        let mut out = Vec::new();
        list(&mut out).unwrap();
        let listed = String::from_utf8(out).unwrap().lines().count();
        assert_eq!(chosen(&names(&["all"])).unwrap().len() * 3, listed);
    }
}
